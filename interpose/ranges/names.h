// The names behind handles of NVTX, in a table that only grows: domains, registered strings and categories are few. Any
// thread, no lock; texts are copied, and kept for ever because another thread may still read one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::ranges {

// Not 0, one for each thing that has a name; `in` is the handle of its domain, or 0.
enum class Named : uint64_t { kDomain = 1, kString, kCategory };
uint64_t key_of(Named what, const void* in, uint64_t handle);

// Returns the copy, by which the thing is known if nobody else names it; null: no memory, or `text` is null.
const char* keep_name(const char* text);
const char* keep_name(const wchar_t* text);  // as UTF-8
void set_name(uint64_t key, const char* kept);
const char* name_of(uint64_t key);  // "" if it has none

// UTF-8 of at most `size` - 1 bytes, whole letters.
void to_utf8(const wchar_t* text, char* out, size_t size);

}  // namespace tessera::ranges

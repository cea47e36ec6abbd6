#include "interpose/ranges/names.h"

#include <atomic>
#include <cstring>

#include "base/claimed_key.h"
#include "base/hash.h"

namespace tessera::ranges {
namespace {

struct Name {
  std::atomic<uint64_t> key;
  std::atomic<const char*> text;  // the last one counts: a handle may be used again
};
constexpr uint32_t kNames = 4096, kMostLookedAt = 64;
constinit Name g_names[kNames] = {};
constexpr size_t kMostBytes = 256;

Name* find(uint64_t key, bool claim) {
  const auto key_at = [](uint32_t i) -> std::atomic<uint64_t>& { return g_names[i].key; };
  const base::ClaimedKey found = base::find_key(key_at, kNames, kMostLookedAt, key, claim);
  return found.at < 0 ? nullptr : &g_names[found.at];
}

}  // namespace

uint64_t key_of(Named what, const void* in, uint64_t handle) {
  const uint64_t key = base::combine(base::combine(uint64_t(what), reinterpret_cast<uint64_t>(in)), handle);
  return key == 0 ? 1 : key;
}

const char* keep_name(const char* text) {
  return text ? strndup(text, kMostBytes) : nullptr;
}

const char* keep_name(const wchar_t* text) {
  if (!text) return nullptr;
  char utf8[kMostBytes];
  to_utf8(text, utf8, sizeof utf8);
  return strdup(utf8);
}

void set_name(uint64_t key, const char* kept) {
  if (!kept) return;
  if (Name* name = find(key, true)) name->text.store(kept, std::memory_order_release);  // pairs with name_of
}

const char* name_of(uint64_t key) {
  const Name* name = find(key, false);
  const char* text = name ? name->text.load(std::memory_order_acquire) : nullptr;
  return text ? text : "";
}

void to_utf8(const wchar_t* text, char* out, size_t size) {
  constexpr uint32_t kFirstOf[] = {0, 0x80, 0x800, 0x10000,
                                   0x110000};  // letters by their number of bytes, less one
  constexpr uint32_t kMark[] = {0, 0, 0xc0, 0xe0, 0xf0};
  size_t at = 0;
  for (; *text; text++) {
    uint32_t letter = uint32_t(*text);
    if (letter >= kFirstOf[4]) letter = 0xfffd;
    uint32_t bytes = 1;
    while (letter >= kFirstOf[bytes]) bytes++;
    if (at + bytes >= size) break;
    for (uint32_t i = bytes - 1; i > 0; i--, letter >>= 6) out[at + i] = char(0x80 | (letter & 0x3f));
    out[at] = char(kMark[bytes] | letter);
    at += bytes;
  }
  out[at] = 0;
}

}  // namespace tessera::ranges

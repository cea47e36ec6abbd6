// What a loaded object exports, by the tables that the loader itself uses. For libtessera_audit.so, which has no libc and may
// not call the loader. Nothing is kept but pointers into the object: valid while it is loaded. Any thread, no lock.
#pragma once

#include <link.h>

#include <cstdint>

namespace tessera::audit {

// Strings without libc.
bool equal(const char* a, const char* b);
bool starts_with(const char* text, const char* beginning);
const char* file_name(const char* path);  // behind the last slash

class Exports {
 public:
  constexpr Exports() = default;
  explicit Exports(const link_map* map);

  // Address of what is exported under this name; null if there is nothing. `version`: null = whatever it has.
  void* find(const char* name, const char* version) const;
  // Its SONAME; "" if it has none.
  const char* soname() const { return strings_ ? strings_ + soname_ : ""; }

 private:
  bool has_version(uint32_t symbol, const char* version) const;
  template <class T>
  const T* table(const ElfW(Dyn) & entry) const;

  uintptr_t base_ = 0;
  const ElfW(Sym) * symbols_ = nullptr;
  const char* strings_ = nullptr;
  const uint32_t* gnu_hash_ = nullptr;
  const ElfW(Half) * versions_of_symbols_ = nullptr;
  const ElfW(Verdef) * versions_ = nullptr;
  size_t soname_ = 0;  // offset; 0: the empty string
};

}  // namespace tessera::audit

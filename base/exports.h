// Finds what a loaded object exports, by the tables that the loader itself uses: no other library of the process has a say in the
// answer, whatever it overrides. Needs no libc and does not call the loader, for libtessera_audit.so has the one and may not
// do the other. Nothing is kept but pointers into the object: valid while it is loaded. Any thread, no lock.
#pragma once

#include <link.h>

#include <cstddef>
#include <cstdint>

namespace tessera::base {

// Strings without libc.
bool equal(const char* a, const char* b);
bool starts_with(const char* text, const char* beginning);
const char* file_name(const char* path);  // behind the last slash

class Exports {
 public:
  constexpr Exports() = default;
  explicit Exports(const link_map* map) : Exports(map->l_addr, map->l_ld) {}
  Exports(uintptr_t base, const ElfW(Dyn) * dynamic);

  // Address of what this object itself exports under this name; null if there is nothing. `version`: null = the default one.
  // Of an indirect function, what the object chooses: it must be relocated, so that its chooser may run.
  void* find(const char* name, const char* version) const;
  // Names that it exports, at 0 <= i < count(); null where there is none.
  size_t count() const;
  const char* name(size_t i) const;
  bool is_function(size_t i) const;
  // Its SONAME; "" if it has none.
  const char* soname() const { return strings_ ? strings_ + soname_ : ""; }

 private:
  bool is(uint32_t symbol, const char* name, const char* version) const;
  bool has_version(uint32_t symbol, const char* version) const;
  void* address(const ElfW(Sym) & symbol) const;
  template <class T>
  const T* table(const ElfW(Dyn) & entry) const;

  uintptr_t base_ = 0;
  const ElfW(Sym) * symbols_ = nullptr;
  const char* strings_ = nullptr;
  const uint32_t* gnu_hash_ = nullptr;
  const uint32_t* hash_ = nullptr;  // DT_HASH
  const ElfW(Half) * versions_of_symbols_ = nullptr;
  const ElfW(Verdef) * versions_ = nullptr;
  size_t soname_ = 0;  // offset; 0: the empty string
};

}  // namespace tessera::base

#include "interpose/audit/symbols.h"

namespace tessera::audit {
namespace {

uint32_t gnu_hash_of(const char* name) {
  uint32_t hash = 5381;
  for (; *name; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
  return hash;
}

template <class T>
const T* behind(const T* entry, uint32_t bytes) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(entry) + bytes);
}

}  // namespace

bool equal(const char* a, const char* b) {
  while (*a && *a == *b) ++a, ++b;
  return *a == *b;
}

bool starts_with(const char* text, const char* beginning) {
  while (*beginning && *text == *beginning) ++text, ++beginning;
  return *beginning == 0;
}

const char* file_name(const char* path) {
  const char* name = path;
  for (; *path; ++path)
    if (*path == '/') name = path + 1;
  return name;
}

// The loader makes addresses of the offsets in place, unless the section is read-only.
template <class T>
const T* Exports::table(const ElfW(Dyn) & entry) const {
  const uintptr_t at = entry.d_un.d_ptr;
  return reinterpret_cast<const T*>(at < base_ ? at + base_ : at);
}

Exports::Exports(const link_map* map) : base_(map->l_addr) {
  for (const ElfW(Dyn)* d = map->l_ld; d && d->d_tag != DT_NULL; ++d) {
    switch (d->d_tag) {
      case DT_SYMTAB:
        symbols_ = table<ElfW(Sym)>(*d);
        break;
      case DT_STRTAB:
        strings_ = table<char>(*d);
        break;
      case DT_GNU_HASH:
        gnu_hash_ = table<uint32_t>(*d);
        break;
      case DT_VERSYM:
        versions_of_symbols_ = table<ElfW(Half)>(*d);
        break;
      case DT_VERDEF:
        versions_ = table<ElfW(Verdef)>(*d);
        break;
      case DT_SONAME:
        soname_ = d->d_un.d_val;
        break;
      default:
        break;
    }
  }
}

bool Exports::has_version(uint32_t symbol, const char* version) const {
  if (!version) return true;
  if (!versions_of_symbols_ || !versions_) return false;
  const unsigned wanted = versions_of_symbols_[symbol] & 0x7fffu;  // the highest bit: not the default one
  for (const ElfW(Verdef)* v = versions_;; v = behind(v, v->vd_next)) {
    if (v->vd_ndx == wanted) {
      const auto* aux = reinterpret_cast<const ElfW(Verdaux)*>(reinterpret_cast<const char*>(v) + v->vd_aux);
      return equal(strings_ + aux->vda_name, version);
    }
    if (v->vd_next == 0) return false;
  }
}

// DT_GNU_HASH: buckets, first symbol, words of the filter (not looked at), its shift; filter; buckets; chains, whose last
// hash is odd.
void* Exports::find(const char* name, const char* version) const {
  if (!gnu_hash_ || !symbols_ || !strings_ || gnu_hash_[0] == 0) return nullptr;
  const uint32_t buckets = gnu_hash_[0], first = gnu_hash_[1], filter_words = gnu_hash_[2];
  const uint32_t* bucket = gnu_hash_ + 4 + filter_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t* chain = bucket + buckets;
  const uint32_t hash = gnu_hash_of(name);
  uint32_t i = bucket[hash % buckets];
  if (i < first) return nullptr;
  for (;; ++i) {
    const ElfW(Sym)& symbol = symbols_[i];
    if ((chain[i - first] | 1) == (hash | 1) && symbol.st_shndx != SHN_UNDEF &&
        equal(strings_ + symbol.st_name, name) && has_version(i, version))
      return reinterpret_cast<void*>(base_ + symbol.st_value);
    if (chain[i - first] & 1) return nullptr;
  }
}

}  // namespace tessera::audit

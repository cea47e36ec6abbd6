#include "base/exports.h"

#include "base/machine.h"

namespace tessera::base {
namespace {

uint32_t gnu_hash_of(const char* name) {
  uint32_t hash = 5381;
  for (; *name; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
  return hash;
}

uint32_t old_hash_of(const char* name) {
  uint32_t hash = 0;
  for (; *name; ++name) {
    hash = (hash << 4) + static_cast<unsigned char>(*name);
    const uint32_t high = hash & 0xf0000000u;
    hash = (hash ^ (high >> 24)) & ~high;
  }
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

Exports::Exports(uintptr_t base, const ElfW(Dyn) * dynamic) : base_(base) {
  for (const ElfW(Dyn)* d = dynamic; d && d->d_tag != DT_NULL; ++d) {
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
      case DT_HASH:
        hash_ = table<uint32_t>(*d);
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
  constexpr unsigned kNotTheDefault = 0x8000;
  if (!version) return !versions_of_symbols_ || (versions_of_symbols_[symbol] & kNotTheDefault) == 0;
  if (!versions_of_symbols_ || !versions_) return false;
  const unsigned wanted = versions_of_symbols_[symbol] & ~kNotTheDefault;
  for (const ElfW(Verdef)* v = versions_;; v = behind(v, v->vd_next)) {
    if (v->vd_ndx == wanted) {
      const auto* aux = reinterpret_cast<const ElfW(Verdaux)*>(reinterpret_cast<const char*>(v) + v->vd_aux);
      return equal(strings_ + aux->vda_name, version);
    }
    if (v->vd_next == 0) return false;
  }
}

const char* Exports::name(size_t i) const {
  const ElfW(Sym)& symbol = symbols_[i];
  const bool here = symbol.st_shndx != SHN_UNDEF && symbol.st_shndx != SHN_ABS;
  const bool exported =
      ELF64_ST_BIND(symbol.st_info) != STB_LOCAL && ELF64_ST_TYPE(symbol.st_info) != STT_TLS;
  return here && exported ? strings_ + symbol.st_name : nullptr;
}

bool Exports::is_function(size_t i) const {
  const unsigned type = ELF64_ST_TYPE(symbols_[i].st_info);
  return type == STT_FUNC || type == STT_GNU_IFUNC;
}

bool Exports::is(uint32_t symbol, const char* wanted, const char* version) const {
  const char* has = name(symbol);
  return has && equal(has, wanted) && has_version(symbol, version);
}

void* Exports::address(const ElfW(Sym) & symbol) const {
  const uintptr_t at = base_ + symbol.st_value;
  if (ELF64_ST_TYPE(symbol.st_info) == STT_GNU_IFUNC) return chosen_by(at);
  return reinterpret_cast<void*>(at);
}

// DT_GNU_HASH: buckets, first symbol, words of the filter (not looked at), its shift; filter; buckets; chains, whose last
// hash is odd. DT_HASH: buckets, symbols; buckets; chains, which end at symbol 0.
void* Exports::find(const char* wanted, const char* version) const {
  if (!symbols_ || !strings_) return nullptr;
  if (gnu_hash_ && gnu_hash_[0] != 0) {
    const uint32_t buckets = gnu_hash_[0], first = gnu_hash_[1], filter_words = gnu_hash_[2];
    const uint32_t* bucket = gnu_hash_ + 4 + filter_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t* chain = bucket + buckets;
    const uint32_t hash = gnu_hash_of(wanted);
    uint32_t i = bucket[hash % buckets];
    if (i < first) return nullptr;
    for (;; ++i) {
      if ((chain[i - first] | 1) == (hash | 1) && is(i, wanted, version)) return address(symbols_[i]);
      if (chain[i - first] & 1) return nullptr;
    }
  }
  if (!hash_ || hash_[0] == 0) return nullptr;
  const uint32_t* bucket = hash_ + 2;
  const uint32_t* chain = bucket + hash_[0];
  for (uint32_t i = bucket[old_hash_of(wanted) % hash_[0]]; i != 0; i = chain[i])
    if (is(i, wanted, version)) return address(symbols_[i]);
  return nullptr;
}

// DT_GNU_HASH does not store the number of symbols: it is one past the last entry of the last chain.
size_t Exports::count() const {
  if (!symbols_ || !strings_) return 0;
  if (hash_) return hash_[1];
  if (!gnu_hash_) return 0;
  const uint32_t buckets = gnu_hash_[0], first = gnu_hash_[1], filter_words = gnu_hash_[2];
  const uint32_t* bucket = gnu_hash_ + 4 + filter_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t* chain = bucket + buckets;
  uint32_t last = 0;
  for (uint32_t i = 0; i < buckets; ++i)
    if (bucket[i] > last) last = bucket[i];
  if (last < first) return first;
  while ((chain[last - first] & 1) == 0) ++last;
  return last + 1;
}

}  // namespace tessera::base

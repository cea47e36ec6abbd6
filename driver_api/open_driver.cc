#include "driver_api/open_driver.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "driver_api/answers.h"
#include "driver_api/old_lookup.h"

namespace tessera::driver_api {
namespace {

bool same_file(const char* a, const char* b) {
  struct stat x, y;
  return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

const char* object_of(const void* address) {
  Dl_info where;
  return dladdr(address, &where) != 0 ? where.dli_fname : nullptr;
}

link_map* map_of(void* handle) {
  link_map* map = nullptr;
  return dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 ? map : nullptr;
}

bool inside(const link_map* map, const void* address) {
  Dl_info where;
  return dladdr(address, &where) != 0 && reinterpret_cast<uintptr_t>(where.dli_fbase) == map->l_addr;
}

// glibc relocates the pointers of the dynamic section in place on x86-64.
template <class T>
const T* dynamic(const link_map* map, ElfW(Sxword) tag) {
  for (const ElfW(Dyn)* d = map->l_ld; d->d_tag != DT_NULL; ++d) {
    if (d->d_tag == tag) return reinterpret_cast<const T*>(d->d_un.d_ptr);
  }
  return nullptr;
}
size_t dynamic_value(const link_map* map, ElfW(Sxword) tag) {
  return reinterpret_cast<size_t>(dynamic<void>(map, tag));
}

// Looks at every word that the loader filled with the address of a cu* symbol (the object was opened
// RTLD_NOW, so all are bound) and counts those that point out of the driver although it defines the symbol.
unsigned captured_relocations(const link_map* map) {
  const auto* symbols = dynamic<ElfW(Sym)>(map, DT_SYMTAB);
  const char* names = dynamic<char>(map, DT_STRTAB);
  if (symbols == nullptr || names == nullptr) return 0;
  const struct {
    const ElfW(Rela) * first;
    size_t bytes;
  } tables[] = {{dynamic<ElfW(Rela)>(map, DT_JMPREL), dynamic_value(map, DT_PLTRELSZ)},
                {dynamic<ElfW(Rela)>(map, DT_RELA), dynamic_value(map, DT_RELASZ)}};
  unsigned captured = 0;
  for (const auto& table : tables) {
    if (table.first == nullptr) continue;
    for (size_t i = 0; i < table.bytes / sizeof(ElfW(Rela)); ++i) {
      const ElfW(Rela)& r = table.first[i];
      const auto type = ELF64_R_TYPE(r.r_info);
      if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT && type != R_X86_64_64) continue;
      const ElfW(Sym)& symbol = symbols[ELF64_R_SYM(r.r_info)];
      if (symbol.st_shndx == SHN_UNDEF || std::strncmp(names + symbol.st_name, "cu", 2) != 0) continue;
      const void* bound;
      std::memcpy(&bound, reinterpret_cast<const void*>(map->l_addr + r.r_offset), sizeof bound);
      if (!inside(map, bound)) ++captured;
    }
  }
  return captured;
}

// A driver without cuGetProcAddress (before 11.3) has nothing to ask: that counts as sane.
bool lookup_inside(void* handle, const link_map* map) {
  using Lookup = CUresult (*)(const char*, void**, int, cuuint64_t);
  const auto lookup = reinterpret_cast<Lookup>(dlsym(handle, "cuGetProcAddress"));
  if (lookup == nullptr) return true;
  void* answer = nullptr;
  if (lookup("cuLaunchKernel", &answer, 11030, 0) != CUDA_SUCCESS || answer == nullptr) return true;
  return inside(map, answer);
}

// RTLD_DEEPBIND would bind malloc past a sanitizer (AddressSanitizer aborts the program for it).
bool sanitizer_loaded() {
  for (const char* marker : {"__asan_init", "__tsan_init", "__msan_init"}) {
    if (dlsym(RTLD_DEFAULT, marker) != nullptr) return true;
  }
  return false;
}

void inspect(OpenedDriver* driver) {
  const link_map* map = map_of(driver->handle);
  if (map == nullptr) return;
  driver->map = map;
  driver->captured_relocations = captured_relocations(map);
  driver->lookup_inside = lookup_inside(driver->handle, map);
}

void fill(OpenedDriver* driver, RealDriver* table) {
  void** slots = reinterpret_cast<void**>(table);
  for (uint16_t i = 0; i < kEntryCount; ++i) {
    void* address = dlsym(driver->handle, kEntryInfo[i].symbol);
    if (address == nullptr) {
      address = reinterpret_cast<void*>(&tessera_answer_not_supported);
      ++driver->entries_missing;
    }
    slots[i] = address;
  }
  const auto missing = [slots](Entry e) {
    return slots[static_cast<uint16_t>(e)] == reinterpret_cast<void*>(&tessera_answer_not_supported);
  };
  if (missing(Entry::cuGetProcAddress)) table->cuGetProcAddress = &old_lookup;
  if (missing(Entry::cuGetProcAddress_v2)) table->cuGetProcAddress_v2 = &old_lookup_v2;
}

// DT_GNU_HASH does not store the number of symbols: it is one past the last entry of the last chain.
size_t symbol_count(const link_map* map) {
  if (const auto* hash = dynamic<uint32_t>(map, DT_HASH)) return hash[1];
  const auto* gnu = dynamic<uint32_t>(map, DT_GNU_HASH);
  if (gnu == nullptr) return 0;
  const uint32_t buckets = gnu[0], first = gnu[1], bloom_words = gnu[2];
  const uint32_t* bucket = gnu + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t* chain = bucket + buckets;
  uint32_t last = 0;
  for (uint32_t i = 0; i < buckets; ++i) last = std::max(last, bucket[i]);
  if (last < first) return first;
  while ((chain[last - first] & 1) == 0) ++last;
  return last + 1;
}

bool is_open(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (handle != nullptr) dlclose(handle);
  return handle != nullptr;
}

// A copy of this library under another inode answers to the same marker.
bool is_a_shim(void* handle) {
  return dlsym(handle, "tessera_shim_marker") != nullptr;
}

}  // namespace

OpenedDriver open_driver(const SearchPlaces& places, const void* self, RealDriver* table) {
  OpenedDriver driver;
  const char* own_file = object_of(self);
  for (const std::string& path : driver_candidates(places)) {
    if (is_toolkit_stub(path) || (own_file != nullptr && same_file(own_file, path.c_str()))) continue;
    const bool was_open = is_open(path);
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) continue;  // wrong ELF class or a missing dependency: the loader too would go on
    if (is_a_shim(handle)) {
      dlclose(handle);
      continue;
    }
    driver.found = true;
    driver.handle = handle;
    driver.path = path;
    driver.was_open = was_open;
    break;
  }
  if (!driver.found) {
    fill_without_driver(table);
    return driver;
  }
  inspect(&driver);
  if ((driver.captured_relocations > 0 || !driver.lookup_inside) && !sanitizer_loaded()) {
    dlclose(driver.handle);
    void* again = dlopen(driver.path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (again == nullptr) again = dlopen(driver.path.c_str(), RTLD_NOW | RTLD_LOCAL);
    driver.handle = again;
    driver.reopened_deepbind = true;
    if (again == nullptr) {
      driver.found = false;
      fill_without_driver(table);
      return driver;
    }
    inspect(&driver);
  }
  fill(&driver, table);
  return driver;
}

std::vector<std::string> unlisted_exports(void* handle) {
  std::vector<std::string> out;
  const link_map* map = map_of(handle);
  if (map == nullptr) return out;
  const auto* symbols = dynamic<ElfW(Sym)>(map, DT_SYMTAB);
  const char* names = dynamic<char>(map, DT_STRTAB);
  for (size_t i = 0; symbols != nullptr && names != nullptr && i < symbol_count(map); ++i) {
    const char* name = names + symbols[i].st_name;
    const bool exported = symbols[i].st_shndx != SHN_UNDEF && ELF64_ST_BIND(symbols[i].st_info) != STB_LOCAL;
    const bool driver_name = name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
    if (exported && driver_name && find_entry(name) == Entry::kCount) out.emplace_back(name);
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace tessera::driver_api

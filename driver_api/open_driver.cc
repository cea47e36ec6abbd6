#include "driver_api/open_driver.h"

#include <elf.h>
#include <link.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "base/exports.h"
#include "base/loader.h"
#include "base/machine.h"
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
  return base::loader().dladdr(address, &where) != 0 ? where.dli_fname : nullptr;
}

link_map* map_of(void* handle) {
  link_map* map = nullptr;
  return base::loader().dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 ? map : nullptr;
}

// The place where the loader has mapped an object; empty if it is not in our namespace.
struct Mapping {
  const link_map* map;
  uintptr_t first = UINTPTR_MAX, end = 0;

  bool holds(const void* address) const {
    const auto at = reinterpret_cast<uintptr_t>(address);
    return at >= first && at < end;
  }
};

int measure(dl_phdr_info* object, size_t, void* mapping) {
  auto& out = *static_cast<Mapping*>(mapping);
  uintptr_t first = UINTPTR_MAX, end = 0, dynamic = 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = object->dlpi_phdr[i];
    const uintptr_t at = object->dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_DYNAMIC) dynamic = at;
    if (header.p_type != PT_LOAD) continue;
    first = std::min(first, at);
    end = std::max(end, at + header.p_memsz);
  }
  if (dynamic != reinterpret_cast<uintptr_t>(out.map->l_ld)) return 0;
  out.first = first;
  out.end = end;
  return 1;
}

Mapping mapping_of(const link_map* map) {
  Mapping out{map};
  dl_iterate_phdr(measure, &out);
  return out;
}

// glibc relocates the pointers of the dynamic section in place, on these machines.
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
  const Mapping mapping = mapping_of(map);
  unsigned captured = 0;
  for (const auto& table : tables) {
    if (table.first == nullptr) continue;
    for (size_t i = 0; i < table.bytes / sizeof(ElfW(Rela)); ++i) {
      const ElfW(Rela)& r = table.first[i];
      const auto type = ELF64_R_TYPE(r.r_info);
      if (type != base::kRelocatesCall && type != base::kRelocatesAddress && type != base::kRelocatesWord)
        continue;
      const ElfW(Sym)& symbol = symbols[ELF64_R_SYM(r.r_info)];
      if (symbol.st_shndx == SHN_UNDEF || std::strncmp(names + symbol.st_name, "cu", 2) != 0) continue;
      const void* bound;
      std::memcpy(&bound, reinterpret_cast<const void*>(map->l_addr + r.r_offset), sizeof bound);
      if (!mapping.holds(bound)) ++captured;
    }
  }
  return captured;
}

// A driver without cuGetProcAddress (before 11.3) has nothing to ask: that counts as sane.
bool lookup_inside(const link_map* map) {
  using Lookup = CUresult (*)(const char*, void**, int, cuuint64_t);
  const auto lookup = reinterpret_cast<Lookup>(base::Exports(map).find("cuGetProcAddress", nullptr));
  if (lookup == nullptr) return true;
  void* answer = nullptr;
  if (lookup("cuLaunchKernel", &answer, 11030, 0) != CUDA_SUCCESS || answer == nullptr) return true;
  return mapping_of(map).holds(answer);
}

// RTLD_DEEPBIND would bind malloc past a sanitizer (AddressSanitizer aborts the program for it).
bool sanitizer_loaded() {
  const base::Loader loader = base::loader();
  for (const char* marker : {"__asan_init", "__tsan_init", "__msan_init"}) {
    if (loader.dlsym(RTLD_DEFAULT, marker) != nullptr) return true;
  }
  return false;
}

// False: its handle has no map, so that nothing can be read from it.
bool inspect(OpenedDriver* driver) {
  const link_map* map = driver->handle != nullptr ? map_of(driver->handle) : nullptr;
  if (map == nullptr) return false;
  driver->map = map;
  driver->captured_relocations = captured_relocations(map);
  driver->lookup_inside = lookup_inside(map);
  return true;
}

void* const kMissing = reinterpret_cast<void*>(&tessera_answer_not_supported);

void* found_in(const base::Exports& exports, const Mapping& mapping, const char* name) {
  void* address = exports.find(name, nullptr);
  return mapping.holds(address) ? address : kMissing;
}

// Reads the symbol table itself: a dlsym of the process may answer by functions that lead back to this library.
void fill(OpenedDriver* driver, RealDriver* table) {
  void** slots = reinterpret_cast<void**>(table);
  const base::Exports exports(driver->map);
  const Mapping mapping = mapping_of(driver->map);
  const auto missing = [slots](Entry e) { return slots[static_cast<uint16_t>(e)] == kMissing; };
  for (uint16_t i = 0; i < kEntryCount; ++i) {
    slots[i] = found_in(exports, mapping, kEntryInfo[i].symbol);
    driver->entries_missing += missing(static_cast<Entry>(i));
  }
  if (missing(Entry::cuGetProcAddress)) table->cuGetProcAddress = &old_lookup;
  if (missing(Entry::cuGetProcAddress_v2)) table->cuGetProcAddress_v2 = &old_lookup_v2;
}

bool is_open(const base::Loader& loader, const std::string& path) {
  void* handle = loader.dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (handle != nullptr) loader.dlclose(handle);
  return handle != nullptr;
}

// A copy of this library under another inode answers to the same marker.
bool is_a_shim(void* handle) {
  const link_map* map = map_of(handle);
  return map != nullptr && base::Exports(map).find("tessera_shim_marker", nullptr) != nullptr;
}

}  // namespace

OpenedDriver open_driver(const SearchPlaces& places, const void* self, RealDriver* table) {
  const base::Loader loader = base::loader();
  OpenedDriver driver;
  const char* own_file = object_of(self);
  for (const std::string& path : driver_candidates(places)) {
    if (is_toolkit_stub(path) || (own_file != nullptr && same_file(own_file, path.c_str()))) continue;
    const bool was_open = is_open(loader, path);
    void* handle = loader.dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) continue;  // wrong ELF class or a missing dependency: the loader too would go on
    if (is_a_shim(handle)) {
      loader.dlclose(handle);
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
  bool readable = inspect(&driver);
  if (readable && (driver.captured_relocations > 0 || !driver.lookup_inside) && !sanitizer_loaded()) {
    loader.dlclose(driver.handle);
    void* again = loader.dlopen(driver.path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (again == nullptr) again = loader.dlopen(driver.path.c_str(), RTLD_NOW | RTLD_LOCAL);
    driver.handle = again;
    driver.reopened_deepbind = true;
    readable = inspect(&driver);
  }
  if (!readable) {
    driver.found = false;
    driver.map = nullptr;
    fill_without_driver(table);
    return driver;
  }
  fill(&driver, table);
  return driver;
}

void* function_of(const link_map* map, const char* name) {
  if (map == nullptr) return reinterpret_cast<void*>(&tessera_answer_no_device);
  return found_in(base::Exports(map), mapping_of(map), name);
}

std::vector<std::string> unlisted_exports(void* handle) {
  std::vector<std::string> out;
  const link_map* map = map_of(handle);
  if (map == nullptr) return out;
  const base::Exports exports(map);
  for (size_t i = 0; i < exports.count(); ++i) {
    const char* name = exports.name(i);
    const bool driver_name = name && name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
    if (driver_name && exports.is_function(i) && find_entry(name) == Entry::kCount) out.emplace_back(name);
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace tessera::driver_api

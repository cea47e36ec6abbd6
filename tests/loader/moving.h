// A library that is closed and comes back elsewhere when it is opened again.
#pragma once

#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <sys/mman.h>

namespace loader {

// Closes the library and takes its place, up to its dynamic section. False: it stays loaded.
inline bool close_for_good(void* library) {
  const link_map* map = nullptr;
  if (!library || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return false;
  void* const place = reinterpret_cast<void*>(map->l_addr);
  const size_t bytes = reinterpret_cast<uintptr_t>(map->l_ld) - map->l_addr;
  if (dlclose(library) != 0) return false;
  return mmap(place, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == place;
}

}  // namespace loader

// Opens the real driver and fills a RealDriver. Called once by interpose/entry, by one thread, with no lock
// that a driver constructor could want; the driver's constructors run inside. Allocates; never prints, never
// exits.
#pragma once

#include <string>
#include <vector>

#include "driver_api/find_driver.h"
#include "driver_api/real_table.h"

struct link_map;

namespace tessera::driver_api {

struct OpenedDriver {
  bool found = false;             // false: table holds fill_without_driver()
  void* handle = nullptr;         // never closed
  const link_map* map = nullptr;  // the handle's
  std::string path;               // absolute
  unsigned entries_missing = 0;   // rows that it does not export
  // References of the driver to its own entry points that the loader bound to somebody else (us): > 0 means
  // that the driver was linked without -Bsymbolic. Counted after the reopening below.
  unsigned captured_relocations = 0;
  bool lookup_inside = false;  // its cuGetProcAddress answers with addresses in its own mapping
  bool reopened_deepbind = false;
  bool was_open = false;  // somebody had opened it by its path before
};

// `self`: an address inside the library that must not be opened as "the driver" (ours, by inode of its file).
OpenedDriver open_driver(const SearchPlaces& places, const void* self, RealDriver* table);

// Functions cuX that an opened driver exports and entries.def does not list, sorted: what a program cannot find
// by dlsym through libtessera.so itself (cli/run/newer_names.h). Walks the whole symbol table.
std::vector<std::string> unlisted_exports(void* handle);

// The driver's own function of that name, whether listed or not; else what a row answers that the driver lacks. `map`: null where
// there is no driver.
void* function_of(const link_map* map, const char* name);

}  // namespace tessera::driver_api

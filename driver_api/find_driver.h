// Finds the real driver: the places in which the dynamic loader would look for libcuda.so.1, in its order.
// Slow path, called once by interpose/entry under its own lock; reads the environment and files, allocates.
// It does not open anything: the caller decides which candidates are ours, a toolkit stub, or broken.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/machine.h"

namespace tessera::driver_api {

struct SearchPlaces {
  const char* explicit_path =
      nullptr;  // TESSERA_DRIVER: a file, or a folder that holds libcuda.so.1; alone if set
  const char* opened_path = nullptr;   // a driver that the program has opened: looked at first
  const char* library_path = nullptr;  // LD_LIBRARY_PATH
  const char* cache_file = "/etc/ld.so.cache";
  std::vector<std::string> default_folders = {std::string("/lib/") + base::kLibraryFolder,
                                              std::string("/usr/lib/") + base::kLibraryFolder,
                                              "/lib64",
                                              "/usr/lib64",
                                              "/lib",
                                              "/usr/lib"};
};
// The places of this process.
SearchPlaces search_places();

// Absolute paths of existing files called libcuda.so.1, best first, without duplicates.
std::vector<std::string> driver_candidates(const SearchPlaces& places);

// The same for any library, but for the two paths of `places` that mean a driver.
std::vector<std::string> library_candidates(std::string_view soname, const SearchPlaces& places);

// Paths that an ld.so.cache (new format, "glibc-ld.so.cache1.1") lists for a library of that name for this machine.
// Garbage in gives an empty list, never an out-of-bounds read.
std::vector<std::string> cached_paths(std::string_view cache, std::string_view soname);

// The toolkit's link stub (".../stubs/libcuda.so"), which answers every call with CUDA_ERROR_STUB_LIBRARY.
bool is_toolkit_stub(const std::string& path);

}  // namespace tessera::driver_api

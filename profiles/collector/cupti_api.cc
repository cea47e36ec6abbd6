#include "profiles/collector/cupti_api.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>

namespace tessera::profiles {

bool open_cupti(CuptiApi* api, std::string* why_not) {
  const char* given = getenv("TESSERA_CUPTI");
  const char* const places[] = {given ? given : "",
                                "libcupti.so.13",
                                TESSERA_CUDA_ROOT "/lib64/libcupti.so.13",
                                TESSERA_CUDA_ROOT "/extras/CUPTI/lib64/libcupti.so.13",
                                TESSERA_CUDA_ROOT "/lib/libcupti.so.13",
                                "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13"};
  void* library = nullptr;
  for (const char* place : places)
    if (*place && (library = dlopen(place, RTLD_NOW | RTLD_LOCAL))) break;
  if (!library) {
    *why_not =
        "libcupti.so.13 is not found: install the CUDA 13 toolkit's CUPTI, or say where it is in "
        "TESSERA_CUPTI";
    return false;
  }
  // CUPTI opens its host library by name alone, which the loader finds only where the toolkit's folder is
  // configured. One that is loaded already is found by its name: so the one beside CUPTI comes first.
  char folder[PATH_MAX];
  if (dlinfo(library, RTLD_DI_ORIGIN, folder) == 0)
    dlopen((std::string(folder) + "/libnvperf_host.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* missing = nullptr;
#define TS_LOOK_UP(name)                                                  \
  api->name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name)); \
  if (!api->name && !missing) missing = #name;
  TS_CUPTI_FUNCTIONS(TS_LOOK_UP)
#undef TS_LOOK_UP
  if (!missing) return true;
  *why_not =
      std::string("this libcupti has no ") + missing + ": it is older than CUDA 13, update the toolkit";
  return false;
}

}  // namespace tessera::profiles

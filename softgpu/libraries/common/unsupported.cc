// Every export of the vendor's library that the stand-in does not compute: present, so that programs load. The definitions are
// weak: a function of the library's files takes the place of its stub at link time, so no list of what is computed is kept.
// Free of signatures on purpose: arguments are ignored, and this file must not see the real declarations.
// TESSERA_LIBRARY_EXPORTS is the list, made by gen_exports.py.
#include "softgpu/libraries/common/unsupported.h"

#include <cstdio>

namespace tessera::softgpu::libraries {

int not_supported(const char* function, const char* detail, std::atomic<bool>* said) {
  // Relaxed: nothing else is published by it.
  if (!said->exchange(true, std::memory_order_relaxed))
    std::fprintf(stderr, "softgpu: %s%s is not computed by the software GPU's %s\n", function, detail,
                 kIdentity.name);
  return kIdentity.not_supported;
}

}  // namespace tessera::softgpu::libraries

extern "C" {
#define TS_LIBRARY_EXPORT(name)                                          \
  __attribute__((weak)) int name() {                                     \
    static constinit std::atomic<bool> said = false;                     \
    return tessera::softgpu::libraries::not_supported(#name, "", &said); \
  }
#include TESSERA_LIBRARY_EXPORTS
}

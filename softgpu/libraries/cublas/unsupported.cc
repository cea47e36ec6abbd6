// Every export of the vendor's library that this one does not compute: present, so that programs load. The definitions are weak:
// a function of the other files takes the place of its stub at link time, so no list of what is computed is kept.
// Free of signatures on purpose: arguments are ignored, and this file must not see the real declarations.
// TESSERA_CUBLAS_EXPORTS is the list: exports.def or exports_lt.def.
#include "softgpu/libraries/cublas/unsupported.h"

#include <atomic>

extern "C" {
#define TS_CUBLAS_EXPORT(name)                                        \
  __attribute__((weak)) int name() {                                  \
    static constinit std::atomic<bool> said = false;                  \
    return tessera::softgpu::cublas::not_supported(#name, "", &said); \
  }
#include TESSERA_CUBLAS_EXPORTS
}

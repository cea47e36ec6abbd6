// Every entry point of the driver exists: what this library does not implement answers
// CUDA_ERROR_NOT_SUPPORTED (801) from here. The definitions are weak, so that a function written in one of
// the *_api.cc files takes the place of its stub at link time; there is no list of what is implemented to
// keep.
#include "softgpu/driver/proc_address.h"
#include "softgpu/driver/state.h"

namespace {

CUresult not_supported(const char* symbol) {
  if (CUresult entered = tessera::softgpu::driver::enter(symbol)) return entered;
  tessera::softgpu::driver::report("%s is not supported by the software GPU", symbol);
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

#pragma GCC diagnostic ignored "-Wunused-parameter"
#define TS_CU(symbol, base, since, stream, ret, params, args)                 \
  extern "C" __attribute__((weak, visibility("default"))) ret symbol params { \
    return not_supported(#symbol);                                            \
  }
#include "driver_api/entries.def"

namespace tessera::softgpu::driver {

namespace {
#define TS_TWIN_none false
#define TS_TWIN_legacy(expression) false
#define TS_TWIN_per_thread(expression) true
const ProcRow kRows[] = {
#define TS_CU(symbol, base, since, stream, ret, params, args) \
  {#base, since, TS_TWIN_##stream, reinterpret_cast<void*>(&::symbol)},
#include "driver_api/entries.def"
};
}  // namespace

std::span<const ProcRow> proc_rows() {
  return kRows;
}

}  // namespace tessera::softgpu::driver

// The driver behind the runtime: loaded as any program loads it (dlopen "libcuda.so.1", dlsym
// cuGetProcAddress_v2, all else through that), so that whatever stands in front of the driver is met on the
// same road. Called by every part of the runtime, any thread; the tables are written once, before the first
// reader.
#pragma once

#include <cuda.h>
#include <cudaProfiler.h>

namespace tessera::softgpu::runtime {

// One pointer per row of driver_functions.def, never null: what the driver does not have answers
// CUDA_ERROR_NOT_SUPPORTED.
struct Driver {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // programs still call them
#define TS_DRIVER(name) decltype(&cu##name) name;
#include "softgpu/runtime/driver_functions.def"
#pragma GCC diagnostic pop
  decltype(&cuGetProcAddress_v2) GetProcAddress;
};

// Loads the driver on first use. False: there is none, or it has no cuGetProcAddress_v2.
bool load_driver();

// Valid after load_driver() returned true. The per-thread table holds the _ptds/_ptsz variants where they
// exist.
const Driver& legacy_driver();
const Driver& per_thread_driver();

// In files compiled once per default-stream flavour this is the table of the flavour.
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
static inline const Driver& driver() {
  return per_thread_driver();
}
#else
static inline const Driver& driver() {
  return legacy_driver();
}
#endif

}  // namespace tessera::softgpu::runtime

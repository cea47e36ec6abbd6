// The driver under a stand-in, found as any program finds it (dlopen "libcuda.so.1", the rest through cuGetProcAddress), so that
// whatever stands in front of the driver sees the launches; and the library's own kernels, loaded once per context.
// Any thread. The table is written once, before the first reader.
#pragma once

#include <cuda.h>

#include <memory>
#include <span>
#include <vector>

namespace tessera::softgpu::libraries {

// clang-format off
#define TS_LIBRARY_DRIVER(X)                                                                                    \
  X(Init) X(CtxGetCurrent) X(CtxSetCurrent) X(CtxPushCurrent) X(CtxPopCurrent) X(CtxGetId)                      \
  X(DevicePrimaryCtxRetain) X(ModuleLoadData) X(ModuleGetFunction) X(ModuleUnload) X(LaunchKernel)              \
  X(StreamSynchronize) X(MemHostAlloc) X(MemFreeHost) X(Memcpy2DUnaligned) X(Memcpy2DAsync)
// clang-format on

// Never null after load_driver(): what the driver does not have answers CUDA_ERROR_NOT_SUPPORTED.
struct Driver {
#define TS_FUNCTION(name) decltype(&cu##name) name;
  TS_LIBRARY_DRIVER(TS_FUNCTION)
#undef TS_FUNCTION
};

bool load_driver();      // on first use; false: there is none
const Driver& driver();  // valid after load_driver() returned true

// Each library defines this: the names of its kernels, in the order of its enum. Their PTX is embedded at build time.
extern const std::span<const char* const> kKernelNames;

// A context's kernels. Unloaded with the last handle that holds them, while their context is current.
struct Kernels {
  CUmodule module = nullptr;
  std::vector<CUfunction> functions;  // as kKernelNames
  ~Kernels();
};

// The kernels of the current context; null if they could not be loaded.
std::shared_ptr<Kernels> kernels_of_context();

}  // namespace tessera::softgpu::libraries

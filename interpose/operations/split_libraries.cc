#include "interpose/operations/split_libraries.h"

#include <dlfcn.h>

#include "interpose/operations/loaded_library.h"

namespace tessera::library {
namespace {

const void* base_of(const void* function) {
  Dl_info where{};
  return function && dladdr(function, &where) ? where.dli_fbase : nullptr;
}

bool find_driver(Driver* out) {
  void* cuda = opened_library("libcuda.so.1");
  Driver& d = *out;
  return find_function(cuda, "cuCtxGetCurrent", d.get_context) &&
         find_function(cuda, "cuCtxGetDevice", d.get_device) &&
         find_function(cuda, "cuDeviceGetName", d.name) &&
         find_function(cuda, "cuDriverGetVersion", d.version) &&
         find_function(cuda, "cuDeviceGetAttribute", d.attribute) &&
         find_function(cuda, "cuMemGetInfo_v2", d.memory) &&
         find_function(cuda, "cuMemGetAddressRange_v2", d.range) &&
         find_function(cuda, "cuMemAlloc_v2", d.allocate) && find_function(cuda, "cuMemFree_v2", d.release) &&
         find_function(cuda, "cuMemcpyDtoDAsync_v2", d.copy) &&
         find_function(cuda, "cuMemcpyDtoHAsync_v2", d.read) &&
         find_function(cuda, "cuStreamCreate", d.make_stream) &&
         find_function(cuda, "cuStreamDestroy_v2", d.end_stream) &&
         find_function(cuda, "cuStreamSynchronize", d.wait) &&
         find_function(cuda, "cuEventCreate", d.make_event) &&
         find_function(cuda, "cuEventDestroy_v2", d.end_event) &&
         find_function(cuda, "cuEventRecord", d.record) && find_function(cuda, "cuEventQuery", d.passed) &&
         find_function(cuda, "cuThreadExchangeStreamCaptureMode", d.exchange_capture_mode);
}

bool find_cublas(Cublas* out) {
  void* cublas = opened_library("libcublas.so.13");
  Cublas& c = *out;
  find_function(cublas, "cublasGetSmCountTarget", c.sm_target);
  find_function(cublas, "cublasSetSmCountTarget", c.set_sm_target);
  return find_function(cublas, "cublasGetVersion_v2", c.version) &&
         find_function(cublas, "cublasGetStream_v2", c.stream) &&
         find_function(cublas, "cublasGetMathMode", c.math_mode) &&
         find_function(cublas, "cublasGetPointerMode_v2", c.pointer_mode) &&
         find_function(cublas, "cublasGetAtomicsMode", c.atomics_mode);
}

// Constant once they are found.
constinit Driver g_driver{};
constinit Cublas g_cublas{};
constinit OnceFound g_driver_found, g_cublas_found;

}  // namespace

const Driver* splitting_driver() {
  return g_driver_found.have([] { return find_driver(&g_driver); }) ? &g_driver : nullptr;
}

const Cublas* splitting_cublas(const void* function) {
  if (!g_cublas_found.have([] { return find_cublas(&g_cublas); })) return nullptr;
  return of_one_library(function, reinterpret_cast<const void*>(g_cublas.stream)) ? &g_cublas : nullptr;
}

bool of_one_library(const void* function, const void* other) {
  const void* base = base_of(function);
  return base && base == base_of(other);
}

}  // namespace tessera::library

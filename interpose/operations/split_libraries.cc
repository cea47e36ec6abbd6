#include "interpose/operations/split_libraries.h"

#include <dlfcn.h>

#include "interpose/operations/loaded_library.h"

namespace tessera::library {
namespace {

template <class Pointer>
bool find(void* library, const char* symbol, Pointer& out) {
  out = library ? reinterpret_cast<Pointer>(dlsym(library, symbol)) : nullptr;
  return out != nullptr;
}

const void* base_of(const void* function) {
  Dl_info where{};
  return dladdr(function, &where) ? where.dli_fbase : nullptr;
}

Libraries find_libraries() {
  Libraries l{};
  void* cuda = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
  void* cublas = dlopen("libcublas.so.13", RTLD_NOLOAD | RTLD_LAZY);
  Driver& d = l.driver;
  Settings& s = l.settings;
  l.complete = find(cuda, "cuCtxGetCurrent", d.get_context) && find(cuda, "cuCtxGetDevice", d.get_device) &&
               find(cuda, "cuDeviceGetName", d.name) && find(cuda, "cuDriverGetVersion", d.version) &&
               find(cuda, "cuMemGetInfo_v2", d.memory) && find(cuda, "cuMemGetAddressRange_v2", d.range) &&
               find(cuda, "cuMemAlloc_v2", d.allocate) && find(cuda, "cuMemFree_v2", d.release) &&
               find(cuda, "cuMemcpyDtoDAsync_v2", d.copy) && find(cuda, "cuMemcpyDtoHAsync_v2", d.read) &&
               find(cuda, "cuStreamCreate", d.make_stream) &&
               find(cuda, "cuStreamDestroy_v2", d.end_stream) && find(cuda, "cuStreamSynchronize", d.wait) &&
               find(cuda, "cuEventCreate", d.make_event) && find(cuda, "cuEventDestroy_v2", d.end_event) &&
               find(cuda, "cuEventRecord", d.record) && find(cuda, "cuEventQuery", d.passed) &&
               find(cuda, "cuThreadExchangeStreamCaptureMode", d.exchange_capture_mode) &&
               find(cublas, "cublasGetVersion_v2", s.version) &&
               find(cublas, "cublasGetStream_v2", s.stream) &&
               find(cublas, "cublasGetMathMode", s.math_mode) &&
               find(cublas, "cublasGetPointerMode_v2", s.pointer_mode) &&
               find(cublas, "cublasGetAtomicsMode", s.atomics_mode);
  find(cublas, "cublasGetSmCountTarget", s.sm_target);
  find(cublas, "cublasSetSmCountTarget", s.set_sm_target);
  l.base = l.complete ? base_of(reinterpret_cast<const void*>(s.stream)) : nullptr;
  return l;
}

}  // namespace

const Libraries& libraries() {
  static constinit Libraries found = {};  // constant once they are found
  static constinit OnceFound once;
  static constexpr Libraries kNone = {};
  return once.have([] { return (found = find_libraries()).complete; }) ? found : kNone;
}

bool of_asked_library(const void* function) {
  const Libraries& l = libraries();
  return l.base && base_of(function) == l.base;
}

}  // namespace tessera::library

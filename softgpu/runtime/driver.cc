#include "softgpu/runtime/driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <mutex>

namespace tessera::softgpu::runtime {
namespace {

// Two constant-initialised tables: filled once under the flag, read-only afterwards.
Driver g_legacy, g_per_thread;
std::once_flag g_once;
bool g_loaded = false;

// Stands in for an entry point of this type that the driver lacks.
template <class... Args>
CUresult missing(Args...) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

template <class... Args>
void resolve(decltype(&cuGetProcAddress_v2) ask, const char* name, int version, cuuint64_t flags,
             CUresult (**function)(Args...)) {
  void* address = nullptr;
  CUdriverProcAddressQueryResult status{};
  const CUresult result = ask(name, &address, version, flags, &status);
  *function = result == CUDA_SUCCESS && address ? reinterpret_cast<CUresult (*)(Args...)>(address)
                                                : &missing<Args...>;
}

void fill(decltype(&cuGetProcAddress_v2) ask, int version, cuuint64_t flags, Driver* table) {
#define TS_DRIVER(name) resolve(ask, "cu" #name, version, flags, &table->name);
#include "softgpu/runtime/driver_functions.def"
  // cuda.h declares these without the context argument that the 13.0 driver's variants have.
  constexpr int kBeforeContextArgument = 12080;
  const int older = std::min(version, kBeforeContextArgument);
  resolve(ask, "cuCtxSynchronize", older, flags, &table->CtxSynchronize);
  resolve(ask, "cuCtxGetDevice", older, flags, &table->CtxGetDevice);
  table->GetProcAddress = ask;
}

void load_once() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) return;
  void* symbol = dlsym(library, "cuGetProcAddress_v2");
  if (!symbol) return;
  const auto ask = reinterpret_cast<decltype(&cuGetProcAddress_v2)>(symbol);
  // A version above the driver's own is an error for every name, hence the smaller of the two.
  decltype(&cuDriverGetVersion) get_version;
  resolve(ask, "cuDriverGetVersion", 2020, CU_GET_PROC_ADDRESS_DEFAULT, &get_version);
  int version = 0;
  get_version(&version);
  version = std::min(version, CUDA_VERSION);
  fill(ask, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &g_legacy);
  fill(ask, version, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &g_per_thread);
  g_loaded = true;
}

}  // namespace

bool load_driver() {
  std::call_once(g_once, load_once);
  return g_loaded;
}
const Driver& legacy_driver() {
  return g_legacy;
}
const Driver& per_thread_driver() {
  return g_per_thread;
}

}  // namespace tessera::softgpu::runtime

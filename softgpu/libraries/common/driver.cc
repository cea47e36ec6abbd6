#include "softgpu/libraries/common/driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <mutex>

// The PTX of the library's kernels.cu, ended by a zero (TESSERA_LIBRARY_PTX is its path).
asm(".section .rodata\n"
    "tessera_library_ptx:\n"
    ".incbin \"" TESSERA_LIBRARY_PTX
    "\"\n"
    ".byte 0\n"
    ".previous\n");
extern "C" const char tessera_library_ptx[] __attribute__((visibility("hidden")));

namespace tessera::softgpu::libraries {
namespace {

Driver g_driver;  // filled once under the flag, read-only afterwards
std::once_flag g_once;
bool g_loaded = false;

// Stands in for an entry point of this type that the driver lacks.
template <class... Args>
CUresult missing(Args...) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

template <class... Args>
void resolve(decltype(&cuGetProcAddress_v2) ask, const char* name, int version,
             CUresult (**function)(Args...)) {
  void* address = nullptr;
  CUdriverProcAddressQueryResult status{};
  const CUresult result = ask(name, &address, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status);
  *function = result == CUDA_SUCCESS && address ? reinterpret_cast<CUresult (*)(Args...)>(address)
                                                : &missing<Args...>;
}

void load_once() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  void* symbol = library ? dlsym(library, "cuGetProcAddress_v2") : nullptr;
  if (!symbol) return;
  const auto ask = reinterpret_cast<decltype(&cuGetProcAddress_v2)>(symbol);
  // A version above the driver's own is an error for every name, hence the smaller of the two.
  decltype(&cuDriverGetVersion) get_version;
  resolve(ask, "cuDriverGetVersion", 2020, &get_version);
  int version = 0;
  get_version(&version);
  version = std::min(version, CUDA_VERSION);
#define TS_FUNCTION(name) resolve(ask, "cu" #name, version, &g_driver.name);
  TS_LIBRARY_DRIVER(TS_FUNCTION)
#undef TS_FUNCTION
  g_loaded = g_driver.Init(0) == CUDA_SUCCESS;
}

std::shared_ptr<Kernels> load_kernels() {
  auto kernels = std::make_shared<Kernels>();
  if (g_driver.ModuleLoadData(&kernels->module, tessera_library_ptx) != CUDA_SUCCESS) return nullptr;
  kernels->functions.resize(kKernelNames.size());
  for (size_t i = 0; i < kKernelNames.size(); ++i)
    if (g_driver.ModuleGetFunction(&kernels->functions[i], kernels->module, kKernelNames[i]) != CUDA_SUCCESS)
      return nullptr;
  return kernels;
}

}  // namespace

bool load_driver() {
  std::call_once(g_once, load_once);
  return g_loaded;
}
const Driver& driver() {
  return g_driver;
}

Kernels::~Kernels() {
  if (module) g_driver.ModuleUnload(module);
}

std::shared_ptr<Kernels> kernels_of_context() {
  // By the context's number: a later context at the same address has another. Never destroyed: handles may outlive us.
  static std::mutex mutex;  // guards `loaded`
  static auto& loaded = *new std::map<unsigned long long, std::weak_ptr<Kernels>>;
  unsigned long long context = 0;
  if (g_driver.CtxGetId(nullptr, &context) != CUDA_SUCCESS) return nullptr;
  const std::lock_guard lock(mutex);
  std::erase_if(loaded, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<Kernels> kernels = loaded[context].lock();
  if (!kernels) loaded[context] = kernels = load_kernels();
  return kernels;
}

}  // namespace tessera::softgpu::libraries

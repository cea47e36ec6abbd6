#include "softgpu/runtime/runtime.h"

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "softgpu/runtime/errors.h"

namespace tessera::softgpu::runtime {
namespace {

struct Thread {
  cudaError_t last_error = cudaSuccess;
  int device = 0;               // set by cudaSetDevice
  CUcontext context = nullptr;  // that we made current, to notice a reset
  uint64_t generation = 0;      // of g_generation at that time
};
thread_local Thread t_thread;

std::once_flag g_init_once;
cudaError_t g_init_status = cudaErrorInitializationError;  // written under the flag
std::atomic<bool> g_exiting{false};     // relaxed: a late reader only gets the driver's own error instead
std::atomic<uint64_t> g_generation{1};  // resets so far; relaxed: another thread's reset is the caller's race

std::mutex g_contexts_mutex;          // guards g_contexts
std::vector<CUcontext>& contexts() {  // by device ordinal; leaked, API calls may come after our destructors
  static auto* list = new std::vector<CUcontext>;
  return *list;
}

void init_once() {
  if (!load_driver()) {
    g_init_status = cudaErrorInsufficientDriver;
    return;
  }
  int version = 0;
  if (driver().DriverGetVersion(&version) != CUDA_SUCCESS || version < CUDART_VERSION / 1000 * 1000) {
    g_init_status = cudaErrorInsufficientDriver;
    return;
  }
  g_init_status = as_error(driver().Init(0));
  // Runs before the driver's own exit handlers, which were registered when it was loaded: whoever calls
  // later, from a static destructor, must not reach a driver that is gone.
  std::atexit([] { g_exiting.store(true, std::memory_order_relaxed); });
}

}  // namespace

cudaError_t as_error(CUresult result) {
  const auto status = static_cast<cudaError_t>(result);
  return status == cudaSuccess || error_name(status) ? status : cudaErrorUnknown;
}

cudaError_t enter_driver() {
  std::call_once(g_init_once, init_once);
  if (g_exiting.load(std::memory_order_relaxed)) return cudaErrorCudartUnloading;
  return g_init_status;
}

CUresult primary_context(int device, CUcontext* context) {
  const std::lock_guard lock(g_contexts_mutex);
  if (contexts().size() <= size_t(device)) contexts().resize(size_t(device) + 1);
  CUcontext& known = contexts()[size_t(device)];
  if (!known) {
    CUdevice handle{};
    if (const CUresult result = driver().DeviceGet(&handle, device)) return result;
    if (const CUresult result = driver().DevicePrimaryCtxRetain(&known, handle)) {
      known = nullptr;
      return result;
    }
  }
  *context = known;
  return CUDA_SUCCESS;
}

cudaError_t use_device(int device) {
  int count = 0;
  if (const CUresult result = driver().DeviceGetCount(&count)) return as_error(result);
  if (count == 0) return cudaErrorNoDevice;
  if (device < 0 || device >= count) return cudaErrorInvalidDevice;
  CUcontext context = nullptr;
  if (const CUresult result = primary_context(device, &context)) return as_error(result);
  if (const CUresult result = driver().CtxSetCurrent(context)) return as_error(result);
  t_thread.device = device;
  t_thread.context = context;
  t_thread.generation = g_generation.load(std::memory_order_relaxed);
  return cudaSuccess;
}

cudaError_t enter_context() {
  if (const cudaError_t status = enter_driver()) return status;
  CUcontext current = nullptr;
  if (const CUresult result = driver().CtxGetCurrent(&current)) return as_error(result);
  const bool stale =
      current == t_thread.context && t_thread.generation != g_generation.load(std::memory_order_relaxed);
  return current && !stale ? cudaSuccess : use_device(t_thread.device);
}

cudaError_t current_device(int* device) {
  CUdevice current{};
  if (driver().CtxGetDevice(&current) == CUDA_SUCCESS) {
    *device = current;
  } else {
    *device = t_thread.device;
  }
  return cudaSuccess;
}

void forget_context(int device) {
  {
    const std::lock_guard lock(g_contexts_mutex);
    if (size_t(device) < contexts().size()) contexts()[size_t(device)] = nullptr;
  }
  g_generation.fetch_add(1, std::memory_order_relaxed);
  driver().CtxSetCurrent(nullptr);
}

cudaError_t remember(cudaError_t status) {
  if (status != cudaSuccess) t_thread.last_error = status;
  return status;
}
cudaError_t last_error() {
  return t_thread.last_error;
}
void clear_last_error() {
  t_thread.last_error = cudaSuccess;
}

}  // namespace tessera::softgpu::runtime

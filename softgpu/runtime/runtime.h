// How every function of the runtime is entered and left: initialise on first use, have a context, call the
// driver, remember the error of this thread. Called by the API files; any thread. Per-thread state is
// trivially destructible.
#pragma once

#include <cuda_runtime_api.h>

#include "softgpu/runtime/driver.h"

namespace tessera::softgpu::runtime {

// cudaError and CUresult share their numbers where they share meanings; codes that only the driver knows
// become cudaErrorUnknown.
cudaError_t as_error(CUresult result);
inline cudaError_t as_error(cudaError_t status) {
  return status;
}

// Loads the driver and calls cuInit once. Everything but version queries and error texts needs at least this.
cudaError_t enter_driver();

// enter_driver(), then a current context: the one that is current if there is one (it may be the
// application's own, made with the driver API), else the primary context of this thread's device.
cudaError_t enter_context();

// Makes `device` this thread's device and its primary context current.
cudaError_t use_device(int device);
// The device of the current context, else the one that this thread would use.
cudaError_t current_device(int* device);
// After cuDevicePrimaryCtxReset: no thread may go on with the old context.
void forget_context(int device);
// Primary context of a device, retained on first use and kept until reset.
CUresult primary_context(int device, CUcontext* context);

// This thread's error state, as cudaGetLastError sees it. Returns its argument.
cudaError_t remember(cudaError_t status);
cudaError_t last_error();
void clear_last_error();

// The bodies return CUresult or cudaError_t.
template <class Body>
cudaError_t with_driver(Body&& body) {
  cudaError_t status = enter_driver();
  if (status == cudaSuccess) status = as_error(body());
  return remember(status);
}

template <class Body>
cudaError_t with_context(Body&& body) {
  cudaError_t status = enter_context();
  if (status == cudaSuccess) status = as_error(body());
  return remember(status);
}

static inline CUdeviceptr device_pointer(const void* p) {
  return reinterpret_cast<CUdeviceptr>(p);
}

}  // namespace tessera::softgpu::runtime

// Entry points of before CUDA 4 that still are exported: launches whose block shape and arguments are set one
// by one, and usage counts of contexts.
#include <cstring>

#include "softgpu/driver/code.h"
#include "softgpu/driver/state.h"

using namespace tessera::softgpu::driver;  // entry points are global by nature

namespace {

// Changes the launch that the setters left in a function, under its module's lock.
template <class F>
CUresult with_launch(CUfunction handle, F change) {
  std::shared_ptr<Context> context;
  std::shared_ptr<Function> function;
  if (CUresult none = current(&context)) return none;
  if (CUresult bad = function_of(context, handle, &function)) return bad;
  std::lock_guard lock(function->module->mutex);
  return change(function->legacy, *function->info);
}

CUresult set_param(CUfunction function, int offset, const void* value, unsigned bytes) {
  return with_launch(function, [&](LegacyLaunch& launch, const tessera::softgpu::exec::KernelInfo& info) {
    if (offset < 0 || !value || uint64_t(offset) + bytes > info.param_bytes) return CUDA_ERROR_INVALID_VALUE;
    launch.params.resize(info.param_bytes);
    std::memcpy(launch.params.data() + offset, value, bytes);
    return CUDA_SUCCESS;
  });
}

CUresult launch_grid(CUfunction function, int width, int height, CUstream stream) {
  LegacyLaunch launch;
  if (CUresult bad = with_launch(function, [&](LegacyLaunch& set, const auto& info) {
        launch = set;
        launch.params.resize(info.param_bytes);
        return CUDA_SUCCESS;
      }))
    return bad;
  if (width <= 0 || height <= 0) return CUDA_ERROR_INVALID_VALUE;
  size_t bytes = launch.params.size();
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, launch.params.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  return cuLaunchKernel(function, unsigned(width), unsigned(height), 1, launch.block[0], launch.block[1],
                        launch.block[2], launch.shared_bytes, stream, nullptr, extra);
}

}  // namespace

CUresult cuFuncSetBlockShape(CUfunction hfunc, int x, int y, int z) {
  TS_ENTER(cuFuncSetBlockShape);
  if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
  return with_launch(hfunc, [&](LegacyLaunch& launch, const auto&) {
    launch.block = {uint32_t(x), uint32_t(y), uint32_t(z)};
    return CUDA_SUCCESS;
  });
}
CUresult cuFuncSetSharedSize(CUfunction hfunc, unsigned int bytes) {
  TS_ENTER(cuFuncSetSharedSize);
  return with_launch(hfunc, [&](LegacyLaunch& launch, const auto&) {
    launch.shared_bytes = bytes;
    return CUDA_SUCCESS;
  });
}
CUresult cuParamSetSize(CUfunction hfunc, unsigned int numbytes) {
  TS_ENTER(cuParamSetSize);
  return with_launch(hfunc, [&](LegacyLaunch&, const auto& info) {
    return numbytes > info.param_bytes ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  });
}
CUresult cuParamSeti(CUfunction hfunc, int offset, unsigned int value) {
  TS_ENTER(cuParamSeti);
  return set_param(hfunc, offset, &value, sizeof value);
}
CUresult cuParamSetf(CUfunction hfunc, int offset, float value) {
  TS_ENTER(cuParamSetf);
  return set_param(hfunc, offset, &value, sizeof value);
}
CUresult cuParamSetv(CUfunction hfunc, int offset, void* ptr, unsigned int numbytes) {
  TS_ENTER(cuParamSetv);
  return set_param(hfunc, offset, ptr, numbytes);
}
CUresult cuLaunch(CUfunction f) {
  TS_ENTER(cuLaunch);
  return launch_grid(f, 1, 1, nullptr);
}
CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height) {
  TS_ENTER(cuLaunchGrid);
  return launch_grid(f, grid_width, grid_height, nullptr);
}
CUresult cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream) {
  TS_ENTER(cuLaunchGridAsync);
  return launch_grid(f, grid_width, grid_height, hStream);
}

// A context made with cuCtxCreate has a usage count of one; the last detach destroys it.
CUresult cuCtxAttach(CUcontext* pctx, unsigned int flags) {
  TS_CONTEXT(cuCtxAttach, context);
  if (!pctx || flags) return CUDA_ERROR_INVALID_VALUE;
  context->usage.fetch_add(1, std::memory_order_relaxed);
  return cuCtxGetCurrent(pctx);
}
CUresult cuCtxDetach(CUcontext ctx) {
  TS_ENTER(cuCtxDetach);
  const std::shared_ptr<Context> context = driver().contexts.find(ctx);
  std::shared_ptr<Context> now;
  if (CUresult none = current_even_if_failed(&now)) return none;
  if (!context || context != now || context->primary) return CUDA_ERROR_INVALID_CONTEXT;  // must be current
  return context->usage.fetch_sub(1, std::memory_order_acq_rel) == 1 ? cuCtxDestroy_v2(ctx) : CUDA_SUCCESS;
}

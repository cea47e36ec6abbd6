#include "softgpu/libraries/common/context.h"

namespace tessera::softgpu::libraries {
namespace {

// A context for a thread that has none: the first device's primary one, as the runtime would make.
bool have_context(CUcontext* context) {
  if (driver().CtxGetCurrent(context) != CUDA_SUCCESS) return false;
  if (*context) return true;
  return driver().DevicePrimaryCtxRetain(context, 0) == CUDA_SUCCESS &&
         driver().CtxSetCurrent(*context) == CUDA_SUCCESS;
}

}  // namespace

bool open_context(Context* context) {
  if (!load_driver() || !have_context(&context->context)) return false;
  context->kernels = kernels_of_context();
  return context->kernels != nullptr;
}

CurrentContext::CurrentContext(CUcontext context) {
  CUcontext current = nullptr;
  driver().CtxGetCurrent(&current);
  if (current != context) pushed_ = driver().CtxPushCurrent(context) == CUDA_SUCCESS;
}
CurrentContext::~CurrentContext() {
  CUcontext popped;
  if (pushed_) driver().CtxPopCurrent(&popped);
}

}  // namespace tessera::softgpu::libraries

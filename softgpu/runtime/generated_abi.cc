// Functions that nvcc's generated code calls (crt/host_runtime.h): registration before main, and the launch
// configuration that <<<>>> hands over. The launches themselves are in launch.cc, once per default-stream flavour.

#include "softgpu/runtime/registry.h"
#include "softgpu/runtime/runtime.h"

using namespace tessera::softgpu::runtime;

namespace {

struct Configuration {
  dim3 grid, block;
  size_t shared_bytes;
  void* stream;
};

// <<<a>>> may be evaluated inside the arguments of <<<b>>>, hence a stack; deeper nesting is an error.
constexpr int kMaxDepth = 16;
thread_local Configuration t_stack[kMaxDepth];
thread_local int t_depth = 0;

Image* image_of(void** handle) {
  return reinterpret_cast<Image*>(handle);
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  return reinterpret_cast<void**>(add_image(wrapper));
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void** handle) {
  if (handle) remove_image(image_of(handle));
}

void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  add_kernel(image_of(handle), host, name);
}

void __cudaRegisterVar(void** handle, char* host, char*, const char* name, int, size_t size, int, int) {
  add_variable(image_of(handle), host, name, size);
}

void __cudaRegisterManagedVar(void** handle, void** host_slot, char*, const char* name, int, size_t size, int,
                              int) {
  add_managed_variable(image_of(handle), host_slot, name, size);
}

// Host variables and unified function tables that device code refers to: registered by newer language
// features that the software GPU does not execute; a kernel that needs them fails when its image is loaded.
void __cudaRegisterHostVar(void**, const char*, char*, size_t) {}
void __cudaRegisterUnifiedTable(void**, void*) {}

char __cudaInitModule(void** handle) {
  return with_context([&] { return initialise_image(image_of(handle)); }) == cudaSuccess;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void* stream) {
  if (t_depth == kMaxDepth) return unsigned(remember(cudaErrorLaunchFailure));
  t_stack[t_depth++] = {grid, block, shared_bytes, stream};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
  if (t_depth == 0) return remember(cudaErrorMissingConfiguration);
  const Configuration& top = t_stack[--t_depth];
  *grid = top.grid;
  *block = top.block;
  *shared_bytes = top.shared_bytes;
  *static_cast<void**>(stream) = top.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  return with_driver([&] { return find_kernel(function, reinterpret_cast<CUkernel*>(kernel)); });
}

cudaError_t cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  if (!kernel) return remember(cudaErrorInvalidValue);
  return with_driver([&] { return find_kernel(function, reinterpret_cast<CUkernel*>(kernel)); });
}

}  // extern "C"

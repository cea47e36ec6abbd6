// Allocations (device addresses are only numbers, host ones are real), modules, functions.
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/null_driver/internal.h"

namespace tessera::null_driver {
namespace {

std::atomic<CUdeviceptr> g_next_address{0x10'0000'0000'0000};

CUdeviceptr device_address(size_t bytes) {
  return g_next_address.fetch_add((bytes + 511) / 512 * 512 + 512);
}

CUresult host(void** out, size_t bytes) {
  *out = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

struct Function {
  std::string name;
};
struct Module {
  uint64_t magic = 0x6e756c6c6d6f64;
};
template <class Handle>
CUresult load(Handle* out, const void* image) {
  if (out == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<Handle>(new Module);
  return CUDA_SUCCESS;
}
template <class Handle>
CUresult get(Handle* out, const char* name) {
  if (out == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<Handle>(new Function{name});
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace tessera::null_driver

using namespace tessera::null_driver;  // NOLINT: this file is the C surface

TS_NULL(cuMemAlloc_v2, CUdeviceptr* out, size_t bytes) {
  TS_NULL_COUNT(cuMemAlloc_v2);
  *out = device_address(bytes);
  return CUDA_SUCCESS;
}
TS_NULL(cuMemFree_v2, CUdeviceptr) {
  TS_NULL_COUNT(cuMemFree_v2);
  return CUDA_SUCCESS;
}
TS_NULL(cuMemAllocAsync, CUdeviceptr* out, size_t bytes, CUstream) {
  TS_NULL_COUNT(cuMemAllocAsync);
  *out = device_address(bytes);
  return CUDA_SUCCESS;
}
TS_NULL(cuMemAllocAsync_ptsz, CUdeviceptr* out, size_t bytes, CUstream) {
  TS_NULL_COUNT(cuMemAllocAsync_ptsz);
  *out = device_address(bytes);
  return CUDA_SUCCESS;
}
TS_NULL(cuMemFreeAsync, CUdeviceptr, CUstream) {
  TS_NULL_COUNT(cuMemFreeAsync);
  return CUDA_SUCCESS;
}
TS_NULL(cuMemFreeAsync_ptsz, CUdeviceptr, CUstream) {
  TS_NULL_COUNT(cuMemFreeAsync_ptsz);
  return CUDA_SUCCESS;
}
TS_NULL(cuMemAllocHost_v2, void** out, size_t bytes) {
  TS_NULL_COUNT(cuMemAllocHost_v2);
  return host(out, bytes);
}
TS_NULL(cuMemHostAlloc, void** out, size_t bytes, unsigned) {
  TS_NULL_COUNT(cuMemHostAlloc);
  return host(out, bytes);
}
TS_NULL(cuMemFreeHost, void* p) {
  TS_NULL_COUNT(cuMemFreeHost);
  std::free(p);
  return CUDA_SUCCESS;
}
TS_NULL(cuMemHostRegister_v2, void* p, size_t bytes, unsigned flags) {
  TS_NULL_COUNT(cuMemHostRegister_v2);
  constexpr unsigned kFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                              CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
  return p != nullptr && bytes != 0 && (flags & ~kFlags) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
TS_NULL(cuMemHostUnregister, void*) {
  TS_NULL_COUNT(cuMemHostUnregister);
  return CUDA_SUCCESS;
}
TS_NULL(cuMemHostGetDevicePointer_v2, CUdeviceptr* out, void* p, unsigned flags) {
  TS_NULL_COUNT(cuMemHostGetDevicePointer_v2);
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUdeviceptr>(p);
  return CUDA_SUCCESS;
}

TS_NULL(cuModuleLoad, CUmodule* module, const char* file) {
  TS_NULL_COUNT(cuModuleLoad);
  return no_context() ? CUDA_ERROR_INVALID_CONTEXT : load(module, file);
}
TS_NULL(cuModuleLoadData, CUmodule* module, const void* image) {
  TS_NULL_COUNT(cuModuleLoadData);
  return no_context() ? CUDA_ERROR_INVALID_CONTEXT : load(module, image);
}
TS_NULL(cuModuleLoadDataEx, CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
  TS_NULL_COUNT(cuModuleLoadDataEx);
  return no_context() ? CUDA_ERROR_INVALID_CONTEXT : load(module, image);
}
TS_NULL(cuModuleLoadFatBinary, CUmodule* module, const void* image) {
  TS_NULL_COUNT(cuModuleLoadFatBinary);
  return no_context() ? CUDA_ERROR_INVALID_CONTEXT : load(module, image);
}
TS_NULL(cuModuleUnload, CUmodule module) {
  TS_NULL_COUNT(cuModuleUnload);
  if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
  delete reinterpret_cast<Module*>(module);
  return CUDA_SUCCESS;
}
TS_NULL(cuModuleGetFunction, CUfunction* function, CUmodule, const char* name) {
  TS_NULL_COUNT(cuModuleGetFunction);
  return get(function, name);
}
TS_NULL(cuLibraryLoadData, CUlibrary* library, const void* image, CUjit_option*, void**, unsigned,
        CUlibraryOption*, void**, unsigned) {
  TS_NULL_COUNT(cuLibraryLoadData);
  return load(library, image);
}
TS_NULL(cuLibraryUnload, CUlibrary library) {
  TS_NULL_COUNT(cuLibraryUnload);
  if (library == nullptr) return CUDA_ERROR_INVALID_VALUE;
  delete reinterpret_cast<Module*>(library);
  return CUDA_SUCCESS;
}
TS_NULL(cuLibraryGetKernel, CUkernel* kernel, CUlibrary library, const char* name) {
  TS_NULL_COUNT(cuLibraryGetKernel);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return get(kernel, name);
}
TS_NULL(cuLibraryGetModule, CUmodule* module, CUlibrary library) {
  TS_NULL_COUNT(cuLibraryGetModule);
  *module = reinterpret_cast<CUmodule>(library);
  return CUDA_SUCCESS;
}
TS_NULL(cuKernelGetFunction, CUfunction* function, CUkernel kernel) {
  TS_NULL_COUNT(cuKernelGetFunction);
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}
TS_NULL(cuFuncGetName, const char** name, CUfunction function) {
  TS_NULL_COUNT(cuFuncGetName);
  if (name == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *name = reinterpret_cast<Function*>(function)->name.c_str();
  return CUDA_SUCCESS;
}
TS_NULL(cuKernelGetName, const char** name, CUkernel kernel) {
  TS_NULL_COUNT(cuKernelGetName);
  if (name == nullptr || kernel == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *name = reinterpret_cast<Function*>(kernel)->name.c_str();
  return CUDA_SUCCESS;
}
TS_NULL(cuFuncGetAttribute, int* value, CUfunction_attribute attribute, CUfunction function) {
  TS_NULL_COUNT(cuFuncGetAttribute);
  if (value == nullptr || unsigned(attribute) >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
           : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 32
                                                                : 0;
  return CUDA_SUCCESS;
}
TS_NULL(cuOccupancyMaxActiveBlocksPerMultiprocessor, int* blocks, CUfunction, int threads, size_t) {
  TS_NULL_COUNT(cuOccupancyMaxActiveBlocksPerMultiprocessor);
  if (blocks == nullptr || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  *blocks = 2;
  return CUDA_SUCCESS;
}

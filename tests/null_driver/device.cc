// Version, one device, its contexts.
#include <cstdio>
#include <cstring>

#include "tests/null_driver/internal.h"

namespace tessera::null_driver {
namespace {

constexpr int kDriverVersion = 13050;
constexpr size_t kTotalBytes = size_t{80} << 30;

struct Attribute {
  CUdevice_attribute name;
  int value;
};
// An imaginary device with the shape of a large one; unlisted attributes are 0.
constexpr Attribute kAttributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1500000},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 100},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 50 << 20},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
};

// Contexts are numbers: 1 is the primary one. A plain pointer-sized id keeps create and destroy trivial.
constexpr uintptr_t kPrimary = 0xC0DE0010;
std::atomic<uintptr_t> g_next_context{kPrimary + 0x10};
constexpr int kMaxDepth = 16;
thread_local CUcontext t_stack[kMaxDepth];
thread_local int t_depth = 0;

CUcontext current() {
  return t_depth > 0 ? t_stack[t_depth - 1] : nullptr;
}
void push(CUcontext c) {
  if (t_depth < kMaxDepth) t_stack[t_depth++] = c;
}
CUresult create(CUcontext* out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUcontext>(g_next_context.fetch_add(0x10));
  push(*out);
  return CUDA_SUCCESS;
}
CUresult pop(CUcontext* out) {
  if (t_depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --t_depth;
  if (out != nullptr) *out = t_stack[t_depth];
  return CUDA_SUCCESS;
}
// Checks a question about a device, the place for the answer first.
CUresult check(const void* out, CUdevice device) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult destroy(CUcontext c) {
  if (current() == c) pop(nullptr);
  return c == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

}  // namespace
}  // namespace tessera::null_driver

using namespace tessera::null_driver;  // NOLINT: this file is the C surface

TS_NULL(cuDriverGetVersion, int* version) {
  TS_NULL_COUNT(cuDriverGetVersion);
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = kDriverVersion;
  return CUDA_SUCCESS;
}
TS_NULL(cuInit, unsigned flags) {
  TS_NULL_COUNT(cuInit);
  open_tool();
  return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
TS_NULL(cuDeviceGetCount, int* count) {
  TS_NULL_COUNT(cuDeviceGetCount);
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = 1;
  return CUDA_SUCCESS;
}
TS_NULL(cuDeviceGet, CUdevice* device, int ordinal) {
  TS_NULL_COUNT(cuDeviceGet);
  if (ordinal != 0) return CUDA_ERROR_INVALID_DEVICE;
  *device = 0;
  return CUDA_SUCCESS;
}
TS_NULL(cuDeviceGetName, char* name, int len, CUdevice device) {
  TS_NULL_COUNT(cuDeviceGetName);
  if (const CUresult bad = check(name, device)) return bad;
  std::snprintf(name, static_cast<size_t>(len), "Null device");
  return CUDA_SUCCESS;
}
TS_NULL(cuDeviceGetUuid_v2, CUuuid* uuid, CUdevice device) {
  TS_NULL_COUNT(cuDeviceGetUuid_v2);
  if (const CUresult bad = check(uuid, device)) return bad;
  std::memcpy(uuid->bytes, "tessera-null-gpu", sizeof uuid->bytes);
  return CUDA_SUCCESS;
}
TS_NULL(cuDeviceGetUuid, CUuuid* uuid, CUdevice) {
  TS_NULL_COUNT(cuDeviceGetUuid);
  std::memcpy(uuid->bytes, "tessera-null-gpu", sizeof uuid->bytes);
  return CUDA_SUCCESS;
}
TS_NULL(cuDeviceGetPCIBusId, char* id, int len, CUdevice) {
  TS_NULL_COUNT(cuDeviceGetPCIBusId);
  std::snprintf(id, static_cast<size_t>(len), "0000:01:00.0");
  return CUDA_SUCCESS;
}
TS_NULL(cuDeviceTotalMem_v2, size_t* bytes, CUdevice) {
  TS_NULL_COUNT(cuDeviceTotalMem_v2);
  *bytes = kTotalBytes;
  return CUDA_SUCCESS;
}
TS_NULL(cuDeviceGetAttribute, int* value, CUdevice_attribute name, CUdevice device) {
  TS_NULL_COUNT(cuDeviceGetAttribute);
  if (const CUresult bad = check(value, device)) return bad;
  if (name <= 0 || name >= CU_DEVICE_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
  *value = 0;
  for (const Attribute& a : kAttributes)
    if (a.name == name) *value = a.value;
  return CUDA_SUCCESS;
}
TS_NULL(cuMemGetInfo_v2, size_t* free_bytes, size_t* total_bytes) {
  TS_NULL_COUNT(cuMemGetInfo_v2);
  if (free_bytes != nullptr) *free_bytes = kTotalBytes;
  if (total_bytes != nullptr) *total_bytes = kTotalBytes;
  return CUDA_SUCCESS;
}

TS_NULL(cuDevicePrimaryCtxRetain, CUcontext* context, CUdevice device) {
  TS_NULL_COUNT(cuDevicePrimaryCtxRetain);
  if (const CUresult bad = check(context, device)) return bad;
  *context = reinterpret_cast<CUcontext>(kPrimary);
  return CUDA_SUCCESS;
}
TS_NULL(cuDevicePrimaryCtxGetState, CUdevice device, unsigned* flags, int* active) {
  TS_NULL_COUNT(cuDevicePrimaryCtxGetState);
  if (const CUresult bad = check(flags, device)) return bad;
  if (active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
TS_NULL(cuCtxCreate, CUcontext* context, unsigned, CUdevice) {
  TS_NULL_COUNT(cuCtxCreate);
  return create(context);
}
TS_NULL(cuCtxCreate_v2, CUcontext* context, unsigned, CUdevice) {
  TS_NULL_COUNT(cuCtxCreate_v2);
  return create(context);
}
TS_NULL(cuCtxCreate_v3, CUcontext* context, CUexecAffinityParam*, int, unsigned, CUdevice) {
  TS_NULL_COUNT(cuCtxCreate_v3);
  return create(context);
}
TS_NULL(cuCtxCreate_v4, CUcontext* context, CUctxCreateParams*, unsigned, CUdevice) {
  TS_NULL_COUNT(cuCtxCreate_v4);
  return create(context);
}
TS_NULL(cuCtxDestroy, CUcontext context) {
  TS_NULL_COUNT(cuCtxDestroy);
  return destroy(context);
}
TS_NULL(cuCtxDestroy_v2, CUcontext context) {
  TS_NULL_COUNT(cuCtxDestroy_v2);
  return destroy(context);
}
TS_NULL(cuCtxSetCurrent, CUcontext context) {
  TS_NULL_COUNT(cuCtxSetCurrent);
  if (t_depth > 0) --t_depth;
  if (context != nullptr) push(context);
  return CUDA_SUCCESS;
}
TS_NULL(cuCtxGetCurrent, CUcontext* context) {
  TS_NULL_COUNT(cuCtxGetCurrent);
  *context = current();
  return CUDA_SUCCESS;
}
TS_NULL(cuCtxPushCurrent_v2, CUcontext context) {
  TS_NULL_COUNT(cuCtxPushCurrent_v2);
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  push(context);
  return CUDA_SUCCESS;
}
TS_NULL(cuCtxPopCurrent_v2, CUcontext* context) {
  TS_NULL_COUNT(cuCtxPopCurrent_v2);
  return pop(context);
}
TS_NULL(cuCtxGetDevice, CUdevice* device) {
  TS_NULL_COUNT(cuCtxGetDevice);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = 0;
  return CUDA_SUCCESS;
}
TS_NULL(cuCtxGetDevice_v2, CUdevice* device, CUcontext) {
  TS_NULL_COUNT(cuCtxGetDevice_v2);
  *device = 0;
  return CUDA_SUCCESS;
}
TS_NULL(cuCtxGetId, CUcontext context, unsigned long long* id) {
  TS_NULL_COUNT(cuCtxGetId);
  *id = reinterpret_cast<uintptr_t>(context != nullptr ? context : current());
  return CUDA_SUCCESS;
}
TS_NULL(cuCtxGetFlags, unsigned* flags) {
  TS_NULL_COUNT(cuCtxGetFlags);
  *flags = 0;
  return CUDA_SUCCESS;
}
TS_NULL(cuCtxGetStreamPriorityRange, int* least, int* greatest) {
  TS_NULL_COUNT(cuCtxGetStreamPriorityRange);
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

TS_NULL(cuGetErrorName, CUresult error, const char** text) {
  TS_NULL_COUNT(cuGetErrorName);
  *text = error == CUDA_SUCCESS ? "CUDA_SUCCESS" : "CUDA_ERROR";
  return CUDA_SUCCESS;
}
TS_NULL(cuGetErrorString, CUresult error, const char** text) {
  TS_NULL_COUNT(cuGetErrorString);
  *text = error == CUDA_SUCCESS ? "no error" : "error of the null driver";
  return CUDA_SUCCESS;
}

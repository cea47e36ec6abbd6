/* The driver's names, for interposers that programs meet by linking: each is its wrapper. */
#include "neighbour.h"

#define EXPORT __attribute__((visibility("default")))
EXPORT int cuInit(unsigned flags) {
  return wrapped_cuInit(flags);
}
EXPORT int cuDeviceGetCount(int* count) {
  return wrapped_cuDeviceGetCount(count);
}
EXPORT int cuMemAlloc_v2(unsigned long long* address, size_t bytes) {
  return wrapped_cuMemAlloc_v2(address, bytes);
}
EXPORT int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream,
                          void** parameters, void** extra) {
  return wrapped_cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                                stream, parameters, extra);
}
EXPORT int cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long flags,
                               int* status) {
  return wrapped_cuGetProcAddress_v2(name, function, version, flags, status);
}

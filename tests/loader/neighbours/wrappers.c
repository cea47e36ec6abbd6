#include "neighbour.h"

#include <string.h>

static unsigned g_seen;
unsigned neighbour_seen(void) {
  return __atomic_load_n(&g_seen, __ATOMIC_RELAXED);
}
static void* real(const char* name) {
  __atomic_fetch_add(&g_seen, 1, __ATOMIC_RELAXED);
  return neighbour_real(name);
}

enum { kNotFound = 500 };

int wrapped_cuInit(unsigned flags) {
  Init to = (Init)real("cuInit");
  return to ? to(flags) : kNotFound;
}
int wrapped_cuDeviceGetCount(int* count) {
  DeviceCount to = (DeviceCount)real("cuDeviceGetCount");
  return to ? to(count) : kNotFound;
}
int wrapped_cuMemAlloc_v2(unsigned long long* address, size_t bytes) {
  Allocate to = (Allocate)real("cuMemAlloc_v2");
  return to ? to(address, bytes) : kNotFound;
}
int wrapped_cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                           unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                           void* stream, void** parameters, void** extra) {
  Launch to = (Launch)real("cuLaunchKernel");
  return to ? to(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
                 parameters, extra)
            : kNotFound;
}
int wrapped_cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long flags,
                                int* status) {
  GetAddress to = (GetAddress)real("cuGetProcAddress_v2");
  const int result = to ? to(name, function, version, flags, status) : kNotFound;
  const char* symbol = strcmp(name, "cuMemAlloc") == 0 ? "cuMemAlloc_v2" : name;
  if (result == 0 && wrapper_of(symbol)) *function = wrapper_of(symbol);
  return result;
}

void* wrapper_of(const char* name) {
  if (strcmp(name, "cuInit") == 0) return (void*)&wrapped_cuInit;
  if (strcmp(name, "cuDeviceGetCount") == 0) return (void*)&wrapped_cuDeviceGetCount;
  if (strcmp(name, "cuMemAlloc_v2") == 0) return (void*)&wrapped_cuMemAlloc_v2;
  if (strcmp(name, "cuLaunchKernel") == 0) return (void*)&wrapped_cuLaunchKernel;
  if (strcmp(name, "cuGetProcAddress_v2") == 0) return (void*)&wrapped_cuGetProcAddress_v2;
  return NULL;
}

/* In the manner of torch_memory_saver: it replaces the program's cudaMalloc and allocates by the driver. */
#include "neighbour.h"

static unsigned g_seen;
unsigned neighbour_seen(void) {
  return __atomic_load_n(&g_seen, __ATOMIC_RELAXED);
}

__attribute__((visibility("default"))) int cudaMalloc(void** address, size_t bytes) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NODELETE);
  Allocate allocate = driver ? (Allocate)dlsym(driver, "cuMemAlloc_v2") : NULL;
  __atomic_fetch_add(&g_seen, 1, __ATOMIC_RELAXED);
  return allocate ? allocate((unsigned long long*)address, bytes) : 500;
}

/* Stands for the runtime: its cudaMalloc is the driver's, and asks for nobody. */
#include "neighbour.h"

int cudaMalloc(void** address, size_t bytes) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NODELETE);
  Allocate allocate = driver ? (Allocate)dlsym(driver, "cuMemAlloc_v2") : NULL;
  return allocate ? allocate((unsigned long long*)address, bytes) : 500;
}

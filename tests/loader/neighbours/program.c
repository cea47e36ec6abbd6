/* The same calls, by every way in which a program comes to the driver. Prints each result, how many calls the neighbour has
   seen, and how many have reached the driver, which lies at TESSERA_DRIVER and nowhere else.
   usage: program linked|opened|asked */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "neighbour.h"

extern int cuInit(unsigned);
extern int cuDeviceGetCount(int*);
extern int cuMemAlloc_v2(unsigned long long*, size_t);
extern int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                          void**, void**);
extern int cudaMalloc(void**, size_t);

/* By dlmopen, which no neighbour of this folder overrides. */
static unsigned long reached_driver(const char* symbol) {
  void* driver = dlmopen(LM_ID_BASE, getenv("TESSERA_DRIVER"), RTLD_NOW | RTLD_NOLOAD);
  unsigned long (*count)(const char*) = NULL;
  if (driver) count = (unsigned long (*)(const char*))dlsym(driver, "tessera_null_calls");
  return count ? count(symbol) : 0;
}

int main(int count_of_words, char** words) {
  const char* way = count_of_words > 1 ? words[1] : "linked";
  Init init = cuInit;
  DeviceCount devices = cuDeviceGetCount;
  Allocate allocate = cuMemAlloc_v2;
  Launch launch = cuLaunchKernel;
  if (strcmp(way, "linked") != 0) {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    init = (Init)dlsym(driver, "cuInit");
    devices = (DeviceCount)dlsym(driver, "cuDeviceGetCount");
    allocate = (Allocate)dlsym(driver, "cuMemAlloc_v2");
    launch = (Launch)dlsym(driver, "cuLaunchKernel");
    if (strcmp(way, "asked") == 0) {
      GetAddress ask = (GetAddress)dlsym(driver, "cuGetProcAddress_v2");
      int status = 0;
      if (ask("cuInit", (void**)&init, 13000, 0, &status) != 0 || status != 0) return 3;
      if (ask("cuDeviceGetCount", (void**)&devices, 13000, 0, &status) != 0 || status != 0) return 3;
      if (ask("cuLaunchKernel", (void**)&launch, 13000, 0, &status) != 0 || status != 0) return 3;
      if (ask("cuMemAlloc", (void**)&allocate, 13000, 0, &status) != 0 || status != 0) return 3;
    }
  }
  const int started = init(0);
  int count = -1;
  const int counted = devices(&count);
  unsigned long long address = 0;
  const int allocated = allocate(&address, 4096);
  void* no_parameters[1] = {NULL};
  const int launched = launch((void*)0x1000, 1, 1, 1, 1, 1, 1, 0, NULL, no_parameters, NULL);
  void* by_runtime = NULL;
  const int runtime = cudaMalloc(&by_runtime, 4096);
  unsigned (*seen)(void) = (unsigned (*)(void))dlsym(RTLD_DEFAULT, "neighbour_seen");
  printf("init %d devices %d %d memory %d %d launch %d runtime %d %d neighbour %u driver %lu %lu %lu\n",
         started, counted, count, allocated, address != 0, launched, runtime, by_runtime != NULL,
         seen ? seen() : 0, reached_driver("cuInit"), reached_driver("cuMemAlloc_v2"),
         reached_driver("cuLaunchKernel"));
  return 0;
}

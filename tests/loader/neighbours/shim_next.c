/* In the manner of cuinterpose and mcshim: a library with the driver's exports, which asks for the next one. Without a
   next one (the program has opened the driver itself) it opens the driver by its SONAME. */
#define _GNU_SOURCE
#include "neighbour.h"

void* neighbour_real(const char* name) {
  void* next = dlsym(RTLD_NEXT, name);
  if (next) return next;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NODELETE);
  return driver ? dlsym(driver, name) : NULL;
}

/* Another preloaded library: wraps dlopen, malloc's family stays alone, and stands before or behind one driver entry
   point as a profiler would, handing everything on with RTLD_NEXT. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

__attribute__((visibility("default"))) void* dlopen(const char* file, int mode) {
  static void* (*next)(const char*, int);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "dlopen");
  return next(file, mode);
}

__attribute__((visibility("default"))) int cuDeviceGetCount(int* count) {
  static int (*next)(int*);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "cuDeviceGetCount");
  return next == NULL ? 999 : next(count);
}

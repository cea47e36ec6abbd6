/* In the manner of HAMi-core and nvshare: it overrides dlsym, answers names of the driver by its wrappers, and finds the
   driver by its SONAME and the dlsym behind its own. */
#define _GNU_SOURCE
#include <string.h>

#include "neighbour.h"

static void* real_dlsym(void* handle, const char* name) {
  static void* (*found)(void*, const char*);
  if (!found) found = (void* (*)(void*, const char*))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  return found(handle, name);
}

__attribute__((visibility("default"))) void* dlsym(void* restrict handle, const char* restrict name) {
  void* wrapper = strncmp(name, "cu", 2) == 0 ? wrapper_of(name) : NULL;
  return wrapper ? wrapper : real_dlsym(handle, name);
}

void* neighbour_real(const char* name) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NODELETE);
  return driver ? real_dlsym(driver, name) : NULL;
}

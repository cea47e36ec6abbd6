/* Of the interposers that override dlsym: names of the driver are answered by their wrappers. */
#define _GNU_SOURCE
#include <string.h>

#include "neighbour.h"

#ifdef __aarch64__
#define OLDEST_GLIBC "GLIBC_2.17"
#else
#define OLDEST_GLIBC "GLIBC_2.2.5"
#endif

void* real_dlsym(void* handle, const char* name) {
  static void* (*found)(void*, const char*);
  if (!found) found = (void* (*)(void*, const char*))dlvsym(RTLD_NEXT, "dlsym", OLDEST_GLIBC);
  return found(handle, name);
}

__attribute__((visibility("default"))) void* dlsym(void* restrict handle, const char* restrict name) {
  void* wrapper = strncmp(name, "cu", 2) == 0 ? wrapper_of(name) : NULL;
  return wrapper ? wrapper : real_dlsym(handle, name);
}

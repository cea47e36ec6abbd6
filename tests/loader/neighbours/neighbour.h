/* What the small interposers of this folder share: they count the calls that they see, and wrap these five. */
#ifndef TESSERA_NEIGHBOUR_H
#define TESSERA_NEIGHBOUR_H
#include <dlfcn.h>
#include <stddef.h>

typedef int (*Init)(unsigned flags);
typedef int (*DeviceCount)(int* count);
typedef int (*Allocate)(unsigned long long* address, size_t bytes);
typedef int (*Launch)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                      unsigned shared_bytes, void* stream, void** parameters, void** extra);
typedef int (*GetAddress)(const char* name, void** function, int version, unsigned long long flags,
                          int* status);

/* How many calls this library has seen. One for all of them: a process has one neighbour. */
__attribute__((visibility("default"))) unsigned neighbour_seen(void);

/* The wrappers; each finds its function by neighbour_real(), at each call. */
int wrapped_cuInit(unsigned flags);
int wrapped_cuDeviceGetCount(int* count);
int wrapped_cuMemAlloc_v2(unsigned long long* address, size_t bytes);
int wrapped_cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                           unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                           void* stream, void** parameters, void** extra);
int wrapped_cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long flags,
                                int* status);

/* The wrapper of this name, or null. */
void* wrapper_of(const char* name);

/* Of those that override dlsym (override_dlsym.c): the one behind theirs. */
void* real_dlsym(void* handle, const char* name);

/* Of the interposer itself: whom its wrapper calls. */
void* neighbour_real(const char* name);
#endif

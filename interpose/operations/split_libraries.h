// Functions that splitting calls itself: a few of the driver and of cuBLAS, in the libraries that the program uses. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::library {

// The driver's functions, through whatever the program has as libcuda.so.1. Results: 0 is success.
struct Driver {
  int (*get_context)(void** context);
  int (*get_device)(int* device);
  int (*name)(char* text, int length, int device);
  int (*version)(int* version);
  int (*attribute)(int* value, int attribute, int device);
  int (*memory)(size_t* free, size_t* total);
  int (*range)(uint64_t* base, size_t* bytes, uint64_t address);
  int (*allocate)(uint64_t* address, size_t bytes);
  int (*release)(uint64_t address);
  int (*copy)(uint64_t to, uint64_t from, size_t bytes, void* stream);
  int (*read)(void* to, uint64_t from, size_t bytes, void* stream);
  int (*make_stream)(void** stream, unsigned flags);
  int (*end_stream)(void* stream);
  int (*wait)(void* stream);
  int (*make_event)(void** event, unsigned flags);
  int (*end_event)(void* event);
  int (*record)(void* event, void* stream);
  int (*passed)(void* event);
  int (*exchange_capture_mode)(int* mode);  // of this thread, CUstreamCaptureMode
};
// Functions of cuBLAS, in the library of this name. 0 is success.
struct Cublas {
  int (*version)(const void* handle, int* version);
  int (*stream)(const void* handle, void** stream);
  int (*math_mode)(const void* handle, int* mode);
  int (*pointer_mode)(const void* handle, int* mode);
  int (*atomics_mode)(const void* handle, int* mode);
  int (*sm_target)(const void* handle, int* target);  // these two may be missing
  int (*set_sm_target)(const void* handle, int target);
};

// Each is looked up once, at the first call that is longer than a slice; by then it is loaded, or never used. Null: functions are
// missing.
const Driver* splitting_driver();
// Null also where the function that is called is of another copy of cuBLAS.
const Cublas* splitting_cublas(const void* function);

// A program may have loaded a library twice: are both functions of one?
bool of_one_library(const void* function, const void* other);

}  // namespace tessera::library

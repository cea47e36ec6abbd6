// What splitting calls itself: a few functions of the driver and of cuBLAS, in the libraries that the program uses. Any thread.
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
// Of cuBLAS, in the library that is asked. 0 is success.
struct Settings {
  int (*version)(const void* handle, int* version);
  int (*stream)(const void* handle, void** stream);
  int (*math_mode)(const void* handle, int* mode);
  int (*pointer_mode)(const void* handle, int* mode);
  int (*atomics_mode)(const void* handle, int* mode);
  int (*sm_target)(const void* handle, int* target);  // these two may be missing
  int (*set_sm_target)(const void* handle, int target);
};
struct Libraries {
  Driver driver;
  Settings settings;
  const void* base;  // where cuBLAS is mapped
  bool complete;     // all are there, but for what may be missing
};

// Looked up once, at the first call that is longer than a slice; by then both are loaded, or never used.
const Libraries& libraries();

// A program may have loaded cuBLAS twice: is this function of the one that is asked?
bool of_asked_library(const void* function);

}  // namespace tessera::library

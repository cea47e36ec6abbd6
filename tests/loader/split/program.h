// The common part of this folder's programs: random numbers, memory of the "GPU", waiting for it.
#pragma once

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#include <complex>
#include <cstdio>
#include <random>

extern "C" {
int cuMemAlloc_v2(uint64_t* address, size_t bytes);
int cuMemFree_v2(uint64_t address);
int cuThreadExchangeStreamCaptureMode(int* mode);
int fake_allocations();
int fake_most_bytes();
int fake_reset();
int cuCtxGetCurrent(void** context);
}

inline std::mt19937_64 g_random;

inline int64_t in(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(g_random);
}

// Tells libtessera_ops.so that the program has waited; does nothing without it.
inline void wait_for_gpu() {
  if (const auto idle = reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "reader_idle"))) idle();
}

template <class T>
void random_value(T& x) {
  x = T(float(in(-1000, 1000)) / 777.0f);
}
template <class T>
void random_value(std::complex<T>& x) {
  x = {T(float(in(-1000, 1000)) / 777.0f), T(float(in(-1000, 1000)) / 333.0f)};
}

// On the "GPU", begun a random distance behind the allocation's.
template <class T>
struct Memory {
  explicit Memory(int64_t n) : size(size_t(n)), offset(size_t(in(0, 40))) {
    cuCtxGetCurrent(&context);
    if (cuMemAlloc_v2(&address, (size + offset) * sizeof(T)) != 0) abort();
    for (size_t i = 0; i < size; i++) random_value(data()[i]);
  }
  ~Memory() {
    void* now = nullptr;
    cuCtxGetCurrent(&now);
    if (now == context) cuMemFree_v2(address);  // else it ended with its context
  }
  Memory(const Memory&) = delete;
  T* data() const { return reinterpret_cast<T*>(address) + offset; }
  uint64_t bits() const {  // FNV-1a
    uint64_t hash = 0xcbf29ce484222325;
    const auto* bytes = reinterpret_cast<const unsigned char*>(data());
    for (size_t i = 0; i < size * sizeof(T); i++) hash = (hash ^ bytes[i]) * 0x100000001b3;
    return hash;
  }
  uint64_t address = 0;
  size_t size, offset;
  void* context = nullptr;
};

// On standard error, for the test.
inline void report(int calls) {
  int capture_mode = 1;
  cuThreadExchangeStreamCaptureMode(&capture_mode);
  fprintf(stderr, "calls %d\ncapture_mode %d\nallocations %d\n", calls, capture_mode, fake_allocations());
}

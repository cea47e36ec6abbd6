// A CUDA driver that does nothing, fast: every export, plausible handles, its own correct cuGetProcAddress.
// For tests and benches of what stands in front of a driver; nothing is executed, copied or timed.
// lib/null/libcuda.so.1.
//
// The functions below are exported beside the cu* ones; reach them with dlsym on the null driver's own handle
// (dlopen of its absolute path), since the preloaded shim does not forward them. Any thread.
// Between any two events lie TESSERA_NULL_ELAPSED_NS, as the environment says at load, or 1,000 ns: who times a kernel
// measures that.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {
// Calls of one exported symbol since load (or reset). Exact if TESSERA_NULL_EXACT=1 was set at load (a locked
// add), else about a nanosecond and lossy when threads race.
uint64_t tessera_null_calls(const char* symbol);
void tessera_null_reset();

// While held, work does not complete: stream writes are kept back, events recorded now and all streams answer
// CUDA_ERROR_NOT_READY when queried. Synchronise calls return at once (a test must not hang). Off lets
// everything go.
void tessera_null_hold(int on);
// Performs the first `count` kept-back stream writes while held. Returns how many there were to perform.
unsigned tessera_null_release(unsigned count);

// The latest kernel launch through any launch entry point (grid, block, shared bytes, stream). Only recorded
// while on.
struct TesseraNullLaunch {
  uint64_t number;  // of recorded launches so far
  uint32_t grid[3], block[3], shared_bytes;
  void* function;
  void* stream;
  void** params;  // as passed; valid during the call only
};
void tessera_null_record_launches(int on);
TesseraNullLaunch tessera_null_last_launch();
// cuGetExportTable answers this table to these 16 bytes. A tool hears of each call, before the call does anything, in its
// thread, but only where TESSERA_NULL_EXACT=1. As NVIDIA's driver does, cuInit opens the tool at CUDA_INJECTION64_PATH and calls its
// InitializeInjection.
constexpr char kTesseraNullTools[] = "tessera-null-cbs";
struct TesseraNullTools {
  size_t bytes;
  void (*subscribe)(void (*hear)(const char* symbol));  // one tool; null = none
};
// The latest cuParamSetf: a float argument, to see that vector registers survive the first call.
float tessera_null_last_float();
}

// The common part of test programs of the plain driver API: a call that fails ends the program with the error's name,
// and SIGTERM asks it to end.
#pragma once

#include <cuda.h>
#include <errno.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>

namespace tessera::test {

inline volatile sig_atomic_t g_stop = 0;

inline void stop_on_sigterm() {
  signal(SIGTERM, [](int) { g_stop = 1; });
}

inline void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  std::fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, name ? name : "?");
  std::exit(1);
}

}  // namespace tessera::test

#define CHECK(call) tessera::test::check(call, #call)

// The common part of the conformance programs: one line per call, without anything that differs between runs
// (addresses, times).
#pragma once

#include <cstdio>

#define SAY(call)                             \
  do {                                        \
    const int result_ = int(call);            \
    std::printf("%s = %d\n", #call, result_); \
  } while (0)

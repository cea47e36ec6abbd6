// Parameters of kernels that h20_kernels.cu has and h20_prologue.cu launches.
#pragma once

#include <cstdint>

struct OddParameter {
  int8_t bytes[1001];
};
constexpr int kLargeValues = 2000;
struct LargeParameter {
  float values[kLargeValues];
};
struct BareArguments {  // in memory, of the kernel without parameters
  const float* a;
  float* out;
  int n;
};

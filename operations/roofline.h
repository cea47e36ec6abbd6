// What bounds an operation and how long it takes at least, by the roofline of a GPU: a first guess for work
// that was never measured. Pure; any thread.
#pragma once

#include "ipc/abi/region.h"
#include "operations/gemm.h"

namespace tessera::operations {

// Of one GPU, for the pipe that the operation uses; 0 = not known.
struct Rates {
  double flop_per_s = 0;
  double bytes_per_s = 0;
};

struct Roofline {
  ipc::abi::ResourceClass resource_class = ipc::abi::kResourceUnknown;
  double at_least_ns = 0;
};

// The side that takes longer is the class. Unknown, and no time, without both rates or without any work.
constexpr Roofline roofline(const Cost& cost, const Rates& rates) {
  if (rates.flop_per_s <= 0 || rates.bytes_per_s <= 0 || (cost.flop == 0 && cost.bytes == 0)) return {};
  const double compute_ns = static_cast<double>(cost.flop) / rates.flop_per_s * 1e9;
  const double memory_ns = static_cast<double>(cost.bytes) / rates.bytes_per_s * 1e9;
  if (compute_ns > memory_ns) return {ipc::abi::kResourceCompute, compute_ns};
  return {ipc::abi::kResourceMemory, memory_ns};
}

}  // namespace tessera::operations

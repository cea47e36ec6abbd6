// Estimates the bound of an operation and its least duration, by the roofline of a GPU: a first guess for work that was
// never measured. Pure; any thread.
#pragma once

#include "ipc/abi/region.h"
#include "operations/cost.h"
#include "operations/type.h"

namespace tessera::operations {

// Rates of one GPU, for the pipe that the operation uses; 0 = not known.
struct Rates {
  double flop_per_s = 0;
  double bytes_per_s = 0;
};

// Peaks of one GPU, FLOP or integer operations per second, dense; 0 = has none, or not known.
struct Peaks {
  double fp64, tensor_fp64, fp32, tensor_tf32, fp16, tensor_fp16, tensor_fp8, tensor_int8;
};

// For products of this type of A, as cuBLAS computes them unless it is told otherwise: single precision not on tensor
// cores, unless it may be computed as TF32; everything else there if there are any.
constexpr Rates rates_for(Type type, const Peaks& peaks, double bytes_per_s) {
  const auto larger = [](double x, double y) { return x > y ? x : y; };
  double flop_per_s = 0;
  if (type == Type::kF64 || type == Type::kComplexF64) flop_per_s = larger(peaks.fp64, peaks.tensor_fp64);
  if (type == Type::kF32 || type == Type::kComplexF32) flop_per_s = peaks.fp32;
  if (type == Type::kTF32) flop_per_s = larger(peaks.fp32, peaks.tensor_tf32);
  if (type == Type::kF16 || type == Type::kBF16) flop_per_s = larger(peaks.fp16, peaks.tensor_fp16);
  if (type == Type::kE4M3 || type == Type::kE5M2) flop_per_s = peaks.tensor_fp8;
  if (type == Type::kI8 || type == Type::kU8) flop_per_s = peaks.tensor_int8;
  return {flop_per_s, bytes_per_s};
}

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

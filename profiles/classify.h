// Classifies a kernel by its bound: roofline against a GPU description or, without counters, its slowdown beside a
// known neighbour. Pure; any thread. Says "unknown" rather than guess.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "profiles/gpu_description.h"

namespace tessera::profiles {

enum class Class : uint8_t { kUnknown, kCompute, kMemory, kLatency };
const char* class_name(Class c);

// One launch, mean over samples.
struct RooflineInput {
  double duration_ns = 0;
  uint64_t samples = 0;
  double memory_bytes = 0;
  double warp_instructions = 0;              // 0: not counted
  std::map<std::string, double> operations;  // by pipe: fp64 fp32 fp16 tensor tensor_fp64 tensor_tf32 ...
};

struct Roofline {
  Class bound = Class::kUnknown;
  std::string reason;              // one line, for people
  double compute_utilisation = 0;  // of the busiest pipe, 0..1
  double memory_utilisation = 0;
  std::string pipe;       // the busiest: issue, fp32, tensor ...
  double operations = 0;  // arithmetic of all pipes, per launch
  double peak_per_s = 0;  // of the pipe that holds most of the arithmetic
  double operations_per_byte() const { return bytes > 0 ? operations / bytes : 0; }
  double bytes = 0;
};

inline constexpr uint64_t kMinSamples = 3;
// A kernel is bound by what it uses at least this much of. It stays so until use falls below the second figure.
// Issue slots count as compute only where memory is not used that much: loads and addresses take them too.
inline constexpr double kEnterUtilisation = 0.60, kLeaveUtilisation = 0.50;
// If only issue slots are used that much, the side of the roofline decides once this much bandwidth is used.
inline constexpr double kEnterMemorySide = 0.30, kLeaveMemorySide = 0.25;
// A class gives way to the other only when that is used more by this factor.
inline constexpr double kSwitchFactor = 1.10;

// Operations per second of a pipe; 0 if there is no such pipe or the description does not say.
double peak_of(const GpuDescription& gpu, const std::string& pipe);

Roofline classify(const RooflineInput& in, const GpuDescription& gpu, Class previous = Class::kUnknown);

// Duration beside a bandwidth-bound and beside a compute-bound neighbour over the duration alone; 0 = not
// measured. A kernel suffers most beside its own kind; one that suffers from neither is latency-bound.
Class classify_by_sensitivity(double slowdown_beside_memory, double slowdown_beside_compute,
                              Class previous = Class::kUnknown);

}  // namespace tessera::profiles

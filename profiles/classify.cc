#include "profiles/classify.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace tessera::profiles {
namespace {

struct Pipe {
  const char* name;
  double (*peak)(const GpuDescription&);
};
// "tensor" alone: counted without its type; held against the fp16 rate, as the software GPU's model does.
constexpr Pipe kPipes[] = {
    {"fp64", [](const GpuDescription& g) { return g.peak.fp64; }},
    {"fp32", [](const GpuDescription& g) { return g.peak.fp32; }},
    {"fp16", [](const GpuDescription& g) { return g.peak.fp16; }},
    {"tensor", [](const GpuDescription& g) { return g.peak.tensor_fp16; }},
    {"tensor_fp64", [](const GpuDescription& g) { return g.peak.tensor_fp64; }},
    {"tensor_tf32", [](const GpuDescription& g) { return g.peak.tensor_tf32; }},
    {"tensor_fp16", [](const GpuDescription& g) { return g.peak.tensor_fp16; }},
    {"tensor_fp8", [](const GpuDescription& g) { return g.peak.tensor_fp8; }},
    {"tensor_int8", [](const GpuDescription& g) { return g.peak.tensor_int8; }},
};

constexpr double kSlowdownEnter = 1.20, kSlowdownLeave = 1.10;

bool usable(double value) {
  return std::isfinite(value) && value >= 0;
}

std::string percent(const char* what, double share) {
  char text[96];
  std::snprintf(text, sizeof text, "%s at %.0f %%", what, share * 100);
  return text;
}

// The class with the larger figure, but the previous one until the other exceeds it by kSwitchFactor.
Class larger(double compute, double memory, Class previous) {
  if (previous == Class::kCompute) return memory > compute * kSwitchFactor ? Class::kMemory : previous;
  if (previous == Class::kMemory) return compute > memory * kSwitchFactor ? Class::kCompute : previous;
  return compute > memory ? Class::kCompute : Class::kMemory;
}

// Of a kernel whose issue slots are taken, but mostly not by arithmetic: are they taken by moving bytes? Left
// of the ridge of the roofline (operations per byte at which both peaks are reached), and a fair share of the
// bandwidth used.
bool under_the_memory_roof(const Roofline& r, const GpuDescription& gpu, Class previous) {
  const double least = previous == Class::kMemory ? kLeaveMemorySide : kEnterMemorySide;
  if (r.memory_utilisation < least) return false;
  const double slack = previous == Class::kMemory    ? kSwitchFactor
                       : previous == Class::kCompute ? 1 / kSwitchFactor
                                                     : 1;
  return r.operations_per_byte() * gpu.memory.bytes_per_s <= r.peak_per_s * slack;
}

Roofline unknown(Roofline r, const std::string& why) {
  r.bound = Class::kUnknown;
  r.reason = why;
  return r;
}

}  // namespace

const char* class_name(Class c) {
  switch (c) {
    case Class::kUnknown:
      return "unknown";
    case Class::kCompute:
      return "compute";
    case Class::kMemory:
      return "memory";
    case Class::kLatency:
      return "latency";
  }
  return "unknown";
}

double peak_of(const GpuDescription& gpu, const std::string& pipe) {
  for (const Pipe& row : kPipes)
    if (pipe == row.name) return row.peak(gpu);
  return 0;
}

Roofline classify(const RooflineInput& in, const GpuDescription& gpu, Class previous) {
  Roofline r;
  if (in.samples < kMinSamples)
    return unknown(r, "fewer than " + std::to_string(kMinSamples) + " launches counted");
  if (!usable(in.duration_ns) || in.duration_ns <= 0) return unknown(r, "no duration");
  if (!usable(in.memory_bytes) || !usable(in.warp_instructions)) return unknown(r, "counts are no numbers");
  const double seconds = in.duration_ns * 1e-9;
  const double issue_per_s = gpu.issue_per_s() * gpu.sm.count;
  r.bytes = in.memory_bytes;
  const double issue = issue_per_s > 0 ? in.warp_instructions / issue_per_s / seconds : 0;
  double arithmetic = 0, most = 0;
  r.pipe = "issue";
  for (const auto& [pipe, operations] : in.operations) {
    if (!usable(operations)) return unknown(r, "counts are no numbers");
    if (operations == 0) continue;
    const double peak = peak_of(gpu, pipe);
    if (peak <= 0) return unknown(r, "the description of " + gpu.name + " has no peak for " + pipe);
    r.operations += operations;
    if (operations > most) most = operations, r.peak_per_s = peak;
    const double used = operations / peak / seconds;
    if (used > arithmetic) {
      arithmetic = used;
      if (used > issue) r.pipe = pipe;
    }
  }
  r.compute_utilisation = std::max(issue, arithmetic);
  if (gpu.memory.bytes_per_s <= 0) return unknown(r, "the description has no memory bandwidth");
  r.memory_utilisation = in.memory_bytes / gpu.memory.bytes_per_s / seconds;
  if (in.memory_bytes == 0 && in.warp_instructions == 0 && r.operations == 0)
    return unknown(r, "neither bytes nor operations were counted");

  const double enough_compute = previous == Class::kCompute ? kLeaveUtilisation : kEnterUtilisation;
  const double enough_memory = previous == Class::kMemory ? kLeaveUtilisation : kEnterUtilisation;
  const bool by_memory = r.memory_utilisation >= enough_memory, by_arithmetic = arithmetic >= enough_compute;
  if (by_memory && by_arithmetic)
    r.bound = larger(arithmetic, r.memory_utilisation, previous);
  else if (by_memory)
    r.bound = Class::kMemory;
  else if (by_arithmetic)
    r.bound = Class::kCompute;
  else if (issue >= enough_compute)
    r.bound = under_the_memory_roof(r, gpu, previous) ? Class::kMemory : Class::kCompute;
  else
    r.bound = Class::kLatency;
  r.reason = percent(r.pipe.c_str(), r.compute_utilisation) + ", " + percent("memory", r.memory_utilisation);
  return r;
}

Class classify_by_sensitivity(double beside_memory, double beside_compute, Class previous) {
  if (!usable(beside_memory) || !usable(beside_compute) || beside_memory == 0 || beside_compute == 0)
    return Class::kUnknown;
  const bool was_bound = previous == Class::kCompute || previous == Class::kMemory;
  if (std::max(beside_memory, beside_compute) < (was_bound ? kSlowdownLeave : kSlowdownEnter))
    return Class::kLatency;
  return larger(beside_compute, beside_memory, previous);
}

}  // namespace tessera::profiles

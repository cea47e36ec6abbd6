// Spreads the steps of a graph over lanes that run side by side, each a stream, and says where one waits for another. Every
// step is behind all that it depends on. Apart from that, as few steps as lanes allow are behind others. Pure; may throw bad_alloc.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::track {

// As many as a process has hardware queues unless it asks for more (CUDA_DEVICE_MAX_CONNECTIONS).
inline constexpr uint32_t kMostLanes = 8;

struct LaneStep {
  static constexpr uint32_t kNoEvent = UINT32_MAX;
  uint32_t lane = 0;
  uint32_t records = kNoEvent;  // behind it, in its lane
  std::vector<uint32_t> waits;  // events that its lane waits for, before it
};

struct Lanes {
  uint32_t count = 1;  // lane 0 is the launch stream
  uint32_t n_events = 0;
  std::vector<LaneStep> steps;  // of the plan, in order; empty: all are in lane 0
  size_t size_bytes() const;
};

// `dependencies[i]` names steps before i. No steps in the result if one lane is enough.
Lanes lanes_of(std::span<const std::vector<uint32_t>> dependencies);

}  // namespace tessera::track

// Runs: short kernels of a graph one behind the other, which go out together as a graph of their own when the graph goes
// out in pieces. One launch instead of many, no longer than a slice. Which steps make up a run is pure; the graphs of runs
// are made once, and again when the plan changes or slices become shorter. Under the lock of the graph that they belong to.
#pragma once

#include "interpose/track/graph_plan.h"

namespace tessera::track {

// A run of fewer costs more than its kernels one by one: launching a graph takes as long as launching 3 to 6 kernels.
inline constexpr uint32_t kLeastRun = 5;

struct GraphRun {
  std::vector<uint32_t> steps;  // of one lane, ascending; all but the first wait for nothing beside them
  uint64_t expected_ns = 0;     // sum of theirs
  CUgraphExec exec = nullptr;
};

// `step_ns[i]`: what step i is known to take; 0: not known, or it must go by itself. No run lasts longer than `most_ns`, and
// no kernel in one longer than a kLeastRun-th of that. May throw bad_alloc.
std::vector<GraphRun> runs_of(const GraphPlan& plan, std::span<const uint64_t> step_ns, uint64_t most_ns);

class GraphRuns {
 public:
  // Counts a launch in pieces. True: now is the time for make(): the plan has been the same for some launches, so that more
  // of its kernels may have been measured, or slices are now shorter than a run is.
  bool due(uint64_t slice_ns);
  // In the graph's context, while no capture is open. What cannot be made goes kernel by kernel from then on.
  void make(const GraphPlan& plan, uint64_t slice_ns, uint64_t (*known_ns)(const KernelStep&)) noexcept;
  // Null: the step goes by itself. A run goes where its first step would; its others are then done.
  const GraphRun* of(uint32_t step) const {
    return step < of_step_.size() && of_step_[step] != 0 ? &runs_[of_step_[step] - 1] : nullptr;
  }
  std::span<const GraphRun> all() const { return runs_; }
  void forget() noexcept;  // the plan has changed, or ends: runs that are in flight end in peace

 private:
  static constexpr uint32_t kFirstLook = 4, kLastLook = 256;  // launches; four times as many each time
  void drop() noexcept;

  std::vector<GraphRun> runs_;
  std::vector<uint32_t> of_step_;  // index in runs_ + 1; 0: none
  uint64_t longest_ns_ = 0;
  uint32_t launches_ = 0, next_look_ = kFirstLook;
};

}  // namespace tessera::track

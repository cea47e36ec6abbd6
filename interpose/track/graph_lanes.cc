#include "interpose/track/graph_lanes.h"

#include <algorithm>
#include <array>

namespace tessera::track {
namespace {

// Counts for each lane how many of its steps have ended (or, in a lane, are waited for).
using Clock = std::array<uint32_t, kMostLanes>;

void join(Clock& clock, const Clock& other) {
  for (uint32_t l = 0; l < kMostLanes; l++) clock[l] = std::max(clock[l], other[l]);
}

class Assignment {
 public:
  explicit Assignment(std::span<const std::vector<uint32_t>> dependencies)
      : dependencies_(dependencies), steps_(dependencies.size()), ended_(dependencies.size()) {}

  Lanes run() {
    for (uint32_t i = 0; i < steps_.size(); i++) place(i);
    if (count_ == 1) return {};
    Lanes lanes{.count = count_, .n_events = 0, .steps = std::move(steps_)};
    number_events(lanes);
    return lanes;
  }

 private:
  // Prefers a lane where nothing unrelated is ahead of the step.
  uint32_t lane_for(const Clock& before, const std::vector<uint32_t>& dependencies) const {
    for (const uint32_t d : dependencies)
      if (ended_[d][steps_[d].lane] == length_[steps_[d].lane]) return steps_[d].lane;
    for (uint32_t l = 0; l < count_; l++)
      if (before[l] == length_[l]) return l;
    if (count_ < kMostLanes) return count_;
    return uint32_t(std::min_element(length_.begin(), length_.end()) - length_.begin());
  }

  void place(uint32_t i) {
    std::vector<uint32_t> behind = dependencies_[i];
    std::sort(behind.rbegin(), behind.rend());  // what a later one was behind needs no wait of its own
    Clock before{};
    for (const uint32_t d : behind) join(before, ended_[d]);
    const uint32_t lane = lane_for(before, behind);
    count_ = std::max(count_, lane + 1);
    steps_[i].lane = lane;
    for (const uint32_t d : behind) {
      const uint32_t from = steps_[d].lane;
      if (from == lane || reached_[lane][from] >= ended_[d][from]) continue;
      steps_[i].waits.push_back(d);  // until events have numbers: the step
      join(reached_[lane], ended_[d]);
    }
    reached_[lane][lane] = ++length_[lane];
    ended_[i] = reached_[lane];
  }

  // An event is free again when the last one has waited for it: a wait is for what was recorded before.
  void number_events(Lanes& lanes) const {
    std::vector<uint32_t> last_use(lanes.steps.size(), 0), free;
    for (uint32_t i = 0; i < lanes.steps.size(); i++)
      for (const uint32_t d : lanes.steps[i].waits) last_use[d] = i;
    for (uint32_t i = 0; i < lanes.steps.size(); i++) {
      LaneStep& step = lanes.steps[i];
      for (uint32_t& wait : step.waits) {
        const uint32_t event = lanes.steps[wait].records;
        if (last_use[wait] == i) free.push_back(event);
        wait = event;
      }
      if (last_use[i] == 0) continue;
      if (free.empty()) free.push_back(lanes.n_events++);
      step.records = free.back();
      free.pop_back();
    }
  }

  std::span<const std::vector<uint32_t>> dependencies_;
  std::vector<LaneStep> steps_;
  std::vector<Clock> ended_;                 // what has ended when this step has
  std::array<Clock, kMostLanes> reached_{};  // what has ended when the next step of a lane begins
  Clock length_{};                           // steps in each lane
  uint32_t count_ = 1;
};

}  // namespace

size_t Lanes::size_bytes() const {
  size_t bytes = steps.size() * sizeof(LaneStep);
  for (const LaneStep& step : steps) bytes += step.waits.size() * sizeof(uint32_t);
  return bytes;
}

Lanes lanes_of(std::span<const std::vector<uint32_t>> dependencies) {
  return Assignment(dependencies).run();
}

}  // namespace tessera::track

// Counts what each kernel of one context does, by CUPTI's Range Profiler: every launch is a range of its own
// and is run again until all counters are read (kernel replay). Kernels run one after the other meanwhile, so
// durations are those of the kernel alone, at the clocks that CUPTI fixes, and no Activity records are wanted
// beside it.
//
// Ranges are matched with launches by order. If their numbers differ (a graph, a kernel launched by a library
// behind our back), what was counted is given up and not guessed.
//
// Not thread-safe: its owner locks. All calls are made with the context current.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "profiles/collector/activity.h"
#include "profiles/collector/counter_plan.h"

namespace tessera::profiles {

class RangeCounter {
 public:
  static constexpr size_t kRanges = 256;  // launches between two readings

  // Starts counting in `context`, whose device is `ordinal`. The error says why not and what to do about it.
  static base::Result<std::unique_ptr<RangeCounter>> start(const CuptiApi& api, CUcontext context,
                                                           uint32_t ordinal);
  RangeCounter(const RangeCounter&) = delete;

  void launched(Activity launch) { waiting_.push_back(std::move(launch)); }
  bool full() const { return waiting_.size() >= kRanges; }

  // The launches since the last reading, with what they did; counting goes on. Those that could not be
  // matched are left out and counted in lost().
  std::vector<Activity> read();
  std::vector<Activity> finish();  // read() for the last time
  uint64_t lost() const { return lost_; }
  const std::string& problem() const { return problem_; }  // "" or why counting ended early

 private:
  RangeCounter(const CuptiApi& api, CounterPlan plan) : api_(&api), plan_(std::move(plan)) {}
  base::Status begin();
  std::vector<Activity> end();

  const CuptiApi* api_;
  CounterPlan plan_;
  CUpti_RangeProfiler_Object* profiler_ = nullptr;
  std::vector<uint8_t> counter_data_;
  std::vector<Activity> waiting_;
  uint64_t lost_ = 0;
  bool counting_ = false;
  std::string problem_;
};

}  // namespace tessera::profiles

// Lists the wanted metrics that a chip can count, as CUPTI's host library says (no GPU needed), and the meaning of
// their values for a launch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "profiles/collector/activity.h"
#include "profiles/collector/cupti_api.h"

namespace tessera::profiles {

std::string cupti_text(const CuptiApi& api, CUptiResult result);  // CUPTI's own words

class CounterPlan {
 public:
  // `availability`: what the driver lets this process count (cuptiProfilerGetCounterAvailability); empty: all
  // of it.
  static base::Result<CounterPlan> make(const CuptiApi& api, const std::string& chip,
                                        std::vector<uint8_t> availability = {});
  CounterPlan(CounterPlan&&) = default;
  CounterPlan& operator=(CounterPlan&&) = default;

  const std::vector<const char*>& metrics() const { return metrics_; }
  const std::vector<uint8_t>& config() const { return config_; }  // for cuptiRangeProfilerSetConfig
  size_t passes() const { return passes_; }                       // how often each kernel runs

  // Metrics of one range of a counter data image, in the order of metrics().
  base::Result<std::vector<double>> evaluate(std::span<const uint8_t> counter_data, size_t range) const;
  // Puts them into a launch: duration, bytes, instructions, operations by pipe.
  void apply(std::span<const double> values, Activity* launch) const;

 private:
  struct Close {
    const CuptiApi* api;
    void operator()(CUpti_Profiler_Host_Object* host) const;
  };
  CounterPlan(const CuptiApi& api, CUpti_Profiler_Host_Object* host) : api_(&api), host_(host, Close{&api}) {}

  const CuptiApi* api_;
  std::unique_ptr<CUpti_Profiler_Host_Object, Close> host_;
  std::vector<uint8_t> availability_, config_;
  std::vector<const char*> metrics_;
  std::vector<size_t> rows_;  // of counters.def, one per metric
  size_t passes_ = 0;
};

}  // namespace tessera::profiles

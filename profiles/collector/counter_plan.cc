#include "profiles/collector/counter_plan.h"

#include <cmath>

namespace tessera::profiles {
namespace {

constexpr char kDuration[] = "duration", kMemoryBytes[] = "bytes", kWarpInstructions[] = "instructions";

struct Row {
  const char *what, *metric;
  double times;
};
constexpr Row kRows[] = {
#define TS_COUNTER(what, metric, times) {what, metric, times},
#include "profiles/collector/counters.def"
};

base::Error failed(const CuptiApi& api, const char* what, CUptiResult result) {
  return base::error(base::Code::kUnsupported, std::string(what) + ": " + cupti_text(api, result));
}

}  // namespace

std::string cupti_text(const CuptiApi& api, CUptiResult result) {
  const char* text = nullptr;
  api.cuptiGetResultString(result, &text);
  return text ? text : "error " + std::to_string(int(result));
}

void CounterPlan::Close::operator()(CUpti_Profiler_Host_Object* host) const {
  auto close = TS_PARAMS(CUpti_Profiler_Host_Deinitialize);
  close.pHostObject = host;
  api->cuptiProfilerHostDeinitialize(&close);
}

base::Result<CounterPlan> CounterPlan::make(const CuptiApi& api, const std::string& chip,
                                            std::vector<uint8_t> availability) {
  auto open = TS_PARAMS(CUpti_Profiler_Host_Initialize);
  open.profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER;
  open.pChipName = chip.c_str();
  open.pCounterAvailabilityImage = availability.empty() ? nullptr : availability.data();
  if (CUptiResult r = api.cuptiProfilerHostInitialize(&open))
    return failed(api, ("no counters of the chip " + chip).c_str(), r);
  CounterPlan plan(api, open.pHostObject);
  plan.availability_ = std::move(availability);

  for (size_t row = 0; row < std::size(kRows); ++row) {
    auto ask = TS_PARAMS(CUpti_Profiler_Host_GetMetricProperties);
    ask.pHostObject = open.pHostObject;
    ask.pMetricName = kRows[row].metric;
    if (api.cuptiProfilerHostGetMetricProperties(&ask) != CUPTI_SUCCESS) continue;
    plan.metrics_.push_back(kRows[row].metric);
    plan.rows_.push_back(row);
  }
  if (plan.metrics_.empty())
    return base::error(base::Code::kUnsupported, "the chip " + chip + " has none of the counters");
  auto add = TS_PARAMS(CUpti_Profiler_Host_ConfigAddMetrics);  // all at once: they share passes
  add.pHostObject = open.pHostObject;
  add.ppMetricNames = plan.metrics_.data();
  add.numMetrics = plan.metrics_.size();
  if (CUptiResult r = api.cuptiProfilerHostConfigAddMetrics(&add))
    return failed(api, "counters do not go together", r);

  auto size = TS_PARAMS(CUpti_Profiler_Host_GetConfigImageSize);
  size.pHostObject = open.pHostObject;
  if (CUptiResult r = api.cuptiProfilerHostGetConfigImageSize(&size))
    return failed(api, "no configuration of the counters", r);
  plan.config_.resize(size.configImageSize);
  auto image = TS_PARAMS(CUpti_Profiler_Host_GetConfigImage);
  image.pHostObject = open.pHostObject;
  image.configImageSize = plan.config_.size();
  image.pConfigImage = plan.config_.data();
  if (CUptiResult r = api.cuptiProfilerHostGetConfigImage(&image))
    return failed(api, "no configuration of the counters", r);
  auto passes = TS_PARAMS(CUpti_Profiler_Host_GetNumOfPasses);
  passes.configImageSize = plan.config_.size();
  passes.pConfigImage = plan.config_.data();
  if (api.cuptiProfilerHostGetNumOfPasses(&passes) == CUPTI_SUCCESS) plan.passes_ = passes.numOfPasses;
  return plan;
}

base::Result<std::vector<double>> CounterPlan::evaluate(std::span<const uint8_t> counter_data,
                                                        size_t range) const {
  std::vector<double> values(metrics_.size());
  std::vector<const char*> names = metrics_;
  auto ask = TS_PARAMS(CUpti_Profiler_Host_EvaluateToGpuValues);
  ask.pHostObject = host_.get();
  ask.pCounterDataImage = counter_data.data();
  ask.counterDataImageSize = counter_data.size();
  ask.rangeIndex = range;
  ask.ppMetricNames = names.data();
  ask.numMetrics = names.size();
  ask.pMetricValues = values.data();
  if (CUptiResult r = api_->cuptiProfilerHostEvaluateToGpuValues(&ask))
    return failed(*api_, "counters not evaluated", r);
  return values;
}

void CounterPlan::apply(std::span<const double> values, Activity* launch) const {
  launch->counted = true;
  for (size_t i = 0; i < values.size() && i < rows_.size(); ++i) {
    if (!std::isfinite(values[i]) || values[i] < 0) continue;
    const Row& row = kRows[rows_[i]];
    const double value = values[i] * row.times;
    if (row.what == kDuration) {
      launch->start_ns = 1;  // only the difference is used
      launch->end_ns = 1 + uint64_t(std::llround(value));
    } else if (row.what == kMemoryBytes) {
      launch->memory_bytes += value;
    } else if (row.what == kWarpInstructions) {
      launch->warp_instructions += value;
    } else if (value > 0) {
      launch->operations[row.what] += value;
    }
  }
}

}  // namespace tessera::profiles

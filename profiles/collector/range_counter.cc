#include "profiles/collector/range_counter.h"

namespace tessera::profiles {
namespace {

const char* remedy(CUptiResult result) {
  switch (result) {
    case CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:
      return "; the driver keeps counters for administrators: run as root or with CAP_SYS_ADMIN, or load the "
             "nvidia "
             "module with NVreg_RestrictProfilingToAdminUsers=0";
    case CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES:
      return "; the hypervisor has to allow counters for this virtual GPU";
    case CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED:
      return "; counters need the whole GPU, not a MIG slice";
    case CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED:
      return "; counters are off while the GPU is in confidential mode";
    case CUPTI_ERROR_HARDWARE:
    case CUPTI_ERROR_HARDWARE_BUSY:
    case CUPTI_ERROR_NOT_COMPATIBLE:
      return "; is another profiler or monitor (DCGM, Nsight) using the counters?";
    default:
      return "";
  }
}

base::Error failed(const CuptiApi& api, const char* what, CUptiResult result) {
  return base::error(
      result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES ? base::Code::kPermission : base::Code::kUnsupported,
      std::string(what) + ": " + cupti_text(api, result) + remedy(result));
}

}  // namespace

base::Result<std::unique_ptr<RangeCounter>> RangeCounter::start(const CuptiApi& api, CUcontext context,
                                                                uint32_t ordinal) {
  auto initialise = TS_PARAMS(CUpti_Profiler_Initialize);
  if (CUptiResult r = api.cuptiProfilerInitialize(&initialise)) return failed(api, "no counters", r);
  auto chip = TS_PARAMS(CUpti_Device_GetChipName);
  chip.deviceIndex = ordinal;
  if (CUptiResult r = api.cuptiDeviceGetChipName(&chip)) return failed(api, "chip not known", r);
  auto ask = TS_PARAMS(CUpti_Profiler_GetCounterAvailability);
  ask.ctx = context;
  if (CUptiResult r = api.cuptiProfilerGetCounterAvailability(&ask)) return failed(api, "no counters", r);
  std::vector<uint8_t> availability(ask.counterAvailabilityImageSize);
  ask.pCounterAvailabilityImage = availability.data();
  if (CUptiResult r = api.cuptiProfilerGetCounterAvailability(&ask)) return failed(api, "no counters", r);

  auto plan = CounterPlan::make(api, chip.pChipName ? chip.pChipName : "", std::move(availability));
  if (!plan) return plan.error();
  std::unique_ptr<RangeCounter> counter(new RangeCounter(api, std::move(*plan)));
  auto enable = TS_PARAMS(CUpti_RangeProfiler_Enable);
  enable.ctx = context;
  if (CUptiResult r = api.cuptiRangeProfilerEnable(&enable)) return failed(api, "no counters", r);
  counter->profiler_ = enable.pRangeProfilerObject;

  auto size = TS_PARAMS(CUpti_RangeProfiler_GetCounterDataSize);
  std::vector<const char*> metrics = counter->plan_.metrics();
  size.pRangeProfilerObject = counter->profiler_;
  size.pMetricNames = metrics.data();
  size.numMetrics = metrics.size();
  size.maxNumOfRanges = kRanges;
  size.maxNumRangeTreeNodes = kRanges;
  CUptiResult r = api.cuptiRangeProfilerGetCounterDataSize(&size);
  base::Status began = base::ok();
  if (r == CUPTI_SUCCESS) {
    counter->counter_data_.resize(size.counterDataSize);
    began = counter->begin();
  }
  if (r == CUPTI_SUCCESS && began) return counter;
  auto disable = TS_PARAMS(CUpti_RangeProfiler_Disable);
  disable.pRangeProfilerObject = counter->profiler_;
  api.cuptiRangeProfilerDisable(&disable);
  return r == CUPTI_SUCCESS ? began.error() : failed(api, "no room for counters", r);
}

base::Status RangeCounter::begin() {
  auto fresh = TS_PARAMS(CUpti_RangeProfiler_CounterDataImage_Initialize);
  fresh.pRangeProfilerObject = profiler_;
  fresh.counterDataSize = counter_data_.size();
  fresh.pCounterData = counter_data_.data();
  if (CUptiResult r = api_->cuptiRangeProfilerCounterDataImageInitialize(&fresh))
    return failed(*api_, "counters not prepared", r);
  auto set = TS_PARAMS(CUpti_RangeProfiler_SetConfig);
  set.pRangeProfilerObject = profiler_;
  set.configSize = plan_.config().size();
  set.pConfig = plan_.config().data();
  set.counterDataImageSize = counter_data_.size();
  set.pCounterDataImage = counter_data_.data();
  set.range = CUPTI_AutoRange;
  set.replayMode = CUPTI_KernelReplay;
  set.maxRangesPerPass = kRanges;
  set.numNestingLevels = 1;
  set.minNestingLevel = 1;
  if (CUptiResult r = api_->cuptiRangeProfilerSetConfig(&set)) return failed(*api_, "counters not set", r);
  auto start = TS_PARAMS(CUpti_RangeProfiler_Start);
  start.pRangeProfilerObject = profiler_;
  if (CUptiResult r = api_->cuptiRangeProfilerStart(&start)) return failed(*api_, "counters not started", r);
  counting_ = true;
  return base::ok();
}

std::vector<Activity> RangeCounter::end() {
  std::vector<Activity> launches = std::move(waiting_);
  waiting_.clear();
  const auto give_up = [&](const char* what, CUptiResult result) {
    if (result != CUPTI_SUCCESS) problem_ = failed(*api_, what, result).text;
    lost_ += launches.size();
    return std::vector<Activity>();
  };
  if (!counting_) return give_up("", CUPTI_SUCCESS);
  counting_ = false;
  auto stop = TS_PARAMS(CUpti_RangeProfiler_Stop);
  stop.pRangeProfilerObject = profiler_;
  if (CUptiResult r = api_->cuptiRangeProfilerStop(&stop)) return give_up("counters not stopped", r);
  auto decode = TS_PARAMS(CUpti_RangeProfiler_DecodeData);
  decode.pRangeProfilerObject = profiler_;
  if (CUptiResult r = api_->cuptiRangeProfilerDecodeData(&decode)) return give_up("counters not read", r);
  auto info = TS_PARAMS(CUpti_RangeProfiler_GetCounterDataInfo);
  info.pCounterDataImage = counter_data_.data();
  info.counterDataImageSize = counter_data_.size();
  if (CUptiResult r = api_->cuptiRangeProfilerGetCounterDataInfo(&info))
    return give_up("counters not read", r);
  if (info.numTotalRanges != launches.size() || decode.numOfRangeDropped != 0) {
    lost_ += launches.size();
    return {};
  }
  std::vector<Activity> counted;
  for (size_t i = 0; i < launches.size(); ++i) {
    auto values = plan_.evaluate(counter_data_, i);
    if (!values) {
      problem_ = values.error().text;
      ++lost_;
      continue;
    }
    plan_.apply(*values, &launches[i]);
    counted.push_back(std::move(launches[i]));
  }
  return counted;
}

std::vector<Activity> RangeCounter::read() {
  std::vector<Activity> counted = end();
  if (problem_.empty())
    if (base::Status began = begin(); !began) problem_ = began.error().text;
  return counted;
}

std::vector<Activity> RangeCounter::finish() {
  std::vector<Activity> counted = end();
  auto disable = TS_PARAMS(CUpti_RangeProfiler_Disable);
  disable.pRangeProfilerObject = profiler_;
  api_->cuptiRangeProfilerDisable(&disable);
  return counted;
}

}  // namespace tessera::profiles

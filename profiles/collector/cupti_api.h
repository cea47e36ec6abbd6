// The toolkit's libcupti, opened at run time: a program that is not profiled must not need it. Each entry
// point that the collector uses, once.
#pragma once

#include <cupti.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_target.h>

#include <string>

namespace tessera::profiles {

#define TS_CUPTI_FUNCTIONS(X)             \
  X(cuptiSubscribe)                       \
  X(cuptiUnsubscribe)                     \
  X(cuptiEnableCallback)                  \
  X(cuptiGetResultString)                 \
  X(cuptiActivityEnable)                  \
  X(cuptiActivityRegisterCallbacks)       \
  X(cuptiActivityGetNextRecord)           \
  X(cuptiActivityGetNumDroppedRecords)    \
  X(cuptiActivityFlushAll)                \
  X(cuptiProfilerInitialize)              \
  X(cuptiDeviceGetChipName)               \
  X(cuptiProfilerGetCounterAvailability)  \
  X(cuptiProfilerHostInitialize)          \
  X(cuptiProfilerHostDeinitialize)        \
  X(cuptiProfilerHostGetMetricProperties) \
  X(cuptiProfilerHostGetNumOfPasses)      \
  X(cuptiProfilerHostConfigAddMetrics)    \
  X(cuptiProfilerHostGetConfigImageSize)  \
  X(cuptiProfilerHostGetConfigImage)      \
  X(cuptiProfilerHostEvaluateToGpuValues) \
  X(cuptiRangeProfilerEnable)             \
  X(cuptiRangeProfilerDisable)            \
  X(cuptiRangeProfilerSetConfig)          \
  X(cuptiRangeProfilerStart)              \
  X(cuptiRangeProfilerStop)               \
  X(cuptiRangeProfilerDecodeData)         \
  X(cuptiRangeProfilerGetCounterDataSize) \
  X(cuptiRangeProfilerGetCounterDataInfo) \
  X(cuptiRangeProfilerCounterDataImageInitialize)

struct CuptiApi {
#define TS_MEMBER(name) decltype(&::name) name = nullptr;
  TS_CUPTI_FUNCTIONS(TS_MEMBER)
#undef TS_MEMBER
};

// CUPTI's newer calls take a block of parameters that begins with its size.
template <class Params>
Params sized(size_t bytes) {
  Params p{};
  p.structSize = bytes;
  return p;
}
#define TS_PARAMS(type) sized<type##_Params>(type##_Params_STRUCT_SIZE)

// By soname, where the loader finds it, else in $TESSERA_CUPTI, the usual toolkit and what this was built
// with. False: `why_not` gets one line with the remedy. The library stays open.
bool open_cupti(CuptiApi* api, std::string* why_not);

}  // namespace tessera::profiles

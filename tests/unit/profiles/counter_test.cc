// Counters by the Range Profiler: what CUPTI's host library says of real chips (it needs no GPU), and the
// target side against a stand-in that counts, refuses and miscounts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "profiles/collector/range_counter.h"

namespace tessera::profiles {
namespace {

using testing::Contains;
using testing::HasSubstr;

constexpr const char* kAll[] = {
#define TS_COUNTER(what, metric, times) metric,
#define kDuration
#define kMemoryBytes
#define kWarpInstructions
#include "profiles/collector/counters.def"
};

TEST(Counters, OfRealChips) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "CUPTI opens its host library with RTLD_DEEPBIND, which sanitizers end the program for";
#endif
  CuptiApi api;
  std::string why_not;
  if (!open_cupti(&api, &why_not)) GTEST_SKIP() << why_not;
  std::set<std::string> known;
  for (const char* chip : {"TU104", "GA100", "AD104", "GH100"}) {
    auto plan = CounterPlan::make(api, chip);
    ASSERT_TRUE(plan.ok()) << plan.error().text;
    known.insert(plan->metrics().begin(), plan->metrics().end());
    for (const char* wanted :
         {"gpu__time_duration.sum", "dram__bytes.sum", "smsp__inst_executed.sum",
          "sm__sass_thread_inst_executed_op_ffma_pred_on.sum",
          "sm__sass_thread_inst_executed_op_dfma_pred_on.sum",
          "sm__sass_thread_inst_executed_op_hfma_pred_on.sum", "sm__ops_path_tensor_src_int8.sum"})
      EXPECT_THAT(plan->metrics(), Contains(testing::StrEq(wanted))) << chip;
    EXPECT_THAT(plan->metrics(), Contains(HasSubstr("tensor_src_fp16"))) << chip;
    EXPECT_GE(plan->passes(), 1u);
    EXPECT_LE(plan->passes(), 10u) << chip << ": each kernel would run that often";
    EXPECT_FALSE(plan->config().empty());
  }
  for (const char* metric : kAll) EXPECT_TRUE(known.contains(metric)) << metric << " is no chip's";
  EXPECT_FALSE(CounterPlan::make(api, "no such chip").ok());
}

// Stands for libcupti: metrics are numbered in the order in which they are added; range i has 10 * i +
// metric.
struct Stand {
  std::string fails;  // name of the call that fails
  CUptiResult with = CUPTI_ERROR_UNKNOWN;
  size_t ranges = 0, metrics = 0;
  int enabled = 0, started = 0;
} g_stand;

CUptiResult answer(const char* call) {
  return g_stand.fails == call ? g_stand.with : CUPTI_SUCCESS;
}

CuptiApi stand_in() {
  CuptiApi api;
  api.cuptiGetResultString = [](CUptiResult, const char** text) {
    *text = "its own words";
    return CUPTI_SUCCESS;
  };
  api.cuptiProfilerInitialize = [](CUpti_Profiler_Initialize_Params*) { return answer("initialize"); };
  api.cuptiDeviceGetChipName = [](CUpti_Device_GetChipName_Params* p) {
    p->pChipName = "GH100";
    return answer("chip");
  };
  api.cuptiProfilerGetCounterAvailability = [](CUpti_Profiler_GetCounterAvailability_Params* p) {
    p->counterAvailabilityImageSize = 16;
    return answer("availability");
  };
  api.cuptiProfilerHostInitialize = [](CUpti_Profiler_Host_Initialize_Params* p) {
    p->pHostObject = reinterpret_cast<CUpti_Profiler_Host_Object*>(&g_stand);
    return answer("host");
  };
  api.cuptiProfilerHostDeinitialize = [](CUpti_Profiler_Host_Deinitialize_Params*) { return CUPTI_SUCCESS; };
  api.cuptiProfilerHostGetMetricProperties = [](CUpti_Profiler_Host_GetMetricProperties_Params*) {
    return answer("properties");
  };
  api.cuptiProfilerHostConfigAddMetrics = [](CUpti_Profiler_Host_ConfigAddMetrics_Params* p) {
    g_stand.metrics += p->numMetrics;
    return CUPTI_SUCCESS;
  };
  api.cuptiProfilerHostGetConfigImageSize = [](CUpti_Profiler_Host_GetConfigImageSize_Params* p) {
    p->configImageSize = 8;
    return answer("config size");
  };
  api.cuptiProfilerHostGetConfigImage = [](CUpti_Profiler_Host_GetConfigImage_Params*) {
    return answer("config");
  };
  api.cuptiProfilerHostGetNumOfPasses = [](CUpti_Profiler_Host_GetNumOfPasses_Params* p) {
    p->numOfPasses = 3;
    return CUPTI_SUCCESS;
  };
  api.cuptiProfilerHostEvaluateToGpuValues = [](CUpti_Profiler_Host_EvaluateToGpuValues_Params* p) {
    for (size_t i = 0; i < p->numMetrics; ++i) p->pMetricValues[i] = double(100 * p->rangeIndex + i + 1);
    return answer("evaluate");
  };
  api.cuptiRangeProfilerEnable = [](CUpti_RangeProfiler_Enable_Params*) {
    if (answer("enable") == CUPTI_SUCCESS) ++g_stand.enabled;
    return answer("enable");
  };
  api.cuptiRangeProfilerDisable = [](CUpti_RangeProfiler_Disable_Params*) {
    --g_stand.enabled;
    return CUPTI_SUCCESS;
  };
  api.cuptiRangeProfilerGetCounterDataSize = [](CUpti_RangeProfiler_GetCounterDataSize_Params* p) {
    p->counterDataSize = 64;
    return answer("data size");
  };
  api.cuptiRangeProfilerCounterDataImageInitialize =
      [](CUpti_RangeProfiler_CounterDataImage_Initialize_Params*) { return answer("image"); };
  api.cuptiRangeProfilerSetConfig = [](CUpti_RangeProfiler_SetConfig_Params* p) {
    EXPECT_EQ(p->range, CUPTI_AutoRange);
    EXPECT_EQ(p->replayMode, CUPTI_KernelReplay);
    return answer("set");
  };
  api.cuptiRangeProfilerStart = [](CUpti_RangeProfiler_Start_Params*) {
    ++g_stand.started;
    return answer("start");
  };
  api.cuptiRangeProfilerStop = [](CUpti_RangeProfiler_Stop_Params*) { return answer("stop"); };
  api.cuptiRangeProfilerDecodeData = [](CUpti_RangeProfiler_DecodeData_Params*) { return answer("decode"); };
  api.cuptiRangeProfilerGetCounterDataInfo = [](CUpti_RangeProfiler_GetCounterDataInfo_Params* p) {
    p->numTotalRanges = g_stand.ranges;
    return answer("info");
  };
  return api;
}

Activity launch(const char* name) {
  Activity out;
  out.kind = ActivityKind::kKernel;
  out.name = name;
  return out;
}

class Ranges : public testing::Test {
 protected:
  void SetUp() override { g_stand = {}; }
  CuptiApi api_ = stand_in();
};

TEST_F(Ranges, AreTheLaunchesInOrder) {
  auto counter = RangeCounter::start(api_, nullptr, 0);
  ASSERT_TRUE(counter.ok()) << counter.error().text;
  for (int round = 0; round < 2; ++round) {
    (*counter)->launched(launch("first"));
    (*counter)->launched(launch("second"));
    g_stand.ranges = 2;
    const auto counted = round == 0 ? (*counter)->read() : (*counter)->finish();
    ASSERT_EQ(counted.size(), 2u);
    EXPECT_EQ(counted[0].name, "first");
    EXPECT_EQ(counted[0].end_ns - counted[0].start_ns, 1u);
    EXPECT_EQ(counted[1].name, "second");
    EXPECT_EQ(counted[1].end_ns - counted[1].start_ns, 101u);
    EXPECT_TRUE(counted[1].counted);
    EXPECT_EQ(counted[1].memory_bytes, 102);
    EXPECT_EQ(counted[1].warp_instructions, 103);
    // Metrics 4, 5 and 6 are additions, multiplications, and fused ones, which are two operations.
    EXPECT_EQ(counted[1].operations.at("fp32"), 104 + 105 + 2 * 106);
    EXPECT_EQ(counted[1].operations.at("tensor_int8"), 100 + std::size(kAll));
  }
  EXPECT_EQ((*counter)->lost(), 0u);
  EXPECT_EQ(g_stand.started, 2);
  EXPECT_EQ(g_stand.enabled, 0);
}

TEST_F(Ranges, ThatDoNotFitTheLaunchesAreNotGuessed) {
  auto counter = RangeCounter::start(api_, nullptr, 0);
  ASSERT_TRUE(counter.ok());
  (*counter)->launched(launch("first"));
  (*counter)->launched(launch("second"));
  g_stand.ranges = 3;  // a graph's kernels between them
  EXPECT_TRUE((*counter)->read().empty());
  EXPECT_EQ((*counter)->lost(), 2u);
  (*counter)->launched(launch("third"));
  g_stand.ranges = 1;
  ASSERT_EQ((*counter)->read().size(), 1u);
  EXPECT_EQ((*counter)->problem(), "");
}

TEST_F(Ranges, FillUp) {
  auto counter = RangeCounter::start(api_, nullptr, 0);
  ASSERT_TRUE(counter.ok());
  for (size_t i = 0; i < RangeCounter::kRanges; ++i) {
    EXPECT_FALSE((*counter)->full());
    (*counter)->launched(launch("k"));
  }
  EXPECT_TRUE((*counter)->full());
  g_stand.ranges = RangeCounter::kRanges;
  EXPECT_EQ((*counter)->read().size(), RangeCounter::kRanges);
  EXPECT_FALSE((*counter)->full());
}

TEST_F(Ranges, WithoutPermissionSayWhatToDo) {
  for (const char* call : {"availability", "enable", "set"}) {
    g_stand = {.fails = call, .with = CUPTI_ERROR_INSUFFICIENT_PRIVILEGES};
    auto counter = RangeCounter::start(api_, nullptr, 0);
    ASSERT_FALSE(counter.ok()) << call;
    EXPECT_EQ(counter.error().code, base::Code::kPermission);
    EXPECT_THAT(counter.error().text, HasSubstr("its own words"));
    EXPECT_THAT(counter.error().text, HasSubstr("NVreg_RestrictProfilingToAdminUsers=0"));
    EXPECT_EQ(g_stand.enabled, 0) << call;
  }
}

TEST_F(Ranges, AnyCallMayFail) {
  for (const char* call : {"initialize", "chip", "availability", "host", "properties", "config size",
                           "config", "enable", "data size", "image", "set", "start"}) {
    g_stand = {.fails = call};
    EXPECT_FALSE(RangeCounter::start(api_, nullptr, 0).ok()) << call;
    EXPECT_EQ(g_stand.enabled, 0) << call;
  }
  for (const char* call : {"stop", "decode", "info", "evaluate"}) {
    g_stand = {};
    auto counter = RangeCounter::start(api_, nullptr, 0);
    ASSERT_TRUE(counter.ok());
    (*counter)->launched(launch("k"));
    g_stand.ranges = 1;
    g_stand.fails = call;
    EXPECT_TRUE((*counter)->read().empty()) << call;
    EXPECT_EQ((*counter)->lost(), 1u) << call;
    EXPECT_THAT((*counter)->problem(), HasSubstr("its own words")) << call;
    EXPECT_TRUE((*counter)->finish().empty());
    EXPECT_EQ(g_stand.enabled, 0) << call;
  }
}

}  // namespace
}  // namespace tessera::profiles

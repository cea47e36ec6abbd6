// Our objects of a context end with it: none of them is named to the driver any more.
#include "interpose/state/note.h"
#include "tests/unit/interpose/harness.h"

namespace tessera {
namespace {

using driver_api::mutable_real_for_tests;
using state::Role;
namespace abi = ipc::abi;

class Contexts : public test::Gate {
 public:
  void SetUp() override {
    Gate::SetUp();
    table_ = driver_api::real();
    driver_api::real().cuCtxGetCurrent(&context_);
    attach(Role::kBestEffort);
    lease(abi::kLeaseGranted);
  }
  void TearDown() override {
    mutable_real_for_tests() = table_;
    state::g_listener.store(nullptr);
    hook_cuCtxSetCurrent(context_);  // and has markers again
    Gate::TearDown();
  }
  uint64_t writes() { return null.calls("cuStreamWriteValue32_v2"); }

  driver_api::RealDriver table_;
  CUcontext context_ = nullptr;
  gate::Timing timing_{};
};

TEST_F(Contexts, AnEventThatEndsWhileALaunchIsTimedIsNotUsedAgain) {
  gate::Sample* sample = gate::sample_begin(&timing_, {}, 1);
  ASSERT_NE(sample, nullptr);
  track::context_ended(nullptr);
  null.reset();
  gate::sample_end(sample, {}, 1, 1, CUDA_SUCCESS);
  EXPECT_FALSE(gate::samples_pending());
  gate::harvest_samples();
  for (uint32_t i = 0; i < gate::kSamples; i++) EXPECT_EQ(gate::sample_begin(&timing_, {}, 1), nullptr);
  EXPECT_EQ(null.calls("cuEventRecord") + null.calls("cuEventQuery"), 0u);
  // The next context has events of its own, this one, too.
  ASSERT_EQ(hook_cuCtxSetCurrent(context_), CUDA_SUCCESS);
  gate::Sample* samples[gate::kSamples];
  for (gate::Sample*& each : samples) EXPECT_NE(each = gate::sample_begin(&timing_, {}, 1), nullptr);
  for (gate::Sample* each : samples) gate::sample_end(each, {}, 1, 1, CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Contexts, AnEventThatEndsWhileItIsRecordedIsNotUsedAgain) {
  mutable_real_for_tests().cuEventRecord = [](CUevent, CUstream) {
    track::context_ended(nullptr);
    return CUDA_ERROR_INVALID_HANDLE;
  };
  EXPECT_EQ(gate::sample_begin(&timing_, {}, 1), nullptr);
  mutable_real_for_tests().cuEventRecord = table_.cuEventRecord;
  EXPECT_EQ(gate::sample_begin(&timing_, {}, 1), nullptr);
}

// They could be under way when theirs ends.
TEST_F(Contexts, MarkersAndSamplesAreNotPutIntoStreamsOfOthers) {
  launch();
  const uint64_t own = writes();
  EXPECT_GT(own, 0u);
  static CUcontext other;
  other = reinterpret_cast<CUcontext>(uintptr_t{0x5678});
  state::context_seen(other);
  mutable_real_for_tests().cuCtxGetCurrent = [](CUcontext* c) {
    *c = other;
    return CUDA_SUCCESS;
  };
  launch();
  EXPECT_EQ(writes(), own);
  EXPECT_EQ(gate::sample_begin(&timing_, {}, 1), nullptr);
  mutable_real_for_tests().cuCtxGetCurrent = table_.cuCtxGetCurrent;
  launch();
  EXPECT_GT(writes(), own);
  state::context_gone(other);
}

// Without markers there may be samples.
TEST_F(Contexts, SamplesEndAlsoWhereNoMarkersCouldBeMade) {
  track::context_ended(nullptr);
  auto& table = mutable_real_for_tests();
  table.cuMemHostRegister_v2 = [](void*, size_t, unsigned) { return CUDA_ERROR_OUT_OF_MEMORY; };
  static const auto kCreate = table.cuEventCreate;
  table.cuEventCreate = [](CUevent* event, unsigned flags) {
    return flags == CU_EVENT_DISABLE_TIMING ? CUDA_ERROR_OUT_OF_MEMORY : kCreate(event, flags);
  };
  ASSERT_EQ(hook_cuCtxSetCurrent(context_), CUDA_SUCCESS);
  gate::Sample* sample = gate::sample_begin(&timing_, {}, 1);
  ASSERT_NE(sample, nullptr);
  gate::sample_end(sample, {}, 1, 1, CUDA_ERROR_INVALID_VALUE);
  track::context_ended(context_);
  EXPECT_EQ(gate::sample_begin(&timing_, {}, 1), nullptr);
}

struct Told {
  int ended = 0, refused = 0;
  uint32_t gives = 1;
  const void* context = nullptr;
} g_told;
const operations::Listener kListener = {.waited = [] {},
                                        .context_ended =
                                            [](const void* context) {
                                              g_told.ended++;
                                              g_told.context = context;
                                            },
                                        .memory_short =
                                            [] {
                                              g_told.refused++;
                                              return g_told.gives;
                                            }};

TEST_F(Contexts, WhoSplitsIsToldOfTheirEnd) {
  g_told = {};
  state::g_listener.store(&kListener);
  mutable_real_for_tests().cuCtxDestroy_v2 = [](CUcontext) { return CUDA_ERROR_INVALID_CONTEXT; };
  hook_cuCtxDestroy_v2(context_);
  EXPECT_EQ(g_told.ended, 0);
  mutable_real_for_tests().cuCtxDestroy_v2 = [](CUcontext) { return CUDA_SUCCESS; };
  hook_cuCtxDestroy_v2(context_);
  EXPECT_EQ(g_told.ended, 1);
  EXPECT_EQ(g_told.context, context_);
  EXPECT_EQ(hook_cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
  EXPECT_EQ(g_told.ended, 2);
  mutable_real_for_tests().cuGreenCtxDestroy = [](CUgreenCtx) { return CUDA_SUCCESS; };
  mutable_real_for_tests().cuCtxFromGreenCtx = [](CUcontext* context, CUgreenCtx green) {
    *context = reinterpret_cast<CUcontext>(green);
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(hook_cuGreenCtxDestroy(reinterpret_cast<CUgreenCtx>(context_)), CUDA_SUCCESS);
  EXPECT_EQ(g_told.ended, 3);
  EXPECT_EQ(g_told.context, context_);
  EXPECT_EQ(gate::g_markers.context.load(), nullptr);
}

// ---- memory: each row of the class allocate

int g_asked = 0;
CUresult first_refused() {
  return g_asked++ == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
template <class... A>
void refuse_first(CUresult (*&function)(A...)) {
  function = [](A...) { return first_refused(); };
}
template <class... A>
CUresult ask(CUresult (*hook)(A...) noexcept) {
  g_asked = 0;
  return hook(A{}...);
}

class Memory : public Contexts {
 public:
  void SetUp() override {
    Contexts::SetUp();
    g_told = {};
    state::g_listener.store(&kListener);
    auto& table = mutable_real_for_tests();
#define TS_HOOK_allocate(symbol, base, since, stream, ret, params, args) refuse_first(table.symbol);
#include "driver_api/hooks.def"
  }
  static constexpr int kRows = 0
#define TS_HOOK_allocate(symbol, base, since, stream, ret, params, args) +1
#include "driver_api/hooks.def"
      ;
};

TEST_F(Memory, IsAskedForAgainWhenSomeWasGivenBack) {
#define TS_HOOK_allocate(symbol, base, since, stream, ret, params, args) \
  EXPECT_EQ(ask(hook_##symbol), CUDA_SUCCESS) << #symbol;                \
  EXPECT_EQ(g_asked, 2) << #symbol;
#include "driver_api/hooks.def"
  EXPECT_GE(kRows, 15);
  EXPECT_EQ(g_told.refused, kRows);
}

TEST_F(Memory, IsRefusedWhereNothingWasGivenBack) {
  g_told.gives = 0;
#define TS_HOOK_allocate(symbol, base, since, stream, ret, params, args) \
  EXPECT_EQ(ask(hook_##symbol), CUDA_ERROR_OUT_OF_MEMORY) << #symbol;    \
  EXPECT_EQ(g_asked, 1) << #symbol;
#include "driver_api/hooks.def"
  EXPECT_EQ(g_told.refused, kRows);
  state::g_listener.store(nullptr);
  EXPECT_EQ(ask(hook_cuMemAlloc_v2), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(Memory, OfImagesContextsAndGraphsToo) {
  auto& table = mutable_real_for_tests();
  refuse_first(table.cuModuleLoadData);
  refuse_first(table.cuCtxCreate_v2);
  refuse_first(table.cuDevicePrimaryCtxRetain);
  refuse_first(table.cuGraphInstantiateWithFlags);
  EXPECT_EQ(ask(hook_cuModuleLoadData), CUDA_SUCCESS);
  EXPECT_EQ(ask(hook_cuCtxCreate_v2), CUDA_SUCCESS);
  EXPECT_EQ(ask(hook_cuDevicePrimaryCtxRetain), CUDA_SUCCESS);
  EXPECT_EQ(ask(hook_cuGraphInstantiateWithFlags), CUDA_SUCCESS);
  EXPECT_EQ(g_told.refused, 4);
}

}  // namespace
}  // namespace tessera

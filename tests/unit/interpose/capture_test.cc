// No capture is ever broken: one thread captures in a loop in all three modes while idle detection and held
// launches of other threads go on. The driver table is wrapped by a checker that plays the driver's part: a
// query, synchronise, event or memory call of ours while a capture is open is what would invalidate it.
#include "tests/unit/interpose/harness.h"

namespace tessera::test {
namespace {

using state::Role;

std::atomic<int> g_open{0};           // captures open in the "driver"
std::atomic<int> g_violations{0};     // our calls that met one
thread_local bool t_program = false;  // this thread's calls are the program's own

void ours() {
  if (!t_program && g_open.load() > 0) g_violations++;
}

class Capture : public Gate {
 public:
  void SetUp() override {
    Gate::SetUp();
    g_open = 0;
    g_violations = 0;
    auto& table = driver_api::mutable_real_for_tests();
    saved = table;
    original() = saved;
    table.cuStreamBeginCapture_v2 = [](CUstream s, CUstreamCaptureMode m) {
      const CUresult r = original().cuStreamBeginCapture_v2(s, m);
      g_open++;
      return r;
    };
    table.cuStreamEndCapture = [](CUstream s, CUgraph* g) {
      g_open--;
      return original().cuStreamEndCapture(s, g);
    };
    table.cuStreamQuery = [](CUstream s) {
      ours();
      std::this_thread::yield();
      ours();
      return original().cuStreamQuery(s);
    };
    table.cuEventQuery = [](CUevent e) {
      ours();
      return original().cuEventQuery(e);
    };
    table.cuCtxSetCurrent = [](CUcontext c) {
      ours();
      return original().cuCtxSetCurrent(c);
    };
  }
  void TearDown() override {
    driver_api::mutable_real_for_tests() = saved;
    Gate::TearDown();
  }
  static driver_api::RealDriver& original() {
    static driver_api::RealDriver table;
    return table;
  }
  CUstream own_stream() {  // making it is the program's call, in whatever thread
    t_program = true;
    CUstream s = new_stream();
    t_program = false;
    return s;
  }
  // Captures in a loop; launches into the capturing stream must come through at once.
  // Goes on until `others` have been at work at least 300 times meanwhile.
  void capture_in_a_loop(int rounds, const std::atomic<int>& others) {
    t_program = true;
    constexpr CUstreamCaptureMode kModes[] = {
        CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED};
    CUstream s = new_stream();
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (int i = 0; i < rounds || (others < 300 && std::chrono::steady_clock::now() < end); i++) {
      ASSERT_EQ(hook_cuStreamBeginCapture_v2(s, kModes[i % 3]), CUDA_SUCCESS);
      for (int k = 0; k < 3; k++) ASSERT_EQ(launch(s), CUDA_SUCCESS);
      CUgraph graph = nullptr;
      ASSERT_EQ(hook_cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
      if (i % 16 == 0) std::this_thread::yield();
    }
    t_program = false;
    EXPECT_GE(others, 300);
  }
  driver_api::RealDriver saved;
};

TEST_F(Capture, ProtectedClientWithHelperPollingAllTheTime) {
  attach(Role::kProtected);
  std::atomic<bool> stop{false};
  std::atomic<int> polls{0};
  std::thread helper([&] {
    while (!stop) {
      lifecycle::poll_idle(base::now_ns());
      polls++;
    }
  });
  std::thread worker([&] {  // keeps the helper with something to ask about
    CUstream s = own_stream();
    while (!stop) launch(s);
  });
  capture_in_a_loop(3'000, polls);
  stop = true;
  helper.join();
  worker.join();
  EXPECT_EQ(g_violations, 0);
  EXPECT_EQ(state::g_state.captures.load(), 0u);
  EXPECT_EQ(state::g_state.inside.load(), 0u);
}

TEST_F(Capture, BestEffortClientWithHeldLaunchesBesideIt) {
  attach(Role::kBestEffort);
  lease(abi::kLeaseGranted, 2 * admission::kUnknownKernelNs, 1'000'000, 1'000'000'000, 10'000);
  std::atomic<bool> stop{false};
  std::atomic<int> polls{0};
  std::vector<std::thread> workers;
  for (int i = 0; i < 2; i++) {
    workers.emplace_back([&] {  // window full, markers far apart: only queries free it
      CUstream s = own_stream();
      while (!stop) launch(s);
    });
  }
  std::thread helper([&] {
    while (!stop) {
      gate::query_accounts();
      gate::harvest_samples();
      gate::reclaim_credits();
      polls++;
      std::this_thread::yield();
    }
  });
  capture_in_a_loop(3'000, polls);
  stop = true;
  helper.join();
  for (auto& t : workers) t.join();
  EXPECT_EQ(g_violations, 0);
  EXPECT_EQ(state::g_state.captures.load(), 0u);
}

// All releases and both stream flavours are tried: each call that opens a capture, and each that closes it.
TEST_F(Capture, EveryWayToOpenOneIsInTheBooks) {
  using Opens = CUresult (*)(CUstream);
  const Opens opens[] = {
      [](CUstream s) { return hook_cuStreamBeginCapture(s); },
      [](CUstream s) { return hook_cuStreamBeginCapture_v2_ptsz(s, CU_STREAM_CAPTURE_MODE_GLOBAL); },
      [](CUstream s) {
        return hook_cuStreamBeginCaptureToGraph(s, nullptr, nullptr, nullptr, 0,
                                                CU_STREAM_CAPTURE_MODE_GLOBAL);
      },
      [](CUstream s) {
        return hook_cuStreamBeginRecaptureToGraph(s, CU_STREAM_CAPTURE_MODE_GLOBAL, nullptr, nullptr,
                                                  nullptr);
      },
      [](CUstream s) {
        return hook_cuStreamBeginRecaptureToGraph_ptsz(s, CU_STREAM_CAPTURE_MODE_GLOBAL, nullptr, nullptr,
                                                       nullptr);
      },
  };
  attach(Role::kBestEffort);
  const CUstream s = new_stream();
  const auto expect_open = [&](CUresult opened) {
    EXPECT_EQ(opened, CUDA_SUCCESS);
    EXPECT_EQ(state::g_state.captures.load(), 1u);
  };
  for (const Opens open : opens) {
    SCOPED_TRACE(&open - opens);
    expect_open(open(s));
    CUgraph graph = nullptr;
    EXPECT_EQ(hook_cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
    EXPECT_EQ(state::g_state.captures.load(), 0u);
  }
  expect_open(hook_cuStreamBeginCaptureToCig(s, nullptr));
  EXPECT_EQ(hook_cuStreamEndCaptureToCig(s), CUDA_SUCCESS);
  EXPECT_EQ(state::g_state.captures.load(), 0u);
  expect_open(hook_cuStreamBeginCaptureToCig_ptsz(s, nullptr));
  EXPECT_EQ(hook_cuStreamEndCaptureToCig_ptsz(s), CUDA_SUCCESS);
  EXPECT_EQ(state::g_state.captures.load(), 0u);
}

TEST_F(Capture, GraphLaunchIsGatedAsOneUnitOutsideCapture) {
  attach(Role::kBestEffort);
  lease(abi::kLeaseHold, 2'000'000, 1'000'000, 1, 10'000);
  const auto graph = reinterpret_cast<CUgraphExec>(uintptr_t{0x9000});
  std::atomic<bool> done{false};
  null.reset();
  std::thread t([&] {
    hook_cuGraphLaunch(graph, nullptr);
    done = true;
  });
  ASSERT_TRUE(eventually([&] { return waiting() == 1; }));
  EXPECT_EQ(null.calls("cuGraphLaunch"), 0u);
  lease(abi::kLeaseGranted);
  EXPECT_TRUE(eventually([&] { return done.load(); }));
  t.join();
  EXPECT_EQ(null.calls("cuGraphLaunch"), 1u);
}

TEST_F(Capture, OfADefaultStreamEndsWithItsThread) {
  attach(Role::kBestEffort);
  lease(abi::kLeaseGranted);
  std::thread([&] {
    EXPECT_EQ(hook_cuStreamBeginCapture_v2(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED),
              CUDA_SUCCESS);
    EXPECT_EQ(launch(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
    EXPECT_TRUE(state::capture_open());
  }).join();
  EXPECT_FALSE(state::capture_open());
}

// While a thread destroys a stream, another one makes the next, which has its handle, and captures.
TEST_F(Capture, StaysOpenOnAStreamThatGotTheHandleOfOneThatIsDestroyed) {
  attach(Role::kBestEffort);
  lease(abi::kLeaseGranted);
  const CUstream stream = new_stream();
  const auto destroy = driver_api::real().cuStreamDestroy_v2;
  driver_api::mutable_real_for_tests().cuStreamDestroy_v2 = [](CUstream gone) {
    std::thread([=] {
      EXPECT_EQ(hook_cuStreamBeginCapture_v2(gone, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    }).join();
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(hook_cuStreamDestroy_v2(stream), CUDA_SUCCESS);
  EXPECT_TRUE(state::capture_open());
  driver_api::mutable_real_for_tests().cuStreamDestroy_v2 = destroy;
  EXPECT_EQ(hook_cuStreamDestroy_v2(stream), CUDA_SUCCESS);
  EXPECT_FALSE(state::capture_open());
}

TEST_F(Capture, EndsWithTheContextOfItsStream) {
  attach(Role::kBestEffort);
  lease(abi::kLeaseGranted);
  CUcontext context = nullptr;
  ASSERT_EQ(driver_api::real().cuCtxGetCurrent(&context), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuStreamBeginCapture_v2(new_stream(), CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  track::context_ended(reinterpret_cast<CUcontext>(0x77));  // another one
  EXPECT_TRUE(state::capture_open());
  track::context_ended(context);
  EXPECT_FALSE(state::capture_open());
  EXPECT_EQ(hook_cuCtxSetCurrent(context), CUDA_SUCCESS);
}

}  // namespace
}  // namespace tessera::test

// The gate on the device, in a best-effort client and in a protected one, before a driver that does nothing: what is
// enqueued, what waits, and what opens it.
#include "interpose/gate/device_gate.h"

#include <sys/mman.h>
#include <unistd.h>

#include "admission/boundary.h"
#include "interpose/gate/peer_gates.h"
#include "ipc/channel/gate.h"
#include "tests/unit/interpose/harness.h"

namespace tessera::test {
namespace {

constexpr uint64_t kMs = 1'000'000;

abi::GatePage* new_page() {  // as map_shared gives it; leaked, because threads may still look at it
  void* page = mmap(nullptr, abi::kGateBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* gate = static_cast<abi::GatePage*>(page);
  for (uint32_t byte = 0; byte < abi::kGateOverrideByte; byte++)
    ipc::gate_byte(*gate, byte).store(abi::kGateByteOpen);
  gate->burst_word = abi::kGateOpen;
  return gate;
}

class DeviceGate : public Gate {
 protected:
  void SetUp() override {
    Gate::SetUp();
    gate::g_device_gate.refused.store(0);
    gate::withdraw_events();  // this driver's kernels take no time: nothing is learnt of them
    attach(state::Role::kBestEffort);
    page = new_page();
    gate::adopt_device_gate(page);
    ASSERT_EQ(driver_api::real().cuCtxGetCurrent(&context), CUDA_SUCCESS);
    ASSERT_TRUE(gate::pin_device_gate(context));
    grant(20);
    null.reset();
    known(2'000);
  }
  void TearDown() override {
    gate::adopt_device_gate(nullptr);
    gate::forget_peer_gates();
    Gate::TearDown();
  }
  void grant(uint16_t quantum_us, uint32_t state = abi::kLeaseGranted, uint32_t max_hold_ms = 200) {
    lease(state, 2 * kMs, kMs, uint32_t(kMs), max_hold_ms);
    ipc::store(region->lease.quantum_us, quantum_us, std::memory_order_relaxed);
  }
  // Launches of `function` take that time.
  void known(uint64_t ns) {
    for (uint32_t threads : {1u, 32u, 64u, 128u, 256u})
      if (gate::Timing* t =
              gate::timing_of(gate::timing_key({reinterpret_cast<uint64_t>(function), 1, threads, 0}))) {
        t->block_ps.store(ns * 1000);
        t->samples.store(100);
        t->estimate_ns.store(ns);
      }
  }
  uint64_t waits() { return null.calls("cuStreamWaitValue64_v2"); }
  uint64_t launches() { return null.calls("cuLaunchKernel"); }
  bool open() { return ipc::gate_is_open(*page); }
  void close() { ipc::close_gate(*page, 1, 5); }
  // Looks as the helper thread does, every so often in the time that is passed.
  void look_for(uint64_t ns) {
    for (const uint64_t end = now_ns + ns; now_ns < end; now_ns += 2 * kMs)
      gate::watch_device_gate(link, now_ns);
  }

  abi::GatePage* page = nullptr;
  CUcontext context = nullptr;
  uint64_t now_ns = 1'000 * kMs;
};

TEST_F(DeviceGate, ABoundaryStandsBeforeEachQuantum) {
  CUstream s = new_stream();
  for (int i = 0; i < 100; i++) EXPECT_EQ(launch(s), CUDA_SUCCESS);
  EXPECT_EQ(launches(), 100u);
  EXPECT_GE(waits(), 10u);  // ten of 2 us in 20; more where this machine was slow
  EXPECT_EQ(page->boundaries, waits());
}

TEST_F(DeviceGate, LongWorkHasABoundaryEach) {
  known(1'600'000);
  CUstream s = new_stream();
  for (int i = 0; i < 5; i++) launch(s);
  EXPECT_EQ(waits(), 5u);
}

TEST_F(DeviceGate, EveryStreamHasItsOwn) {
  CUstream a = new_stream(), b = new_stream();
  launch(a);
  launch(b);
  EXPECT_EQ(waits(), 2u);
}

TEST_F(DeviceGate, StreamsThatWorkAtOnceShareTheQuantum) {
  grant(100);
  known(30'000);
  null.hold(1);  // nothing ends meanwhile
  CUstream a = new_stream(), b = new_stream();
  for (int i = 0; i < 3; i++) launch(a);
  EXPECT_GE(waits(), 1u);  // more where this machine was slow
  launch(b);
  const uint64_t before = waits();
  launch(a);
  launch(b);  // 60 us do not fit into a part of 50
  launch(a);
  launch(b);
  EXPECT_EQ(waits() - before, 4u);
  null.hold(0);
}

std::atomic<CUdeviceptr> g_waited_for{0};
CUresult note_wait(CUstream, CUdeviceptr word, cuuint64_t, unsigned) {
  return g_waited_for.store(word), CUDA_SUCCESS;
}

// The daemon opens both words while a lease is packed. What it let begin during bursts waits again when that ends.
TEST_F(DeviceGate, PackedWorkWaitsForTheWordThatBurstsClose) {
  auto& real = driver_api::mutable_real_for_tests();
  const auto before = real.cuStreamWaitValue64_v2;
  real.cuStreamWaitValue64_v2 = note_wait;
  ipc::store(region->lease.rights, {.packed = 1}, std::memory_order_relaxed);
  launch(new_stream());
  EXPECT_EQ(g_waited_for, gate::g_device_gate.word.load());
  real.cuStreamWaitValue64_v2 = before;
}

TEST_F(DeviceGate, AClosedGateHoldsNoThread) {
  close();
  abi::PulsePage peer{};
  watch(&peer);
  ipc::pulse_set_busy(peer, 1, 0, 1, base::now_ns());
  CUstream s = new_stream();
  for (int i = 0; i < 50; i++) EXPECT_EQ(launch(s), CUDA_SUCCESS);
  EXPECT_EQ(launches(), 50u);
  EXPECT_EQ(ipc::load(region->usage.holds, std::memory_order_relaxed), 0u);
}

TEST_F(DeviceGate, BurstsThatCloseItWhileWorkWaitsCountAsPreemptions) {
  const auto preemptions = [&] { return ipc::load(region->usage.preemptions, std::memory_order_relaxed); };
  abi::PulsePage peer{};
  watch(&peer);
  const auto burst = [&](uint64_t number) {
    ipc::pulse_set_busy(peer, 1, 0, number, base::now_ns());
    ipc::close_gate(*page, 1, number);
  };
  look_for(2 * kMs);
  burst(1);
  look_for(2 * kMs);
  EXPECT_EQ(preemptions(), 0u);  // nothing waited
  null.hold(1);
  launch(new_stream());
  look_for(2 * kMs);
  burst(4);
  look_for(4 * kMs);
  EXPECT_EQ(preemptions(), 3u);
  ipc::set_gate_turn(*page, abi::kGateByteOpen);
  look_for(2 * kMs);
  ipc::set_gate_turn(*page, 0);
  look_for(4 * kMs);
  EXPECT_EQ(preemptions(), 4u);
  ipc::override_gate(*page, abi::kGateDaemonOpens, true);  // it may start during bursts
  burst(9);
  look_for(2 * kMs);
  EXPECT_EQ(preemptions(), 4u);
  null.hold(0);
}

// Pages of peers that come are mapped where those of peers that left were.
TEST_F(DeviceGate, AnotherPeersBurstsAreNotThoseSinceTheLastLook) {
  abi::PulsePage peer{.client_id = 1};
  watch(&peer);
  null.hold(1);
  launch(new_stream());
  look_for(4 * kMs);
  peer = {.client_id = 2, .burst = 100};
  look_for(4 * kMs);
  EXPECT_EQ(ipc::load(region->usage.preemptions, std::memory_order_relaxed), 0u);
  null.hold(0);
}

TEST_F(DeviceGate, BurstsInTheTurnOfAnotherPreemptNothing) {
  abi::PulsePage peer{};
  watch(&peer);
  ipc::set_gate_turn(*page, 0);
  null.hold(1);
  launch(new_stream());
  look_for(4 * kMs);
  ipc::pulse_set_busy(peer, 3, 0, 3, base::now_ns());
  look_for(4 * kMs);
  EXPECT_EQ(ipc::load(region->usage.preemptions, std::memory_order_relaxed), 0u);
  null.hold(0);
}

TEST_F(DeviceGate, WorkBehindItHasNoCreditToReclaim) {
  launch(new_stream());
  const uint32_t epoch = state::g_state.epoch.load();
  EXPECT_FALSE(gate::reclaim_kept_credits());
  EXPECT_EQ(state::g_state.epoch.load(), epoch);  // no membarrier either
}

TEST_F(DeviceGate, WithoutAQuantumTheThreadAsks) {
  grant(0);
  launch(new_stream());
  EXPECT_EQ(waits(), 0u);
  EXPECT_EQ(launches(), 1u);
}

TEST_F(DeviceGate, AFreeLeaseAsksNothing) {
  lease(abi::kLeaseFree);
  launch(new_stream());
  EXPECT_EQ(waits(), 0u);
}

TEST_F(DeviceGate, RunAheadIsBounded) {
  null.hold(1);
  std::atomic<uint64_t> done{0};
  CUstream s = new_stream();
  std::thread program([&] {
    for (int i = 0; i < 2'000; i++) {
      launch(s);
      done++;
    }
  });
  EXPECT_TRUE(eventually([&] { return waiting() == 1; }));
  EXPECT_LE(done, admission::kRunAheadCalls + admission::kCallsPerMarker);
  EXPECT_GT(done, admission::kRunAheadCalls / 2);
  null.hold(0);
  program.join();
  EXPECT_GE(page->run_ahead_waits, 1u);
  EXPECT_EQ(launches(), 2'000u);
}

// A boundary takes a place in the driver's ring, too.
TEST_F(DeviceGate, BoundariesAndMarkersCountAsCallsThatRunAhead) {
  known(30'000);  // longer than a quantum: each has one
  null.hold(1);
  CUstream s = new_stream();
  std::thread program([&] {
    for (int i = 0; i < 1'000; i++) launch(s);
  });
  EXPECT_TRUE(eventually([&] { return waiting() == 1; }));
  const uint64_t calls = waits() + launches() + null.calls("cuStreamWriteValue32_v2");
  EXPECT_LE(calls, admission::kRunAheadCalls + admission::kCallsPerMarker);
  EXPECT_GT(calls, admission::kRunAheadCalls / 2);
  null.hold(0);
  program.join();
  EXPECT_EQ(launches(), 1'000u);
}

TEST_F(DeviceGate, RunAheadIsBoundedInWork) {
  known(1'000'000);
  null.hold(1);
  std::atomic<uint64_t> done{0};
  CUstream s = new_stream();
  std::thread program([&] {
    for (int i = 0; i < 100; i++) {
      launch(s);
      done++;
    }
  });
  EXPECT_TRUE(eventually([&] { return waiting() == 1; }));
  EXPECT_EQ(done, 32u);
  null.hold(0);
  program.join();
}

// Boundaries stay where they are: the word decides when they pass, and a lease decides of the next launch only.
TEST_F(DeviceGate, ALeaseThatChangesLeavesWhatIsQueued) {
  constexpr uint32_t kLongHoldMs = 60'000;
  known(1'000'000);
  null.hold(1);
  close();
  grant(20, abi::kLeaseGranted, kLongHoldMs);
  CUstream s = new_stream();
  for (int i = 0; i < 32; i++) launch(s);
  const uint64_t queued_ns = in_flight();
  EXPECT_GE(queued_ns, 32 * kMs);
  std::atomic<bool> passed{false};
  std::thread program([&] {
    launch(s);
    passed = true;
  });
  EXPECT_TRUE(eventually([&] { return waiting() == 1; }));
  const auto change = [&](uint16_t quantum_us, uint32_t state) {
    grant(quantum_us, state, kLongHoldMs);
    base::futex_wake_all(&region->lease.word);
    EXPECT_TRUE(eventually([&] { return in_flight() == queued_ns; }));
    EXPECT_EQ(waits(), 32u);
    EXPECT_EQ(launches(), 32u);
    EXPECT_FALSE(passed);
  };
  change(20, abi::kLeaseHold);      // another client's turn
  change(500, abi::kLeaseGranted);  // longer quanta
  change(0, abi::kLeaseGranted);    // the thread's gate, whose window is full
  change(20, abi::kLeaseGranted);
  lease(abi::kLeaseFree);
  EXPECT_TRUE(eventually([&] { return passed.load(); }));
  program.join();
  EXPECT_EQ(waits(), 32u);
  EXPECT_EQ(launches(), 33u);
  null.hold(0);
  EXPECT_EQ(hook_cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(in_flight(), 0u);
}

CUresult refuse_wait(CUstream, CUdeviceptr, cuuint64_t, unsigned) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

TEST_F(DeviceGate, ADriverThatRefusesIsNotAskedAgain) {
  auto& real = driver_api::mutable_real_for_tests();
  const auto before = real.cuStreamWaitValue64_v2;
  real.cuStreamWaitValue64_v2 = refuse_wait;
  CUstream s = new_stream();
  EXPECT_EQ(launch(s), CUDA_SUCCESS);
  real.cuStreamWaitValue64_v2 = before;
  EXPECT_EQ(launch(s), CUDA_SUCCESS);
  EXPECT_EQ(launches(), 2u);
  EXPECT_EQ(waits(), 0u);
  EXPECT_EQ(page->thread_asks, 2u);
}

CUresult end_in_wait(CUstream, CUdeviceptr, cuuint64_t, unsigned) {
  leave_thread();
}
CUresult end_in_marker(CUstream, CUdeviceptr, cuuint32_t, unsigned) {
  leave_thread();
}
CUresult end_in_synchronise(CUstream) {
  leave_thread();
}

// In each call that a launch, or a wait for it, makes of the driver.
TEST_F(DeviceGate, AThreadThatEndsInTheDriverHoldsNobodyUp) {
  grant(20, abi::kLeaseGranted);
  auto& real = driver_api::mutable_real_for_tests();
  const auto saved = real;
  static DeviceGate* self;
  static CUstream stream;
  self = this;
  stream = new_stream();
  for (const int which : {0, 1, 2}) {
    if (which == 0) real.cuStreamWaitValue64_v2 = end_in_wait;
    if (which == 1) real.cuStreamWriteValue32_v2 = end_in_marker;
    if (which == 2) real.cuStreamSynchronize = end_in_synchronise;
    pthread_t thread;
    ASSERT_EQ(pthread_create(
                  &thread, nullptr,
                  [](void*) -> void* {
                    for (int i = 0; i < 100; i++) self->launch(stream);
                    hook_cuStreamSynchronize(stream);
                    ADD_FAILURE() << "no call ended the thread";
                    return nullptr;
                  },
                  nullptr),
              0);
    pthread_join(thread, nullptr);
    real = saved;
    EXPECT_EQ(state::g_state.inside, 0u) << which;
    EXPECT_EQ(gate::g_device_gate.blocked, 0u) << which;
    for (const gate::StreamAccount& account : gate::g_accounts) EXPECT_EQ(account.lock, 0u) << which;
    gate::query_accounts();
    EXPECT_EQ(in_flight(), 0u) << which;
  }
}

TEST_F(DeviceGate, AProgramWithWorkThatMustNotWaitAsksInItsThread) {
  CUstream s = new_stream();
  launch(s);
  EXPECT_EQ(waits(), 1u);
  gate::leave_device_gate();
  for (int i = 0; i < 100; i++) launch(s);
  EXPECT_EQ(waits(), 1u);
}

TEST_F(DeviceGate, NothingIsEnqueuedWhileACaptureIsOpen) {
  CUstream captured = new_stream(), other = new_stream();
  hook_cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED);
  launch(captured);
  launch(other);
  EXPECT_EQ(waits(), 0u);
  EXPECT_EQ(launches(), 2u);
  CUgraph graph = nullptr;
  hook_cuStreamEndCapture(captured, &graph);
  launch(other);
  EXPECT_EQ(waits(), 1u);
}

TEST_F(DeviceGate, TheProgramsOwnWaitEndsTheQuantum) {
  grant(60'000);  // none goes stale in this test
  CUstream s = new_stream();
  CUevent event = nullptr;
  driver_api::real().cuEventCreate(&event, 0);
  launch(s);
  launch(s);
  EXPECT_EQ(waits(), 1u);
  hook_cuStreamWaitEvent(s, event, 0);
  launch(s);
  EXPECT_EQ(waits(), 2u);
}

// Work between two events of the program has no boundary in it, however long it is. A program that waits for the event
// waits for the boundary before it, whose demand nobody would see otherwise.
TEST_F(DeviceGate, ABoundaryBeforeAnEventIsInFlight) {
  null.hold(1);
  close();
  CUstream s = new_stream();
  CUevent event = nullptr;
  driver_api::real().cuEventCreate(&event, 0);
  hook_cuEventRecord(event, s);
  EXPECT_GT(ipc::load(region->usage.in_flight_ns, std::memory_order_relaxed), 0u);
  EXPECT_EQ(gate::account_of({s, driver_api::Flavour::kLegacy})->unmarked_calls.load(), 2u)
      << "the boundary and the event";
  gate::watch_device_gate(link, now_ns);
  look_for(10 * kMs);
  EXPECT_TRUE(gate::waits_behind_gate());
}

// Work that may be behind an endless wait is not counted, so that nobody would see it wait on the device.
TEST_F(DeviceGate, WhatIsNotCountedWaitsInItsThread) {
  CUstream s = new_stream();
  hook_cuStreamWaitValue32_v2(s, 64, 1, CU_STREAM_WAIT_VALUE_EQ);
  null.reset();
  launch(s);
  EXPECT_EQ(waits(), 0u);
  EXPECT_EQ(launches(), 1u);
}

TEST_F(DeviceGate, AHostFunctionEndsTheQuantum) {
  CUstream s = new_stream();
  launch(s);
  const auto nothing = [](void*) {};
  EXPECT_EQ(hook_cuLaunchHostFunc(s, nothing, nullptr), CUDA_SUCCESS);
  launch(s);
  EXPECT_EQ(waits(), 2u) << "it may begin when the gate has closed since";
}

// Their ends are not this thread's to know: the hold limit counts for all that was enqueued before.
TEST_F(DeviceGate, CallsThatWaitForWhatRunsAreBlocked) {
  static uint32_t seen = 0;
  const driver_api::RealDriver table = driver_api::real();
  auto& real = driver_api::mutable_real_for_tests();
  real.cuMemFree_v2 = [](CUdeviceptr) { return seen = gate::g_device_gate.blocked.load(), CUDA_SUCCESS; };
  real.cuModuleLoadData = [](CUmodule*, const void*) {
    return seen = gate::g_device_gate.blocked.load(), CUDA_ERROR_INVALID_IMAGE;
  };
  hook_cuMemFree_v2(1);
  EXPECT_EQ(seen, 1u);
  CUmodule module = nullptr;
  seen = 0;
  hook_cuModuleLoadData(&module, "no image");
  EXPECT_EQ(seen, 1u);
  real.cuDevicePrimaryCtxReset_v2 = [](CUdevice) {
    return seen = gate::g_device_gate.blocked.load(), CUDA_ERROR_UNKNOWN;
  };
  seen = 0;
  hook_cuDevicePrimaryCtxReset_v2(0);
  EXPECT_EQ(seen, 1u);
  real.cuCtxDestroy_v2 = [](CUcontext) {
    return seen = gate::g_device_gate.blocked.load(), CUDA_ERROR_UNKNOWN;
  };
  seen = 0;
  hook_cuCtxDestroy_v2(context);
  EXPECT_EQ(seen, 1u);
  real.cuMemcpyDtoH_v2 = [](void*, CUdeviceptr, size_t) {
    return seen = gate::g_device_gate.blocked.load(), CUDA_ERROR_UNKNOWN;
  };
  seen = 0;
  char to[8];
  hook_cuMemcpyDtoH_v2(to, 1, sizeof to);
  EXPECT_EQ(seen, 1u);
  real.cuGreenCtxCreate = [](CUgreenCtx*, CUdevResourceDesc, CUdevice, unsigned) {
    return seen = gate::g_device_gate.blocked.load(), CUDA_ERROR_UNKNOWN;
  };
  seen = 0;
  hook_cuGreenCtxCreate(nullptr, nullptr, 0, 0);
  EXPECT_EQ(seen, 1u);
  real = table;
  EXPECT_EQ(gate::g_device_gate.blocked.load(), 0u);
}

// From its lock to its unlock the driver makes every call wait, ours too: none is made, so that the helper is free to let
// pass what the lock waits for.
TEST_F(DeviceGate, NoCallOfOursIsMadeWhileTheProcessIsLocked) {
  static uint32_t blocked = 0;
  static bool may_enter = true;
  static CUresult answer = CUDA_ERROR_NOT_READY;
  const auto look = [] {
    blocked = gate::g_device_gate.blocked.load();
    may_enter = state::enter_driver();
    if (may_enter) state::leave_driver();
  };
  static auto looks = look;
  const driver_api::RealDriver table = driver_api::real();
  auto& real = driver_api::mutable_real_for_tests();
  real.cuCheckpointProcessLock = [](int, CUcheckpointLockArgs*) { return looks(), answer; };
  real.cuCheckpointProcessUnlock = [](int, CUcheckpointUnlockArgs*) { return looks(), CUDA_SUCCESS; };
  hook_cuCheckpointProcessLock(getpid(), nullptr);  // past its limit
  EXPECT_EQ(blocked, 1u);
  EXPECT_FALSE(may_enter);
  look();
  EXPECT_TRUE(may_enter);
  answer = CUDA_SUCCESS;
  hook_cuCheckpointProcessLock(getpid(), nullptr);
  look();
  EXPECT_FALSE(may_enter);
  EXPECT_EQ(blocked, 0u);
  hook_cuCheckpointProcessUnlock(getpid(), nullptr);
  EXPECT_FALSE(may_enter);
  look();
  EXPECT_TRUE(may_enter);
  hook_cuCheckpointProcessLock(getppid(), nullptr);  // another process's
  EXPECT_TRUE(may_enter);
  real = table;
}

TEST_F(DeviceGate, ABoundaryStandsBeforeTheProgramsEvent) {
  known(1'600'000);
  CUstream s = new_stream();
  CUevent begin = nullptr, end = nullptr;
  driver_api::real().cuEventCreate(&begin, 0);
  driver_api::real().cuEventCreate(&end, 0);
  hook_cuEventRecord(begin, s);
  EXPECT_EQ(waits(), 1u);
  launch(s);
  EXPECT_EQ(waits(), 1u);
  hook_cuEventRecord(end, s);
  EXPECT_EQ(launches(), 1u);
}

TEST_F(DeviceGate, WhatIsClosedForTheHoldLimitPassesForAMoment) {
  null.hold(1);
  close();
  launch(new_stream());
  gate::watch_device_gate(link, now_ns);
  look_for(150 * kMs);
  EXPECT_FALSE(open());
  look_for(100 * kMs);
  EXPECT_EQ(page->limit_openings, 1u);
  EXPECT_FALSE(open()) << "one look later";
  look_for(400 * kMs);
  EXPECT_EQ(page->limit_openings, 3u);
}

TEST_F(DeviceGate, WorkThatIsTooLongForAGateThatIsOpenForShortWorkReachesTheHoldLimit) {
  null.hold(1);
  known(1'600'000);
  ipc::set_gate_turn(*page, ipc::abi::gate_class(base::class_within(100'000)));
  launch(new_stream());
  gate::watch_device_gate(link, now_ns);
  look_for(250 * kMs);
  EXPECT_EQ(page->limit_openings, 1u);
}

TEST_F(DeviceGate, AMinuteBehindAClosedGatePassesAQuantumForEachHoldLimit) {
  null.hold(1);
  close();
  launch(new_stream());
  gate::watch_device_gate(link, now_ns);
  look_for(60'000 * kMs);
  EXPECT_NEAR(double(page->limit_openings), 300, 5);
  EXPECT_FALSE(open());
}

TEST_F(DeviceGate, WhatAskedInItsThreadDoesNotWaitBehindAClosedGate) {
  null.hold(1);
  grant(0);
  launch(new_stream());
  close();
  gate::watch_device_gate(link, now_ns);
  look_for(500 * kMs);
  EXPECT_EQ(page->limit_openings, 0u);
  EXPECT_FALSE(gate::waits_behind_gate());
}

TEST_F(DeviceGate, AProgramThatWaitsGetsAllItEnqueued) {
  null.hold(1);
  close();
  launch(new_stream());
  gate::watch_device_gate(link, now_ns);
  {
    const gate::Blocked blocked;
    look_for(150 * kMs);
    EXPECT_FALSE(open());
    look_for(100 * kMs);
    EXPECT_TRUE(open());
    look_for(300 * kMs);
    EXPECT_TRUE(open()) << "until the call returns";
  }
  look_for(4 * kMs);
  EXPECT_FALSE(open());
}

TEST_F(DeviceGate, AStreamThatIsDestroyedStillHasItsWorkBehindTheGate) {
  null.hold(1);
  close();
  const CUstream s = new_stream();
  launch(s);
  ASSERT_EQ(hook_cuStreamDestroy_v2(s), CUDA_SUCCESS);
  EXPECT_NE(in_flight(), 0u);
  {
    const gate::Blocked blocked;  // cuCtxSynchronize
    gate::watch_device_gate(link, now_ns);
    look_for(300 * kMs);
    EXPECT_TRUE(open());
  }
  null.hold(0);
  gate::poll_accounts();
  EXPECT_EQ(in_flight(), 0u);
  launch(new_stream());
  gate::query_accounts();
  EXPECT_EQ(in_flight(), 0u);
}

TEST_F(DeviceGate, TheEndOfAnotherContextLeavesWorkBehindTheGate) {
  null.hold(1);
  close();
  launch(new_stream());
  const uint64_t before = in_flight();
  static CUcontext own;
  own = context;
  auto& real = driver_api::mutable_real_for_tests();
  const auto saved = real;
  real.cuStreamGetCtx = [](CUstream, CUcontext* of) { return *of = own, CUDA_SUCCESS; };
  real.cuCtxDestroy_v2 = [](CUcontext) { return CUDA_SUCCESS; };
  EXPECT_EQ(hook_cuCtxDestroy_v2(reinterpret_cast<CUcontext>(uintptr_t{0x5678})), CUDA_SUCCESS);
  EXPECT_EQ(in_flight(), before);
  EXPECT_EQ(hook_cuCtxDestroy_v2(context), CUDA_SUCCESS);
  EXPECT_EQ(in_flight(), 0u);
  real = saved;
}

// The driver that names `g_own` as the context of every stream, and ends whatever it is asked to.
CUcontext g_own = nullptr;
class SeveralContexts : public DeviceGate {
 protected:
  void SetUp() override {
    DeviceGate::SetUp();
    saved_ = real_;
    real_.cuStreamGetCtx = [](CUstream, CUcontext* of) { return *of = g_own, CUDA_SUCCESS; };
    real_.cuCtxDestroy_v2 = [](CUcontext) { return CUDA_SUCCESS; };
    real_.cuDevicePrimaryCtxReset_v2 = [](CUdevice) { return CUDA_SUCCESS; };
    real_.cuGreenCtxDestroy = [](CUgreenCtx) { return CUDA_SUCCESS; };
    real_.cuCtxFromGreenCtx = [](CUcontext* face, CUgreenCtx green) {
      return *face = reinterpret_cast<CUcontext>(green), CUDA_SUCCESS;
    };
    g_own = context;
    state::context_seen(kOther);
    null.hold(1);
    close();
  }
  void TearDown() override {
    null.hold(0);
    real_ = saved_;
    state::context_gone(kOther);
    DeviceGate::TearDown();
  }
  static inline const CUcontext kOther = reinterpret_cast<CUcontext>(uintptr_t{0x5678});
  driver_api::RealDriver& real_ = driver_api::mutable_real_for_tests();
  driver_api::RealDriver saved_;
};

TEST_F(SeveralContexts, TheEndOfAnotherOneLeavesTheDefaultStreamBehindTheGate) {
  launch();
  const uint64_t before = in_flight();
  EXPECT_NE(before, 0u);
  EXPECT_EQ(hook_cuCtxDestroy_v2(kOther), CUDA_SUCCESS);
  EXPECT_EQ(in_flight(), before);
  const gate::Blocked blocked;  // whoever waits for it gets it
  gate::watch_device_gate(link, now_ns);
  look_for(300 * kMs);
  EXPECT_TRUE(open());
}

TEST_F(SeveralContexts, TheEndOfAPrimaryOneLeavesWorkOfOthersBehindTheGate) {
  g_own = kOther;
  gate::g_device_gate.context.store(kOther);
  launch(new_stream());
  const uint64_t before = in_flight();
  EXPECT_NE(before, 0u);
  EXPECT_EQ(hook_cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
  EXPECT_EQ(in_flight(), before);
  hook_cuCtxSetCurrent(context);
}

TEST_F(SeveralContexts, TheEndOfAGreenOneLeavesWorkBehindTheGate) {
  launch(new_stream());
  const uint64_t before = in_flight();
  EXPECT_NE(before, 0u);
  EXPECT_EQ(hook_cuGreenCtxDestroy(reinterpret_cast<CUgreenCtx>(kOther)), CUDA_SUCCESS);
  EXPECT_EQ(in_flight(), before);
}

// The page is no memory of a GPU any more when the context ends that pinned it: no stream that lives on waits for it.
TEST_F(SeveralContexts, OnlyTheOneThatPinnedThePageHasBoundaries) {
  launch(new_stream());
  EXPECT_EQ(waits(), 1u);
  g_own = kOther;
  launch(new_stream());
  gate::begin_quantum_before_event({new_stream(), driver_api::Flavour::kLegacy});
  EXPECT_EQ(waits(), 1u);
  EXPECT_EQ(page->thread_asks, 1u);
}

CUresult refuse_launch(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                       CUstream, void**, void**) {
  return CUDA_ERROR_INVALID_VALUE;
}

TEST_F(DeviceGate, ABoundaryOfALaunchThatFailedIsInFlight) {
  auto& real = driver_api::mutable_real_for_tests();
  const auto before = std::exchange(real.cuLaunchKernel, refuse_launch);
  null.hold(1);
  close();
  EXPECT_EQ(launch(new_stream()), CUDA_ERROR_INVALID_VALUE);
  real.cuLaunchKernel = before;
  ASSERT_EQ(waits(), 1u);
  {
    const gate::Blocked blocked;
    gate::watch_device_gate(link, now_ns);
    look_for(300 * kMs);
    EXPECT_TRUE(open());
  }
  null.hold(0);
  gate::query_accounts();
  EXPECT_EQ(in_flight(), 0u);
}

TEST_F(DeviceGate, TheDaemonIsToldThatWorkWaits) {
  null.hold(1);
  close();
  launch(new_stream());
  const uint64_t notices = g_notices;
  gate::watch_device_gate(link, now_ns);
  EXPECT_EQ(waiting(), 1u);
  EXPECT_TRUE(gate::waits_behind_gate());
  EXPECT_EQ(g_notices, notices + 1);
  EXPECT_GT(ipc::load(region->usage.queued_ns, std::memory_order_relaxed), 0u);
  ipc::reopen_gate(*page, 1, 5);
  gate::watch_device_gate(link, now_ns + kMs);
  EXPECT_EQ(waiting(), 0u);
  EXPECT_EQ(ipc::load(region->usage.queued_ns, std::memory_order_relaxed), 0u);
}

TEST_F(DeviceGate, ABecomingProtectedOneLetsEverythingGo) {
  null.hold(1);
  close();
  launch(new_stream());
  gate::watch_device_gate(link, now_ns);
  EXPECT_EQ(waiting(), 1u);
  gate::stop_device_gate(link);
  EXPECT_TRUE(open());
  EXPECT_EQ(waiting(), 0u);
  gate::stop_device_gate(link);
  EXPECT_EQ(waiting(), 0u);
}

// Each end of being managed opens what waits, and no peer can close that.
TEST_F(DeviceGate, FailsOpen) {
  close();
  EXPECT_FALSE(open());
  gate::poison();
  EXPECT_TRUE(open());
  state::g_state.poisoned.store(0);

  abi::GatePage* before = page;
  gate::adopt_device_gate(new_page());  // another daemon
  ipc::close_gate(*before, 3, 9);
  EXPECT_TRUE(ipc::gate_is_open(*before));
}

TEST_F(DeviceGate, AContextThatEndsTakesThePinAlong) {
  track::context_ended(reinterpret_cast<CUcontext>(0x77));  // another one
  EXPECT_NE(gate::g_device_gate.word.load(), 0u);
  track::context_ended(context);
  launch(new_stream());
  EXPECT_EQ(waits(), 0u);
  EXPECT_EQ(launches(), 1u);
  driver_api::real().cuDevicePrimaryCtxRetain(&context, 0);
  hook_cuCtxSetCurrent(context);
}

// Else it would be one that waits for ever.
TEST_F(DeviceGate, NobodyWaitsBehindAGateWhosePinIsGone) {
  null.hold(1);
  close();
  launch(new_stream());
  look_for(20 * kMs);
  EXPECT_EQ(waiting(), 1u);
  track::context_ended(context);
  look_for(20 * kMs);
  EXPECT_EQ(waiting(), 0u);
  EXPECT_FALSE(gate::waits_behind_gate());
  null.hold(0);
  hook_cuCtxSetCurrent(context);
}

// ---- the protected side

class PeerGates : public Gate {
 protected:
  static constexpr uint32_t kByte = 2;
  void SetUp() override {
    Gate::SetUp();
    attach(state::Role::kProtected);
    page = new_page();
    ipc::gate_byte(*page, kByte).store(abi::kGateUnmapped);
  }
  void TearDown() override {
    gate::forget_peer_gates();
    Gate::TearDown();
  }
  void map() {
    gate::watch_peer_gate(77, kByte, ipc::Mapping(nullptr, page, abi::kGateBytes));
    page = gate::g_peer_gates[0].page.load();  // addresses are reused
  }
  bool open() { return ipc::gate_is_open(*page); }

  abi::GatePage* page = nullptr;
};

TEST_F(PeerGates, ABurstClosesAndItsEndOpens) {
  EXPECT_FALSE(open());
  map();
  EXPECT_TRUE(open());
  CUstream s = new_stream();
  launch(s);
  EXPECT_FALSE(open());
  hook_cuStreamSynchronize(s);
  EXPECT_TRUE(open());
}

// Two threads begin a burst at once: one gives the pulse its number, and the other may be the last that closes.
TEST_F(PeerGates, TheEndOfABurstThatTwoThreadsBeganOpens) {
  map();
  ipc::pulse_set_busy(region->pulse, 6, 0, 6, base::now_ns());
  gate::close_peer_gates(6);
  gate::close_peer_gates(5);
  EXPECT_FALSE(open());
  ASSERT_TRUE(ipc::pulse_try_idle(region->pulse, 6, base::now_ns()));
  gate::open_peer_gates(6);
  EXPECT_TRUE(open());
}

TEST_F(PeerGates, TheDaemonOpensWhereTheLeaseSaysSo) {
  map();
  ipc::store(region->lease.rights, {.keeps_closed = 1}, std::memory_order_relaxed);
  CUstream s = new_stream();
  launch(s);
  hook_cuStreamSynchronize(s);
  EXPECT_FALSE(busy());
  EXPECT_FALSE(open());
}

TEST_F(PeerGates, OneThatIsMappedInABurstStaysClosedForIt) {
  CUstream s = new_stream();
  launch(s);
  map();
  EXPECT_FALSE(open());
  EXPECT_NE(ipc::gate_byte(*page, kByte).load(), abi::kGateUnmapped);
  hook_cuStreamSynchronize(s);
  // Its number is not this burst's: the daemon opens it, which is told that the burst ended.
  launch(s);
  hook_cuStreamSynchronize(s);
  EXPECT_TRUE(open());
}

TEST_F(PeerGates, AnotherByteOfTheSamePageReplacesTheFirst) {
  map();
  gate::watch_peer_gate(77, kByte + 1, ipc::Mapping(nullptr, new_page(), abi::kGateBytes));
  launch(new_stream());
  uint32_t entries = 0;
  for (const gate::PeerGate& gate : gate::g_peer_gates) {
    if (!gate.page.load()) continue;
    entries++;
    EXPECT_EQ(gate.byte.load(), kByte + 1);
  }
  EXPECT_EQ(entries, 1u);
}

TEST_F(PeerGates, AClientThatLeftIsLeftAlone) {
  map();
  gate::forget_peer_gate(77);
  launch(new_stream());
  EXPECT_EQ(gate::g_peer_gates[0].page.load(), nullptr);
}

}  // namespace
}  // namespace tessera::test

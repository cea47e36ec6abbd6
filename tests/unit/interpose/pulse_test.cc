// Protected side: when is a client busy, and what makes it idle.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <utility>

#include "interpose/lifecycle/connection.h"
#include "tests/unit/interpose/harness.h"

namespace tessera::test {
namespace {

using state::Role;

class Pulse : public Gate {
 protected:
  void SetUp() override {
    Gate::SetUp();
    attach(Role::kProtected);
  }
  void race();
  // Neither the event nor a stream that waited for it says that earlier work is over.
  void expect_work_goes_on_after(CUevent event, CUstream other) {
    EXPECT_EQ(hook_cuEventQuery(event), CUDA_SUCCESS);
    EXPECT_TRUE(busy());
    hook_cuStreamWaitEvent(other, event, 0);
    launch(other);
    hook_cuStreamSynchronize(other);
    EXPECT_TRUE(busy());
  }
};

TEST_F(Pulse, FirstLaunchAnnouncesAndLaterOnesDoNot) {
  EXPECT_FALSE(busy());
  const uint64_t announced = gate::g_pulse_stats.announced;
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_TRUE(busy());
  const uint64_t burst = region->pulse.burst;
  EXPECT_GT(region->pulse.busy_since_ns, 0u);
  for (int i = 0; i < 10; i++) launch();
  EXPECT_EQ(region->pulse.burst, burst);
  EXPECT_EQ(gate::g_pulse_stats.announced, announced + 1);
}

TEST_F(Pulse, CopyAnnouncesBeforeAnyKernel) {
  EXPECT_EQ(hook_cuMemcpyHtoDAsync_v2(0x1000, "x", 1, nullptr), CUDA_SUCCESS);
  EXPECT_TRUE(busy());
}

TEST_F(Pulse, SynchronisingTheOnlyStreamIsIdleAndTellsTheDaemon) {
  CUstream s = new_stream();
  launch(s);
  launch(s);
  EXPECT_EQ(hook_cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_FALSE(busy());
  EXPECT_EQ(g_notices, 1u);
  EXPECT_GT(region->pulse.idle_since_ns, 0u);
  EXPECT_EQ(region->ring.head, 1u);  // the burst
  EXPECT_EQ(region->ring.slots[0].kind, abi::kRecordBurst);
  EXPECT_EQ(region->ring.slots[0].blocks, 2u);
}

TEST_F(Pulse, AQuietBurstTellsNobodyUntilHalfARingOfRecordsIsWritten) {
  abi::AnswerLine answers{.quiet = 1};
  link->answers = &answers;
  CUstream s = new_stream();
  const auto burst = [&] {
    launch(s);
    EXPECT_EQ(hook_cuStreamSynchronize(s), CUDA_SUCCESS);
    EXPECT_FALSE(busy());
  };
  for (uint32_t i = 0; i + 1 < link->ring_slots / 2; i++) burst();
  EXPECT_EQ(g_notices, 0u);
  burst();
  EXPECT_EQ(g_notices, 1u);
  burst();
  EXPECT_EQ(g_notices, 1u);
  answers.quiet = 0;
  burst();
  EXPECT_EQ(g_notices, 2u);
}

// A service whose one thread launches pays no system call for other threads.
TEST_F(Pulse, TheOnlyThreadNeedsNoBarrierOfOthers) {
  static std::atomic<uint32_t> fences{0};
  const auto before = gate::g_slow.heavy_fence;
  gate::g_slow.heavy_fence = []() noexcept { fences++; };
  const auto burst = [&] {
    CUstream s = new_stream();
    launch(s);
    EXPECT_EQ(hook_cuStreamSynchronize(s), CUDA_SUCCESS);
    EXPECT_FALSE(busy());
  };
  burst();  // it has a slot
  ASSERT_EQ(state::t_thread.slot, &state::g_slots[0]);
  const uint32_t used = state::g_slots_used.exchange(1);
  fences = 0;
  burst();
  EXPECT_EQ(fences, 0u);
  std::thread([&] { burst(); }).join();
  EXPECT_EQ(fences, 1u);
  burst();
  EXPECT_EQ(fences, 2u);
  if (used > 1) state::g_slots_used.store(used);
  gate::g_slow.heavy_fence = before;
}

TEST_F(Pulse, SynchronisingAnotherStreamIsNotIdle) {
  CUstream a = new_stream(), b = new_stream();
  launch(a);
  launch(b);
  hook_cuStreamSynchronize(a);
  EXPECT_TRUE(busy());
  hook_cuStreamSynchronize(b);
  EXPECT_FALSE(busy());
}

TEST_F(Pulse, LegacyAndPerThreadDefaultStreamsAreDifferent) {
  hook_cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  hook_cuStreamSynchronize_ptsz(nullptr);
  EXPECT_TRUE(busy());
  hook_cuStreamSynchronize(nullptr);
  EXPECT_FALSE(busy());
  hook_cuLaunchKernel_ptsz(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  hook_cuStreamSynchronize(CU_STREAM_LEGACY);
  EXPECT_TRUE(busy());
  hook_cuStreamSynchronize(CU_STREAM_PER_THREAD);
  EXPECT_FALSE(busy());
}

TEST_F(Pulse, ContextSynchroniseCoversEverything) {
  launch(new_stream());
  launch(new_stream());
  launch();
  hook_cuCtxSynchronize();
  EXPECT_FALSE(busy());
}

TEST_F(Pulse, EventCoversWhatPrecededItsRecord) {
  CUstream s = new_stream();
  CUevent event = nullptr;
  driver_api::real().cuEventCreate(&event, 0);
  launch(s);
  hook_cuEventRecord(event, s);
  launch(s);
  hook_cuEventSynchronize(event);
  EXPECT_TRUE(busy());  // the second launch is not covered
  hook_cuEventRecord(event, s);
  hook_cuEventSynchronize(event);
  EXPECT_FALSE(busy());
}

CUevent new_event() {
  CUevent event = nullptr;
  driver_api::real().cuEventCreate(&event, 0);
  return event;
}

// A driver gives the handle of an event that was destroyed to the next one, which stands for nothing yet.
TEST_F(Pulse, AnEventIsForgottenWhenItIsDestroyed) {
  auto& slots = driver_api::mutable_real_for_tests();
  const auto before = slots;
  for (auto* destroy : {&slots.cuEventDestroy, &slots.cuEventDestroy_v2})
    *destroy = [](CUevent) { return CUDA_SUCCESS; };
  CUstream work = new_stream(), other = new_stream();
  CUevent event = new_event();
  for (auto* destroy : {hook_cuEventDestroy, hook_cuEventDestroy_v2}) {
    launch(work);
    hook_cuEventRecord(event, work);
    destroy(event);
    expect_work_goes_on_after(event, other);
    hook_cuStreamSynchronize(work);
    EXPECT_FALSE(busy());
  }
  slots = before;
}

// Such an event stands for a place in a graph, not for one in a stream.
TEST_F(Pulse, AnEventThatAGraphRecordsProvesNothing) {
  CUstream work = new_stream();
  const auto expect_nothing_known_of = [&](CUevent event) {
    launch(work);
    hook_cuEventRecord(event, work);
    hook_cuEventSynchronize(event);  // may be what the graph recorded
    EXPECT_TRUE(busy());
    hook_cuStreamSynchronize(work);
    EXPECT_FALSE(busy());
  };
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  launch(work);
  hook_cuStreamBeginCapture_v2(work, CU_STREAM_CAPTURE_MODE_RELAXED);
  const CUevent captured = new_event();
  hook_cuEventRecordWithFlags(captured, work, CU_EVENT_RECORD_EXTERNAL);
  hook_cuStreamEndCapture(work, &graph);
  EXPECT_EQ(hook_cuEventQuery(captured), CUDA_SUCCESS);  // nothing recorded it
  EXPECT_TRUE(busy());
  expect_nothing_known_of(captured);
  const CUevent added = new_event(), set = new_event(), general = new_event();
  hook_cuGraphAddEventRecordNode(&node, graph, nullptr, 0, added);
  hook_cuGraphExecEventRecordNodeSetEvent(nullptr, node, set);
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
  params.eventRecord.event = general;
  hook_cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &params);
  for (const CUevent event : {added, set, general}) expect_nothing_known_of(event);
}

// Another process may have recorded it since, and that record may be over before ours.
TEST_F(Pulse, AnEventOfTwoProcessesProvesNothing) {
  static CUevent opened = nullptr;
  auto& slots = driver_api::mutable_real_for_tests();
  const auto before = slots;
  slots.cuIpcGetEventHandle = [](CUipcEventHandle*, CUevent) { return CUDA_SUCCESS; };
  slots.cuIpcOpenEventHandle = [](CUevent* event, CUipcEventHandle) {
    *event = opened;
    return CUDA_SUCCESS;
  };
  CUstream work = new_stream(), other = new_stream();
  CUipcEventHandle handle{};
  CUevent ours = new_event(), imported = nullptr;
  opened = new_event();
  launch(work);
  hook_cuEventRecord(ours, work);
  hook_cuIpcGetEventHandle(&handle, ours);
  hook_cuEventSynchronize(ours);
  EXPECT_TRUE(busy()) << "recorded before it was exported";
  hook_cuIpcOpenEventHandle(&imported, handle);
  for (const CUevent event : {ours, imported}) {
    hook_cuEventRecord(event, work);
    expect_work_goes_on_after(event, other);
  }
  hook_cuStreamSynchronize(work);
  EXPECT_FALSE(busy());
  slots = before;
}

// Results that another stream copies to the host: the usual way of frameworks.
TEST_F(Pulse, AStreamThatWaitedForAnEventProvesWhatTheEventStoodFor) {
  CUstream work = new_stream(), copies = new_stream();
  CUevent computed = new_event(), copied = new_event();
  const auto request = [&](auto&& wait) {
    launch(work);
    hook_cuEventRecord(computed, work);
    hook_cuStreamWaitEvent(copies, computed, 0);
    launch(copies);
    hook_cuEventRecord(copied, copies);
    wait();
  };
  request([&] { hook_cuStreamSynchronize(copies); });
  EXPECT_FALSE(busy());
  request([&] { hook_cuEventSynchronize(copied); });
  EXPECT_FALSE(busy());
  request([&] { std::thread([&] { hook_cuEventSynchronize(copied); }).join(); });
  EXPECT_FALSE(busy());
  request([&] {
    launch(work);  // behind the event that the copies waited for
    hook_cuEventSynchronize(copied);
  });
  EXPECT_TRUE(busy());
  hook_cuStreamSynchronize(work);
  EXPECT_FALSE(busy());
}

TEST_F(Pulse, AWaitThatIsNoneOfTheStreamProvesNothing) {
  CUstream work = new_stream(), other = new_stream(), third = new_stream();
  CUevent event = new_event();
  const auto expect_not_covered = [&](CUstream stream) {
    launch(stream);
    hook_cuStreamSynchronize(stream);
    EXPECT_TRUE(busy());
  };
  launch(work);
  hook_cuEventRecord(event, work);
  // In a capture it is an edge of a graph.
  hook_cuStreamBeginCapture_v2(other, CU_STREAM_CAPTURE_MODE_RELAXED);
  hook_cuStreamWaitEvent(other, event, 0);
  CUgraph graph = nullptr;
  hook_cuStreamEndCapture(other, &graph);
  expect_not_covered(other);
  // A stream whose handle was another one's, and one whose count was.
  hook_cuStreamWaitEvent(other, event, 0);
  hook_cuStreamDestroy_v2(other);
  expect_not_covered(other);
  hook_cuStreamWaitEvent(other, event, 0);
  const state::StreamCount* count = state::t_thread.count;  // nothing of its own is outstanding
  launch(third);
  ASSERT_EQ(state::t_thread.count, count);
  hook_cuStreamSynchronize(third);
  EXPECT_TRUE(busy());
}

// A context's default stream says nothing of another context's.
TEST_F(Pulse, EventsOfDefaultStreamsProveNothingInSeveralContexts) {
  CUevent event = new_event();
  state::g_state.n_contexts = 2;
  launch();
  hook_cuEventRecord(event, nullptr);
  hook_cuEventSynchronize(event);
  EXPECT_TRUE(busy());
  hook_cuLaunchKernel_ptsz(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  hook_cuStreamSynchronize_ptsz(nullptr);
  hook_cuStreamSynchronize(nullptr);
  EXPECT_TRUE(busy());
  state::g_state.n_contexts = 1;
  hook_cuStreamSynchronize_ptsz(nullptr);
  hook_cuStreamSynchronize(nullptr);
  EXPECT_FALSE(busy());
}

// A server that launches its next step before it waits for this one has one burst without an end.
TEST_F(Pulse, TheStepsOfABurstAreRecordedOneByOne) {
  StoppedClock clock;
  CUstream work = new_stream(), copies = new_stream();
  std::vector<CUevent> computed(2), copied(2);
  for (auto* events : {&computed, &copied})
    for (CUevent& event : *events) event = new_event();
  const auto begin_step = [&](size_t i, uint32_t launches) {
    for (uint32_t n = 0; n < launches; n++) launch(work);
    hook_cuEventRecord(computed[i % 2], work);
    hook_cuStreamWaitEvent(copies, computed[i % 2], 0);
    hook_cuMemcpyDtoHAsync_v2(&clock, 0x1000, 4, copies);
    hook_cuEventRecord(copied[i % 2], copies);
  };
  const uint32_t launches[] = {3, 3, 3, 9, 3, 3, 3};  // one of them is longer
  const size_t last = std::size(launches) - 1;
  begin_step(0, launches[0]);
  for (size_t i = 0; i <= last; i++) {
    if (i < last) begin_step(i + 1, launches[i + 1]);
    clock.move(launches[i] * 1'000'000);
    hook_cuEventSynchronize(copied[i % 2]);
    EXPECT_EQ(busy(), i < last);
  }
  // The first wait began the first step, which lasts from the beginning of the burst.
  const uint64_t expected_ms[] = {6, 3, 9, 3, 3, 3};
  ASSERT_EQ(region->ring.head, std::size(expected_ms));
  EXPECT_EQ(g_notices, std::size(expected_ms));
  const abi::Record* records = region->ring.slots;
  for (size_t i = 0; i < std::size(expected_ms); i++)
    EXPECT_EQ(records[i].duration_ns, expected_ms[i] * 1'000'000);
  EXPECT_NE(records[2].key, records[3].key);  // the long one is known by what was launched for it
  EXPECT_EQ(records[3].key, records[4].key);
}

// Two streams that take turns: neither wait ends the work that was in flight when the other one returned.
TEST_F(Pulse, AWaitThatLeavesOlderWorkEndsNoStep) {
  CUstream work = new_stream(), copies = new_stream();
  launch(work);
  launch(work);
  for (int i = 0; i < 2; i++) {
    launch(copies);
    hook_cuStreamSynchronize(copies);
  }
  EXPECT_TRUE(busy());
  EXPECT_EQ(region->ring.head, 0u);
  hook_cuStreamSynchronize(work);
  EXPECT_FALSE(busy());
  EXPECT_EQ(region->ring.head, 1u);
}

TEST_F(Pulse, UnknownEventProvesNothing) {
  launch();
  hook_cuEventSynchronize(reinterpret_cast<CUevent>(uintptr_t{0x777000}));
  EXPECT_TRUE(busy());
}

TEST_F(Pulse, QueryThatSaysNotReadyProvesNothing) {
  CUstream s = new_stream();
  launch(s);
  null.hold(1);
  EXPECT_EQ(hook_cuStreamQuery(s), CUDA_ERROR_NOT_READY);
  EXPECT_TRUE(busy());
  null.hold(0);
  EXPECT_EQ(hook_cuStreamQuery(s), CUDA_SUCCESS);
  EXPECT_FALSE(busy());
}

TEST_F(Pulse, BlockingCopyToTheHostEndsABurst) {
  char buffer[4];
  launch();
  EXPECT_EQ(hook_cuMemcpyDtoH_v2(buffer, 0x1000, 4), CUDA_SUCCESS);
  EXPECT_FALSE(busy());
  launch();
  hook_cuMemcpyHtoD_v2(0x1000, buffer, 4);  // may return before the device is done
  EXPECT_TRUE(busy());
}

// A request copies its input, computes, and copies its result. The first and the last burst have no launch.
TEST_F(Pulse, CopiesOfOtherSizesAndDirectionsAreOtherBursts) {
  std::vector<char> buffer(1 << 20);
  const auto key_of = [&](auto copy) {
    copy();
    hook_cuCtxSynchronize();
    return region->ring.slots[(region->ring.head - 1) % abi::kRingSlots].key;
  };
  const auto request = [&] {
    std::vector<uint64_t> keys;
    keys.push_back(key_of([&] { hook_cuMemcpyHtoDAsync_v2(0x1000, buffer.data(), buffer.size(), nullptr); }));
    keys.push_back(key_of([&] { launch(); }));
    keys.push_back(key_of([&] { hook_cuMemcpyDtoHAsync_v2(buffer.data(), 0x1000, 64, nullptr); }));
    keys.push_back(key_of([&] { hook_cuMemcpyHtoDAsync_v2(0x1000, buffer.data(), 64, nullptr); }));
    return keys;
  };
  const std::vector<uint64_t> first = request();
  for (size_t i = 0; i < first.size(); i++)
    for (size_t j = 0; j < i; j++) EXPECT_NE(first[i], first[j]) << i << " and " << j;
  launch(new_stream());  // another last function, in a burst of its own
  hook_cuCtxSynchronize();
  EXPECT_EQ(request(), first);
}

TEST_F(Pulse, HelperFindsIdleWhenNobodySynchronises) {
  CUstream s = new_stream();
  launch(s);
  launch();
  null.hold(1);
  EXPECT_FALSE(lifecycle::poll_idle(base::now_ns()));
  EXPECT_TRUE(busy());
  null.hold(0);
  EXPECT_TRUE(lifecycle::poll_idle(base::now_ns()));
  EXPECT_FALSE(busy());
  EXPECT_EQ(g_notices, 1u);
}

TEST_F(Pulse, DestroyedStreamIsForgotten) {
  CUstream s = new_stream();
  launch(s);
  hook_cuStreamDestroy_v2(s);
  EXPECT_TRUE(gate::all_complete());
}

TEST_F(Pulse, MoreStreamsThanPlacesStillBecomesIdle) {
  for (uint32_t i = 0; i < state::kStreamsPerThread + 5; i++) launch(new_stream());
  EXPECT_TRUE(busy());
  hook_cuCtxSynchronize();
  EXPECT_FALSE(busy());
}

// However many streams a thread uses and however often: the driver is asked about each of them.
TEST_F(Pulse, AThreadOfManyStreamsIsIdleBetweenItsRequests) {
  std::vector<CUstream> streams;
  for (int i = 0; i < 100; i++) streams.push_back(new_stream());
  uint64_t now = base::now_ns();
  for (size_t n : {8, 20, 100, 8, 50}) {
    for (int request = 0; request < 60; request++, now += 1'000'000) {  // none is ever quiet for long
      for (size_t i = 0; i < n; i++) launch(streams[(size_t(request) + i) % streams.size()]);
      null.hold(1);
      EXPECT_FALSE(lifecycle::poll_idle(now));
      null.hold(0);
      ASSERT_TRUE(lifecycle::poll_idle(now)) << n << " streams, request " << request;
    }
  }
  for (CUstream s : streams) launch(s);
  for (CUstream s : streams) {
    EXPECT_TRUE(busy());
    hook_cuStreamSynchronize(s);
  }
  EXPECT_FALSE(busy());
}

// A default stream of another thread that nobody waits for by a call: sixty requests a second, each of them short.
TEST_F(Pulse, WhatNobodyCanAskAboutIsNotInTheWayForLong) {
  StoppedClock clock;
  int idle = 0;
  for (int request = 0; request < 60; request++) {
    std::thread([&] {
      hook_cuLaunchKernel_ptsz(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
    }).join();
    EXPECT_TRUE(busy());
    for (int ms = 0; ms < 16; ms++, clock.move(1'000'000))
      if (lifecycle::poll_idle(state::clock_ns())) idle++;
    if (request < 3) {
      EXPECT_EQ(idle, 0);  // perhaps the kernel is long
    }
  }
  EXPECT_GT(idle, 50);
}

TEST_F(Pulse, FailedLaunchDoesNotStayOutstanding) {
  auto& table = driver_api::mutable_real_for_tests();
  const auto saved = table.cuLaunchKernel;
  table.cuLaunchKernel = [](CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            CUstream, void**, void**) { return CUDA_ERROR_INVALID_VALUE; };
  EXPECT_EQ(launch(), CUDA_ERROR_INVALID_VALUE);
  table.cuLaunchKernel = saved;
  hook_cuStreamSynchronize(nullptr);
  EXPECT_FALSE(busy());
}

// Protected among protected: only the start of a burst may wait, and only if the lease says so.
class Defer : public Pulse {
 protected:
  void SetUp() override {
    Pulse::SetUp();
    region->lease.word = abi::kLeaseFree;
    region->lease.rights.defers = 1;
    region->lease.rights.priority = 3;
    region->lease.max_hold_ms = 10'000;
    watch(&peer_, 5);
    state::g_state.watch[0].slo_ns.store(0);
  }
  void peer_busy(uint64_t since_ns) {
    ++burst_;
    ipc::pulse_set_busy(peer_, burst_, 0, burst_, since_ns);
  }
  void peer_idle() { ipc::pulse_try_idle(peer_, burst_, base::now_ns()); }
  // A launch that must wait until the peer is idle.
  void expect_deferred() {
    null.reset();
    g_notices = 0;
    std::atomic<bool> done{false};
    std::thread other([&] {
      launch();
      done = true;
    });
    EXPECT_TRUE(eventually([&] { return std::atomic_ref(region->usage.holds).load() == 1; }));
    EXPECT_FALSE(busy());
    EXPECT_EQ(null.calls("cuLaunchKernel"), 0u);
    EXPECT_EQ(waiting(), 1u);
    EXPECT_TRUE(eventually([&] { return g_notices == 1; }));  // the peer may be dying: the daemon looks
    peer_idle();
    EXPECT_TRUE(eventually([&] { return done.load(); }));
    other.join();
    EXPECT_EQ(waiting(), 0u);
    EXPECT_TRUE(busy());
    EXPECT_GT(region->usage.held_ns, 0u);
    EXPECT_EQ(region->usage.hold_expired, 0u);
  }
  abi::PulsePage peer_{};
  uint32_t burst_ = 0;
};

TEST_F(Defer, ABurstWaitsForABusyHigherLevelAndALaunchWithinOneDoesNot) {
  peer_busy(base::now_ns());
  expect_deferred();
  peer_busy(base::now_ns());
  EXPECT_EQ(launch(), CUDA_SUCCESS);  // its burst runs
  EXPECT_EQ(region->usage.holds, 1u);
}

TEST_F(Defer, NobodyWaitsForALowerLevelAStalePulseOrWithoutTheFlag) {
  peer_busy(base::now_ns());
  state::g_state.watch[0].priority.store(3);  // no SLOs
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  hook_cuCtxSynchronize();
  state::g_state.watch[0].priority.store(5);
  region->lease.rights.defers = 0;
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  hook_cuCtxSynchronize();
  region->lease.rights.defers = 1;
  peer_busy(base::now_ns() - 2 * abi::kPulseStaleNs);
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_EQ(region->usage.holds, 0u);
}

TEST_F(Defer, WithinALevelTheEarlierDeadlineGoesFirst) {
  state::g_state.watch[0].priority.store(3);
  state::g_state.watch[0].slo_ns.store(500'000'000);
  region->lease.slo_us = 100'000;
  peer_busy(base::now_ns());  // due in 500 ms, ours in 100
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_EQ(region->usage.holds, 0u);
  hook_cuCtxSynchronize();
  peer_idle();
  region->lease.slo_us = 9'000'000;  // ours is due much later now
  peer_busy(base::now_ns());
  expect_deferred();
}

TEST_F(Defer, TheWaitEndsAtTheHoldLimitOrTheSlo) {
  peer_busy(base::now_ns());
  region->lease.max_hold_ms = 5;
  uint64_t before = base::now_ns();
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_GE(base::now_ns() - before, 4'900'000u);  // two clocks: a little slack
  EXPECT_EQ(region->usage.hold_expired, 1u);
  hook_cuCtxSynchronize();
  region->lease.max_hold_ms = 10'000;
  region->lease.slo_us = 3'000;
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_EQ(region->usage.hold_expired, 2u);
}

TEST_F(Defer, DaemonLossEndsTheWait) {
  peer_busy(base::now_ns());
  std::atomic<bool> done{false};
  std::thread other([&] {
    launch();
    done = true;
  });
  EXPECT_TRUE(eventually([&] { return std::atomic_ref(region->usage.holds).load() == 1; }));
  lose_daemon();
  EXPECT_TRUE(eventually([&] { return done.load(); }));
  other.join();
}

TEST_F(Pulse, AThreadThatEndsInALaunchLeavesNoWorkBehind) {
  auto& real = driver_api::mutable_real_for_tests();
  const auto before = std::exchange(real.cuLaunchKernel, end_thread);
  pthread_t thread;
  ASSERT_EQ(pthread_create(
                &thread, nullptr,
                [](void* test) -> void* {
                  static_cast<Pulse*>(test)->launch(new_stream());
                  return nullptr;
                },
                this),
            0);
  pthread_join(thread, nullptr);
  real.cuLaunchKernel = before;
  EXPECT_TRUE(busy());
  lifecycle::poll_idle(base::now_ns());
  EXPECT_FALSE(busy());
}

TEST_F(Pulse, ALaunchThatASignalHandlerJumpsOutOfIsOverWhenItsThreadSynchronises) {
  const CUstream stream = new_stream();
  launch(stream);
  {
    JumpOut jump;
    for (int i = 0; i < 2; i++) jump.of([&] { launch(stream); });
  }
  EXPECT_TRUE(busy());
  hook_cuStreamSynchronize(stream);
  EXPECT_FALSE(busy());
  const state::StreamCount& count = *state::t_thread.count;
  EXPECT_EQ(count.begun, count.ended);
  launch(stream);
  EXPECT_TRUE(busy());
  hook_cuStreamSynchronize(stream);
  EXPECT_FALSE(busy());
}

TEST_F(Pulse, ASignalHandlerThatSynchronisesEndsNoLaunchOfItsThread) {
  auto& real = driver_api::mutable_real_for_tests();
  const CUstream stream = new_stream();
  launch(stream);
  hook_cuStreamSynchronize(stream);
  static CUstream of_handler;
  static bool was_busy;
  of_handler = stream;
  const auto before =
      std::exchange(real.cuLaunchKernel, [](CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                            unsigned, unsigned, CUstream, void**, void**) {
        const CUresult result = hook_cuStreamSynchronize(of_handler);
        was_busy = state::t_thread.count->begun != state::t_thread.count->ended;
        return result;
      });
  launch(stream);
  real.cuLaunchKernel = before;
  EXPECT_TRUE(was_busy);
  EXPECT_EQ(state::t_thread.count->begun, state::t_thread.count->ended);
}

TEST_F(Pulse, WhatAThreadLaunchesWhenItsSlotIsGivenBackHasOneOfItsOwn) {
  static pthread_key_t key;
  static std::atomic<int> round;
  static std::atomic<uint32_t> taken;
  ASSERT_EQ(
      pthread_key_create(&key,
                         [](void* test) {
                           if (++round == 1) {  // in the next round every other key's destructor has run
                             pthread_setspecific(key, test);
                             return;
                           }
                           static_cast<Pulse*>(test)->launch();
                           taken = state::t_thread.slot->taken.load();
                         }),
      0);
  std::thread([&] {
    launch();
    pthread_setspecific(key, this);
  }).join();
  pthread_key_delete(key);
  EXPECT_EQ(round, 2);
  EXPECT_EQ(taken, 1u);
}

// A thread that launched in its own stream and did not synchronise since must find the client busy, whatever
// the others and the helper do. A moment of idle that is taken back at once is allowed (gate/pulse.h).
void Pulse::race() {
  constexpr int kThreads = 8, kRounds = 4'000;
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::thread helper([&] {
    while (!stop) lifecycle::poll_idle(0);  // time 0: nothing is ever forgiven
  });
  null.hold(1);  // the helper's queries find nothing complete; only the threads' own synchronise calls do
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; i++) {
    threads.emplace_back([&, i] {
      CUstream s = new_stream();
      for (int round = 0; round < kRounds; round++) {
        for (int k = 0; k <= (round + i) % 3; k++) launch(s);
        if (!eventually([&] { return busy(); }, 5'000)) wrong++;
        hook_cuStreamSynchronize(s);
      }
    });
  }
  for (auto& t : threads) t.join();
  stop = true;
  helper.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(gate::all_complete());
  null.hold(0);
  lifecycle::poll_idle(base::now_ns());
  EXPECT_FALSE(busy());
}

TEST_F(Pulse, EightThreadsRaceLaunchesAndSynchroniseAgainstIdle) {
  state::g_state.symmetric.store(1);  // launches fence themselves
  race();
}
TEST_F(Pulse, TheSameWithTheFenceOnTheIdleSideOnly) {
  lifecycle::register_membarrier();
  race();
  state::g_state.symmetric.store(1);
}

// A filter of system calls (seccomp) that a program gives itself while it runs.
TEST_F(Pulse, LaunchesFenceThemselvesOnceTheKernelRefusesTo) {
  lifecycle::register_membarrier();
  ASSERT_EQ(state::g_state.symmetric.load(), 0u);
  const auto refused = [] {
    sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter{std::size(rules), rules};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) != 0) _exit(2);
    errno = 0;
    gate::g_slow.heavy_fence();
    _exit(errno == 0 && state::g_state.symmetric.load() == 1 ? 0 : 1);
  };
  EXPECT_EXIT(refused(), ::testing::ExitedWithCode(0), "");
  state::g_state.symmetric.store(1);
}

}  // namespace
}  // namespace tessera::test

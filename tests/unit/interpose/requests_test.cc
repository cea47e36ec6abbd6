// Requests of a protected client: when one begins, when it is over, what is counted, and what it means for the burst.
// Each number of nanoseconds is counted in buckets: the sum says exactly what was measured.
#include "interpose/gate/requests.h"

#include <set>
#include <string>
#include <vector>

#include "base/latency_buckets.h"
#include "interpose/ranges/contract.h"
#include "tests/unit/interpose/harness.h"

extern "C" const tessera::ranges::RequestSide* tessera_request_side(uint32_t version) noexcept;

namespace tessera::test {
namespace {

constexpr uint64_t kMs = 1'000'000;

// As of `tessera run --slo tpot=3.2ms`; read at the first call of the process.
constexpr uint64_t kStepSlo = 3'200'000;
[[maybe_unused]] const int g_slo_set =
    setenv("TESSERA_REQUEST_SLOS", "nonsense\na=b=1=7\ndecode=3200000\n=", 1);

class Requests : public Gate {
 protected:
  void SetUp() override {
    Gate::SetUp();
    attach(state::Role::kProtected);
    clock.move(0);
  }
  uint64_t begin() { return side->begin(decode, 1); }
  void end(uint64_t request) { side->end(request); }
  void wait(CUstream stream) { EXPECT_EQ(hook_cuStreamSynchronize(stream), CUDA_SUCCESS); }
  abi::RequestKind& row(uint32_t kind) { return region->requests.kinds[kind]; }
  uint64_t counted(uint32_t kind) {
    uint64_t n = 0;
    for (const uint64_t c : row(kind).counts) n += c;
    return n;
  }
  // The request that was counted last took that time, and nothing else was counted.
  void expect_one(uint32_t kind, uint64_t ns) {
    EXPECT_EQ(counted(kind), 1u);
    EXPECT_EQ(row(kind).sum_ns, ns);
    EXPECT_EQ(row(kind).counts[base::latency_bucket(ns)], 1u);
  }

  const ranges::RequestSide* side = tessera_request_side(ranges::kContractVersion);
  const uint32_t decode = side->kind("decode", 0);
  StoppedClock clock;
};

TEST_F(Requests, AKindIsANameAndTheFirstOneIsThatOfBursts) {
  EXPECT_NE(decode, abi::kBurstKind);
  EXPECT_EQ(side->kind("decode", 0), decode);
  EXPECT_NE(side->kind("prefill", 0), decode);
  EXPECT_EQ(tessera_request_side(ranges::kContractVersion + 1), nullptr);
}

TEST_F(Requests, ARequestLastsFromItsFirstCallToTheEndOfItsWork) {
  CUstream s = new_stream();
  const uint64_t request = begin();
  clock.move(5 * kMs);  // the program prepares
  launch(s);
  clock.move(1 * kMs);
  launch(s);
  clock.move(2 * kMs);
  wait(s);
  clock.move(4 * kMs);  // and goes on in the range
  end(request);
  expect_one(decode, 3 * kMs);
  EXPECT_STREQ(row(decode).name, "decode");
  EXPECT_EQ(row(decode).ready, 1u);
}

TEST_F(Requests, WhatRunsAtTheEndOfTheRangeBelongsToIt) {
  CUstream s = new_stream();
  const uint64_t request = begin();
  launch(s);
  clock.move(1 * kMs);
  end(request);
  EXPECT_EQ(counted(decode), 0u);
  clock.move(1 * kMs);
  wait(s);
  expect_one(decode, 2 * kMs);
}

TEST_F(Requests, WorkOfTheNextRequestIsNotWaitedFor) {
  CUstream a = new_stream(), b = new_stream();
  const uint64_t first = begin();
  launch(a);
  end(first);
  const uint64_t second = begin();
  launch(b);
  end(second);
  clock.move(1 * kMs);
  wait(a);
  expect_one(decode, 1 * kMs);
  clock.move(1 * kMs);
  wait(b);
  EXPECT_EQ(counted(decode), 2u);
  EXPECT_EQ(row(decode).sum_ns, 3 * kMs);
}

// The thread used that stream last and the pulse is busy: all that the fast half of a launch looks at.
TEST_F(Requests, TheFirstCallIsSeenInTheMiddleOfABurstToo) {
  CUstream s = new_stream();
  launch(s);
  const uint64_t request = begin();
  clock.move(5 * kMs);
  launch(s);
  end(request);
  clock.move(1 * kMs);
  wait(s);
  expect_one(decode, 1 * kMs);
}

TEST_F(Requests, AnEventThatIsRecordedIsNoFirstCall) {
  CUstream s = new_stream();
  launch(s);
  const uint64_t request = begin();
  clock.move(5 * kMs);
  CUevent event = nullptr;
  ASSERT_EQ(driver_api::real().cuEventCreate(&event, 0), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuEventRecord(event, s), CUDA_SUCCESS);  // no work
  clock.move(5 * kMs);
  launch(s);
  end(request);
  clock.move(1 * kMs);
  wait(s);
  expect_one(decode, 1 * kMs);
}

TEST_F(Requests, ARangeWithoutWorkIsNone) {
  CUstream s = new_stream();
  launch(s);
  end(begin());
  wait(s);
  EXPECT_EQ(counted(decode), 0u);
}

TEST_F(Requests, ThreadsAreMeasuredApart) {
  CUstream mine = new_stream();
  const uint64_t request = begin();
  launch(mine);
  clock.move(1 * kMs);
  std::thread([&] {
    CUstream other = new_stream();
    const uint64_t of_other = begin();
    launch(other);
    end(of_other);
    clock.move(2 * kMs);
    wait(other);
    expect_one(decode, 2 * kMs);
    launch(other);  // still runs when the first request is over
  }).join();
  end(request);
  clock.move(4 * kMs);
  wait(mine);
  EXPECT_EQ(counted(decode), 2u);
  EXPECT_EQ(row(decode).sum_ns, 9 * kMs);
}

TEST_F(Requests, ARequestOfTheProcessHasTheWorkOfAllThreads) {
  const uint64_t request = side->begin(decode, 0);
  clock.move(1 * kMs);
  CUstream other = nullptr;
  std::thread([&] {
    other = new_stream();
    launch(other);
  }).join();
  end(request);
  clock.move(2 * kMs);
  wait(other);
  expect_one(decode, 2 * kMs);
}

TEST_F(Requests, OneInAnotherIsMeasuredToo) {
  CUstream s = new_stream();
  const uint32_t whole = side->kind("whole", 0);
  const uint64_t outer = side->begin(whole, 1);
  launch(s);
  clock.move(1 * kMs);
  wait(s);
  const uint64_t inner = begin();
  launch(s);
  clock.move(2 * kMs);
  wait(s);
  end(inner);
  end(outer);
  expect_one(decode, 2 * kMs);
  expect_one(whole, 3 * kMs);
}

TEST_F(Requests, AGapInsideARequestDoesNotEndTheBurst) {
  CUstream s = new_stream();
  const uint64_t request = begin();
  launch(s);
  clock.move(1 * kMs);
  wait(s);
  EXPECT_TRUE(busy());
  EXPECT_EQ(region->ring.head, 0u);
  clock.move(gate::kLongestGapNs / 2);
  launch(s);
  clock.move(1 * kMs);
  wait(s);
  EXPECT_TRUE(busy());
  clock.move(1 * kMs);
  end(request);
  EXPECT_FALSE(busy());
  expect_one(decode, 2 * kMs + gate::kLongestGapNs / 2);
  // The burst ended with the work, too.
  EXPECT_EQ(region->ring.slots[0].duration_ns, 2 * kMs + gate::kLongestGapNs / 2);
  expect_one(abi::kBurstKind, 2 * kMs + gate::kLongestGapNs / 2);
  EXPECT_STREQ(row(abi::kBurstKind).name, "burst");
}

TEST_F(Requests, ALongGapGivesTheGpuAway) {
  CUstream s = new_stream();
  const uint64_t request = begin();
  launch(s);
  clock.move(1 * kMs);
  wait(s);
  clock.move(gate::kLongestGapNs - 1);
  EXPECT_FALSE(gate::try_idle());
  clock.move(1);
  EXPECT_TRUE(gate::try_idle());
  EXPECT_EQ(region->ring.slots[0].duration_ns, 1 * kMs);
  launch(s);
  EXPECT_TRUE(busy());
  clock.move(1 * kMs);
  wait(s);
  end(request);
  EXPECT_FALSE(busy());
  expect_one(decode, 2 * kMs + gate::kLongestGapNs);
}

TEST_F(Requests, WithoutRangesBurstsAreCountedAndEndAtOnce) {
  CUstream s = new_stream();
  launch(s);
  clock.move(1 * kMs);
  wait(s);
  EXPECT_FALSE(busy());
  expect_one(abi::kBurstKind, 1 * kMs);
}

// Work of a program that others need not wait for.
class Yielding : public Requests {
 protected:
  uint64_t begin_yielding() { return side->begin(background, 1); }
  const uint32_t background = side->kind("background", 1);
  CUstream s = new_stream();
};

TEST_F(Yielding, WhatAThreadLaunchesInTheRangeBeginsNoBurst) {
  const uint64_t range = begin_yielding();
  for (int i = 0; i < 3; i++) {
    launch(s);
    EXPECT_FALSE(busy());
    clock.move(1 * kMs);
    wait(s);
  }
  launch(s);
  end(range);
  EXPECT_FALSE(busy());
  clock.move(1 * kMs);
  wait(s);
  EXPECT_EQ(region->ring.head, 0u);
  expect_one(background, 4 * kMs);  // and is measured
  launch(s);
  EXPECT_TRUE(busy());
}

TEST_F(Yielding, OtherThreadsAreProtected) {
  const uint64_t range = begin_yielding();
  launch(s);
  std::thread([&] {
    CUstream other = new_stream();
    launch(other);
    EXPECT_TRUE(busy());
    wait(other);
  }).join();
  EXPECT_TRUE(busy()) << "both are on the GPU";
  wait(s);
  EXPECT_FALSE(busy());
  end(range);
}

// One stream may carry both: what comes behind protected work before that has ended is waited for like it.
TEST_F(Yielding, WorkInABurstBelongsToIt) {
  launch(s);
  const uint64_t range = begin_yielding();
  launch(s);
  end(range);
  EXPECT_TRUE(busy());
  clock.move(2 * kMs);
  wait(s);
  EXPECT_FALSE(busy());
  expect_one(abi::kBurstKind, 2 * kMs);
  EXPECT_EQ(region->ring.slots[0].request_kind, abi::kBurstKind);
}

TEST_F(Yielding, ProtectedWorkBehindItBeginsABurst) {
  const uint64_t range = begin_yielding();
  launch(s);
  end(range);
  EXPECT_FALSE(busy());
  launch(s);
  EXPECT_TRUE(busy());
  wait(s);
  EXPECT_FALSE(busy());
}

TEST_F(Yielding, AGapInTheRangeIsNoGapOfABurst) {
  launch(s);
  const uint64_t range = begin_yielding();
  launch(s);
  clock.move(1 * kMs);
  wait(s);
  EXPECT_FALSE(busy());
  end(range);
}

TEST_F(Yielding, ARangeInAnotherYieldsToo) {
  const uint64_t outer = begin_yielding(), inner = begin_yielding(), request = begin();
  end(inner);
  launch(s);
  EXPECT_FALSE(busy());
  end(request);
  side->drop(outer);
  launch(s);
  EXPECT_TRUE(busy());
  wait(s);
  EXPECT_EQ(state::t_thread.yielding, 0u);
}

TEST_F(Yielding, ARangeOfTheProcessIsMeasuredOnly) {
  const uint64_t range = side->begin(background, 0);
  launch(s);
  EXPECT_TRUE(busy());
  end(range);
  wait(s);
  EXPECT_EQ(counted(background), 1u);
}

// A language model's service, which measures itself: each of its waits ends a prefill or a step.
class ModelService : public Requests {
 protected:
  struct Measured {
    uint64_t n = 0, sum_ns = 0;
    uint64_t counts[base::kLatencyBuckets] = {};
    uint64_t in_time = 0;  // for a step
    void add(uint64_t ns) {
      n++, sum_ns += ns, counts[base::latency_bucket(ns)]++;
      in_time += ns <= kStepSlo;
    }
  };
  void work(uint32_t launches, uint64_t ns, uint32_t range, Measured* measured) {
    const uint64_t request = range == 0 ? 0 : side->begin(range, 1);
    for (uint32_t i = 0; i < launches; i++) {
      launch(stream);
      clock.move(ns / launches);
    }
    wait(stream);
    end(request);
    measured->add(ns / launches * launches);
    clock.move(kMs / 10);  // the host
  }
  // Prompts, texts and what each takes differ.
  void serve(int requests, bool with_ranges) {
    for (int i = 0; i < requests; i++) {
      clock.move(100 * kMs);
      work(uint32_t(30 + i % 7), (20 + uint64_t(i * 13 % 31)) * kMs, with_ranges ? abi::kPrefillKind : 0,
           &prefills);
      for (int step = 0; step < 6 + i % 5; step++)
        work(12, 3 * kMs + uint64_t((i * 7 + step) % 11) * kMs / 20, with_ranges ? abi::kDecodeKind : 0,
             &steps);
    }
  }
  void expect_same(uint32_t kind, const Measured& measured) {
    EXPECT_EQ(counted(kind), measured.n);
    EXPECT_EQ(row(kind).sum_ns, measured.sum_ns);
    for (uint32_t i = 0; i < base::kLatencyBuckets; i++) EXPECT_EQ(row(kind).counts[i], measured.counts[i]);
  }
  CUstream stream = new_stream();
  Measured prefills, steps;
};

TEST_F(ModelService, IsToldByRangesExactlyAsItMeasuresItself) {
  EXPECT_EQ(side->kind("prefill", 0), abi::kPrefillKind);
  EXPECT_EQ(side->kind("decode", 0), abi::kDecodeKind);
  serve(100, true);
  expect_same(abi::kPrefillKind, prefills);
  expect_same(abi::kDecodeKind, steps);
  EXPECT_GT(steps.in_time, 0u);
  EXPECT_LT(steps.in_time, steps.n);
  EXPECT_EQ(row(abi::kDecodeKind).within_slo, steps.in_time);
  EXPECT_EQ(row(abi::kDecodeKind).slo_ns, kStepSlo);
  EXPECT_EQ(row(abi::kPrefillKind).slo_ns, 0u);
  EXPECT_EQ(row(abi::kPrefillKind).within_slo, 0u);
  EXPECT_EQ(region->ring.slots[0].request_kind, abi::kPrefillKind);
  EXPECT_EQ(region->ring.slots[1].request_kind, abi::kDecodeKind);
}

TEST_F(ModelService, IsToldByItsLaunchesExactlyAfterTheFirstRequests) {
  serve(2, false);
  const uint64_t told_prefills = counted(abi::kPrefillKind), told_steps = counted(abi::kDecodeKind);
  const uint64_t prefill_ns = row(abi::kPrefillKind).sum_ns, step_ns = row(abi::kDecodeKind).sum_ns;
  prefills = steps = {};
  serve(200, false);
  EXPECT_EQ(counted(abi::kPrefillKind) - told_prefills, prefills.n);
  EXPECT_EQ(row(abi::kPrefillKind).sum_ns - prefill_ns, prefills.sum_ns);
  EXPECT_EQ(counted(abi::kDecodeKind) - told_steps, steps.n);
  EXPECT_EQ(row(abi::kDecodeKind).sum_ns - step_ns, steps.sum_ns);
  EXPECT_EQ(counted(abi::kBurstKind), prefills.n + steps.n + 2 + 6 + 7);  // as ever
  EXPECT_STREQ(row(abi::kPrefillKind).name, "prefill");
  EXPECT_STREQ(row(abi::kDecodeKind).name, "decode");
}

TEST_F(Requests, WhatWasDroppedOrEndsTwiceIsNotCounted) {
  CUstream s = new_stream();
  const uint64_t dropped = begin();
  launch(s);
  side->drop(dropped);
  end(dropped);
  wait(s);
  EXPECT_FALSE(busy());
  const uint64_t request = begin();
  launch(s);
  wait(s);
  end(request);
  const uint64_t next = begin();  // has its place
  end(request);
  end(0);
  end(UINT64_MAX);
  launch(s);
  wait(s);
  end(next);
  EXPECT_EQ(counted(decode), 2u);
}

TEST_F(Requests, TooManyAreMissedAndPlacesComeBack) {
  std::vector<uint64_t> open;
  while (const uint64_t request = begin()) open.push_back(request);
  EXPECT_GE(open.size(), 64u);
  EXPECT_EQ(region->requests.totals.missed, 1u);
  for (const uint64_t request : open) end(request);
  const uint64_t request = begin();
  EXPECT_NE(request, 0u);
  side->drop(request);
  EXPECT_EQ(gate::g_requests_open.load(), 0u);
  EXPECT_EQ(gate::g_requests_waiting.load(), 0u);
}

TEST_F(Requests, OnlyProtectedClientsAreMeasured) {
  attach(state::Role::kBestEffort);
  EXPECT_EQ(begin(), 0u);
  attach(state::Role::kForward);
  EXPECT_EQ(begin(), 0u);
  attach(state::Role::kProtected);
  CUstream s = new_stream();
  const uint64_t request = begin();
  launch(s);
  attach(state::Role::kBestEffort);
  end(request);
  EXPECT_EQ(gate::g_requests_open.load(), 0u);
  EXPECT_EQ(gate::g_requests_running.load(), 0u);
}

TEST_F(Requests, ManyThreadsCountEachOfTheirs) {
  constexpr int kThreads = 8, kEach = 200;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; i++)
    threads.emplace_back([&] {
      CUstream s = new_stream();
      for (int n = 0; n < kEach; n++) {
        const uint64_t request = begin();
        launch(s);
        if (n % 2) wait(s);
        end(request);
        wait(s);
      }
    });
  for (std::thread& thread : threads) thread.join();
  gate::see_requests_end();
  EXPECT_EQ(counted(decode), uint64_t(kThreads) * kEach);
  EXPECT_EQ(region->requests.totals.missed, 0u);
  EXPECT_EQ(gate::g_requests_open.load(), 0u);
  EXPECT_FALSE(busy());
}

// An engine that launches its next step before it waits for this one: its burst has no end.
TEST_F(ModelService, IsToldByTheStepsOfABurstWithoutEnd) {
  CUevent ended[2];
  for (CUevent& event : ended) ASSERT_EQ(driver_api::real().cuEventCreate(&event, 0), CUDA_SUCCESS);
  const auto enqueue = [&](int i) {
    const uint32_t launches = i % 10 == 0 ? 30 + uint32_t(i % 7) : 12;  // a prefill, nine steps
    for (uint32_t n = 0; n < launches; n++) launch(stream);
    hook_cuEventRecord(ended[i % 2], stream);
  };
  const auto run = [&](int from, int to) {
    for (int i = from; i < to; i++) {
      enqueue(i + 1);
      const uint64_t ns = (i % 10 == 0 ? 25 : 3) * kMs + uint64_t(i % 11) * kMs / 20;
      clock.move(ns);
      hook_cuEventSynchronize(ended[i % 2]);
      EXPECT_TRUE(busy());
      (i % 10 == 0 ? prefills : steps).add(ns);
    }
  };
  enqueue(0);
  run(0, 51);  // and the sixth prefill, which is known by its first step
  const uint64_t told_prefills = counted(abi::kPrefillKind), told_steps = counted(abi::kDecodeKind);
  const uint64_t prefill_ns = row(abi::kPrefillKind).sum_ns, step_ns = row(abi::kDecodeKind).sum_ns;
  const uint64_t sixth_ns = 25 * kMs + uint64_t(50 % 11) * kMs / 20;
  prefills = steps = {};
  run(51, 200);
  EXPECT_EQ(counted(abi::kPrefillKind) - told_prefills, prefills.n + 1);
  EXPECT_EQ(row(abi::kPrefillKind).sum_ns - prefill_ns, prefills.sum_ns + sixth_ns);
  EXPECT_EQ(counted(abi::kDecodeKind) - told_steps, steps.n);
  EXPECT_EQ(row(abi::kDecodeKind).sum_ns - step_ns, steps.sum_ns);
  hook_cuStreamSynchronize(stream);
}

// Last: kinds are for ever.
class FullTable : public Requests {};

TEST_F(FullTable, KindsBeyondTheTableAreNone) {
  std::set<uint32_t> kinds;
  for (int i = 0; i < 100; i++) kinds.insert(side->kind(("kind " + std::to_string(i)).c_str(), 0));
  EXPECT_TRUE(kinds.contains(0u));
  EXPECT_LT(kinds.size(), size_t(abi::kRequestKinds));
  EXPECT_EQ(side->begin(0, 1), 0u);
  EXPECT_EQ(side->begin(abi::kRequestKinds, 1), 0u);
}

}  // namespace
}  // namespace tessera::test

// How clients share the modelled device: time slices and MPS, with and without priority. What is asserted is
// what is published about real devices: no preemption of running blocks, priority for pending blocks only and
// across MPS clients, slices of 2 ms with a switch in between, an idle context gives way at once. Virtual
// time.
#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/softgpu_timing/model_harness.h"

namespace tessera::softgpu::timing {
namespace {

constexpr uint64_t kMs = 1'000'000;

struct Sliced : testing::Test {
  Sliced() {
    for (ClientId c = 1; c <= 3; ++c) d.model.add_client(c, 0);
  }
  // `ms` milliseconds of the whole device, in blocks of `block_ms`
  ModelOp work(double ms, double block_ms = 0.1) {
    return d.kernel(uint64_t(ms / block_ms * 2), 1024, {block_ms * 1e6, 0, 0});
  }
  Device d{Mode::kTimesliced};
};

TEST_F(Sliced, OneContextHasNoSwitches) {
  uint64_t a = d.submit(1, work(20));
  d.run();
  EXPECT_EQ(d.of(1, a).end, 20 * kMs);
}

TEST_F(Sliced, TwoContextsTakeTurns) {
  uint64_t a = d.submit(1, work(6)), b = d.submit(2, work(6));
  d.run();
  // a 0-2, switch, b 2.1-4.1, switch, a 4.2-6.2, b 6.3-8.3, a 8.4-10.4, b 10.5-12.5
  EXPECT_EQ(d.of(2, b).start, uint64_t(2.1 * kMs));
  EXPECT_EQ(d.of(1, a).end, uint64_t(10.4 * kMs));
  EXPECT_EQ(d.of(2, b).end, uint64_t(12.5 * kMs));
}

TEST_F(Sliced, ThreeContextsShareEqually) {
  uint64_t ids[4];
  for (ClientId c = 1; c <= 3; ++c) ids[c] = d.submit(c, work(20));
  d.run();
  for (ClientId c = 1; c <= 3; ++c) EXPECT_NEAR(double(d.of(c, ids[c]).end), 63 * kMs, 5 * kMs);
}

TEST_F(Sliced, RunningBlocksAreFrozenNotLost) {
  uint64_t a = d.submit(1, work(5, 5)), b = d.submit(2, work(1));  // one wave of 5 ms blocks
  d.run();
  EXPECT_EQ(d.of(2, b).start, uint64_t(2.1 * kMs));
  EXPECT_EQ(d.of(2, b).end, uint64_t(3.1 * kMs));
  EXPECT_EQ(d.of(1, a).end, uint64_t(6.2 * kMs));  // 5 ms of its own + 1 ms + two switches
}

TEST_F(Sliced, AnIdleContextGivesWayAtOnce) {
  uint64_t a = d.submit(1, work(0.5)), b = d.submit(2, work(0.5));
  d.run();
  EXPECT_EQ(d.of(1, a).end, kMs / 2);
  EXPECT_EQ(d.of(2, b).start, kMs / 2 + kMs / 10);
}

// Measurements of two endless programs on an H200: runs of 1.97 ms and gaps of 2.47 (docs/softgpu-timing.md).
TEST(SlicedH200, RunsAndGapsAreThoseMeasured) {
  Device d(Mode::kTimesliced, shipped_gpu("h200"));
  constexpr int kKernels = 2000;
  uint64_t last[3] = {};
  for (ClientId c = 1; c <= 2; ++c) {
    d.model.add_client(c, 0);
    for (int i = 0; i < kKernels; ++i) {
      last[c] =
          d.submit(c, d.kernel(132, 128, {20000, 0, 0}), i ? std::vector{last[c]} : std::vector<uint64_t>{});
    }
  }
  d.run();
  std::vector<uint64_t> gaps, runs;
  uint64_t run_began = d.of(1, 1).start;
  for (uint64_t i = 1; i < kKernels / 2; ++i) {
    const uint64_t between = d.of(1, i + 1).end - d.of(1, i).end;
    if (between < kMs) continue;
    runs.push_back(d.of(1, i).end - run_began);
    gaps.push_back(between);
    run_began = d.of(1, i + 1).end;
  }
  ASSERT_GE(gaps.size(), 3u);
  std::sort(gaps.begin(), gaps.end());
  std::sort(runs.begin(), runs.end());
  EXPECT_NEAR(double(gaps[gaps.size() / 2]), 2.47 * kMs, 0.05 * 2.47 * kMs);
  EXPECT_NEAR(double(runs[runs.size() / 2]), 1.97 * kMs, 0.05 * 1.97 * kMs);
}

TEST_F(Sliced, ANewcomerWaitsForTheSliceToEnd) {
  d.submit(1, work(50));
  uint64_t b = d.submit_at(7 * kMs, 2, work(0.1));
  d.run();
  EXPECT_EQ(d.of(2, b).start, uint64_t(8.1 * kMs));
}

TEST_F(Sliced, PrioritiesDoNotActAcrossContexts) {
  d.submit(1, work(50));
  ModelOp urgent = work(1);
  urgent.priority = -5;
  uint64_t b = d.submit_at(kMs, 2, urgent);
  d.run();
  EXPECT_EQ(d.of(2, b).start, uint64_t(2.1 * kMs));
}

TEST_F(Sliced, LatencyFloorOfPublishedMeasurements) {
  // A request of solo time T beside a greedy neighbour takes about T + ceil(T / slice) x (slice + switches).
  d.submit(1, work(200));
  uint64_t request = d.submit_at(kMs, 2, work(4.1));
  d.run();
  double took = double(d.of(2, request).end - kMs) / kMs;
  EXPECT_GT(took, 4.1 + 2 * 2.0);
  EXPECT_LT(took, 4.1 + 3 * 2.3);
}

TEST_F(Sliced, CopiesDoNotWaitForSlices) {
  d.submit(1, work(50));
  uint64_t copy = d.submit_at(kMs / 2, 2, d.copy(1000, CopyDirection::kHostToDevice));
  d.run();
  EXPECT_EQ(d.of(2, copy).start, kMs / 2);
}

TEST_F(Sliced, ADeadClientFreesTheDevice) {
  d.submit(1, work(500));
  uint64_t b = d.submit(2, work(3));
  d.model.advance_to(kMs);
  d.model.remove_client(1);
  d.run();
  EXPECT_EQ(d.of(2, b).start, kMs);
  EXPECT_EQ(d.of(2, b).end, 4 * kMs);
}

TEST_F(Sliced, ADeadFrozenClientIsForgotten) {
  d.submit(1, work(500));
  uint64_t b = d.submit(2, work(6));
  d.model.advance_to(3 * kMs);
  d.model.remove_client(1);
  d.run();
  EXPECT_EQ(d.of(2, b).end, uint64_t(8.1 * kMs));
}

struct Mps : testing::Test {
  ModelOp work(double ms, double block_ms, int priority = 0) {
    return d.kernel(uint64_t(ms / block_ms * 2), 1024, {block_ms * 1e6, 0, 0}, priority);
  }
  void clients(int priority_1, int priority_2) {
    d.model.add_client(1, priority_1);
    d.model.add_client(2, priority_2);
  }
  Device d{Mode::kMps};
};

TEST_F(Mps, LongKernelBlocksShortOneWithoutPriority) {
  clients(0, 0);
  uint64_t big = d.submit(1, work(100, 1));
  uint64_t quick = d.submit_at(kMs / 2, 2, work(0.1, 0.1));
  d.run();
  EXPECT_GE(d.of(2, quick).start, 99 * kMs);  // behind all of its blocks
  EXPECT_EQ(d.of(1, big).end, 100 * kMs);
}

TEST_F(Mps, ClientPriorityPassesPendingBlocksNotRunningOnes) {
  clients(1, 0);
  uint64_t big = d.submit(1, work(100, 1));
  uint64_t quick = d.submit_at(10 * kMs + kMs / 2, 2, work(0.1, 0.1));
  d.run();
  EXPECT_EQ(d.of(2, quick).start, 11 * kMs);
  EXPECT_EQ(d.of(1, big).end, uint64_t(100.1 * kMs));
}

TEST_F(Mps, LongBlocksDefeatPriority) {
  clients(1, 0);
  d.submit(1, work(100, 100));  // persistent kernel: one wave of 100 ms blocks
  uint64_t quick = d.submit_at(kMs, 2, work(0.1, 0.1, -5));
  d.run();
  EXPECT_EQ(d.of(2, quick).start, 100 * kMs);
}

TEST_F(Mps, StreamPriorityActsAcrossClientsOfOneLevel) {
  clients(0, 0);
  d.submit(1, work(100, 1));
  uint64_t quick = d.submit_at(kMs / 2, 2, work(0.1, 0.1, -1));
  d.run();
  EXPECT_EQ(d.of(2, quick).start, kMs);
}

TEST_F(Mps, AnyStreamOfANormalClientIsAboveABelowNormalOne) {
  clients(1, 0);
  d.submit(1, work(100, 1, -5));
  uint64_t quick = d.submit_at(kMs / 2, 2, work(0.1, 0.1, 0));
  d.run();
  EXPECT_EQ(d.of(2, quick).start, kMs);
}

// Green contexts: kernels of disjoint parts of the device neither wait for nor slow each other.
TEST_F(Mps, PartitionsOfSms) {
  d.model.add_client(1, 0);
  auto on = [&](uint32_t first, uint32_t n, uint64_t blocks, double instructions) {
    BlockWork work;
    work.warp_instructions = instructions;
    ModelOp op = d.kernel(blocks, 1024, work);
    op.first_sm = first;
    op.n_sms = n;
    return op;
  };
  const uint64_t left = d.submit(1, on(0, 1, 10, 1e6));   // ten blocks, one after another on SM 0
  const uint64_t again = d.submit(1, on(0, 1, 1, 1e6));   // waits for them
  const uint64_t right = d.submit(1, on(1, 1, 1, 1e6));   // does not
  const uint64_t beyond = d.submit(1, on(7, 9, 1, 1e6));  // nonsense stays on the device: the last SM
  d.run();
  EXPECT_EQ(d.of(1, left).end, 10'000'000u);
  EXPECT_EQ(d.of(1, again).end, 11'000'000u);
  EXPECT_EQ(d.of(1, right).start, 0u);
  EXPECT_EQ(d.of(1, right).end, 1'000'000u);
  EXPECT_EQ(d.of(1, beyond).end, 2'000'000u);
}

TEST_F(Mps, KernelsThatFitTogetherRunTogether) {
  clients(0, 0);
  uint64_t a = d.submit(1, d.kernel(2, 512, {1e6, 0, 0}));
  uint64_t b = d.submit(2, d.kernel(2, 512, {10, 1e6, 0}));
  d.run();
  EXPECT_NEAR(double(d.of(1, a).end), 1e6, 100);
  EXPECT_NEAR(double(d.of(2, b).end), 2e6, 100);
}

TEST_F(Mps, ADeadClientsBlocksLeaveTheirSms) {
  clients(0, 0);
  d.submit(1, work(100, 100));
  uint64_t b = d.submit(2, work(1, 1));
  d.model.advance_to(kMs);
  d.model.remove_client(1);
  d.run();
  EXPECT_EQ(d.of(2, b).start, kMs);
  EXPECT_EQ(d.of(2, b).end, 2 * kMs);
}

// ---- properties over random work

struct Event {
  uint64_t at;
  ClientId client;
  ModelOp op;
};

std::vector<Event> random_work(Device& d, unsigned seed) {
  std::mt19937 random(seed);
  auto upto = [&](unsigned n) { return random() % n; };
  std::vector<Event> events;
  uint64_t at = 0;
  std::map<ClientId, uint64_t> last;
  for (int i = 0; i < 200; ++i) {
    at += upto(3) ? upto(200'000) : 0;
    Event e{at, ClientId(1 + upto(3)), {}};
    if (upto(4) == 0) {
      e.op = d.copy(upto(100'000), CopyDirection(upto(3)));
    } else if (upto(6) > 0) {
      e.op = d.kernel(1 + upto(40), 32 * (1 + upto(32)), {double(upto(50'000)), double(upto(20'000)), 0},
                      -int(upto(3)));
      e.op.shared_bytes_per_block = upto(3) ? 0 : upto(40'000);
    }
    uint64_t id = ++last[e.client];
    for (unsigned k = upto(3); k > 0 && id > 1; --k) e.op.deps.push_back(1 + upto(unsigned(id) - 1));
    events.push_back(std::move(e));
  }
  return events;
}

class RandomWork : public testing::TestWithParam<std::tuple<Mode, unsigned>> {};

TEST_P(RandomWork, SameResultHoweverTimeIsCut) {
  auto [mode, seed] = GetParam();
  Device once(mode), again(mode), cut(mode);
  std::mt19937 random(seed);
  for (Device* d : {&once, &again, &cut}) {
    for (ClientId c = 1; c <= 3; ++c) d->model.add_client(c, c == 3);
    uint64_t now = 0;
    for (Event& e : random_work(*d, seed)) {
      if (d == &cut)
        while (now < e.at) d->model.advance_to(now = std::min(e.at, now + 1 + random() % 30'000));
      auto deps = e.op.deps;
      d->submit_at(e.at, e.client, e.op, deps);
    }
    d->run();
    for (ClientId c = 1; c <= 3; ++c) EXPECT_EQ(d->model.n_operations(c), 0u);
  }
  ASSERT_EQ(once.all().size(), 200u);
  ASSERT_EQ(cut.all().size(), 200u);
  for (auto& [key, interval] : once.all()) {
    EXPECT_EQ(interval.end, again.all().at(key).end);
    EXPECT_NEAR(double(interval.end), double(cut.all().at(key).end), 200) << key.first << "." << key.second;
  }
}

TEST_P(RandomWork, NothingEndsBeforeTheAnnouncedWake) {
  auto [mode, seed] = GetParam();
  Device d(mode);
  for (ClientId c = 1; c <= 3; ++c) d.model.add_client(c, c == 3);
  auto events = random_work(d, seed + 100);
  size_t next = 0;
  while (next < events.size() || d.model.next_wake_ns() != UINT64_MAX) {
    uint64_t wake = d.model.next_wake_ns(), arrival = next < events.size() ? events[next].at : UINT64_MAX;
    uint64_t until = std::min(wake, arrival);
    if (until > 2) d.model.run_until(until - 2);
    ASSERT_TRUE(d.model.take_ended().empty());
    d.model.run_until(until);
    d.model.take_ended();
    if (arrival == until) {
      Event& e = events[next++];
      auto deps = e.op.deps;
      d.submit_at(e.at, e.client, e.op, deps);
      d.model.take_ended();
    }
  }
  for (ClientId c = 1; c <= 3; ++c) EXPECT_EQ(d.model.n_operations(c), 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomWork,
                         testing::Combine(testing::Values(Mode::kTimesliced, Mode::kMps),
                                          testing::Range(1u, 9u)));

}  // namespace
}  // namespace tessera::softgpu::timing

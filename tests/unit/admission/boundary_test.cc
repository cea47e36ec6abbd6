// Boundaries of the gate on the device: which launches get one, and how far ahead a program may run.
#include "admission/boundary.h"

#include <gtest/gtest.h>

namespace tessera::admission {
namespace {

constexpr uint64_t kQuantumNs = 20'000;

// Launches of one length, one after another, each `every_ns` later: how many boundaries do they get?
uint32_t boundaries(uint32_t launches, uint64_t estimate_ns, uint64_t every_ns,
                    uint64_t length_ns = kQuantumNs) {
  Quantum q;
  uint32_t n = 0;
  uint64_t now_ns = 1'000'000;
  for (uint32_t i = 0; i < launches; i++, now_ns += every_ns) {
    const bool due = boundary_due(q, estimate_ns, false, length_ns, now_ns);
    q = due ? begin_quantum(estimate_ns, false, length_ns, now_ns) : continue_quantum(q, estimate_ns);
    n += due;
  }
  return n;
}

TEST(Boundary, StandsBeforeEachQuantum) {
  EXPECT_EQ(boundaries(100, 2'000, 0), 10u);
  EXPECT_EQ(boundaries(100, 10'000, 0), 50u);
  EXPECT_EQ(boundaries(100, 11'000, 0), 100u);  // two would be longer than a quantum
}

TEST(Boundary, WorkLongerThanAQuantumIsOneByItself) {
  EXPECT_EQ(boundaries(7, 1'600'000, 0), 7u);
  EXPECT_EQ(begin_quantum(1'600'000, false, kQuantumNs, 5).left_ns, 0u);
}

TEST(Boundary, StreamsShareAQuantumButForTheLeastPart) {
  EXPECT_EQ(part_of_quantum_ns(250'000, 0), 250'000u);
  EXPECT_EQ(part_of_quantum_ns(250'000, 1), 250'000u);
  EXPECT_EQ(part_of_quantum_ns(250'000, 4), 62'500u);
  EXPECT_EQ(part_of_quantum_ns(250'000, 64), kLeastQuantumNs);
  EXPECT_EQ(part_of_quantum_ns(10'000, 4), 10'000u);  // never longer than the quantum
}

TEST(Boundary, NothingOfAQuantumIsLeftForAnother) {
  uint64_t largest = 0;
  Quantum q;
  uint64_t sum = 0, state = 1;
  for (int i = 0; i < 10'000; i++) {
    state = state * 6364136223846793005u + 1;
    const uint64_t estimate_ns = 2'000 + (state >> 33) % 30'000;
    if (boundary_due(q, estimate_ns, false, kQuantumNs, 0)) {
      q = begin_quantum(estimate_ns, false, kQuantumNs, 0);
      sum = 0;
    } else {
      q = continue_quantum(q, estimate_ns);
    }
    if (estimate_ns <= kQuantumNs) {
      sum += estimate_ns;
      if (sum > largest) largest = sum;
    }
  }
  EXPECT_LE(largest, kQuantumNs);
}

// Between launches that leave the GPU idle the gate may have closed.
TEST(Boundary, GoesStale) {
  EXPECT_EQ(boundaries(10, 2'000, 8 * kQuantumNs), 10u);
  EXPECT_EQ(boundaries(10, 2'000, kQuantumNs / 10), 1u);
}

TEST(Boundary, AShorterQuantumHoldsAtOnce) {
  const Quantum q = begin_quantum(2'000, false, 1'000'000, 0);
  EXPECT_FALSE(boundary_due(q, 2'000, false, 1'000'000, 0));
  EXPECT_TRUE(boundary_due(q, 2'000, false, kQuantumNs, 0));
}

// The streams of a client have a part each, and the lease allows the whole of it to one.
TEST(Boundary, APartGoesStaleByItsOwnLength) {
  const Quantum part = begin_quantum(2'000, false, kQuantumNs, 0);
  EXPECT_FALSE(boundary_due(part, 2'000, false, 4 * kQuantumNs, kStaleQuanta * kQuantumNs - 1));
  EXPECT_TRUE(boundary_due(part, 2'000, false, 4 * kQuantumNs, kStaleQuanta * kQuantumNs));
}

// One lets pass during a burst what the other must not.
TEST(Boundary, StandsBetweenWhatMayRunDuringBurstsAndWhatMayNot) {
  const Quantum q = begin_quantum(2'000, true, kQuantumNs, 0);
  EXPECT_FALSE(boundary_due(q, 2'000, true, kQuantumNs, 0));
  EXPECT_TRUE(boundary_due(q, 2'000, false, kQuantumNs, 0));
  EXPECT_TRUE(boundary_due(continue_quantum(q, 2'000), 2'000, false, kQuantumNs, 0));
  EXPECT_TRUE(boundary_due(begin_quantum(2'000, false, kQuantumNs, 0), 2'000, true, kQuantumNs, 0));
}

LeaseView lease() {
  return {
      .grant = Grant::kGranted, .expires_ns = UINT64_MAX, .window_ns = 2'000'000, .quantum_ns = kQuantumNs};
}

TEST(RunAhead, IsBoundedByWorkAndByCalls) {
  const Ask ask{.estimate_ns = 50'000};
  EXPECT_EQ(judge_run_ahead(ask, lease(), 0, 0, {}), Verdict{Action::kGo});
  EXPECT_EQ(judge_run_ahead(ask, lease(), kRunAheadNs - 50'000, 0, {}), Verdict{Action::kGo});
  EXPECT_EQ(judge_run_ahead(ask, lease(), kRunAheadNs - 49'999, 0, {}),
            (Verdict{Action::kWait, Reason::kWindow}));
  EXPECT_EQ(judge_run_ahead(ask, lease(), 1, kRunAheadMarkers - 1, {}), Verdict{Action::kGo});
  EXPECT_EQ(judge_run_ahead(ask, lease(), 1, kRunAheadMarkers, {}),
            (Verdict{Action::kWait, Reason::kWindow}));
  // Work longer than all that runs alone.
  EXPECT_EQ(judge_run_ahead({.estimate_ns = 10 * kRunAheadNs}, lease(), 0, kRunAheadMarkers, {}),
            Verdict{Action::kGo});
}

TEST(RunAhead, EndsAtTheHoldLimitAndWithTheLease) {
  const Ask ask{.estimate_ns = 50'000};
  Waited waited{.stuck_ns = lease().max_hold_ns};  // now the gate lets a quantum pass, and not all that waits
  EXPECT_EQ(judge_run_ahead(ask, lease(), kRunAheadNs, 0, waited).action, Action::kWait);
  waited.stuck_ns *= 2;
  EXPECT_EQ(judge_run_ahead(ask, lease(), kRunAheadNs, 0, waited).action, Action::kLetGo);
  waited = {.let_go = true};
  EXPECT_EQ(judge_run_ahead(ask, lease(), kRunAheadNs, 0, waited).action, Action::kLetGo);
  LeaseView off = lease();
  off.passthrough = true;
  EXPECT_EQ(judge_run_ahead(ask, off, kRunAheadNs, 0, {}).action, Action::kForward);
}

}  // namespace
}  // namespace tessera::admission

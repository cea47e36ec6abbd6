// The modelled GPU by itself: what each regime does to two clients.
#include "simulator/gpu.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace tessera::simulator {
namespace {

using base::ms;
using base::us;

Kernel kernel(uint32_t n_blocks, uint64_t block_ns) {
  return {.n_blocks = n_blocks, .block_ns = block_ns, .sms_per_block = 1};
}

struct Bench {
  explicit Bench(Regime regime, GpuSpec spec = {}) : gpu(spec, regime, {7, 0}, Random(1)) {}
  void submit(uint32_t client, uint64_t id, const Kernel& k, uint64_t at_ns, bool yields = false,
              uint32_t sm_limit = 0) {
    gpu.submit({.client = client,
                .id = id,
                .available_ns = at_ns,
                .kernel = k,
                .n_blocks = k.n_blocks,
                .sm_limit = sm_limit,
                .yields = yields});
  }
  // When the operation completes; UINT64_MAX if it never does. Others' completions are kept for later calls.
  uint64_t end_of(uint32_t client, uint64_t id) {
    for (;;) {
      for (const auto& [c, at] : done)
        if (c.client == client && c.id == id) return at;
      uint64_t next = gpu.next_ns();
      if (next == UINT64_MAX) return UINT64_MAX;
      std::vector<Completion> now;
      gpu.advance(next, &now);
      for (const Completion& c : now) done.emplace_back(c, next);
    }
  }
  Gpu gpu;
  std::vector<std::pair<Completion, uint64_t>> done;
};

TEST(Gpu, AloneAKernelTakesItsWaves) {
  Bench b(Regime::kMps);
  b.submit(0, 1, kernel(108 * 3 + 1, us(100)), 0);
  EXPECT_NEAR(double(b.end_of(0, 1)), double(us(400)), 2000);
  EXPECT_NEAR(b.gpu.work_ns(0), double(us(100)) * (3 + 1.0 / 108), 10);
}

// Static partitions: as much of the GPU each, whatever the other has; a lent one is taken back when blocks end.
TEST(Gpu, PartitionsAreLentWhileNobodyWorksInThem) {
  for (const bool lends : {false, true}) {
    const GpuSpec spec{.block_jitter = 0, .partitions = true, .lends = lends};
    Bench b(Regime::kMps, spec);
    const auto submit = [&](uint32_t client, uint32_t blocks, uint64_t at_ns) {
      const Kernel k = kernel(blocks, us(100));
      b.gpu.submit({.client = client,
                    .id = 1,
                    .available_ns = at_ns,
                    .kernel = k,
                    .n_blocks = blocks,
                    .sm_limit = 54,
                    .lowest = client == 0});
    };
    submit(1, 540, 0);
    if (lends) {
      EXPECT_NEAR(double(b.end_of(1, 1)), double(us(500)), 4000);
      continue;
    }
    submit(0, 108, us(150));
    EXPECT_NEAR(double(b.end_of(0, 1)), double(us(350)), 4000);
    EXPECT_NEAR(double(b.end_of(1, 1)), double(us(1000)), 4000);
  }
}

TEST(Gpu, ALentPartitionComesBackWhenBlocksEnd) {
  Bench b(Regime::kMps, {.block_jitter = 0, .partitions = true, .lends = true});
  const Kernel long_one = kernel(1080, us(100)), short_one = kernel(54, us(100));
  b.gpu.submit({.client = 1, .id = 1, .kernel = long_one, .n_blocks = 1080, .sm_limit = 54});
  std::vector<Completion> done;
  while (b.gpu.next_ns() < us(150)) b.gpu.advance(b.gpu.next_ns(), &done);
  b.gpu.advance(us(150), &done);
  b.gpu.submit({.client = 0,
                .id = 1,
                .available_ns = us(150),
                .kernel = short_one,
                .n_blocks = 54,
                .sm_limit = 54,
                .lowest = true});
  const uint64_t end_ns = b.end_of(0, 1);
  EXPECT_GT(end_ns, us(250));
  EXPECT_LT(end_ns, us(310));  // 50 us until the wave ends, then its own 100
}

// GPreempt: the context of higher priority has the GPU one change after it has work, and keeps it.
TEST(Gpu, AContextOfHigherPriorityTakesTheGpu) {
  const GpuSpec spec{
      .timeslice_ns = ms(2), .switch_ns = us(40), .idle_switch_ns = us(40), .context_priorities = true};
  Bench b(Regime::kTimesliced, spec);
  b.submit(1, 1, kernel(108, ms(10)), 0);
  b.submit(0, 1, kernel(108, ms(5)), ms(1));
  const uint64_t end_ns = b.end_of(0, 1);
  EXPECT_GE(end_ns, ms(6) + us(40));
  EXPECT_LE(end_ns, ms(6) + us(90));  // the first change, to whoever had nothing, included
  EXPECT_NEAR(double(b.end_of(1, 1)), double(ms(15) + us(120)), 60'000);
}

// Half of the slots, and the knee at half: the other half would add nothing, so the kernel loses nothing.
TEST(Gpu, NarrowWorkRunsFasterDownToTheKnee) {
  Kernel k = kernel(108 * 10, us(100));
  k.occupancy_knee = 0.5;
  EXPECT_EQ(k.solo_ns(108, 108), us(100));
  EXPECT_EQ(k.solo_ns(108, 54), us(50));
  EXPECT_EQ(k.solo_ns(108, 1), us(50));
  const Kernel narrow{.n_blocks = 27, .block_ns = us(100), .sms_per_block = 1, .occupancy_knee = 0.5};
  EXPECT_EQ(narrow.solo_ns(108, 27), us(100));  // as wide as it ever was: the time is that of this width
  const auto end = [](const Kernel& what, uint32_t workers) {
    Bench b(Regime::kMps);
    b.gpu.submit({.kernel = what, .n_blocks = what.n_blocks, .workers = workers, .yields = true});
    return b.end_of(0, 0);
  };
  EXPECT_EQ(end(k, 108), us(1001));  // the stream's gap comes first
  EXPECT_EQ(end(k, 54), us(1001));
  EXPECT_EQ(end(k, 27), us(2001));
  k.occupancy_knee = 1;
  EXPECT_EQ(end(k, 54), us(2001));
}

// Blocks that a worker has not come to are not in the hardware's queue: others pass them.
TEST(Gpu, WorkersLeaveSlotsFree) {
  for (const uint32_t workers : {0u, 81u}) {
    Bench b(Regime::kMpsPriority);
    b.gpu.submit({.client = 1,
                  .id = 1,
                  .kernel = kernel(108 * 10, us(100)),
                  .n_blocks = 108 * 10,
                  .workers = workers,
                  .yields = workers != 0});
    b.submit(0, 1, kernel(20, us(10)), us(130));
    const uint64_t took_ns = b.end_of(0, 1) - us(130);
    if (workers == 0)
      EXPECT_GT(took_ns, us(50));
    else
      EXPECT_LE(took_ns, us(10));
  }
}

TEST(Gpu, OneStreamIsInOrder) {
  Bench b(Regime::kMps);
  b.submit(0, 1, kernel(108, us(50)), 0);
  b.submit(0, 2, kernel(1, us(1)), 0);
  EXPECT_GT(b.end_of(0, 2), b.end_of(0, 1));
}

TEST(Gpu, PriorityWaitsForBlocksNotForKernels) {
  for (Regime regime : {Regime::kMps, Regime::kMpsPriority}) {
    GpuSpec spec;
    spec.in_line_share = regime == Regime::kMps ? 1 : 0;
    Bench b(regime, spec);
    b.submit(1, 1, kernel(108 * 100, us(100)), 0);         // 10 ms, short blocks
    b.submit(0, 1, kernel(108, us(100)), ms(1) + us(50));  // needs every SM
    uint64_t took = b.end_of(0, 1) - (ms(1) + us(50));
    if (regime == Regime::kMpsPriority)
      EXPECT_LT(took, us(300));
    else
      EXPECT_GT(took, ms(8));  // in line behind all blocks of the long kernel
  }
}

TEST(Gpu, TimeSlicesAlternateAndCostTheSwitch) {
  Bench b(Regime::kTimesliced);
  b.submit(1, 1, kernel(108, ms(100)), 0);
  b.submit(0, 1, kernel(108, ms(4)), us(10));
  // At most one slice of the other at first, then its own 2 ms, the other's 2 ms, its own 2 ms.
  uint64_t end = b.end_of(0, 1);
  EXPECT_GT(end, ms(4) + 2 * us(145) + ms(2));
  EXPECT_LT(end, ms(4) + 4 * us(145) + 2 * ms(2) + us(20));
  EXPECT_NEAR(double(b.end_of(1, 1)), double(ms(104)), double(ms(1)));
}

// From a client that has work, and from one that has none.
TEST(Gpu, AChangeOfProcessCosts) {
  GpuSpec spec;
  spec.switch_ns = us(250);
  spec.idle_switch_ns = us(30);
  Bench busy(Regime::kTimesliced, spec), idle(Regime::kTimesliced, spec);
  for (Bench* b : {&busy, &idle}) {
    b->submit(0, 1, kernel(108, us(10)), 0);
    b->submit(1, 1, kernel(108, us(100)), us(1000));
    b->submit(0, 2, kernel(108, us(10)), us(b == &busy ? 1050 : 2000));
  }
  EXPECT_EQ(idle.end_of(1, 1), us(1000 + 30 + 100));
  EXPECT_EQ(idle.end_of(0, 2), us(2000 + 30 + 10));
  EXPECT_EQ(busy.end_of(0, 2), us(1000 + 30 + 100 + 250 + 10));
}

TEST(Gpu, WhatWaitsAtItsGateHoldsNoSlice) {
  Bench b(Regime::kTimesliced);
  b.gpu.close_gate(0);
  b.gpu.submit({.client = 0, .id = 1, .kernel = kernel(108, us(100)), .n_blocks = 108, .gated = true});
  b.submit(1, 1, kernel(108, us(100)), us(10));
  EXPECT_EQ(b.end_of(1, 1), us(10 + 145 + 100));
  EXPECT_EQ(b.end_of(0, 1), UINT64_MAX);
  b.gpu.open_gate(0, us(500));
  EXPECT_EQ(b.end_of(0, 1), us(500 + 145 + 100));
}

TEST(Gpu, APassIsForOneGatedLaunch) {
  Bench b(Regime::kMps);
  b.gpu.close_gate(0);
  for (uint64_t id : {1, 2, 3})
    b.gpu.submit({.client = 0, .id = id, .kernel = kernel(108, us(100)), .n_blocks = 108, .gated = id != 2});
  b.gpu.add_pass(0, us(50));
  EXPECT_EQ(b.end_of(0, 1), us(150));
  EXPECT_EQ(b.end_of(0, 2), us(251));
  EXPECT_EQ(b.end_of(0, 3), UINT64_MAX);
}

TEST(Gpu, NeighboursOfTheSameClassSlowEachOther) {
  GpuSpec spec;
  spec.contention[2][2] = 1;
  Bench alone(Regime::kMps, spec), both(Regime::kMps, spec);
  Kernel half = kernel(54, ms(1));
  half.resource_class = policy::ResourceClass::kMemory;
  alone.submit(0, 1, half, 0);
  both.submit(0, 1, half, 0);
  both.submit(1, 1, half, 0);
  EXPECT_NEAR(double(alone.end_of(0, 1)), double(ms(1)), 1000);
  EXPECT_NEAR(double(both.end_of(0, 1)), 1.5e6, 0.2e6);  // the other fills half of the GPU
}

TEST(Gpu, YieldingWorkLeavesAtABlockBoundaryAndSaysWhatIsLeft) {
  Bench b(Regime::kMpsPriority);
  b.submit(1, 1, kernel(108 * 10, us(100)), 0, true);
  std::vector<Completion> none;
  while (b.gpu.next_ns() < us(250)) b.gpu.advance(b.gpu.next_ns(), &none);
  b.gpu.advance(us(250), &none);
  b.gpu.retreat(1);
  uint64_t end = b.end_of(1, 1);
  EXPECT_LE(end, us(250) + us(130));
  uint32_t left = b.done.front().first.blocks_left;
  EXPECT_GT(left, 108u * 5);
  EXPECT_LT(left, 108u * 8);
  EXPECT_NEAR(b.gpu.work_ns(1), double(us(100)) * (1080 - left) / 108, 10);
}

TEST(Gpu, ConfinedWorkTakesNoMoreThanItsSms) {
  for (Regime regime : {Regime::kTimesliced, Regime::kMps, Regime::kMpsPriority}) {
    Bench b(regime);
    b.submit(0, 1, kernel(108, us(100)), 0, false, 27);
    EXPECT_NEAR(double(b.end_of(0, 1)), double(us(400)), 2000) << regime_name(regime);
    EXPECT_NEAR(b.gpu.work_ns(0), double(us(100)), 10);  // as much as on all SMs
  }
}

TEST(Gpu, LongBlocksThatAreConfinedLeaveTheOtherSmsAtOnce) {
  for (Regime regime : {Regime::kMps, Regime::kMpsPriority}) {
    Bench anywhere(regime), confined(regime);
    anywhere.submit(1, 1, kernel(108 * 4, ms(10)), 0);
    confined.submit(1, 1, kernel(108 * 4, ms(10)), 0, false, 27);
    for (Bench* b : {&anywhere, &confined}) b->submit(0, 1, kernel(81, us(100)), ms(1));
    EXPECT_GT(anywhere.end_of(0, 1) - ms(1), ms(5)) << regime_name(regime);
    EXPECT_LT(confined.end_of(0, 1) - ms(1), us(110)) << regime_name(regime);
  }
}

TEST(Gpu, BesideConfinedWorkThereIsOnlyTheContentionOfOtherSms) {
  const auto end_of_27_blocks = [](double disjoint) {
    GpuSpec spec;
    for (auto& row : spec.contention) row.fill(1);
    for (auto& row : spec.contention_disjoint) row.fill(disjoint);
    Bench b(Regime::kMpsPriority, spec);
    b.submit(1, 1, kernel(54, ms(10)), 0, false, 54);  // half of the GPU
    b.submit(0, 1, kernel(27, us(100)), us(500));
    return double(b.end_of(0, 1) - us(500));
  };
  EXPECT_NEAR(end_of_27_blocks(-1), double(us(150)), 4000);  // not given: as anywhere
  EXPECT_NEAR(end_of_27_blocks(0.2), double(us(110)), 4000);
  EXPECT_NEAR(end_of_27_blocks(0), double(us(100)), 4000);
}

TEST(Gpu, BlocksOnTheSmsOfConfinedWorkContendAsAnywhere) {
  const auto end_of_81_blocks = [](double disjoint) {
    GpuSpec spec;
    for (auto& row : spec.contention) row.fill(1);
    for (auto& row : spec.contention_disjoint) row.fill(disjoint);
    Bench b(Regime::kMpsPriority, spec);
    b.submit(1, 1, kernel(27, ms(10)), 0, false, 54);  // half of the GPU is its, a quarter is free
    b.submit(0, 1, kernel(81, us(100)), us(500));      // two thirds beside it, one third among it
    return double(b.end_of(0, 1) - us(500));
  };
  EXPECT_NEAR(end_of_81_blocks(-1), double(us(125)), 4000);
  EXPECT_NEAR(end_of_81_blocks(0), double(us(100)) * (1 + 0.25 / 3), 4000);
}

TEST(Gpu, OthersKeepOffTheHighestSmsWhileThereAreLowerOnes) {
  Bench half(Regime::kMpsPriority), full(Regime::kMpsPriority);
  half.submit(1, 1, kernel(27, us(10)), 0, false, 27);  // so that there are SMs to keep off
  full.submit(1, 1, kernel(27, us(10)), 0, false, 27);
  half.submit(0, 1, kernel(81, ms(1)), us(1));
  full.submit(0, 1, kernel(162, ms(1)), us(1));  // takes the confined SMs too when they fall free
  for (Bench* b : {&half, &full}) b->submit(1, 2, kernel(27, us(10)), us(20), false, 27);
  EXPECT_LT(half.end_of(1, 2), us(40));
  EXPECT_GT(full.end_of(1, 2), us(800));
}

}  // namespace
}  // namespace tessera::simulator

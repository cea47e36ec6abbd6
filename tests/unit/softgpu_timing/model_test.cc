// The modelled device against figures computed by hand: waves, occupancy, bandwidth, copies, dependencies,
// costs that become known late. Virtual time. How processes share it: model_sharing_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/softgpu_timing/model_harness.h"

namespace tessera::softgpu::timing {
namespace {

struct OneClient : testing::Test {
  OneClient() { d.model.add_client(1, 0); }
  uint64_t duration(ModelOp op) {
    uint64_t id = d.submit(1, std::move(op));
    d.run();
    return d.of(1, id).duration();
  }
  Device d{Mode::kTimesliced};
};

TEST_F(OneClient, WavesAddUpToTheIssueRate) {
  // 512 threads: two blocks per SM, four at a time. 8 blocks x 1000 instructions / (2 SMs x 1 per ns).
  EXPECT_EQ(duration(d.kernel(8, 512, {1000, 0, 0})), 4000u);
  // A fifth block has an SM for itself in the second wave.
  EXPECT_EQ(duration(d.kernel(5, 512, {1000, 0, 0})), 3000u);
  // Two blocks go to different SMs.
  EXPECT_EQ(duration(d.kernel(2, 512, {1000, 0, 0})), 1000u);
}

TEST_F(OneClient, MemoryBoundTakesBytesOverBandwidth) {
  EXPECT_EQ(duration(d.kernel(8, 512, {0, 500, 0})), 4000u);
  EXPECT_EQ(duration(d.kernel(8, 512, {10, 500, 0})), 4000u);  // the larger of the two
  EXPECT_EQ(duration(d.kernel(8, 512, {1000, 10, 0})), 4000u);
  EXPECT_EQ(duration(d.kernel(4, 512, {0, 0, 1e6})), 2000u);  // tensor units: 4e6 / 2000 per ns
}

TEST(Occupancy, EachLimitMakesItsWaves) {
  auto gpu = small_gpu();
  gpu.sm.warp_issue_per_clock = 1e-3;  // blocks run at their own pace, so time counts waves
  auto waves = [&](uint32_t threads, uint32_t registers, uint32_t shared) {
    Device d(Mode::kTimesliced, gpu);
    d.model.add_client(1, 0);
    ModelOp op =
        d.kernel(16, threads, {double((threads + 31) / 32), 0, 0});  // one instruction per warp: 1000 ns
    op.registers_per_thread = registers;
    op.shared_bytes_per_block = shared;
    uint64_t id = d.submit(1, op);
    d.run();
    return double(d.of(1, id).duration()) / 1000;
  };
  EXPECT_DOUBLE_EQ(waves(32, 16, 0), 2);           // 4 blocks per SM
  EXPECT_DOUBLE_EQ(waves(512, 16, 0), 4);          // 2 by threads
  EXPECT_DOUBLE_EQ(waves(500, 16, 0), 4);          // rounded up to warps
  EXPECT_DOUBLE_EQ(waves(256, 255, 0), 8);         // 1 by registers: 8 warps x 8192
  EXPECT_DOUBLE_EQ(waves(32, 16, 30000), 4);       // 2 by shared memory
  EXPECT_DOUBLE_EQ(waves(32, 16, 65536), 8);       // 1
  EXPECT_DOUBLE_EQ(waves(1024, 300, 1 << 20), 8);  // fits nowhere: takes a whole SM
}

TEST_F(OneClient, KernelsOfTwoStreamsRunTogetherWhereTheyFit) {
  uint64_t a = d.submit(1, d.kernel(2, 512, {1000, 0, 0})), b = d.submit(1, d.kernel(2, 512, {1000, 0, 0}));
  d.run();
  EXPECT_EQ(d.of(1, a).start, d.of(1, b).start);
  EXPECT_EQ(d.of(1, b).end, 2000u);  // each SM shares its slots between the two
}

TEST_F(OneClient, LaterKernelWaitsUntilEarlierIsPlaced) {
  uint64_t a = d.submit(1, d.kernel(6, 1024, {1000, 0, 0}));  // three waves of two
  uint64_t b = d.submit(1, d.kernel(2, 32, {1000, 0, 0}));
  d.run();
  EXPECT_EQ(d.of(1, a).end, 3000u);
  EXPECT_EQ(d.of(1, b).start, 3000u);  // 1024-thread blocks leave no room
}

TEST_F(OneClient, PriorityActsOnPendingBlocksOnly) {
  uint64_t low = d.submit(1, d.kernel(8, 1024, {1000, 0, 0}, 0));
  uint64_t high = d.submit_at(1500, 1, d.kernel(2, 1024, {1000, 0, 0}, -1));
  d.run();
  EXPECT_EQ(d.of(1, high).start, 2000u);  // not before running blocks end
  EXPECT_EQ(d.of(1, high).end, 3000u);    // before the pending ones
  EXPECT_EQ(d.of(1, low).end, 5000u);
}

TEST_F(OneClient, SharesWhatTheOtherCannotUse) {
  // Compute-bound and memory-bound, one block of each per SM: neither hinders the other.
  uint64_t compute = d.submit(1, d.kernel(2, 512, {10000, 1, 0}));
  uint64_t memory = d.submit(1, d.kernel(2, 512, {1, 5000, 0}));
  d.run();
  EXPECT_NEAR(double(d.of(1, compute).duration()), 10000, 10);
  EXPECT_NEAR(double(d.of(1, memory).duration()), 10000, 10);
}

TEST_F(OneClient, MemoryBoundKernelsShareBandwidth) {
  uint64_t a = d.submit(1, d.kernel(2, 512, {0, 5000, 0})), b = d.submit(1, d.kernel(2, 512, {0, 5000, 0}));
  d.run();
  EXPECT_EQ(d.of(1, a).end, 20000u);
  EXPECT_EQ(d.of(1, b).end, 20000u);
}

TEST_F(OneClient, CopyEnginesWorkAtTheSameTime) {
  uint64_t h1 = d.submit(1, d.copy(1000, CopyDirection::kHostToDevice));
  uint64_t h2 = d.submit(1, d.copy(1000, CopyDirection::kHostToDevice));
  uint64_t back = d.submit(1, d.copy(1000, CopyDirection::kDeviceToHost));
  uint64_t kernel = d.submit(1, d.kernel(2, 1024, {1000, 0, 0}));
  d.run();
  EXPECT_EQ(d.of(1, h1).end, 1000u);
  EXPECT_EQ(d.of(1, h2).start, 1000u);
  EXPECT_EQ(d.of(1, h2).end, 2000u);
  EXPECT_EQ(d.of(1, back).end, 1000u);
  EXPECT_EQ(d.of(1, kernel).end, 1000u);
}

TEST_F(OneClient, DeviceToDeviceReadsAndWrites) {
  EXPECT_EQ(duration(d.copy(1000, CopyDirection::kDeviceToDevice)), 2000u);
}

TEST_F(OneClient, CooperativeBlocksStartTogether) {
  uint64_t first = d.submit(1, d.kernel(1, 1024, {1000, 0, 0}));
  ModelOp op = d.kernel(2, 1024, {1000, 0, 0});
  op.cooperative = true;
  uint64_t coop = d.submit(1, op);
  d.run();
  EXPECT_EQ(d.of(1, coop).start, d.of(1, first).end);
  EXPECT_EQ(d.of(1, coop).duration(), 1000u);
}

TEST_F(OneClient, DependenciesWaitForBothClocks) {
  ModelOp op = d.kernel(2, 1024, {1000, 0, 0});
  op.has_body = true;
  uint64_t a = d.submit(1, op);
  op.has_body = false;
  uint64_t b = d.submit(1, op, {a});
  uint64_t join = d.submit(1, ModelOp{}, {a, b});
  d.run();
  EXPECT_EQ(d.of(1, a).end, 1000u);  // the modelled part is over, the body has not run
  EXPECT_FALSE(d.ended(1, b));
  d.model.advance_to(5000);
  d.model.functional_done(1, a);
  d.run();
  EXPECT_EQ(d.of(1, b).start, 5000u);
  EXPECT_EQ(d.of(1, join).end, 6000u);
  EXPECT_EQ(d.model.n_operations(1), 0u);
}

TEST_F(OneClient, MalformedSubmissionsAreRefused) {
  ModelOp op;
  op.id = 5;
  op.deps = {3, 4};  // unknown: complete
  EXPECT_TRUE(d.model.submit(1, op));
  op.id = 5;
  EXPECT_FALSE(d.model.submit(1, op));  // not increasing
  op.id = 6;
  op.deps = {6};
  EXPECT_FALSE(d.model.submit(1, op));  // on itself
  EXPECT_FALSE(d.model.submit(2, ModelOp{}));
}

TEST_F(OneClient, LongChainsOfJoins) {
  uint64_t last = 0;
  ModelOp gate;
  gate.kind = OpKind::kAction;
  gate.has_body = true;
  uint64_t first = last = d.submit(1, gate);
  for (int i = 0; i < 200000; ++i) last = d.submit(1, ModelOp{}, {last});
  d.model.functional_done(1, first);
  EXPECT_TRUE(d.ended(1, last));
}

// ---- cost of a block known late, or wrongly

TEST_F(OneClient, CostKnownLateIsCredited) {
  ModelOp op = d.kernel(4, 512, {});
  op.work_known = false;
  op.has_body = true;
  uint64_t id = d.submit(1, op);
  EXPECT_EQ(d.model.next_wake_ns(), UINT64_MAX);  // nothing can end before somebody says what it costs
  d.model.advance_to(300);
  d.model.report(1, id, {1000, 0, 0});
  d.run();
  EXPECT_EQ(d.of(1, id).end, 2000u);  // as if known from the start
  EXPECT_EQ(d.of(1, id).stall, 0u);
}

TEST_F(OneClient, CostKnownTooLateIsAStall) {
  ModelOp op = d.kernel(4, 512, {});
  op.work_known = false;
  op.has_body = true;
  uint64_t id = d.submit(1, op);
  d.model.advance_to(5000);
  d.model.report(1, id, {1000, 0, 0});
  d.run();
  EXPECT_EQ(d.of(1, id).end, 5000u);
  EXPECT_EQ(d.of(1, id).stall, 3000u);
}

TEST_F(OneClient, NothingReportedMeansNoWork) {
  ModelOp op = d.kernel(4, 512, {});
  op.work_known = false;
  op.has_body = true;
  uint64_t id = d.submit(1, op);
  d.model.advance_to(100);
  d.model.functional_done(1, id);
  d.run();
  EXPECT_LE(d.of(1, id).end, 101u);
}

TEST_F(OneClient, RevisedCostKeepsTheTotal) {
  for (double revised : {500.0, 1500.0, 4000.0}) {
    ModelOp op = d.kernel(40, 512, {1000, 0, 0});
    uint64_t start = d.model.now_ns(), id = d.submit(1, op);
    d.model.advance_to(start + 5000);  // in the middle of the third of ten waves
    d.model.report(1, id, {revised, 0, 0});
    d.run();
    EXPECT_NEAR(double(d.of(1, id).duration()), 40 * revised / 2, 20) << revised;
  }
}

TEST_F(OneClient, RevisedInTheLastWave) {
  uint64_t id = d.submit(1, d.kernel(4, 512, {1000, 0, 0}));
  d.model.advance_to(1000);
  d.model.report(1, id, {2000, 0, 0});
  d.run();
  EXPECT_EQ(d.of(1, id).end, 4000u);
}

TEST_F(OneClient, CostIsRememberedByKey) {
  ModelOp op = d.kernel(4, 512, {});
  op.work_known = false;
  op.cost_key = 9;
  op.has_body = true;
  uint64_t first = d.submit(1, op);
  d.model.report(1, first, {1000, 0, 0});
  d.model.functional_done(1, first);
  uint64_t second = d.submit(1, op);
  d.run();
  EXPECT_EQ(d.of(1, second).duration(), 2000u);
}

TEST_F(OneClient, AbortDropsWhatIsThereAndNothingElse) {
  uint64_t a = d.submit(1, d.kernel(800, 1024, {1000, 0, 0}));
  uint64_t b = d.submit(1, d.kernel(2, 1024, {1000, 0, 0}), {a});
  uint64_t c = d.submit(1, d.copy(1000000, CopyDirection::kHostToDevice));
  d.model.advance_to(1500);
  d.model.abort(1, c);
  EXPECT_EQ(d.model.n_operations(1), 0u);
  uint64_t after = d.submit(1, d.kernel(2, 1024, {1000, 0, 0}), {b});
  uint64_t copy = d.submit(1, d.copy(100, CopyDirection::kHostToDevice));
  d.run();
  EXPECT_EQ(d.of(1, after).start, 1500u);
  EXPECT_EQ(d.of(1, copy).end, 1600u);
  EXPECT_FALSE(d.ended(1, a));
}

// ---- figures of whole grids on described devices

TEST(Roofline, BigGridsTakeWhatTheDescriptionSays) {
  for (const char* name : {"h200", "a100", "l4", "test4"}) {
    auto gpu = shipped_gpu(name);
    struct Case {
      BlockWork work;
      double seconds_per_block;
    } cases[] = {
        {{50000, 0, 0}, (50000 / gpu.issue_per_s() + gpu.time.block_overhead_ns / 1e9) / gpu.sm.count},
        {{100, 1e6, 0}, 1e6 / gpu.memory.bytes_per_s},
        {{100, 100, 1e8}, 1e8 / gpu.peak.tensor_fp16},
    };
    for (const Case& c : cases) {
      Device d(Mode::kTimesliced, gpu);
      d.model.add_client(1, 0);
      uint64_t blocks = 100000, id = d.submit(1, d.kernel(blocks, 256, c.work));
      d.run();
      double roofline_ns = c.seconds_per_block * double(blocks) * 1e9;
      EXPECT_NEAR(double(d.of(1, id).duration()) / roofline_ns, 1.0, 0.03) << name;
      EXPECT_LT(d.model.n_events(), 200u) << name << ": big grids must be cheap";
    }
  }
}

TEST(Roofline, GroupsOutOfStepStayExactAndCheap) {
  auto gpu = shipped_gpu("h200");
  Device d(Mode::kMps, gpu);
  for (ClientId c = 1; c <= 3; ++c) d.model.add_client(c, 0);
  // Three kernels of different block lengths, one after the other into each other's tails.
  double issue = 0;
  for (int i = 0; i < 30; ++i) {
    double instructions = 20000 + 7000 * (i % 5);
    uint64_t blocks = 3001 + 17u * unsigned(i);
    issue += double(blocks) * (instructions / gpu.issue_per_s() * 1e9 + gpu.time.block_overhead_ns);
    d.submit(ClientId(1 + i % 3), d.kernel(blocks, i % 2 ? 128 : 256, {instructions, 100, 0}));
  }
  d.run();
  uint64_t end = 0;
  for (auto& [key, interval] : d.all()) end = std::max(end, interval.end);
  EXPECT_EQ(d.all().size(), 30u);
  EXPECT_NEAR(double(end) / (issue / gpu.sm.count), 1.0, 0.03);
  EXPECT_LT(d.model.n_events(), 20000u);
}

}  // namespace
}  // namespace tessera::softgpu::timing

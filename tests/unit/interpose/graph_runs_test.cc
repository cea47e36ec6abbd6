// Kernels of a graph that go out together: short ones, one behind the other, no longer than a slice.
#include "interpose/track/graph_runs.h"

#include <gtest/gtest.h>

namespace tessera::track {
namespace {

using Steps = std::vector<std::vector<uint32_t>>;

GraphPlan kernels(size_t n) {
  GraphPlan plan;
  for (size_t i = 0; i < n; i++) plan.steps.push_back({.work = KernelStep{}});
  return plan;
}

Steps steps_of(const std::vector<GraphRun>& runs) {
  Steps steps;
  for (const GraphRun& run : runs) steps.push_back(run.steps);
  return steps;
}

TEST(Runs, NeverExceedASlice) {
  const auto runs = runs_of(kernels(12), std::vector<uint64_t>(12, 10), 55);
  EXPECT_EQ(steps_of(runs), (Steps{{0, 1, 2, 3, 4}, {5, 6, 7, 8, 9}}));  // two more are too few
  EXPECT_EQ(runs[0].expected_ns, 50u);
  EXPECT_TRUE(runs_of(kernels(12), std::vector<uint64_t>(12, 12), 55).empty());  // four fit
}

TEST(Runs, EndAtWhatGoesByItself) {
  std::vector<uint64_t> ns(11, 1);
  ns[5] = 0;
  EXPECT_EQ(steps_of(runs_of(kernels(11), ns, 100)), (Steps{{0, 1, 2, 3, 4}, {6, 7, 8, 9, 10}}));
  ns[5] = 21;  // more than a fifth
  EXPECT_EQ(steps_of(runs_of(kernels(11), ns, 100)).size(), 2u);
  ns[5] = 20;
  EXPECT_EQ(steps_of(runs_of(kernels(11), ns, 100)).size(), 1u);
}

TEST(Runs, LeaveOutStepsThatAreOff) {
  GraphPlan plan = kernels(6);
  plan.steps[2].enabled = false;
  EXPECT_EQ(steps_of(runs_of(plan, std::vector<uint64_t>(6, 1), 100)), (Steps{{0, 1, 3, 4, 5}}));
}

TEST(Runs, StayInTheirLaneAndBetweenItsEvents) {
  GraphPlan plan = kernels(20);
  plan.lanes = {.count = 2, .n_events = 2, .steps = std::vector<LaneStep>(20)};
  for (uint32_t i = 0; i < 20; i++) plan.lanes.steps[i].lane = i % 2;
  const std::vector<uint64_t> ns(20, 1);
  const std::vector<uint32_t> even{0, 2, 4, 6, 8, 10, 12, 14, 16, 18}, odd{1, 3, 5, 7, 9, 11, 13, 15, 17, 19};
  EXPECT_EQ(steps_of(runs_of(plan, ns, 100)), (Steps{even, odd}));
  plan.lanes.steps[8].records = 0;  // behind the first five of lane 0
  EXPECT_EQ(steps_of(runs_of(plan, ns, 100)), (Steps{{0, 2, 4, 6, 8}, {10, 12, 14, 16, 18}, odd}));
  plan.lanes.steps[11].waits = {0};  // before the last five of lane 1
  EXPECT_EQ(steps_of(runs_of(plan, ns, 100)),
            (Steps{{0, 2, 4, 6, 8}, {1, 3, 5, 7, 9}, {10, 12, 14, 16, 18}, {11, 13, 15, 17, 19}}));
  plan.steps[8].enabled = false;  // its event is still to be recorded in its place
  std::vector<uint64_t> off = ns;
  off[8] = 0;
  EXPECT_EQ(steps_of(runs_of(plan, off, 100)),
            (Steps{{1, 3, 5, 7, 9}, {10, 12, 14, 16, 18}, {11, 13, 15, 17, 19}}));
}

}  // namespace
}  // namespace tessera::track

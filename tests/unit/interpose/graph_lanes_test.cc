// Steps of a graph that share a lane, and waits between them: by the steps that may run at the same time.
#include "interpose/track/graph_lanes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace tessera::track {
namespace {

using Dependencies = std::vector<std::vector<uint32_t>>;
using Order = std::vector<std::vector<bool>>;  // [a][b]: b is behind a

// The order in which a GPU runs it: a lane is a stream, an event has the place of its latest record.
Order order_of(const Lanes& lanes, size_t n) {
  Order behind(n, std::vector<bool>(n));
  std::vector<std::vector<bool>> reached(kMostLanes, std::vector<bool>(n)), recorded(lanes.n_events);
  for (uint32_t i = 0; i < n; i++) {
    const LaneStep step = lanes.steps.empty() ? LaneStep{} : lanes.steps[i];
    auto& lane = reached[step.lane];
    for (const uint32_t event : step.waits)
      for (uint32_t a = 0; a < n; a++) lane[a] = lane[a] || recorded[event].at(a);
    for (uint32_t a = 0; a < n; a++) behind[a][i] = lane[a];
    lane[i] = true;
    if (step.records != LaneStep::kNoEvent) recorded[step.records] = lane;
  }
  return behind;
}

Order closure(const Dependencies& dependencies) {
  const size_t n = dependencies.size();
  Order behind(n, std::vector<bool>(n));
  for (uint32_t i = 0; i < n; i++)
    for (const uint32_t d : dependencies[i]) {
      behind[d][i] = true;
      for (uint32_t a = 0; a < d; a++)
        if (behind[a][d]) behind[a][i] = true;
    }
  return behind;
}

TEST(Lanes, EveryStepIsBehindWhatItDependsOn) {
  std::mt19937 random(1);
  for (uint32_t round = 0; round < 500; round++) {
    const uint32_t n = 1 + random() % 60, most = 1 + random() % 4;
    Dependencies dependencies(n);
    for (uint32_t i = 1; i < n; i++)
      for (uint32_t k = random() % most; k > 0; k--) dependencies[i].push_back(random() % i);
    const Lanes lanes = lanes_of(dependencies);
    ASSERT_LE(lanes.count, kMostLanes);
    ASSERT_LE(lanes.n_events, n);
    const Order got = order_of(lanes, n), needed = closure(dependencies);
    for (uint32_t a = 0; a < n; a++)
      for (uint32_t b = 0; b < n; b++)
        if (needed[a][b]) {
          ASSERT_TRUE(got[a][b]) << a << " before " << b << " in round " << round;
        }
  }
}

TEST(Lanes, BranchesAreBehindNothingElse) {
  const Dependencies graphs[] = {
      {{}, {}, {}, {0}, {1}, {2}, {3}, {4}, {5}},            // three chains
      {{}, {0}, {0}, {1, 2}, {3}, {3}, {4, 5}},              // two diamonds
      {{}, {}, {0}, {1}, {2, 3}},                            // two that join
      {{}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {1, 8}},  // a fan of eight
  };
  for (const Dependencies& dependencies : graphs) {
    SCOPED_TRACE(&dependencies - graphs);
    const Lanes lanes = lanes_of(dependencies);
    EXPECT_GT(lanes.count, 1u);
    EXPECT_EQ(order_of(lanes, dependencies.size()), closure(dependencies));
  }
}

TEST(Lanes, AChainHasOneAndNoEvents) {
  const Lanes lanes = lanes_of(Dependencies{{}, {0}, {1}, {0, 2}});
  EXPECT_EQ(lanes.count, 1u);
  EXPECT_EQ(lanes.n_events, 0u);
  EXPECT_TRUE(lanes.steps.empty());
  EXPECT_EQ(lanes_of({}).count, 1u);
}

// A hundred diamonds one behind the other: what was joined is used again.
TEST(Lanes, AndEventsAreUsedAgain) {
  Dependencies dependencies{{}};
  for (uint32_t i = 0; i < 100; i++) {
    const uint32_t top = uint32_t(dependencies.size()) - 1;
    dependencies.push_back({top});
    dependencies.push_back({top});
    dependencies.push_back({top + 1, top + 2});
  }
  const Lanes lanes = lanes_of(dependencies);
  EXPECT_EQ(lanes.count, 2u);
  EXPECT_LE(lanes.n_events, 2u);
}

TEST(Lanes, MoreBranchesThanLanesShareThem) {
  const Lanes lanes = lanes_of(Dependencies(3 * kMostLanes));
  EXPECT_EQ(lanes.count, kMostLanes);
  std::vector<uint32_t> length(kMostLanes);
  for (const LaneStep& step : lanes.steps) length[step.lane]++;
  EXPECT_EQ(length, std::vector<uint32_t>(kMostLanes, 3));
}

}  // namespace
}  // namespace tessera::track

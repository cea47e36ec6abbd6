// The clusters of a launch: those that it asks for, and those that its function fixes.
#include "interpose/track/cluster.h"

#include <gtest/gtest.h>

namespace tessera::track {
namespace {

TEST(Clusters, ShapesOfLaunchAndFunction) {
  state::KernelRecord kernel;
  gate::LaunchCall launch{nullptr, {12, 4, 2}, {32, 1, 1}, 0, {}, nullptr, nullptr, nullptr};
  CUlaunchAttribute attributes[2] = {};
  CUlaunchConfig config{};
  config.attrs = attributes;
  const auto shape = [&](unsigned n_attributes) {
    config.numAttrs = n_attributes;
    launch.config = n_attributes ? &config : nullptr;
    admission::Cluster c;
    const bool known = cluster_of(launch, kernel, &c);
    return known ? std::vector<uint32_t>(c.shape, c.shape + 3) : std::vector<uint32_t>{};
  };
  const auto function_has = [&](int x, int y, int z, bool must_be_set = false) {
    const int of_function[3] = {x, y, z};
    uint64_t packed = 0;
    const bool possible = pack_cluster(of_function, must_be_set, &packed);
    kernel.variant.cluster.store(packed);
    return possible;
  };
  using V = std::vector<uint32_t>;
  EXPECT_EQ(shape(0), (V{1, 1, 1}));
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attributes[1].value.clusterDim = {2, 4, 1};
  EXPECT_EQ(shape(1), (V{1, 1, 1}));
  EXPECT_EQ(shape(2), (V{2, 4, 1}));
  EXPECT_TRUE(function_has(3, 1, 2));
  EXPECT_EQ(shape(0), (V{3, 1, 2}));
  EXPECT_EQ(shape(2), V{});
  attributes[1].value.clusterDim = {3, 1, 2};
  EXPECT_EQ(shape(2), (V{3, 1, 2}));
  attributes[1].value.clusterDim = {2, 4, 1};
  EXPECT_TRUE(function_has(5, 1, 1));  // no divisor of the grid
  EXPECT_EQ(shape(0), V{});
  EXPECT_TRUE(function_has(0, 0, 0, true));  // the launch must say it
  EXPECT_EQ(shape(0), V{});
  EXPECT_EQ(shape(2), (V{2, 4, 1}));
  EXPECT_TRUE(function_has(2, 1, 1, true));
  EXPECT_EQ(shape(0), (V{2, 1, 1}));
  EXPECT_FALSE(function_has(2, 0, 1));
  EXPECT_FALSE(function_has(2, -1, 1));
  EXPECT_FALSE(function_has(70'000, 1, 1));
  attributes[1].value.clusterDim = {2, 0, 1};
  EXPECT_EQ(shape(2), V{});
  attributes[1].value.clusterDim = {2, 4, 1};
  attributes[0] = attributes[1];  // twice
  EXPECT_EQ(shape(2), V{});
}

}  // namespace
}  // namespace tessera::track

// The steps of a graph, without a driver: order, parameters, what is in the way, children that are exchanged.
#include "interpose/track/graph_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "interpose/track/reasons.h"
#include "interpose/track/track.h"

namespace tessera::track {
namespace {

CUgraphNode node(uintptr_t n) {
  return reinterpret_cast<CUgraphNode>(n * 16);
}
GraphStep fill(uintptr_t n, unsigned value) {
  return {.node = node(n), .work = FillStep{{.value = value}}};
}
unsigned value_of(const GraphStep& step) {
  return std::get<FillStep>(step.work).area.value;
}

TEST(GraphOrder, EveryEdgeAgrees) {
  std::mt19937 random(1);
  for (uint32_t round = 0; round < 200; round++) {
    const uint32_t n = 1 + random() % 40;
    std::vector<uint32_t> hidden(n);  // an order that the edges have, not that of the numbers
    for (uint32_t i = 0; i < n; i++) hidden[i] = i;
    std::shuffle(hidden.begin(), hidden.end(), random);
    std::vector<GraphEdge> edges;
    for (uint32_t to = 1; to < n; to++)
      for (uint32_t k = random() % 4; k > 0; k--) edges.push_back({hidden[random() % to], hidden[to]});
    const std::vector<uint32_t> order = topological_order(n, edges);
    ASSERT_EQ(order.size(), n);
    std::vector<uint32_t> place(n, n);
    for (uint32_t i = 0; i < n; i++) place[order[i]] = i;
    for (uint32_t i = 0; i < n; i++) ASSERT_LT(place[i], n);
    for (const GraphEdge& e : edges) ASSERT_LT(place[e.from], place[e.to]);
  }
}

TEST(GraphOrder, OfSeveralTheOneInWhichNodesWereMade) {
  EXPECT_EQ(topological_order(4, {}), (std::vector<uint32_t>{0, 1, 2, 3}));
  const GraphEdge back[] = {{3, 0}};
  EXPECT_EQ(topological_order(4, back), (std::vector<uint32_t>{1, 2, 3, 0}));
}

TEST(GraphOrder, CyclesAndForeignNodesHaveNone) {
  const GraphEdge cycle[] = {{0, 1}, {1, 2}, {2, 1}}, foreign[] = {{0, 7}};
  EXPECT_TRUE(topological_order(3, cycle).empty());
  EXPECT_TRUE(topological_order(3, foreign).empty());
}

TEST(Arguments, AreCopiedAndStayWhereTheyAre) {
  uint64_t address = 0x123456789a;
  struct {
    uint32_t words[5];
  } big = {{1, 2, 3, 4, 5}};
  uint8_t byte = 9;
  void* params[] = {&address, &big, &byte};
  const size_t sizes[] = {sizeof address, sizeof big, sizeof byte};
  KernelArguments first(sizes, params);
  address = 0, big = {}, byte = 0;
  void** const before = first.params();
  const KernelArguments arguments = std::move(first);
  EXPECT_EQ(arguments.params(), before);
  EXPECT_EQ(arguments.extra(), nullptr);
  EXPECT_EQ(*static_cast<uint64_t*>(before[0]), 0x123456789au);
  EXPECT_EQ(static_cast<uint32_t*>(before[1])[4], 5u);
  EXPECT_EQ(*static_cast<uint8_t*>(before[2]), 9);
  for (void* value : {before[0], before[1], before[2]}) EXPECT_EQ(uintptr_t(value) % 16, 0u);
}

TEST(Arguments, ABufferIsHandedOnAsOne) {
  unsigned char bytes[20];
  for (uint32_t i = 0; i < sizeof bytes; i++) bytes[i] = uint8_t(i);
  const KernelArguments arguments(bytes, sizeof bytes);
  EXPECT_EQ(arguments.params(), nullptr);
  void** extra = arguments.extra();
  ASSERT_EQ(extra[0], CU_LAUNCH_PARAM_BUFFER_POINTER);
  ASSERT_EQ(extra[2], CU_LAUNCH_PARAM_BUFFER_SIZE);
  EXPECT_EQ(extra[4], CU_LAUNCH_PARAM_END);
  EXPECT_EQ(*static_cast<size_t*>(extra[3]), sizeof bytes);
  EXPECT_EQ(memcmp(extra[1], bytes, sizeof bytes), 0);
  EXPECT_NE(extra[1], bytes);
}

TEST(Arguments, NoneIsNone) {
  const KernelArguments arguments(std::span<const size_t>{}, nullptr);
  EXPECT_EQ(arguments.params(), nullptr);
  EXPECT_EQ(arguments.extra(), nullptr);
}

TEST(Obstacles, NodesFlagsAndAttributes) {
  for (const auto type :
       {CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_MEMCPY, CU_GRAPH_NODE_TYPE_MEMSET,
        CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_EMPTY, CU_GRAPH_NODE_TYPE_HOST,
        CU_GRAPH_NODE_TYPE_WAIT_EVENT, CU_GRAPH_NODE_TYPE_EVENT_RECORD, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP})
    EXPECT_EQ(obstacle_of(type), GraphObstacle::kNone) << type;
  for (const auto type :
       {CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL, CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT, CU_GRAPH_NODE_TYPE_MEM_ALLOC,
        CU_GRAPH_NODE_TYPE_MEM_FREE, CU_GRAPH_NODE_TYPE_CONDITIONAL, CUgraphNodeType(99)})
    EXPECT_EQ(obstacle_of(type), GraphObstacle::kNodeType) << type;
  EXPECT_EQ(obstacle_of_flags(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD), GraphObstacle::kNone);
  EXPECT_EQ(obstacle_of_flags(CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH), GraphObstacle::kFlags);
  EXPECT_EQ(obstacle_of_flags(CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY |
                              CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH),
            GraphObstacle::kNone);  // of every graph that PyTorch makes
  EXPECT_EQ(obstacle_of_flags(1ull << 40), GraphObstacle::kFlags);
  for (const CUlaunchAttributeID id : attributes_to_read()) {
    CUlaunchAttribute unset{};
    unset.id = id;
    bool pass_on = true;
    EXPECT_EQ(obstacle_of(unset, &pass_on), GraphObstacle::kNone) << id;
    EXPECT_FALSE(pass_on) << id;
  }
  CUlaunchAttribute attribute{};
  bool pass_on = false;
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {2, 1, 1};
  EXPECT_EQ(obstacle_of(attribute, &pass_on), GraphObstacle::kNone);
  EXPECT_TRUE(pass_on);
  attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  attribute.value.cooperative = 1;
  EXPECT_EQ(obstacle_of(attribute, &pass_on), GraphObstacle::kNone);
  EXPECT_TRUE(pass_on);
  attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE;
  attribute.value.deviceUpdatableKernelNode.deviceUpdatable = 1;
  EXPECT_EQ(obstacle_of(attribute, &pass_on), GraphObstacle::kAttribute);
}

TEST(Obstacles, OfMemoryOperationsTheWaits) {
  std::vector<CUstreamBatchMemOpParams> ops(3);
  ops[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  ops[1].operation = CU_STREAM_MEM_OP_BARRIER;
  ops[2].operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  EXPECT_EQ(obstacle_of(ops), GraphObstacle::kNone);
  for (const int other : {int(CU_STREAM_MEM_OP_WAIT_VALUE_32), int(CU_STREAM_MEM_OP_WAIT_VALUE_64), 99}) {
    memcpy(&ops[2].operation, &other, sizeof other);  // 99: of a newer driver
    EXPECT_EQ(obstacle_of(ops), GraphObstacle::kNodeType) << other;
  }
}

TEST(Obstacles, EdgesThatMayBeginEarlyAreNone) {
  using Data = CUgraphEdgeData;
  constexpr uint8_t kProgrammatic = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
  EXPECT_EQ(obstacle_of(Data{}), GraphObstacle::kNone);
  for (const uint8_t port : {CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER})
    EXPECT_EQ(obstacle_of(Data{.from_port = port, .type = kProgrammatic}), GraphObstacle::kNone);
  EXPECT_EQ(obstacle_of(Data{.from_port = 3, .type = kProgrammatic}), GraphObstacle::kEdge);
  EXPECT_EQ(obstacle_of(Data{.to_port = 1}), GraphObstacle::kEdge);
  EXPECT_EQ(obstacle_of(Data{.type = 2}), GraphObstacle::kEdge);
}

TEST(Obstacles, AreCountedByName) {
  EXPECT_STREQ(name_of(GraphObstacle::kNodeType), "graph_node");
  EXPECT_STREQ(name_of(GraphObstacle::kNotRead), "graph_not_read");
  const uint64_t before = refusals(GraphObstacle::kCopy);
  ipc::abi::SignalLine line{};
  publish_refusals(line);
  const uint32_t other = line.refused_other;
  count_refusal(GraphObstacle::kCopy);
  publish_refusals(line);
  EXPECT_EQ(refusals(GraphObstacle::kCopy), before + 1);
  EXPECT_EQ(line.refused_other, other + 1);
}

TEST(Children, AreExchangedAsAWhole) {
  GraphPlan plan;
  for (uintptr_t i = 1; i <= 5; i++) plan.steps.push_back(fill(i, unsigned(i)));
  plan.children = {{node(21), 2, 1}, {node(20), 1, 3}};  // 21 is inside 20
  GraphPlan other;
  for (uintptr_t i = 0; i < 3; i++) other.steps.push_back(fill(30 + i, unsigned(100 + i)));
  ASSERT_TRUE(plan.replace_child(node(20), std::move(other)));
  const unsigned expected[] = {1, 100, 101, 102, 5};
  for (uint32_t i = 0; i < 5; i++) EXPECT_EQ(value_of(plan.steps[i]), expected[i]) << i;
  EXPECT_NE(plan.find(node(1)), nullptr);
  EXPECT_NE(plan.find(node(5)), nullptr);
  for (uintptr_t gone : {2, 3, 4, 30, 31, 32}) EXPECT_EQ(plan.find(node(gone)), nullptr) << gone;
  GraphPlan inner;
  inner.steps.push_back(fill(40, 7));
  EXPECT_FALSE(plan.replace_child(node(21), std::move(inner)));  // its name went
}

TEST(Children, OfAnotherShapeAreNot) {
  GraphPlan plan;
  for (uintptr_t i = 1; i <= 3; i++) plan.steps.push_back(fill(i, unsigned(i)));
  plan.children = {{node(20), 0, 2}};
  GraphPlan shorter, mixed;
  shorter.steps.push_back(fill(9, 9));
  mixed.steps.push_back(fill(9, 9));
  mixed.steps.push_back({.node = node(10), .work = CopyStep{}});
  EXPECT_FALSE(plan.replace_child(node(20), std::move(shorter)));
  EXPECT_FALSE(plan.replace_child(node(20), std::move(mixed)));
  for (uint32_t i = 0; i < 3; i++) EXPECT_EQ(value_of(plan.steps[i]), i + 1);
  EXPECT_NE(plan.find(node(1)), nullptr);
}

}  // namespace
}  // namespace tessera::track

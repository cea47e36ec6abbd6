// Graphs of cuDNN by hand; tests/loader reads them from descriptors beside that.
#include "operations/graph.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <set>
#include <vector>

namespace tessera::operations {
namespace {

GraphTensor tensor(int64_t id, std::initializer_list<int64_t> dims, Type type = Type::kF16,
                   bool in_memory = true) {
  GraphTensor out{.id = id, .type = type, .n_dims = uint32_t(dims.size()), .in_memory = in_memory};
  std::copy(dims.begin(), dims.end(), out.dims);
  return out;
}
GraphTensor virtual_tensor(int64_t id, std::initializer_list<int64_t> dims) {
  return tensor(id, dims, Type::kF32, false);
}

class Step {
 public:
  Step& given(int32_t attribute, const GraphTensor& tensor) {
    const GraphAttribute* found = find_graph_attribute(attribute);
    EXPECT_NE(found, nullptr) << attribute;
    of.step = found->step;
    of.tensors[of.n_tensors++] = {found, tensor};
    return *this;
  }
  Step& mode(int32_t mode, int32_t phase = -1) {
    of.mode = mode;
    of.phase = phase;
    return *this;
  }
  GraphOperation of;
};
std::optional<GraphCost> cost_of(std::initializer_list<const GraphOperation*> steps) {
  const std::vector<const GraphOperation*> all(steps);
  return graph_cost(all);
}
uint64_t flop_of(const Step& step) {
  const auto found = cost_of({&step.of});
  EXPECT_TRUE(found);
  return found ? found->cost.flop : 0;
}

TEST(Graph, AttributesAreFound) {
  for (const int32_t number : {-1, 0, 700, 706, 754, 1523, 2014, 2908, 99999})
    EXPECT_EQ(find_graph_attribute(number), nullptr) << number;
  ASSERT_NE(find_graph_attribute(704), nullptr);
  EXPECT_EQ(find_graph_attribute(704)->step, GraphStep::kConvolutionForward);
  EXPECT_TRUE(find_graph_attribute(705)->is_written);
}

// Convolution, bias, activation: what leads from one to the next is never in memory.
TEST(Graph, AFusedConvolution) {
  const auto x = tensor(1, {2, 64, 8, 8}), w = tensor(2, {32, 64, 3, 3}), bias = tensor(3, {1, 32, 1, 1}),
             y = tensor(4, {2, 32, 8, 8});
  const auto summed = virtual_tensor(5, {2, 32, 8, 8}), biased = virtual_tensor(6, {2, 32, 8, 8});
  const Step convolution = Step().given(704, x).given(703, w).given(705, summed);
  const Step addition = Step().given(751, summed).given(752, bias).given(753, biased).mode(0);
  const Step activation = Step().given(751, biased).given(753, y).mode(100);
  const auto found = cost_of({&convolution.of, &addition.of, &activation.of});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->cost, (Cost{2 * 4096 * 576 + 4096, 2 * (8192 + 32 * 576 + 32 + 4096)}));
  EXPECT_EQ(found->shape, (Shape{.dims = {2, 32, 8, 8, 576}, .n_dims = 5}));
  EXPECT_EQ(found->types, (Types{Type::kF16, Type::kF16, Type::kF32}));
  EXPECT_TRUE(found->multiplies);
}

// A residual: the input of the convolution is added to its result, and is read once; what is written in place counts twice.
TEST(Graph, TensorsCountOnceInEachDirection) {
  const auto x = tensor(1, {4, 4}), y = tensor(2, {4, 4}), between = virtual_tensor(3, {4, 4});
  const Step product = Step().given(1520, x).given(1521, x).given(1522, between);
  const Step addition = Step().given(751, between).given(752, x).given(753, y).mode(0);
  EXPECT_EQ(cost_of({&product.of, &addition.of})->cost, (Cost{2 * 64 + 16, 2 * (16 + 16)}));
  const Step in_place = Step().given(751, between).given(752, x).given(753, x).mode(0);
  EXPECT_EQ(cost_of({&product.of, &in_place.of})->cost, (Cost{2 * 64 + 16, 2 * (16 + 16)}));
}

// Attention as one operation, and as its parts: 4 b h s^2 d, and what the parts add.
TEST(Graph, Attention) {
  const auto q = tensor(1, {2, 3, 16, 8}), k = tensor(2, {2, 3, 32, 8}), v = tensor(3, {2, 3, 32, 8}),
             o = tensor(4, {2, 3, 16, 8});
  const Step whole = Step().given(2800, q).given(2801, k).given(2802, v).given(2803, o);
  constexpr uint64_t kProducts = 4 * 2 * 3 * 16 * 32 * 8;
  EXPECT_EQ(cost_of({&whole.of})->cost, (Cost{kProducts, 2 * (2 * 768 + 2 * 1536)}));
  const auto turned = tensor(2, {2, 3, 8, 32}), scores = virtual_tensor(5, {2, 3, 16, 32}),
             weights = virtual_tensor(6, {2, 3, 16, 32});
  const Step first = Step().given(1520, q).given(1521, turned).given(1522, scores);
  const Step exponential = Step().given(751, scores).given(753, weights).mode(13);
  const Step second = Step().given(1520, weights).given(1521, v).given(1522, o);
  EXPECT_EQ(cost_of({&first.of, &exponential.of, &second.of})->cost,
            (Cost{kProducts, 2 * (2 * 768 + 2 * 1536)}));
  // Backwards: five products instead of two.
  const Step gradient = Step().given(2851, q).given(2852, k).given(2853, v).given(2854, o).given(
      2862, tensor(7, {2, 3, 16, 8}));
  EXPECT_EQ(flop_of(gradient), 5 * kProducts / 2);
}

TEST(Graph, EveryStepByHand) {
  const auto x = tensor(1, {2, 3, 5, 7}), y = tensor(2, {2, 3, 5, 7}), c = tensor(3, {1, 3, 1, 1}),
             w = tensor(4, {3, 3, 2, 2});
  Step pooling = Step().given(1710, x).given(1711, y).mode(2),
       pooling_gradient = Step().given(1720, x).given(1721, y).mode(3);
  pooling.of.window = {4};
  pooling_gradient.of.window = {4};
  const struct {
    Step step;
    uint64_t flop;
  } rows[] = {
      {Step().given(704, x).given(703, w).given(705, y), 2 * 210 * 12},
      {Step().given(711, y).given(709, w).given(710, x), 2 * 210 * 12},
      {Step().given(716, x).given(717, y).given(715, w), 2 * 210 * 12},
      {Step().given(751, x).given(753, y).mode(5), 420},
      {Step().given(751, x).given(757, y).given(756, y).mode(200), 210},
      {Step().given(751, x).given(753, y).mode(302), 0},
      {Step().given(772, x).given(773, c).given(774, c), 630},
      {Step().given(782, c).given(783, c).given(792, c), 27},
      {Step().given(782, c).given(788, c), 27 + 18},
      {Step().given(1520, x).given(1521, x).given(1522, y), 2 * 7 * 210},
      {Step().given(1610, x).given(1611, c).mode(0), 210},
      {Step().given(1610, x).given(1611, c).mode(5), 213},
      {Step().given(1610, x).given(1611, c).mode(3), 0},
      {Step().given(1624, x).given(1625, y), 1050},
      {pooling, 5 * 210},
      {pooling_gradient, 210},
      {Step().given(1801, x).given(1801, y).given(1803, x), 0},
      {Step().given(1903, x).given(1904, y), 0},
      {Step().given(1951, y), 0},
      {Step().given(2002, x).given(2005, c).given(2013, y).mode(2, 0), 840},
      {Step().given(2002, x).given(2005, c).given(2011, c).given(2013, y).mode(2, 1), 1680 + 18},
      {Step().given(2002, x).given(2005, c).given(2013, y).mode(0, 0), 1680},
      {Step().given(2002, x).given(2005, c).given(2013, y).mode(4, 0), 840},
      {Step().given(2101, x).given(2104, y).given(2109, x).mode(2), 2100},
      {Step().given(2101, x).given(2104, y).given(2109, x).mode(4), 1890},
      {Step().given(2200, x).given(2201, y), 0},
      {Step().given(2250, x).given(2251, y), 0},
      {Step().given(2270, x).given(2271, y), 0},
      {Step().given(2310, y), 0},
      {Step().given(2500, x).given(2501, y).given(2502, c), 210},
      {Step().given(2600, x).given(2601, c).given(2602, y), 210},
      {Step().given(2800, x).given(2801, x).given(2802, x).given(2803, y), 4 * 5 * 210},
      {Step().given(2851, x).given(2852, x).given(2853, x).given(2854, y), 10 * 5 * 210},
      {Step().given(2902, x).given(2903, w).given(2905, y), 2 * 7 * 210},
  };
  std::set<GraphStep> tried;
  for (const auto& [step, flop] : rows) {
    tried.insert(step.of.step);
    EXPECT_EQ(flop_of(step), flop) << static_cast<int>(step.of.step);
  }
  constexpr int kSteps = 0
#define TS_GRAPH_OPERATION(name, flop) +1
#include "operations/graph_operations.def"
      ;
  EXPECT_EQ(tried.size(), kSteps);
}

TEST(Graph, WhatIsNotKnownHasNoCost) {
  Step known = Step().given(2310, tensor(1, {4}));
  EXPECT_TRUE(cost_of({&known.of}));
  EXPECT_FALSE(cost_of({}));
  EXPECT_FALSE(cost_of({&known.of, nullptr}));
  const Step empty, strange = Step().given(2310, tensor(1, {4}, Type::kFromArguments));
  EXPECT_FALSE(cost_of({&empty.of}));
  EXPECT_FALSE(cost_of({&strange.of}));
  // A convolution without its filter, attention without its keys, a product without its result.
  const auto x = tensor(1, {2, 2, 2, 2});
  for (const Step& step :
       {Step().given(704, x).given(705, x), Step().given(2800, x).given(2803, x), Step().given(1520, x)})
    EXPECT_FALSE(cost_of({&step.of}));
  known.of.is_known = false;
  EXPECT_FALSE(cost_of({&known.of}));
}

TEST(Graph, PlacesOfSeveralElements) {
  GraphTensor packed = tensor(1, {2, 2, 4, 4}, Type::kI8);
  packed.vector = 32;
  const Step step = Step().given(2310, packed);
  EXPECT_EQ(cost_of({&step.of})->cost, (Cost{0, 64 * 32}));
}

}  // namespace
}  // namespace tessera::operations

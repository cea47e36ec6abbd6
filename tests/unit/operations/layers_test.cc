// Each layer by hand; tests/loader reads every function's descriptors beside that.
#include "operations/layers.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <vector>

namespace tessera::operations {
namespace {

// Numbers of elements are different primes, so that one in the place of another shows.
constexpr LayerSizes kSizes{.x = {101}, .y = {211}, .z = {307}, .c = {3}, .r = {5}, .s = {7}};

TEST(Layers, FlopByHand) {
  const struct {
    Family family;
    uint64_t flop;
  } rows[] = {
      {Family::kConvolution, 2 * 211 * 7},
      {Family::kConvolutionOfGradient, 2 * 211 * 7},
      {Family::kFilterGradient, 2 * 211 * 7},
      {Family::kConvolutionActivation, 2 * 211 * 7 + 211 + 307},
      {Family::kBiasGradient, 211},
      {Family::kRearranged, 0},
      {Family::kNormalised, 404 + 6 + 307},
      {Family::kNormalisedTraining, 808 + 12 + 30 + 307},
      {Family::kNormalisedGradient, 1010 + 6},
      {Family::kLocalResponse, 707},
      {Family::kLocalResponseGradient, 707},
      {Family::kPooled, 7 * 211},
      {Family::kPooledGradient, 7 * 211},
      {Family::kSoftmax, 707},
      {Family::kSoftmaxGradient, 707},
      {Family::kActivation, 0},
      {Family::kActivationGradient, 101},
      {Family::kDropout, 101},
      {Family::kTensorSum, 633},
      {Family::kTensorScaled, 211},
      {Family::kTensorSet, 0},
      {Family::kTensorOperation, 7 * 211},
      {Family::kReduced, 707 + 307},
      {Family::kRecurrent, 7},
      {Family::kGraph, 7},
  };
  std::set<Family> tried;
  for (const auto& [family, flop] : rows) {
    tried.insert(family);
    EXPECT_EQ(layer_cost(family, kSizes, {}), (Cost{flop, 0})) << static_cast<int>(family);
  }
  constexpr int kLayers = 0
#define TS_LAYER(name, flop) +1
#include "operations/layers.def"
      ;
  EXPECT_EQ(tried.size(), kLayers);
}

TEST(Layers, BytesOfAllOperands) {
  constexpr auto kI4 = static_cast<Type>(16);  // CUDA_R_4I
  const LayerOperand operands[] = {
      {Type::kF16, {7}, 1}, {Type::kF32, {5}, 2}, {kI4, {3}, 1}, {Type::kF64, {9}, 0}};
  EXPECT_EQ(layer_cost(Family::kActivation, {}, operands), (Cost{0, 14 + 40 + 2}));
  const LayerOperand unknown[] = {{Type::kFromArguments, {7}, 1}};
  EXPECT_EQ(layer_cost(Family::kActivation, {}, unknown), std::nullopt);
  EXPECT_EQ(layer_cost(Family::kProduct, {}, {}), std::nullopt);
  // A value that does not fit becomes the most that does.
  constexpr Count kAll{Count::kMost};
  const LayerOperand huge[] = {{Type::kF32, kAll, 2}};
  EXPECT_EQ(
      layer_cost(Family::kConvolution, {.x = {}, .y = kAll, .z = {}, .c = {}, .r = {}, .s = kAll}, huge),
      (Cost{Count::kMost, Count::kMost}));
}

TEST(Layers, StepsByWhatDescriptorsSay) {
  for (const int mode : {1, 2})
    for (const bool gradient : {false, true}) EXPECT_EQ(pooling_steps(mode, {9}, gradient), Count{10});
  for (const int mode : {0, 3, 99}) {
    EXPECT_EQ(pooling_steps(mode, {9}, false), Count{0});
    EXPECT_EQ(pooling_steps(mode, {9}, true), Count{1});
  }
  EXPECT_EQ(softmax_steps(0, false), Count{2});
  EXPECT_EQ(softmax_steps(1, false), Count{3});
  EXPECT_EQ(softmax_steps(2, false), Count{3});
  EXPECT_EQ(softmax_steps(1, true), Count{4});
  EXPECT_EQ(softmax_steps(2, true), Count{3});
  EXPECT_EQ(local_response_steps(5, false), Count{13});
  EXPECT_EQ(local_response_steps(5, true), Count{23});
}

TEST(Layers, RecurrentNetworksByTheirProducts) {
  // One step of an LSTM, 3 -> 4: 4 gates of 4 x 3 and 4 x 4.
  const Recurrent one{.cell = 2,
                      .both_directions = false,
                      .skips_input = false,
                      .input = 3,
                      .hidden = 4,
                      .projection = 4,
                      .layers = 1,
                      .time_steps = 1};
  EXPECT_EQ(recurrent_flop(one), Count{2 * 4 * (12 + 16)});
  Recurrent other = one;
  other.cell = 99;
  EXPECT_EQ(recurrent_flop(other), std::nullopt);
  other = one;
  other.layers = -1;
  EXPECT_EQ(recurrent_flop(other), std::nullopt);
  other = one;
  other.layers = 0;
  EXPECT_EQ(recurrent_flop(other), Count{0});
  other = one;
  other.hidden = other.projection = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(recurrent_flop(other), Count{Count::kMost});
}

}  // namespace
}  // namespace tessera::operations

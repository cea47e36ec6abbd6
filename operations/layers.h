// Computes the cost of layers of networks (layers.def), by the sizes and types of their tensors: FLOP, and the bytes of
// all operands. Pure; any thread. Does not repeat the checks of libraries: a call that they refuse launches nothing,
// and its cost means nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "operations/catalogue.h"
#include "operations/cost.h"
#include "operations/count.h"
#include "operations/type.h"

namespace tessera::operations {

// The variables of the formulas in layers.def.
struct LayerSizes {
  Count x, y, z, c, r, s;
};

// `passes`: how often it is read or written in full. Results count as read, too, where the library offers to add to what they
// hold (beta).
struct LayerOperand {
  Type type;
  Count elements;
  uint32_t passes;
};

// Nothing for a type that is not known, or a family that is no layer.
std::optional<Cost> layer_cost(Family family, const LayerSizes& sizes,
                               std::span<const LayerOperand> operands);

// ---- steps for an element, by the numbers of cudnn_ops.h

// cudnnPoolingMode_t; `window`: elements of one.
constexpr Count pooling_steps(int32_t mode, Count window, bool of_gradient) {
  constexpr int32_t kAverageWithPadding = 1, kAverageWithoutPadding = 2;
  if (mode == kAverageWithPadding || mode == kAverageWithoutPadding) return window + 1;
  return {of_gradient ? uint64_t{1} : uint64_t{0}};
}

// cudnnSoftmaxAlgorithm_t
constexpr Count softmax_steps(int32_t algorithm, bool of_gradient) {
  enum Algorithm : int32_t { kFast = 0, kLogarithm = 2 };
  if (of_gradient) return {algorithm == kLogarithm ? uint64_t{3} : uint64_t{4}};
  return {algorithm == kFast ? uint64_t{2} : uint64_t{3}};
}

// cudnnOpTensorOp_t
constexpr Count tensor_operation_steps(int32_t operation) {
  enum Operation : int32_t { kAdd = 0, kMultiply = 1 };
  return {operation == kAdd || operation == kMultiply ? uint64_t{1} : uint64_t{0}};
}

// cudnnReduceTensorOp_t
struct ReductionSteps {
  uint64_t of_input;   // for each of its elements
  uint64_t of_result;  // likewise
};
constexpr ReductionSteps reduction_steps(int32_t operation) {
  enum Operation : int32_t { kMinimum = 2, kLargestAmount = 4, kAverage = 5, kNorm2 = 7 };
  if (operation >= kMinimum && operation <= kLargestAmount) return {0, 0};
  return {operation == kNorm2 ? uint64_t{2} : uint64_t{1}, operation == kAverage ? uint64_t{1} : uint64_t{0}};
}

constexpr Count local_response_steps(uint32_t window, bool of_gradient) {
  return {of_gradient ? 3 * uint64_t{window} + 8 : 2 * uint64_t{window} + 3};
}

// A recurrent network: what its descriptor says, and how many time steps all its sequences have together.
struct Recurrent {
  int32_t cell;  // cudnnRNNMode_t
  bool both_directions, skips_input;
  int64_t input, hidden, projection, layers;  // elements; projection: hidden where there is none
  int64_t time_steps;
};
// FLOP of its products of matrices, the same in each of the three passes: results, gradients of data, of weights. What gates do
// beside them takes a few for each hidden element, and is not counted. Nothing for negative sizes or a cell that is not known.
std::optional<Count> recurrent_flop(const Recurrent& network);

}  // namespace tessera::operations

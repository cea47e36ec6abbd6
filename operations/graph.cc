#include "operations/graph.h"

#include <algorithm>
#include <array>

#include "operations/layers.h"

namespace tessera::operations {
namespace {

constexpr bool kRead = false, kWritten = true;
constexpr auto kAttributes = std::to_array<GraphAttribute>({
#define TS_GRAPH_TENSOR(operation, attribute, role, direction) \
  {attribute, GraphStep::operation, GraphRole::role, direction},
#include "operations/graph_operations.def"
});
static_assert(std::ranges::is_sorted(kAttributes, {}, &GraphAttribute::number));

Count count_of(int64_t n) {
  return {n > 0 ? static_cast<uint64_t>(n) : 0};
}

struct Sizes {
  Count x, y, c, r, s;
};
Count flop_of(GraphStep step, const Sizes& sizes) {
  [[maybe_unused]] const auto& [x, y, c, r, s] = sizes;
  switch (step) {
#define TS_GRAPH_OPERATION(name, flop) \
  case GraphStep::name:                \
    return flop;
#include "operations/graph_operations.def"
  }
  return {};
}

// ---- steps for an element

// cudnnPointwiseMode_t
Count pointwise_steps(int32_t mode) {
  enum Mode : int32_t {
    kAdd = 0,
    kMultiply = 1,
    kAddSquare = 5,
    kDivide = 6,
    kSubtract = 9,
    kReciprocal = 22,
    kFirstGradient = 200,
    kLastGradient = 207,
  };
  if (mode == kAddSquare) return {2};
  const bool is_step = mode == kAdd || mode == kMultiply || mode == kDivide || mode == kSubtract ||
                       mode == kReciprocal || (mode >= kFirstGradient && mode <= kLastGradient);
  return {is_step ? uint64_t{1} : uint64_t{0}};
}

// cudnnResampleMode_t, as pooling's modes
Count resample_steps(const GraphOperation& operation, bool of_gradient) {
  enum Mode : int32_t { kAverageWithPadding = 2, kAverageWithoutPadding = 4 };
  const bool is_average = operation.mode == kAverageWithPadding || operation.mode == kAverageWithoutPadding;
  return pooling_steps(is_average ? 1 : 0, operation.window, of_gradient);
}

// cudnnBackendNormMode_t, cudnnBackendNormFwdPhase_t
enum NormMode : int32_t { kBatchNorm = 2, kRootMeanSquare = 4 };
Count normalisation_steps(const GraphOperation& operation) {
  constexpr int32_t kInference = 0;
  if (operation.mode == kRootMeanSquare) return {4};
  return {operation.mode == kBatchNorm && operation.phase == kInference ? uint64_t{4} : uint64_t{8}};
}

// `from_end`: 1 is the last.
Count dimension(const GraphTensor* tensor, uint32_t from_end) {
  if (!tensor || tensor->n_dims < from_end) return {};
  return count_of(tensor->dims[tensor->n_dims - from_end]);
}

// The number of terms that one element of the result sums up; 1: none.
Count sum_length(const GraphOperation& operation) {
  const GraphTensor* filter = operation.find(GraphRole::kFilter);
  if (filter) {
    Count all = count_of(filter->vector);
    for (uint32_t i = 1; i < filter->n_dims; ++i) all = all * count_of(filter->dims[i]);
    return all;
  }
  const bool is_product =
      operation.step == GraphStep::kMatrixProduct || operation.step == GraphStep::kExpertProducts;
  return is_product ? dimension(operation.find(GraphRole::kX), 1) : Count{1};
}

Count steps_of(const GraphOperation& operation) {
  switch (operation.step) {
    case GraphStep::kConvolutionForward:
    case GraphStep::kConvolutionOfGradient:
    case GraphStep::kFilterGradient:
      return sum_length(operation);
    case GraphStep::kMatrixProduct:
    case GraphStep::kExpertProducts:
      return 2 * sum_length(operation);
    case GraphStep::kPointwise:
      return pointwise_steps(operation.mode);
    case GraphStep::kReduction:
      return {reduction_steps(operation.mode).of_input};
    case GraphStep::kPooling:
      return resample_steps(operation, false);
    case GraphStep::kPoolingGradient:
      return resample_steps(operation, true);
    case GraphStep::kNormalisation:
      return normalisation_steps(operation);
    case GraphStep::kNormalisationGradient:
      return {operation.mode == kRootMeanSquare ? uint64_t{9} : uint64_t{10}};
    case GraphStep::kAttention:
    case GraphStep::kAttentionGradient:
      return dimension(operation.find(GraphRole::kKeys), 2);
    default:
      return {};
  }
}

bool is_convolution(GraphStep step) {
  return step == GraphStep::kConvolutionForward || step == GraphStep::kConvolutionOfGradient ||
         step == GraphStep::kFilterGradient;
}
bool is_attention(GraphStep step) {
  return step == GraphStep::kAttention || step == GraphStep::kAttentionGradient;
}
bool multiplies(GraphStep step) {
  return is_convolution(step) || is_attention(step) || step == GraphStep::kMatrixProduct ||
         step == GraphStep::kExpertProducts;
}

// It has the tensors that its FLOP are counted by. Of operations that do little else than move data, none is missed.
bool is_whole(const GraphOperation& operation) {
  const auto has = [&](GraphRole role) { return operation.find(role) != nullptr; };
  if (!operation.is_known || operation.n_tensors == 0) return false;
  if (is_convolution(operation.step) && !has(GraphRole::kFilter)) return false;
  if (is_attention(operation.step) && !has(GraphRole::kKeys)) return false;
  return !multiplies(operation.step) || (has(GraphRole::kX) && has(GraphRole::kY));
}

Count elements_of(const GraphOperation& operation, GraphRole role) {
  const GraphTensor* tensor = operation.find(role);
  return tensor ? tensor->elements() : Count{};
}

Count flop_of(const GraphOperation& operation) {
  Sizes sizes{.x = elements_of(operation, GraphRole::kX),
              .y = elements_of(operation, GraphRole::kY),
              .c = elements_of(operation, GraphRole::kParameter),
              .r = elements_of(operation, GraphRole::kRunning),
              .s = steps_of(operation)};
  if (operation.step == GraphStep::kReduction) sizes.c = reduction_steps(operation.mode).of_result * sizes.y;
  return flop_of(operation.step, sizes);
}

// The same tensor in the same direction, in what comes before operation `end_operation`, tensor `end_tensor`.
bool came_before(std::span<const GraphOperation* const> operations, size_t end_operation, uint32_t end_tensor,
                 const GraphOperation::Given& given) {
  for (size_t i = 0; i <= end_operation; ++i) {
    const uint32_t n = i == end_operation ? end_tensor : operations[i]->n_tensors;
    for (const auto& other : std::span(operations[i]->tensors).first(n))
      if (other.tensor.in_memory && other.tensor.id == given.tensor.id &&
          other.attribute->is_written == given.attribute->is_written)
        return true;
  }
  return false;
}

std::optional<Count> bytes_of(std::span<const GraphOperation* const> operations) {
  Count bytes;
  for (size_t i = 0; i < operations.size(); ++i)
    for (uint32_t t = 0; t < operations[i]->n_tensors; ++t) {
      const GraphOperation::Given& given = operations[i]->tensors[t];
      if (!given.tensor.in_memory || came_before(operations, i, t, given)) continue;
      const uint32_t bits = bits_of(given.tensor.type);
      if (bits == 0) return std::nullopt;
      bytes = bytes + operations::bytes_of(given.tensor.elements(), bits);
    }
  return bytes;
}

Type type_of(const GraphTensor* tensor, Type otherwise) {
  return tensor && bits_of(tensor->type) != 0 ? tensor->type : otherwise;
}

void describe(const GraphOperation& operation, GraphCost* out) {
  const GraphTensor *x = operation.find(GraphRole::kX), *y = operation.find(GraphRole::kY);
  const GraphTensor* result = y ? y : x;
  const Type type = type_of(x, type_of(y, Type::kF32));
  out->types = {type, type_of(operation.find(GraphRole::kFilter), type), type_of(y, type)};
  out->multiplies = multiplies(operation.step);
  if (!result) return;
  Shape& shape = out->shape;
  shape.n_dims = result->n_dims;
  std::copy_n(result->dims, result->n_dims, shape.dims);
  const Count sum = sum_length(operation);
  if (sum.value > 1) shape.dims[shape.n_dims++] = static_cast<int64_t>(sum.value);
}

}  // namespace

const GraphAttribute* find_graph_attribute(int32_t number) {
  const auto* found = std::ranges::lower_bound(kAttributes, number, {}, &GraphAttribute::number);
  return found != kAttributes.end() && found->number == number ? found : nullptr;
}

Count GraphTensor::elements() const {
  Count all = count_of(vector);
  for (const int64_t dim : std::span(dims).first(std::min(n_dims, kMostGraphDims))) all = all * count_of(dim);
  return all;
}

const GraphTensor* GraphOperation::find(GraphRole role) const {
  for (const Given& given : std::span(tensors).first(n_tensors))
    if (given.attribute->role == role) return &given.tensor;
  return nullptr;
}

std::optional<GraphCost> graph_cost(std::span<const GraphOperation* const> operations) {
  GraphCost out;
  Count flop;
  std::optional<Count> most;
  for (const GraphOperation* operation : operations) {
    if (!operation || !is_whole(*operation)) return std::nullopt;
    const Count own = flop_of(*operation);
    flop = flop + own;
    if (most && own <= *most) continue;
    most = own;
    out.shape = {};
    describe(*operation, &out);
  }
  const std::optional<Count> bytes = bytes_of(operations);
  if (!most || !bytes) return std::nullopt;
  out.cost = {flop.value, bytes->value};
  return out;
}

}  // namespace tessera::operations

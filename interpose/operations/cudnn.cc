#include "interpose/operations/cudnn.h"

#include <algorithm>
#include <optional>
#include <span>

#include "interpose/operations/loaded_library.h"
#include "operations/layers.h"

namespace tessera::library {
namespace {

using operations::Count;
using operations::LayerOperand;
using operations::LayerSizes;
constexpr auto kRelaxed = std::memory_order_relaxed;

// ---- the library that reads descriptors

constexpr int kMostDims = 8;  // CUDNN_DIM_MAX
constexpr int kMostSpace = kMostDims - 2;

//   TS_READER(name, (params)): exported as cudnn##name; writes what its parameters point to
#define TS_READERS(TS_READER)                                                                               \
  TS_READER(GetTensorNdDescriptor, (const void*, int asked, int* type, int* n, int* dims, int* strides))    \
  TS_READER(GetFilterNdDescriptor, (const void*, int asked, int* type, int* format, int* n, int* dims))     \
  TS_READER(GetConvolutionMathType, (const void*, int* math_type))                                          \
  TS_READER(GetPoolingNdDescriptor,                                                                         \
            (const void*, int asked, int* mode, int* nan, int* n, int* window, int* pad, int* stride))      \
  TS_READER(GetOpTensorDescriptor, (const void*, int* operation, int* compute_type, int* nan))              \
  TS_READER(GetReduceTensorDescriptor,                                                                      \
            (const void*, int* operation, int* compute_type, int* nan, int* indices, int* indices_type))    \
  TS_READER(GetLRNDescriptor, (const void*, unsigned* window, double* alpha, double* beta, double* k))      \
  TS_READER(GetRNNDescriptor_v8,                                                                            \
            (const void*, int* algorithm, int* cell, int* bias, int* direction, int* input_mode, int* type, \
             int* math_precision, int* math_type, int32_t* input, int32_t* hidden, int32_t* projection,     \
             int32_t* layers, void** dropout, uint32_t* flags))                                             \
  TS_READER(GetRNNDataDescriptor, (const void*, int* type, int* layout, int* steps, int* batch, int* width, \
                                   int asked, int* lengths, void* padding))

struct Readers {
#define TS_READER(name, params) int(*name) params;
  TS_READERS(TS_READER)
#undef TS_READER
};
constinit Readers g_readers{};  // constant once they are found
constinit OnceFound g_found;

bool find_readers(Readers* out) {
  void* const library = cudnn_library();
  if (!library) return false;
  bool all = true;
#define TS_READER(name, params)                                                         \
  out->name = reinterpret_cast<decltype(out->name)>(symbol_of(library, "cudnn" #name)); \
  all = all && out->name;
  TS_READERS(TS_READER)
#undef TS_READER
  return all;
}

bool have_readers() {
  return g_found.have([] { return find_readers(&g_readers); });
}

// ---- tensors

struct Tensor {
  Type type = Type::kFromArguments;
  int n = 0;
  int dims[kMostDims] = {};

  bool valid() const {
    return n > 0 && n <= kMostDims && type != Type::kFromArguments &&
           std::ranges::none_of(sides(), [](int dim) { return dim < 0; });
  }
  std::span<const int> sides() const { return {dims, static_cast<size_t>(n)}; }
  Count elements() const {
    Count all{1};
    for (const int dim : sides()) all = all * Count{static_cast<uint64_t>(dim)};
    return all;
  }
  // For a filter: the products that one element of the result sums up.
  Count sum_length() const {
    Count all{1};
    for (const int dim : sides().subspan(1)) all = all * Count{static_cast<uint64_t>(dim)};
    return all;
  }
};

bool read(Role role, const void* descriptor, Tensor* out) {
  int type = -1, unused[kMostDims];
  const int status =
      role == Role::kFilter
          ? g_readers.GetFilterNdDescriptor(descriptor, kMostDims, &type, unused, &out->n, out->dims)
          : g_readers.GetTensorNdDescriptor(descriptor, kMostDims, &type, &out->n, out->dims, unused);
  out->type = operations::type_of_cudnn(type);
  return status == 0 && out->valid();
}

// The tensors of a call that it has, and what is asked of them.
struct Tensors {
  Tensor of[kMostTensors];
  LayerOperand operands[kMostTensors];
  Role roles[kMostTensors];
  size_t n = 0;

  const Tensor* find(Role role) const {
    for (size_t i = 0; i < n; i++)
      if (roles[i] == role) return &of[i];
    return nullptr;
  }
  Count elements(Role role) const {
    const Tensor* tensor = find(role);
    return tensor ? tensor->elements() : Count{};
  }
  const Tensor& result() const { return of[n - 1]; }
};

bool read(const Layer& what, Tensors* out) {
  for (uint32_t i = 0; i < what.n_tensors; i++) {
    const LayerTensor& tensor = what.tensors[i];
    if (!tensor.descriptor || tensor.passes == 0) continue;
    Tensor& to = out->of[out->n];
    if (!read(tensor.role, tensor.descriptor, &to)) return false;
    out->operands[out->n] = {to.type, to.elements(), tensor.passes};
    out->roles[out->n++] = tensor.role;
  }
  return out->n != 0;
}

// ---- what the layer's own descriptor says

std::optional<Count> pooling_steps(const void* pooling, bool of_gradient) {
  int mode = -1, nan = 0, n = 0, window[kMostSpace], pad[kMostSpace], stride[kMostSpace];
  if (g_readers.GetPoolingNdDescriptor(pooling, kMostSpace, &mode, &nan, &n, window, pad, stride) != 0 ||
      n < 0 || n > kMostSpace)
    return std::nullopt;
  Count area{1};
  for (int i = 0; i < n; i++) area = area * Count{static_cast<uint64_t>(std::max(window[i], 0))};
  return operations::pooling_steps(mode, area, of_gradient);
}

std::optional<Count> local_response_steps(const void* own, bool of_gradient) {
  unsigned window = 0;
  double alpha, beta, k;
  if (g_readers.GetLRNDescriptor(own, &window, &alpha, &beta, &k) != 0) return std::nullopt;
  return operations::local_response_steps(window, of_gradient);
}

std::optional<Count> tensor_operation_steps(const void* own) {
  int operation = -1, compute_type, nan;
  if (g_readers.GetOpTensorDescriptor(own, &operation, &compute_type, &nan) != 0) return std::nullopt;
  return operations::tensor_operation_steps(operation);
}

// Counts steps for each element of the input; those of the result are written to `of_results`.
std::optional<Count> reduction_steps(const void* own, const Tensors& tensors, Count* of_results) {
  int operation = -1, compute_type, nan, indices, indices_type;
  if (g_readers.GetReduceTensorDescriptor(own, &operation, &compute_type, &nan, &indices, &indices_type) != 0)
    return std::nullopt;
  const operations::ReductionSteps steps = operations::reduction_steps(operation);
  *of_results = steps.of_result * tensors.elements(Role::kY);
  return Count{steps.of_input};
}

std::optional<Count> steps_of(Family family, const Layer& what, const Tensors& tensors, LayerSizes* sizes) {
  const Tensor* filter = tensors.find(Role::kFilter);
  switch (family) {
    case Family::kConvolution:
    case Family::kConvolutionOfGradient:
    case Family::kFilterGradient:
    case Family::kConvolutionActivation:
      return filter ? std::optional(filter->sum_length()) : std::nullopt;
    case Family::kPooled:
    case Family::kPooledGradient:
      return pooling_steps(what.own, family == Family::kPooledGradient);
    case Family::kSoftmax:
    case Family::kSoftmaxGradient:
      return operations::softmax_steps(what.setting, family == Family::kSoftmaxGradient);
    case Family::kLocalResponse:
    case Family::kLocalResponseGradient:
      return local_response_steps(what.own, family == Family::kLocalResponseGradient);
    case Family::kTensorOperation:
      return tensor_operation_steps(what.own);
    case Family::kReduced:
      return reduction_steps(what.own, tensors, &sizes->z);
    default:
      return Count{};  // has none
  }
}

// ---- calls

bool is_convolution(Family family) {
  return family == Family::kConvolution || family == Family::kConvolutionOfGradient ||
         family == Family::kFilterGradient || family == Family::kConvolutionActivation;
}

// By cudnnMathType_t, and what that is for the type: single precision goes through TF32 unless it is told not to.
Type computed_by(int32_t math_type, Type type) {
  enum MathType : int32_t { kConverting = 2, kMultiplyAdd = 3 };
  if (math_type == kMultiplyAdd && (type == Type::kF16 || type == Type::kBF16)) return Type::kF32;
  if (type != Type::kF32 || math_type == kMultiplyAdd) return type;
  return math_type == kConverting ? Type::kF16 : Type::kTF32;
}

std::optional<Type> computed_as(Family family, const void* own, Type type) {
  if (!is_convolution(family)) return type;
  int32_t math_type = 0;
  if (g_readers.GetConvolutionMathType(own, &math_type) != 0) return std::nullopt;
  return computed_by(math_type, type);
}

// All dimensions of the output side, then those of the sum; of other layers, those of the first tensor.
void set_shape(Family family, const Tensors& tensors, operations::Shape* out) {
  *out = {};
  const auto add = [&](std::span<const int> dims) {
    for (const int dim : dims)
      if (out->n_dims < operations::kMostDims) out->dims[out->n_dims++] = dim;
  };
  const Tensor *y = tensors.find(Role::kY), *filter = tensors.find(Role::kFilter);
  if (!is_convolution(family) || !y || !filter) return add(tensors.of[0].sides());
  add(y->sides());
  add(filter->sides().subspan(1));
}

}  // namespace

constinit std::atomic<const void*> g_cudnn_function{nullptr};

void* cudnn_library() {
  return library_of(g_cudnn_function.load(kRelaxed));
}

bool describe(const Layer& what, Operation* out) {
  if (!have_readers()) return false;
  const Family family = operations::kind_of(out->entry).family;
  Tensors tensors;
  if (!read(what, &tensors)) return false;
  LayerSizes sizes{.x = tensors.elements(Role::kX),
                   .y = tensors.elements(Role::kY),
                   .z = tensors.elements(Role::kZ),
                   .c = tensors.elements(Role::kParameter),
                   .r = tensors.elements(Role::kRunning),
                   .s = {}};
  const auto steps = steps_of(family, what, tensors, &sizes);
  if (!steps) return false;
  sizes.s = *steps;
  const Type first = tensors.of[0].type;
  const Tensor* filter = tensors.find(Role::kFilter);
  const auto computed = computed_as(family, what.own, first);
  const auto cost = operations::layer_cost(family, sizes, {tensors.operands, tensors.n});
  if (!computed || !cost) return false;
  set_shape(family, tensors, &out->shape);
  out->types = {first, filter ? filter->type : first, tensors.result().type};
  out->computed_as = *computed;
  out->cost = *cost;
  return true;
}

namespace {

// A batch of sequences.
struct Sequences {
  Type type = Type::kFromArguments;
  int steps = 0, batch = 0, width = 0;
  Count time_steps;  // of all of them
  Count elements() const { return time_steps * Count{static_cast<uint64_t>(width)}; }
};

// Lengths are read of this number of sequences; a longer batch counts as if all were as long as the longest.
constexpr int kMostSequences = 256;

bool read(const void* descriptor, Sequences* out) {
  int type = -1, layout, lengths[kMostSequences];
  uint64_t padding[2];
  const auto get = [&](int asked) {
    return g_readers.GetRNNDataDescriptor(descriptor, &type, &layout, &out->steps, &out->batch, &out->width,
                                          asked, lengths, padding) == 0;
  };
  if (!descriptor || !get(0) || out->steps < 0 || out->batch < 0 || out->width < 0) return false;
  out->type = operations::type_of_cudnn(type);
  out->time_steps = Count{static_cast<uint64_t>(out->steps)} * Count{static_cast<uint64_t>(out->batch)};
  if (out->batch > kMostSequences) return true;
  if (!get(out->batch)) return false;
  out->time_steps = {};
  for (int i = 0; i < out->batch; i++)
    out->time_steps = out->time_steps + Count{static_cast<uint64_t>(std::max(lengths[i], 0))};
  return true;
}

struct Network {
  operations::Recurrent recurrent;
  Type type;
  int32_t math_type;
};
bool read(const void* descriptor, Network* out) {
  enum : int { kBothDirections = 1, kSkipsInput = 1 };
  int algorithm, cell, bias, direction, input_mode, type, precision, math_type;
  int32_t input, hidden, projection, layers;
  uint32_t flags;
  void* dropout;
  if (!descriptor || g_readers.GetRNNDescriptor_v8(descriptor, &algorithm, &cell, &bias, &direction,
                                                   &input_mode, &type, &precision, &math_type, &input,
                                                   &hidden, &projection, &layers, &dropout, &flags) != 0)
    return false;
  *out = {.recurrent = {.cell = cell,
                        .both_directions = direction == kBothDirections,
                        .skips_input = input_mode == kSkipsInput,
                        .input = input,
                        .hidden = hidden,
                        .projection = projection,
                        .layers = layers,
                        .time_steps = 0},
          .type = operations::type_of_cudnn(type),
          .math_type = math_type};
  return true;
}

}  // namespace

bool describe(const RecurrentPass& what, Operation* out) {
  if (!have_readers()) return false;
  Network network;
  Sequences x, y;
  if (!read(what.network, &network) || !read(what.x, &x) || !read(what.y, &y)) return false;
  network.recurrent.time_steps = static_cast<int64_t>(x.time_steps.value);
  const auto flop = operations::recurrent_flop(network.recurrent);
  if (!flop) return false;
  LayerSizes sizes;
  sizes.s = *flop;
  LayerOperand operands[6] = {{x.type, x.elements(), what.x_passes},
                              {y.type, y.elements(), what.y_passes},
                              {Type::kU8, {what.weight_bytes}, 1},
                              {Type::kU8, {what.reserve_bytes}, 1}};
  size_t n = 4;
  for (const auto& [descriptor, passes] :
       {std::pair{what.h, what.h_passes}, std::pair{what.c, what.c_passes}}) {
    Tensor state;
    if (!descriptor || passes == 0) continue;
    if (!read(Role::kOther, descriptor, &state)) return false;
    operands[n++] = {state.type, state.elements(), passes};
  }
  const auto cost = operations::layer_cost(Family::kRecurrent, sizes, {operands, n});
  if (!cost) return false;
  const operations::Recurrent& r = network.recurrent;
  out->shape = {.dims = {x.steps, x.batch, r.input, r.hidden, r.layers, r.both_directions ? 2 : 1},
                .n_dims = 6};
  out->types = {x.type, network.type, y.type};
  out->computed_as = computed_by(network.math_type, network.type);
  out->cost = *cost;
  return true;
}

}  // namespace tessera::library

// Reads cuDNN's descriptors, and tries every row of cudnn_calls.def on them. The library is the toolkit's own, which
// needs no driver for that, or the software GPU's stand-in. Each runs in its own process:   cudnn_descriptors_test
// LIBRARY [all]
// all: the library has descriptors for every row.
#include <cudnn.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "interpose/operations/cudnn.h"
#include "interpose/operations/cudnn_graphs.h"
#include "interpose/operations/split_cudnn.h"
#include "operations/layers.h"

namespace tessera::library {
namespace {

using operations::Cost;

const char* g_path = nullptr;

template <class Function>
Function* get(Function*, const char* name) {
  static void* const library = dlopen(g_path, RTLD_NOW | RTLD_LOCAL);
  void* const found = library ? dlsym(library, name) : nullptr;
  if (!found) fprintf(stderr, "%s: no %s: %s\n", g_path, name, dlerror());
  return reinterpret_cast<Function*>(found);
}
#define TS_GET(name) get(static_cast<decltype(&cudnn##name)>(nullptr), "cudnn" #name)

// Each row as a function with its function's own parameters: what it tells of the call, nothing if nothing is told.
std::set<std::string> g_tried;
using Told = std::optional<Operation>;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define TS_CALL(symbol, base, params, args, what)                              \
  Told told_##symbol params {                                                  \
    static_assert(std::is_same_v<decltype(&symbol), cudnnStatus_t(*) params>); \
    g_tried.insert(#symbol);                                                   \
    Operation out{};                                                           \
    out.entry = Entry::base;                                                   \
    return describe(what, &out) ? Told(out) : Told();                          \
  }
#include "interpose/operations/cudnn_calls.def"
#pragma GCC diagnostic pop

Cost cost(const Told& told) {
  EXPECT_TRUE(told);
  return told ? told->cost : Cost{};
}

// ---- descriptors

template <class Handle>
class Owned {
 public:
  using Create = cudnnStatus_t (*)(Handle*);
  using Destroy = cudnnStatus_t (*)(Handle);
  Owned(Create create, Destroy destroy) : destroy_(destroy) {
    exists_ = create(&handle_) == CUDNN_STATUS_SUCCESS;
  }
  ~Owned() {
    if (exists_) destroy_(handle_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  operator Handle() const { return handle_; }  // NOLINT(google-explicit-constructor): as the library's own
  bool exists() const { return exists_; }

 private:
  Destroy destroy_;
  Handle handle_ = nullptr;
  bool exists_;
};
#define TS_OWNED(name) \
  Owned<cudnn##name##Descriptor_t>(TS_GET(Create##name##Descriptor), TS_GET(Destroy##name##Descriptor))

struct TensorOf : Owned<cudnnTensorDescriptor_t> {
  TensorOf(int n, int c, int h, int w, cudnnDataType_t type = CUDNN_DATA_FLOAT,
           cudnnTensorFormat_t format = CUDNN_TENSOR_NCHW)
      : Owned(TS_GET(CreateTensorDescriptor), TS_GET(DestroyTensorDescriptor)) {
    EXPECT_EQ(TS_GET(SetTensor4dDescriptor)(*this, format, type, n, c, h, w), 0);
  }
};
struct FilterOf : Owned<cudnnFilterDescriptor_t> {
  FilterOf(int k, int c, int h, int w, cudnnDataType_t type = CUDNN_DATA_FLOAT)
      : Owned(TS_GET(CreateFilterDescriptor), TS_GET(DestroyFilterDescriptor)) {
    EXPECT_EQ(TS_GET(SetFilter4dDescriptor)(*this, type, CUDNN_TENSOR_NCHW, k, c, h, w), 0);
  }
};
struct ConvolutionOf : Owned<cudnnConvolutionDescriptor_t> {
  explicit ConvolutionOf(cudnnMathType_t math = CUDNN_DEFAULT_MATH)
      : Owned(TS_GET(CreateConvolutionDescriptor), TS_GET(DestroyConvolutionDescriptor)) {
    EXPECT_EQ(TS_GET(SetConvolution2dDescriptor)(*this, 1, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION,
                                                 CUDNN_DATA_FLOAT),
              0);
    EXPECT_EQ(TS_GET(SetConvolutionMathType)(*this, math), 0);
  }
};
struct PoolingOf : Owned<cudnnPoolingDescriptor_t> {
  explicit PoolingOf(cudnnPoolingMode_t mode)
      : Owned(TS_GET(CreatePoolingDescriptor), TS_GET(DestroyPoolingDescriptor)) {
    EXPECT_EQ(TS_GET(SetPooling2dDescriptor)(*this, mode, CUDNN_NOT_PROPAGATE_NAN, 2, 2, 1, 1, 1, 1), 0);
  }
};
struct ReductionOf : Owned<cudnnReduceTensorDescriptor_t> {
  explicit ReductionOf(cudnnReduceTensorOp_t operation)
      : Owned(TS_GET(CreateReduceTensorDescriptor), TS_GET(DestroyReduceTensorDescriptor)) {
    EXPECT_EQ(TS_GET(SetReduceTensorDescriptor)(*this, operation, CUDNN_DATA_FLOAT, CUDNN_NOT_PROPAGATE_NAN,
                                                CUDNN_REDUCE_TENSOR_NO_INDICES, CUDNN_32BIT_INDICES),
              0);
  }
};
struct TensorOperationOf : Owned<cudnnOpTensorDescriptor_t> {
  explicit TensorOperationOf(cudnnOpTensorOp_t operation)
      : Owned(TS_GET(CreateOpTensorDescriptor), TS_GET(DestroyOpTensorDescriptor)) {
    EXPECT_EQ(TS_GET(SetOpTensorDescriptor)(*this, operation, CUDNN_DATA_FLOAT, CUDNN_NOT_PROPAGATE_NAN), 0);
  }
};

// The target of these pointers does not matter.
char g_byte;
void* const kHere = &g_byte;
void* const kNone = nullptr;
const cudnnHandle_t kHandle = nullptr;

class Cudnn : public testing::Test {
 protected:
  void SetUp() override { g_cudnn_function = reinterpret_cast<const void*>(TS_GET(ConvolutionForward)); }
};

// x: 210 elements, three channels; w: 48, 12 in the sum; y, with a padding of 1: 384.
struct Convolved {
  explicit Convolved(cudnnDataType_t type = CUDNN_DATA_FLOAT, cudnnMathType_t math = CUDNN_DEFAULT_MATH)
      : x(2, 3, 5, 7, type), w(4, 3, 2, 2, type), y(2, 4, 6, 8, type), bias(1, 4, 1, 1), convolution(math) {}
  TensorOf x;
  FilterOf w;
  TensorOf y, bias;
  ConvolutionOf convolution;

  Told forward() const {
    return told_cudnnConvolutionForward(kHandle, kHere, x, kHere, w, kHere, convolution, {}, kNone, 0, kHere,
                                        y, kHere);
  }
};

TEST_F(Cudnn, ConvolutionsInThreeDirections) {
  const Convolved c;
  constexpr uint64_t kFlop = 2 * 384 * 12;
  const Told forward = c.forward();
  EXPECT_EQ(cost(forward), (Cost{kFlop, 4 * (210 + 48 + 2 * 384)}));
  EXPECT_EQ(forward->shape, (operations::Shape{.dims = {2, 4, 6, 8, 3, 2, 2}, .n_dims = 7}));
  EXPECT_EQ(forward->types, (Types{Type::kF32, Type::kF32, Type::kF32}));
  EXPECT_EQ(cost(told_cudnnConvolutionBackwardData(kHandle, kHere, c.w, kHere, c.y, kHere, c.convolution, {},
                                                   kNone, 0, kHere, c.x, kHere)),
            (Cost{kFlop, 4 * (384 + 48 + 2 * 210)}));
  EXPECT_EQ(cost(told_cudnnConvolutionBackwardFilter(kHandle, kHere, c.x, kHere, c.y, kHere, c.convolution,
                                                     {}, kNone, 0, kHere, c.w, kHere)),
            (Cost{kFlop, 4 * (210 + 384 + 2 * 48)}));
  const auto fused = [&](const void* z) {
    return cost(told_cudnnConvolutionBiasActivationForward(kHandle, kHere, c.x, kHere, c.w, kHere,
                                                           c.convolution, {}, kNone, 0, kHere, c.y, z, c.bias,
                                                           kHere, nullptr, c.y, kHere));
  };
  EXPECT_EQ(fused(kHere), (Cost{kFlop + 2 * 384, 4 * (210 + 48 + 384 + 4 + 384)}));
  EXPECT_EQ(fused(kNone), (Cost{kFlop + 384, 4 * (210 + 48 + 4 + 384)}));
  EXPECT_EQ(cost(told_cudnnConvolutionBackwardBias(kHandle, kHere, c.y, kHere, kHere, c.bias, kHere)),
            (Cost{384, 4 * (384 + 2 * 4)}));
}

// Channels of a group are those of the filter.
TEST_F(Cudnn, ConvolutionsInGroups) {
  const TensorOf x(2, 6, 5, 7), y(2, 4, 6, 8);
  const FilterOf w(4, 3, 2, 2);
  const ConvolutionOf convolution;
  EXPECT_EQ(TS_GET(SetConvolutionGroupCount)(convolution, 2), 0);
  EXPECT_EQ(cost(told_cudnnConvolutionForward(kHandle, kHere, x, kHere, w, kHere, convolution, {}, kNone, 0,
                                              kHere, y, kHere)),
            (Cost{2 * 384 * 12, 4 * (420 + 48 + 2 * 384)}));
}

TEST_F(Cudnn, TheMathTypeSaysWhatComputes) {
  const struct {
    cudnnDataType_t type;
    cudnnMathType_t math;
    Type computed_as;
  } rows[] = {{CUDNN_DATA_FLOAT, CUDNN_DEFAULT_MATH, Type::kTF32},
              {CUDNN_DATA_FLOAT, CUDNN_TENSOR_OP_MATH, Type::kTF32},
              {CUDNN_DATA_FLOAT, CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION, Type::kF16},
              {CUDNN_DATA_FLOAT, CUDNN_FMA_MATH, Type::kF32},
              {CUDNN_DATA_HALF, CUDNN_DEFAULT_MATH, Type::kF16},
              {CUDNN_DATA_HALF, CUDNN_FMA_MATH, Type::kF32},
              {CUDNN_DATA_DOUBLE, CUDNN_DEFAULT_MATH, Type::kF64}};
  for (const auto& row : rows) {
    const Told told = Convolved(row.type, row.math).forward();
    ASSERT_TRUE(told) << row.type;
    EXPECT_EQ(told->computed_as, row.computed_as) << row.type << " " << row.math;
  }
}

TEST_F(Cudnn, Normalisations) {
  const TensorOf x(2, 3, 5, 7), c(1, 3, 1, 1);
  constexpr auto kSpatial = CUDNN_BATCHNORM_SPATIAL;
  EXPECT_EQ(cost(told_cudnnBatchNormalizationForwardInference(kHandle, kSpatial, kHere, kHere, x, kHere, x,
                                                              kHere, c, kHere, kHere, kHere, kHere, 1e-5)),
            (Cost{4 * 210 + 6, 4 * (210 + 4 * 3 + 420)}));
  const auto training = [&](void* kept) {
    return cost(told_cudnnBatchNormalizationForwardTraining(kHandle, kSpatial, kHere, kHere, x, kHere, x,
                                                            kHere, c, kHere, kHere, 0.5, kept, kept, 1e-5,
                                                            kept, kept));
  };
  EXPECT_EQ(training(kHere), (Cost{8 * 210 + 12 + 18, 4 * (210 + 6 + 12 + 6 + 420)}));
  EXPECT_EQ(training(kNone), (Cost{8 * 210 + 12, 4 * (210 + 6 + 420)}));
  EXPECT_EQ(cost(told_cudnnBatchNormalizationForwardTrainingEx(
                kHandle, kSpatial, {}, kHere, kHere, x, kHere, x, kHere, x, kHere, c, kHere, kHere, 0.5,
                kHere, kHere, 1e-5, kHere, kHere, nullptr, kNone, 0, kNone, 0)),
            (Cost{9 * 210 + 30, 4 * (210 + 6 + 12 + 6 + 210 + 420)}));
  EXPECT_EQ(
      cost(told_cudnnBatchNormalizationBackward(kHandle, kSpatial, kHere, kHere, kHere, kHere, x, kHere, x,
                                                kHere, x, kHere, c, kHere, kHere, kHere, 1e-5, kHere, kHere)),
      (Cost{2106, 4 * (420 + 3 + 18 + 420)}));
  EXPECT_EQ(cost(told_cudnnBatchNormalizationBackwardEx(
                kHandle, kSpatial, {}, kHere, kHere, kHere, kHere, x, kHere, x, kHere, x, kHere, x, kHere, x,
                kHere, c, kHere, kHere, kHere, kHere, 1e-5, kHere, kHere, nullptr, kNone, 0, kNone, 0)),
            (Cost{2106, 4 * (630 + 6 + 18 + 210 + 420)}));
  EXPECT_EQ(cost(told_cudnnNormalizationForwardInference(kHandle, {}, {}, {}, kHere, kHere, x, kHere, c,
                                                         kHere, kHere, c, kHere, kHere, x, kHere, nullptr, x,
                                                         kHere, 1e-5, 1)),
            (Cost{4 * 210 + 6 + 210, 4 * (210 + 6 + 6 + 210 + 420)}));
  EXPECT_EQ(cost(told_cudnnNormalizationForwardTraining(kHandle, {}, {}, {}, kHere, kHere, x, kHere, c, kHere,
                                                        kHere, 0.5, c, kHere, kHere, 1e-5, kHere, kHere,
                                                        nullptr, x, kHere, x, kHere, kNone, 0, kNone, 0, 1)),
            (Cost{9 * 210 + 30, 4 * (210 + 6 + 12 + 6 + 210 + 420)}));
  EXPECT_EQ(cost(told_cudnnNormalizationBackward(
                kHandle, {}, {}, {}, kHere, kHere, kHere, kHere, x, kHere, x, kHere, x, kHere, x, kHere, x,
                kHere, c, kHere, kHere, kHere, kHere, 1e-5, c, kHere, kHere, nullptr, kNone, 0, kNone, 0, 1)),
            (Cost{2106, 4 * (630 + 6 + 12 + 6 + 210 + 420)}));
}

TEST_F(Cudnn, LocalResponses) {
  const auto own = TS_OWNED(LRN);
  if (!own.exists()) GTEST_SKIP() << "not in this library";
  const TensorOf x(2, 3, 5, 7);
  ASSERT_EQ(TS_GET(SetLRNDescriptor)(own, 5, 1e-4, 0.75, 2), 0);
  EXPECT_EQ(cost(told_cudnnLRNCrossChannelForward(kHandle, own, {}, kHere, x, kHere, kHere, x, kHere)),
            (Cost{13 * 210, 4 * 630}));
  EXPECT_EQ(cost(told_cudnnLRNCrossChannelBackward(kHandle, own, {}, kHere, x, kHere, x, kHere, x, kHere,
                                                   kHere, x, kHere)),
            (Cost{23 * 210, 4 * (630 + 420)}));
}

// Windows of 2 x 2 with a padding of 1: 288 results.
TEST_F(Cudnn, Poolings) {
  const TensorOf x(2, 3, 5, 7), y(2, 3, 6, 8);
  const auto both = [&](cudnnPoolingMode_t mode) {
    const PoolingOf own(mode);
    return std::pair{
        cost(told_cudnnPoolingForward(kHandle, own, kHere, x, kHere, kHere, y, kHere)),
        cost(told_cudnnPoolingBackward(kHandle, own, kHere, y, kHere, y, kHere, x, kHere, kHere, x, kHere))};
  };
  constexpr uint64_t kForwardBytes = 4 * (210 + 576), kBackwardBytes = 4 * (576 + 210 + 420);
  for (const auto mode :
       {CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING, CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING})
    EXPECT_EQ(both(mode), std::pair(Cost{5 * 288, kForwardBytes}, Cost{5 * 288, kBackwardBytes}));
  for (const auto mode : {CUDNN_POOLING_MAX, CUDNN_POOLING_MAX_DETERMINISTIC})
    EXPECT_EQ(both(mode), std::pair(Cost{0, kForwardBytes}, Cost{288, kBackwardBytes}));
}

TEST_F(Cudnn, Softmax) {
  const TensorOf x(2, 3, 5, 7);
  const struct {
    cudnnSoftmaxAlgorithm_t algorithm;
    uint64_t forward, backward;  // for an element
  } rows[] = {{CUDNN_SOFTMAX_FAST, 2, 4}, {CUDNN_SOFTMAX_ACCURATE, 3, 4}, {CUDNN_SOFTMAX_LOG, 3, 3}};
  for (const auto& row : rows) {
    EXPECT_EQ(cost(told_cudnnSoftmaxForward(kHandle, row.algorithm, {}, kHere, x, kHere, kHere, x, kHere)),
              (Cost{row.forward * 210, 4 * 630}));
    EXPECT_EQ(cost(told_cudnnSoftmaxBackward(kHandle, row.algorithm, {}, kHere, x, kHere, x, kHere, kHere, x,
                                             kHere)),
              (Cost{row.backward * 210, 4 * 840}));
  }
}

TEST_F(Cudnn, ElementByElement) {
  const TensorOf x(2, 3, 5, 7), c(1, 3, 1, 1), half(2, 3, 5, 7, CUDNN_DATA_HALF);
  const FilterOf w(4, 3, 2, 2);
  EXPECT_EQ(cost(told_cudnnActivationForward(kHandle, nullptr, kHere, x, kHere, kHere, x, kHere)),
            (Cost{0, 4 * 630}));
  EXPECT_EQ(cost(told_cudnnActivationBackward(kHandle, nullptr, kHere, x, kHere, x, kHere, x, kHere, kHere, x,
                                              kHere)),
            (Cost{210, 4 * (630 + 420)}));
  EXPECT_EQ(cost(told_cudnnDropoutForward(kHandle, nullptr, x, kHere, x, kHere, kNone, 0)),
            (Cost{210, 4 * 420}));
  EXPECT_EQ(cost(told_cudnnDropoutBackward(kHandle, nullptr, x, kHere, x, kHere, kNone, 0)),
            (Cost{210, 4 * 420}));
  EXPECT_EQ(cost(told_cudnnAddTensor(kHandle, kHere, c, kHere, kHere, x, kHere)), (Cost{630, 4 * (3 + 420)}));
  EXPECT_EQ(cost(told_cudnnScaleTensor(kHandle, x, kHere, kHere)), (Cost{210, 4 * 420}));
  EXPECT_EQ(cost(told_cudnnSetTensor(kHandle, x, kHere, kHere)), (Cost{0, 4 * 210}));
  EXPECT_EQ(cost(told_cudnnTransformTensor(kHandle, kHere, half, kHere, kHere, x, kHere)),
            (Cost{0, 420 + 8 * 210}));
  EXPECT_EQ(cost(told_cudnnTransformTensorEx(kHandle, nullptr, kHere, x, kHere, kHere, x, kHere)),
            (Cost{0, 4 * 630}));
  EXPECT_EQ(cost(told_cudnnTransformFilter(kHandle, nullptr, kHere, w, kHere, kHere, w, kHere)),
            (Cost{0, 4 * 144}));
}

TEST_F(Cudnn, OperationsOnTensorsAndReductions) {
  const TensorOf x(2, 3, 5, 7), c(1, 3, 1, 1);
  const auto operation = [&](cudnnOpTensorOp_t which, const void* b) {
    const TensorOperationOf own(which);
    return cost(told_cudnnOpTensor(kHandle, own, kHere, x, kHere, kHere, c, b, kHere, x, kHere));
  };
  EXPECT_EQ(operation(CUDNN_OP_TENSOR_ADD, kHere), (Cost{210, 4 * (210 + 3 + 420)}));
  EXPECT_EQ(operation(CUDNN_OP_TENSOR_MUL, kHere), (Cost{210, 4 * (210 + 3 + 420)}));
  EXPECT_EQ(operation(CUDNN_OP_TENSOR_MIN, kHere), (Cost{0, 4 * (210 + 3 + 420)}));
  EXPECT_EQ(operation(CUDNN_OP_TENSOR_SQRT, kNone), (Cost{0, 4 * 630}));
  const auto reduction = [&](cudnnReduceTensorOp_t which) {
    const ReductionOf own(which);
    const Cost all =
        cost(told_cudnnReduceTensor(kHandle, own, kNone, 0, kNone, 0, kHere, x, kHere, kHere, c, kHere));
    EXPECT_EQ(all.bytes, 4u * (210 + 6));
    return all.flop;
  };
  EXPECT_EQ(reduction(CUDNN_REDUCE_TENSOR_ADD), 210u);
  EXPECT_EQ(reduction(CUDNN_REDUCE_TENSOR_MUL), 210u);
  EXPECT_EQ(reduction(CUDNN_REDUCE_TENSOR_MAX), 0u);
  EXPECT_EQ(reduction(CUDNN_REDUCE_TENSOR_AMAX), 0u);
  EXPECT_EQ(reduction(CUDNN_REDUCE_TENSOR_AVG), 213u);
  EXPECT_EQ(reduction(CUDNN_REDUCE_TENSOR_NORM1), 210u);
  EXPECT_EQ(reduction(CUDNN_REDUCE_TENSOR_NORM2), 420u);
}

// An LSTM of two layers, 3 -> 4 -> 4, over two sequences of 5 and 3 steps: 16 x (3 + 4 + 4 + 4) multiplications a step.
TEST_F(Cudnn, RecurrentNetworks) {
  const auto network = TS_OWNED(RNN);
  const auto x = TS_OWNED(RNNData), y = TS_OWNED(RNNData);
  if (!network.exists() || !x.exists()) GTEST_SKIP() << "not in this library";
  const auto set = [&](cudnnRNNMode_t cell, cudnnDirectionMode_t direction, cudnnRNNInputMode_t input_mode,
                       int input, int projection) {
    EXPECT_EQ(
        TS_GET(SetRNNDescriptor_v8)(network, CUDNN_RNN_ALGO_STANDARD, cell, CUDNN_RNN_DOUBLE_BIAS, direction,
                                    input_mode, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, CUDNN_DEFAULT_MATH, input,
                                    4, projection, 2, nullptr, CUDNN_RNN_PADDED_IO_ENABLED),
        0);
  };
  const int lengths[] = {5, 3};
  const auto sequences = [&](cudnnRNNDataDescriptor_t to, int width) {
    EXPECT_EQ(TS_GET(SetRNNDataDescriptor)(to, CUDNN_DATA_FLOAT, CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED,
                                           5, 2, width, lengths, nullptr),
              0);
  };
  set(CUDNN_LSTM, CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT, 3, 4);
  sequences(x, 3), sequences(y, 4);
  const TensorOf states(2, 2, 4, 1);
  const auto forward = [&](cudnnForwardMode_t mode, void* state) {
    return told_cudnnRNNForward(kHandle, network, mode, nullptr, x, kHere, y, kHere, states, state, state,
                                states, state, state, 1000, kHere, 0, kNone, 77, kNone);
  };
  constexpr uint64_t kFlop = 2 * 8 * 240, kSequences = 4 * 8 * 3, kResults = 4 * 8 * 4, kState = 4 * 16;
  const Told inference = forward(CUDNN_FWD_MODE_INFERENCE, kHere);
  EXPECT_EQ(cost(inference), (Cost{kFlop, kSequences + kResults + 1000 + 4 * kState}));
  EXPECT_EQ(inference->shape, (operations::Shape{.dims = {5, 2, 3, 4, 2, 1}, .n_dims = 6}));
  EXPECT_EQ(inference->computed_as, Type::kTF32);
  EXPECT_EQ(cost(forward(CUDNN_FWD_MODE_TRAINING, kNone)), (Cost{kFlop, kSequences + kResults + 1077}));
  EXPECT_EQ(cost(told_cudnnRNNBackwardData_v8(kHandle, network, nullptr, y, kHere, kHere, x, kHere, states,
                                              kHere, kHere, kHere, states, kHere, kHere, kHere, 1000, kHere,
                                              0, kNone, 77, kNone)),
            (Cost{kFlop, kSequences + 2 * kResults + 1077 + 6 * kState}));
  EXPECT_EQ(cost(told_cudnnRNNBackwardWeights_v8(kHandle, network, CUDNN_WGRAD_MODE_ADD, nullptr, x, kHere,
                                                 states, kHere, y, kHere, 1000, kHere, 0, kNone, 77, kNone)),
            (Cost{kFlop, kSequences + kResults + 2077 + kState}));
  // GRU in both directions: 3 gates; the second layer takes what both give. With a projection to 2, of an LSTM: its product, too.
  set(CUDNN_GRU, CUDNN_BIDIRECTIONAL, CUDNN_LINEAR_INPUT, 3, 4);
  sequences(y, 8);
  EXPECT_EQ(cost(forward(CUDNN_FWD_MODE_INFERENCE, kNone)).flop, 2u * 8 * 2 * 3 * 4 * (3 + 8 + 4 + 4));
  set(CUDNN_LSTM, CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT, 3, 2);
  sequences(y, 2);
  EXPECT_EQ(cost(forward(CUDNN_FWD_MODE_INFERENCE, kNone)).flop,
            2u * 8 * (4 * 4 * (3 + 2 + 2 + 2) + 2 * 4 * 2));
  // An input that is not multiplied.
  set(CUDNN_RNN_TANH, CUDNN_UNIDIRECTIONAL, CUDNN_SKIP_INPUT, 4, 4);
  sequences(x, 4), sequences(y, 4);
  EXPECT_EQ(cost(forward(CUDNN_FWD_MODE_INFERENCE, kNone)).flop, 2u * 8 * 4 * (0 + 4 + 4 + 4));
}

// Elements of vectors of integers are counted one by one.
TEST_F(Cudnn, VectorsOfChannels) {
  const auto tensor = TS_OWNED(Tensor);
  if (TS_GET(SetTensor4dDescriptor)(tensor, CUDNN_TENSOR_NCHW_VECT_C, CUDNN_DATA_INT8x4, 2, 8, 3, 5) != 0)
    GTEST_SKIP() << "not in this library";
  EXPECT_EQ(cost(told_cudnnSetTensor(kHandle, tensor, kHere, kHere)), (Cost{0, 240}));
  size_t bytes = 0;
  EXPECT_EQ(TS_GET(GetTensorSizeInBytes)(tensor, &bytes), 0);
  EXPECT_EQ(bytes, 240u);
}

// A descriptor's contents may change between two calls.
TEST_F(Cudnn, DescriptorsAreReadAtEachCall) {
  const TensorOf x(2, 3, 5, 7);
  EXPECT_EQ(cost(told_cudnnScaleTensor(kHandle, x, kHere, kHere)).flop, 210u);
  EXPECT_EQ(TS_GET(SetTensor4dDescriptor)(x, CUDNN_TENSOR_NCHW, CUDNN_DATA_HALF, 1, 1, 2, 2), 0);
  EXPECT_EQ(cost(told_cudnnScaleTensor(kHandle, x, kHere, kHere)), (Cost{4, 16}));
}

TEST_F(Cudnn, WhatIsMissingIsNotTold) {
  const Convolved c;
  const auto unset = TS_OWNED(Tensor);
  const auto forward = [&](cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                           cudnnConvolutionDescriptor_t convolution) {
    return told_cudnnConvolutionForward(kHandle, kHere, x, kHere, w, kHere, convolution, {}, kNone, 0, kHere,
                                        c.y, kHere);
  };
  EXPECT_TRUE(forward(c.x, c.w, c.convolution));
  EXPECT_FALSE(forward(c.x, nullptr, c.convolution));
  EXPECT_FALSE(forward(c.x, c.w, nullptr));
  EXPECT_FALSE(forward(unset, c.w, c.convolution));
  EXPECT_FALSE(told_cudnnSetTensor(kHandle, nullptr, kHere, kHere));
  EXPECT_FALSE(told_cudnnBackendExecute(kHandle, kHere, kHere));  // of plans: graphs_test.cc
  EXPECT_FALSE(told_cudnnPoolingForward(kHandle, nullptr, kHere, c.x, kHere, kHere, c.y, kHere));
  EXPECT_FALSE(told_cudnnRNNForward(kHandle, nullptr, {}, nullptr, nullptr, kHere, nullptr, kHere, nullptr,
                                    kNone, kNone, nullptr, kNone, kNone, 0, kNone, 0, kNone, 0, kNone));
}

// ---- pieces

// The request that a piece makes of the library.
struct Asked {
  std::vector<uint64_t> values;
  static int keep(const void* to, const uint64_t* values) {
    auto& asked = *static_cast<Asked*>(const_cast<void*>(to));
    for (uint64_t& value : asked.values) value = *values++;
    return 0;
  }
};
struct Read {
  int type = -1, n = 0, dims[8] = {}, strides[8] = {};
  explicit Read(uint64_t tensor) {
    cudnnDataType_t data_type;
    EXPECT_EQ(TS_GET(GetTensorNdDescriptor)(reinterpret_cast<cudnnTensorDescriptor_t>(tensor), 8, &data_type,
                                            &n, dims, strides),
              0);
    type = data_type;
  }
  bool operator==(const Read&) const = default;
};

class Pieces : public Cudnn {
 protected:
  ConvolutionArguments arguments(const TensorOf& x, const TensorOf& y) const {
    return {.handle = this,
            .filter = w_,
            .convolution = convolution_,
            .algorithm = 1,
            .workspace = 0,
            .workspace_bytes = 0,
            .alpha = &one_,
            .beta = &one_,
            .x = {x, 0x1'0000'0000},
            .z = {},
            .y = {y, 0x2'0000'0000},
            .bias = nullptr,
            .activation = nullptr,
            .of_gradient = false};
  }
  const void* function() const { return reinterpret_cast<const void*>(TS_GET(ConvolutionForward)); }
  FilterOf w_{5, 3, 3, 3, CUDNN_DATA_HALF};
  ConvolutionOf convolution_;
  Asked asked_;
  const Repeater keep_{Asked::keep, &asked_};
  const float one_ = 1;
};

TEST_F(Pieces, TensorsAreTheProgramsWithFewerImages) {
  for (const cudnnTensorFormat_t format : {CUDNN_TENSOR_NCHW, CUDNN_TENSOR_NHWC}) {
    const TensorOf x(10, 3, 8, 9, CUDNN_DATA_HALF, format), y(10, 5, 8, 9, CUDNN_DATA_HALF, format);
    ConvolutionCall call(function(), keep_, arguments(x, y));
    const auto cut = call.cut(4);
    ASSERT_EQ(cut, (operations::Split{operations::SplitAxis::kBatch, 10, 3}));
    EXPECT_NE(call.settings(), 0u);
    const auto result = call.result();
    EXPECT_EQ(operations::region_of(result->shape, result->c)->extent(), 2u * 10 * 5 * 72);
    asked_.values.resize(4);
    ASSERT_EQ(call.issue(*cut, 3, 0x3'0000'0000), 0);
    EXPECT_EQ(asked_.values[1], 0x1'0000'0000u + 2 * 9 * 3 * 72);
    EXPECT_EQ(asked_.values[3], 0x3'0000'0000u + 2 * 9 * 5 * 72);
    const TensorOf x_piece(1, 3, 8, 9, CUDNN_DATA_HALF, format), y_piece(1, 5, 8, 9, CUDNN_DATA_HALF, format);
    const auto read = [](cudnnTensorDescriptor_t tensor) { return Read(reinterpret_cast<uint64_t>(tensor)); };
    EXPECT_EQ(Read(asked_.values[0]), read(x_piece));
    EXPECT_EQ(Read(asked_.values[2]), read(y_piece));
  }
}

TEST_F(Pieces, WhatBitsDependOnMakesAnotherClass) {
  const TensorOf x(10, 3, 8, 9, CUDNN_DATA_HALF), y(10, 5, 8, 9, CUDNN_DATA_HALF),
      x_last(10, 3, 8, 9, CUDNN_DATA_HALF, CUDNN_TENSOR_NHWC), x_float(10, 3, 8, 9);
  std::set<uint64_t> classes;
  const ConvolutionArguments whole = arguments(x, y);
  const auto add = [&](const ConvolutionArguments& given) {
    ConvolutionCall call(function(), keep_, given);
    EXPECT_TRUE(call.cut(4));
    const uint64_t key = call.settings();
    EXPECT_NE(key, 0u);
    EXPECT_TRUE(classes.insert(key).second);
  };
  const auto with = [&](auto&& change) {
    ConvolutionArguments given = whole;
    change(given);
    add(given);
  };
  add(whole);
  const float two = 2;
  const FilterOf other_filter(5, 3, 3, 2, CUDNN_DATA_HALF);
  const ConvolutionOf fma(CUDNN_FMA_MATH), strided, grouped;
  EXPECT_EQ(TS_GET(SetConvolution2dDescriptor)(strided, 1, 1, 2, 1, 1, 1, CUDNN_CROSS_CORRELATION,
                                               CUDNN_DATA_FLOAT),
            0);
  EXPECT_EQ(TS_GET(SetConvolutionGroupCount)(grouped, 3), 0);
  with([&](ConvolutionArguments& c) { c.alpha = &two; });
  with([&](ConvolutionArguments& c) { c.beta = &two; });
  with([&](ConvolutionArguments& c) { c.algorithm = 0; });
  with([&](ConvolutionArguments& c) { c.workspace_bytes = 100; });
  with([&](ConvolutionArguments& c) { c.workspace = 16; });
  with([&](ConvolutionArguments& c) { c.x.address += 2; });
  with([&](ConvolutionArguments& c) { c.x.descriptor = x_last; });
  with([&](ConvolutionArguments& c) { c.x.descriptor = x_float; });
  with([&](ConvolutionArguments& c) { c.filter = other_filter; });
  with([&](ConvolutionArguments& c) { c.convolution = fma; });
  with([&](ConvolutionArguments& c) { c.convolution = strided; });
  with([&](ConvolutionArguments& c) { c.convolution = grouped; });
  const auto relu = TS_OWNED(Activation), clipped = TS_OWNED(Activation);
  EXPECT_EQ(TS_GET(SetActivationDescriptor)(relu, CUDNN_ACTIVATION_RELU, CUDNN_NOT_PROPAGATE_NAN, 0), 0);
  EXPECT_EQ(
      TS_GET(SetActivationDescriptor)(clipped, CUDNN_ACTIVATION_CLIPPED_RELU, CUDNN_NOT_PROPAGATE_NAN, 6), 0);
  for (const auto& activation : {&relu, &clipped})
    with([&](ConvolutionArguments& c) { c.z = c.y, c.activation = *activation; });
}

TEST_F(Pieces, WhatCannotBeCut) {
  const TensorOf x(10, 3, 8, 9, CUDNN_DATA_HALF), y(10, 5, 8, 9, CUDNN_DATA_HALF),
      fewer(9, 3, 8, 9, CUDNN_DATA_HALF), bytes(10, 3, 8, 9, CUDNN_DATA_INT8);
  const auto is_cut = [&](const ConvolutionArguments& given) {
    return ConvolutionCall(function(), keep_, given).cut(4).has_value();
  };
  EXPECT_TRUE(is_cut(arguments(x, y)));
  EXPECT_FALSE(is_cut(arguments(fewer, y)));
  EXPECT_FALSE(is_cut(arguments(bytes, y)));
  ConvolutionArguments overlapping = arguments(x, y);
  overlapping.x.address = overlapping.y.address + 100;
  EXPECT_FALSE(is_cut(overlapping));
  ConvolutionArguments shifted = arguments(x, y);
  shifted.z = {shifted.y.descriptor, shifted.y.address + 2};
  EXPECT_FALSE(is_cut(shifted));
  shifted.z = shifted.y;
  EXPECT_TRUE(is_cut(shifted));
}

}  // namespace
}  // namespace tessera::library

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc < 2) return 2;
  tessera::library::g_path = argv[1];
  int failed = RUN_ALL_TESTS();
  const bool all_rows = argc == 3 && std::string(argv[2]) == "all";
#define TS_CALL(symbol, base, params, args, what)               \
  if (all_rows && !tessera::library::g_tried.contains(#symbol)) \
    failed = 1, fprintf(stderr, "no test tries the row of %s\n", #symbol);
#include "interpose/operations/cudnn_calls.def"
  return failed;
}

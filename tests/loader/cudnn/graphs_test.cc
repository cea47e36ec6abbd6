// Reads graphs of NVIDIA's cuDNN, which makes them without a GPU up to heuristics and engines.   cudnn_graphs_test LIBRARY
#include <cudnn.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "interpose/operations/cudnn.h"
#include "interpose/operations/cudnn_graphs.h"

namespace tessera::library {
namespace {

using operations::Cost;

const char* g_path = nullptr;

template <class Function>
Function* get(Function*, const char* name) {
  static void* const library = dlopen(g_path, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(library ? dlsym(library, name) : nullptr);
}
#define TS_GET(name) get(static_cast<decltype(&cudnnBackend##name)>(nullptr), "cudnnBackend" #name)

// As the hooks see it.
class Made {
 public:
  explicit Made(int type) {
    EXPECT_EQ(TS_GET(CreateDescriptor)(cudnnBackendDescriptorType_t(type), &descriptor_), 0) << type;
    graph_descriptor_made(&descriptor_);
  }
  ~Made() {
    graph_descriptor_goes(descriptor_);
    EXPECT_EQ(TS_GET(DestroyDescriptor)(descriptor_), 0);
  }
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;

  template <class T>
  Made& set(int attribute, cudnnBackendAttributeType_t type, std::initializer_list<T> values) {
    const int status = TS_GET(SetAttribute)(descriptor_, cudnnBackendAttributeName_t(attribute), type,
                                            int64_t(values.size()), values.begin());
    EXPECT_EQ(status, 0) << attribute;
    if (status == 0)
      graph_attribute_set(descriptor_, attribute, type, int64_t(values.size()), values.begin());
    return *this;
  }
  Made& give(int attribute, std::initializer_list<const Made*> given) {
    std::vector<void*> all;
    for (const Made* one : given) all.push_back(one->descriptor_);
    const int status = TS_GET(SetAttribute)(descriptor_, cudnnBackendAttributeName_t(attribute),
                                            CUDNN_TYPE_BACKEND_DESCRIPTOR, int64_t(all.size()), all.data());
    EXPECT_EQ(status, 0) << attribute;
    if (status == 0)
      graph_attribute_set(descriptor_, attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, int64_t(all.size()),
                          all.data());
    return *this;
  }
  Made& finish() {
    EXPECT_EQ(TS_GET(Finalize)(descriptor_), 0);
    return *this;
  }
  const void* descriptor() const { return descriptor_; }

 private:
  void* descriptor_ = nullptr;
};

struct TensorOf : Made {
  TensorOf(int64_t id, std::initializer_list<int64_t> dims, cudnnDataType_t type = CUDNN_DATA_HALF,
           bool is_virtual = false)
      : Made(CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
    int64_t strides[8], stride = 1;
    for (size_t i = dims.size(); i-- > 0; stride *= dims.begin()[i]) strides[i] = stride;
    set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, {type});
    set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, dims);
    if (dims.size() == 4)
      set<int64_t>(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64,
                   {strides[0], strides[1], strides[2], strides[3]});
    else
      set<int64_t>(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, {strides[0], strides[1], strides[2]});
    set<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, {id});
    set<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, {16});
    set<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, {is_virtual});
    finish();
  }
};
constexpr bool kVirtual = true;

// A graph of these operations, as far as it is known. The library itself takes finished operations only, which for some takes more
// attributes than count here: it is not asked.
std::optional<Operation> told(std::initializer_list<const Made*> operations) {
  Made graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  std::vector<const void*> all;
  for (const Made* one : operations) all.push_back(one->descriptor());
  graph_attribute_set(graph.descriptor(), CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                      int64_t(all.size()), all.data());
  Operation out{};
  return describe(GraphPlan{graph.descriptor()}, &out) ? std::optional(out) : std::nullopt;
}
Cost cost(std::initializer_list<const Made*> operations) {
  const auto out = told(operations);
  EXPECT_TRUE(out);
  return out ? out->cost : Cost{};
}

class Graphs : public testing::Test {
 protected:
  void SetUp() override { g_cudnn_function = reinterpret_cast<const void*>(TS_GET(Execute)); }
};

TEST_F(Graphs, AConvolutionWithItsActivation) {
  const TensorOf x(1, {2, 64, 8, 8}), w(2, {32, 64, 3, 3}), y(3, {2, 32, 8, 8}),
      between(4, {2, 32, 8, 8}, CUDNN_DATA_FLOAT, kVirtual);
  Made how(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  how.set<int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, {2})
      .set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, {CUDNN_DATA_FLOAT})
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, {CUDNN_CROSS_CORRELATION});
  for (const auto attribute : {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS,
                               CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES})
    how.set<int64_t>(attribute, CUDNN_TYPE_INT64, {1, 1});
  how.finish();
  Made convolution(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
  convolution.give(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, {&x})
      .give(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, {&w})
      .give(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, {&between})
      .give(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, {&how})
      .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, {1.0f})
      .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, {0.0f})
      .finish();
  Made relu(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  relu.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, {CUDNN_POINTWISE_RELU_FWD})
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, {CUDNN_DATA_FLOAT})
      .finish();
  Made activation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  activation.give(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, {&relu})
      .give(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, {&between})
      .give(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, {&y})
      .finish();
  // The filter's sum is 64 x 3 x 3, though the library inserts a group in what it keeps of the filter.
  const auto both = told({&convolution, &activation});
  ASSERT_TRUE(both);
  EXPECT_EQ(both->cost, (Cost{2 * 4096 * 576, 2 * (8192 + 32 * 576 + 4096)}));
  EXPECT_EQ(both->shape, (operations::Shape{.dims = {2, 32, 8, 8, 576}, .n_dims = 5}));
  EXPECT_EQ(both->entry, Entry::cudnnBackendExecute);
  EXPECT_EQ(both->computed_as, Type::kF16);
}

struct Product {
  explicit Product(cudnnDataType_t type)
      : a(1, {3, 16, 8}, type), b(2, {3, 8, 32}, type), c(3, {3, 16, 32}, type) {
    how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, {CUDNN_DATA_FLOAT}).finish();
    operation.give(CUDNN_ATTR_OPERATION_MATMUL_ADESC, {&a})
        .give(CUDNN_ATTR_OPERATION_MATMUL_BDESC, {&b})
        .give(CUDNN_ATTR_OPERATION_MATMUL_CDESC, {&c})
        .give(CUDNN_ATTR_OPERATION_MATMUL_DESC, {&how})
        .finish();
  }
  TensorOf a, b, c;
  Made how{CUDNN_BACKEND_MATMUL_DESCRIPTOR}, operation{CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR};
};
constexpr Cost kProduct{2 * 3 * 16 * 32 * 8, 4 * (384 + 768 + 1536)};

TEST_F(Graphs, AProductOfSinglePrecision) {
  const Product product(CUDNN_DATA_FLOAT);
  const auto alone = told({&product.operation});
  ASSERT_TRUE(alone);
  EXPECT_EQ(alone->cost, kProduct);
  EXPECT_EQ(alone->computed_as, Type::kTF32);
  EXPECT_EQ(alone->shape, (operations::Shape{.dims = {3, 16, 32, 8}, .n_dims = 4}));
}

TEST_F(Graphs, ReductionsAndPooling) {
  const TensorOf x(1, {2, 4, 8, 8}), y(2, {1, 4, 1, 1}), halved(3, {2, 4, 4, 4});
  Made norm(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  norm.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, {CUDNN_REDUCE_TENSOR_NORM2})
      .set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, {CUDNN_DATA_FLOAT});
  Made reduction(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  reduction.give(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, {&x})
      .give(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, {&y})
      .give(CUDNN_ATTR_OPERATION_REDUCTION_DESC, {&norm});
  EXPECT_EQ(cost({&reduction}), (Cost{2 * 512, 2 * (512 + 4)}));
  Made windows(CUDNN_BACKEND_RESAMPLE_DESCRIPTOR);
  windows.set(CUDNN_ATTR_RESAMPLE_MODE, CUDNN_TYPE_RESAMPLE_MODE, {CUDNN_RESAMPLE_AVGPOOL_INCLUDE_PADDING})
      .set(CUDNN_ATTR_RESAMPLE_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, {CUDNN_DATA_FLOAT})
      .set<int64_t>(CUDNN_ATTR_RESAMPLE_SPATIAL_DIMS, CUDNN_TYPE_INT64, {2})
      .set(CUDNN_ATTR_RESAMPLE_PADDING_MODE, CUDNN_TYPE_PADDING_MODE, {CUDNN_ZERO_PAD});
  for (const auto attribute : {CUDNN_ATTR_RESAMPLE_WINDOW_DIMS, CUDNN_ATTR_RESAMPLE_STRIDES})
    windows.set<int64_t>(attribute, CUDNN_TYPE_INT64, {2, 2});
  for (const auto attribute : {CUDNN_ATTR_RESAMPLE_PRE_PADDINGS, CUDNN_ATTR_RESAMPLE_POST_PADDINGS})
    windows.set<int64_t>(attribute, CUDNN_TYPE_INT64, {0, 0});
  Made pooling(CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR);
  pooling.give(CUDNN_ATTR_OPERATION_RESAMPLE_FWD_XDESC, {&x})
      .give(CUDNN_ATTR_OPERATION_RESAMPLE_FWD_YDESC, {&halved})
      .give(CUDNN_ATTR_OPERATION_RESAMPLE_FWD_DESC, {&windows});
  EXPECT_EQ(cost({&pooling}), (Cost{5 * 128, 2 * (512 + 128)}));
}

TEST_F(Graphs, Attention) {
  const TensorOf q(1, {2, 3, 16, 8}), k(2, {2, 3, 32, 8}), v(3, {2, 3, 32, 8}), o(4, {2, 3, 16, 8});
  Made attention(CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR);
  attention.give(CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, {&q})
      .give(CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, {&k})
      .give(CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, {&v})
      .give(CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, {&o});
  EXPECT_EQ(cost({&attention}), (Cost{4 * 2 * 3 * 16 * 32 * 8, 2 * (2 * 768 + 2 * 1536)}));
}

TEST_F(Graphs, NormalisationByItsMode) {
  const TensorOf x(1, {8, 64, 1, 1}), scale(2, {1, 64, 1, 1}, CUDNN_DATA_FLOAT), y(3, {8, 64, 1, 1});
  const auto with = [&](cudnnBackendNormMode_t mode, cudnnBackendNormFwdPhase_t phase) {
    Made norm(CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR);
    norm.set(CUDNN_ATTR_OPERATION_NORM_FWD_MODE, CUDNN_TYPE_NORM_MODE, {mode})
        .set(CUDNN_ATTR_OPERATION_NORM_FWD_PHASE, CUDNN_TYPE_NORM_FWD_PHASE, {phase})
        .give(CUDNN_ATTR_OPERATION_NORM_FWD_XDESC, {&x})
        .give(CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC, {&scale})
        .give(CUDNN_ATTR_OPERATION_NORM_FWD_YDESC, {&y});
    return cost({&norm});
  };
  constexpr uint64_t kBytes = 2 * 512 + 4 * 64 + 2 * 512;
  EXPECT_EQ(with(CUDNN_LAYER_NORM, CUDNN_NORM_FWD_INFERENCE), (Cost{8 * 512, kBytes}));
  EXPECT_EQ(with(CUDNN_RMS_NORM, CUDNN_NORM_FWD_TRAINING), (Cost{4 * 512, kBytes}));
  EXPECT_EQ(with(CUDNN_BATCH_NORM, CUDNN_NORM_FWD_INFERENCE), (Cost{4 * 512, kBytes}));
}

// Up to the plan, which takes a GPU: the last links are told by hand.
TEST_F(Graphs, TheSumGoesFromDescriptorToDescriptor) {
  const Product product(CUDNN_DATA_FLOAT);
  Made graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR), heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR),
      engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  graph.give(CUDNN_ATTR_OPERATIONGRAPH_OPS, {&product.operation}).finish();
  heuristic.give(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, {&graph});
  engine.give(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, {&graph});
  Operation out{};
  for (const Made* one : {&heuristic, &engine}) {
    EXPECT_TRUE(describe(GraphPlan{one->descriptor()}, &out));
    EXPECT_EQ(out.cost, kProduct);
  }
  char places[4];
  void* const configurations[] = {&places[0], &places[1]};
  const int64_t n = 1;  // two were asked for, one was found
  graph_attribute_read(heuristic.descriptor(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                       2, &n, configurations);
  EXPECT_TRUE(describe(GraphPlan{configurations[0]}, &out));
  EXPECT_FALSE(describe(GraphPlan{configurations[1]}, &out));
  const void* const plan = &places[2];
  graph_attribute_set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                      configurations);
  out = {};
  EXPECT_TRUE(describe(GraphPlan{plan}, &out));
  EXPECT_EQ(out.cost, kProduct);
  // A plan that is given another configuration, of which nothing is known.
  graph_attribute_set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                      &configurations[1]);
  EXPECT_FALSE(describe(GraphPlan{plan}, &out));
  graph_descriptor_goes(configurations[0]);
  EXPECT_FALSE(describe(GraphPlan{configurations[0]}, &out));
}

TEST_F(Graphs, WhatCannotBeReadIsNotTold) {
  const Product product(CUDNN_DATA_FLOAT);
  Made unfinished(CUDNN_BACKEND_TENSOR_DESCRIPTOR), operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  operation.give(CUDNN_ATTR_OPERATION_MATMUL_ADESC, {&unfinished})
      .give(CUDNN_ATTR_OPERATION_MATMUL_BDESC, {&product.b});
  EXPECT_FALSE(told({&operation}));
  EXPECT_FALSE(told({&product.operation, &operation}));
  Made empty(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  EXPECT_FALSE(told({&empty}));
  Operation out{};
  EXPECT_FALSE(describe(GraphPlan{nullptr}, &out));
  EXPECT_FALSE(describe(GraphPlan{&out}, &out));
}

// Given once more, the second one counts.
TEST_F(Graphs, ATensorThatIsReplaced) {
  const Product product(CUDNN_DATA_FLOAT);
  const TensorOf small(9, {3, 16, 8}), c(3, {3, 16, 32});
  Made operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  for (const Made* a : {static_cast<const Made*>(&product.c), static_cast<const Made*>(&small)})
    operation.give(CUDNN_ATTR_OPERATION_MATMUL_ADESC, {a});
  operation.give(CUDNN_ATTR_OPERATION_MATMUL_CDESC, {&c});
  EXPECT_EQ(cost({&operation}), (Cost{kProduct.flop, 2 * (384 + 1536)}));
}

// More than fit are not known; what fits stays right, and places are given back.
TEST_F(Graphs, MoreThanFit) {
  const Product product(CUDNN_DATA_FLOAT);
  Made graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.give(CUDNN_ATTR_OPERATIONGRAPH_OPS, {&product.operation});
  std::vector<char> places(40'000);
  const void* const from = graph.descriptor();
  size_t known = 0;
  for (char& place : places) {
    graph_attribute_set(&place, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &from);
    Operation out{};
    if (!describe(GraphPlan{&place}, &out)) continue;
    known++;
    ASSERT_EQ(out.cost, kProduct);
  }
  EXPECT_GT(known, 4'000u);
  EXPECT_LT(known, 9'000u);
  for (char& place : places) graph_descriptor_goes(&place);
  for (char& place : std::span(places).first(1'000)) {
    Operation out{};
    EXPECT_FALSE(describe(GraphPlan{&place}, &out));
    graph_attribute_set(&place, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &from);
    EXPECT_TRUE(describe(GraphPlan{&place}, &out));
    graph_descriptor_goes(&place);
  }
}

}  // namespace
}  // namespace tessera::library

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 2) return 2;
  tessera::library::g_path = argv[1];
  return RUN_ALL_TESTS();
}

// Reads cuBLASLt's descriptors. The library is the toolkit's own, which needs no driver for that, or the software GPU's
// stand-in. Each runs in its own process, as a process has one such library:   lt_descriptors_test LIBRARY
#include <cublasLt.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>

#include <memory>
#include <random>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "interpose/operations/lt.h"
#include "interpose/operations/lt_places.h"
#include "interpose/operations/split_lt.h"

namespace tessera::library {
namespace {

const char* g_path = nullptr;

template <class Function>
Function* get(Function*, const char* name) {
  static void* const library = dlopen(g_path, RTLD_NOW | RTLD_LOCAL);
  void* const found = library ? dlsym(library, name) : nullptr;
  if (!found) fprintf(stderr, "%s: no %s: %s\n", g_path, name, dlerror());
  return reinterpret_cast<Function*>(found);
}
#define TS_GET(name) get(static_cast<decltype(&name)>(nullptr), #name)

// ---- what is read

class Layout {
 public:
  Layout(cudaDataType type, uint64_t rows, uint64_t columns, int32_t count = 1) {
    EXPECT_EQ(TS_GET(cublasLtMatrixLayoutCreate)(&layout_, type, rows, columns, int64_t(rows)), 0);
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, count);
  }
  ~Layout() { TS_GET(cublasLtMatrixLayoutDestroy)(layout_); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;

  template <class T>
  void set(cublasLtMatrixLayoutAttribute_t attribute, T value) {
    EXPECT_EQ(TS_GET(cublasLtMatrixLayoutSetAttribute)(layout_, attribute, &value, sizeof value), 0)
        << attribute;
  }
  const void* get_descriptor() const { return layout_; }

 private:
  cublasLtMatrixLayout_t layout_ = nullptr;
};

class Product {
 public:
  explicit Product(cublasComputeType_t compute = CUBLAS_COMPUTE_32F, cudaDataType scale = CUDA_R_32F) {
    EXPECT_EQ(TS_GET(cublasLtMatmulDescCreate)(&matmul_, compute, scale), 0);
  }
  ~Product() { TS_GET(cublasLtMatmulDescDestroy)(matmul_); }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  template <class T>
  Product& set(cublasLtMatmulDescAttributes_t attribute, T value) {
    EXPECT_EQ(TS_GET(cublasLtMatmulDescSetAttribute)(matmul_, attribute, &value, sizeof value), 0)
        << attribute;
    return *this;
  }
  const void* get_descriptor() const { return matmul_; }

 private:
  cublasLtMatmulDesc_t matmul_ = nullptr;
};

struct Told {
  bool told;
  Operation operation;
};
Told told(const Product& product, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  Told out{};
  out.told = describe(LtMatmul{product.get_descriptor(), a.get_descriptor(), b.get_descriptor(),
                               c.get_descriptor(), d.get_descriptor()},
                      &out.operation);
  return out;
}
operations::Cost cost_of(const Product& product, const Layout& a, const Layout& b, const Layout& d) {
  const Told out = told(product, a, b, d, d);
  EXPECT_TRUE(out.told);
  return out.operation.cost;
}

class Descriptors : public testing::Test {
 protected:
  void SetUp() override { g_lt_function = reinterpret_cast<const void*>(TS_GET(cublasLtMatmul)); }
};

// D 3 x 5, 7 in the sum: 210 FLOP; 21, 35, 15, 15 elements.
TEST_F(Descriptors, AProductByItsLayouts) {
  const Layout a(CUDA_R_16F, 3, 7), b(CUDA_R_16F, 7, 5), c(CUDA_R_16F, 3, 5), d(CUDA_R_32F, 3, 5);
  const Told out = told(Product(), a, b, c, d);
  ASSERT_TRUE(out.told);
  EXPECT_EQ(out.operation.cost, (operations::Cost{210, 2 * (21 + 35 + 15) + 4 * 15}));
  EXPECT_EQ(out.operation.shape, (operations::Shape{.dims = {3, 5, 7}, .count = 1, .n_dims = 3}));
  EXPECT_EQ(out.operation.types, (Types{Type::kF16, Type::kF16, Type::kF32}));
  EXPECT_EQ(out.operation.computed_as, Type::kF16);
}

TEST_F(Descriptors, TransposesAreSeen) {
  const Layout a(CUDA_R_32F, 7, 3), b(CUDA_R_32F, 5, 7), d(CUDA_R_32F, 3, 5);
  Product product;
  product.set(CUBLASLT_MATMUL_DESC_TRANSA, int32_t(CUBLAS_OP_T))
      .set(CUBLASLT_MATMUL_DESC_TRANSB, int32_t(CUBLAS_OP_T));
  EXPECT_EQ(cost_of(product, a, b, d), (operations::Cost{210, 4 * 86}));
  product.set(CUBLASLT_MATMUL_DESC_TRANSA, int32_t(CUBLAS_OP_C));
  EXPECT_EQ(cost_of(product, a, b, d), (operations::Cost{210, 4 * 86}));
}

TEST_F(Descriptors, RowsMajorAndBatches) {
  Layout a(CUDA_R_32F, 3, 7, 11), b(CUDA_R_32F, 7, 5, 11), d(CUDA_R_32F, 3, 5, 11);
  for (Layout* layout : {&a, &b, &d}) layout->set(CUBLASLT_MATRIX_LAYOUT_ORDER, int32_t(CUBLASLT_ORDER_ROW));
  const Told out = told(Product(), a, b, d, d);
  EXPECT_EQ(out.operation.cost, (operations::Cost{2310, 11 * 4 * 86}));
  EXPECT_EQ(out.operation.shape.count, 11);
}

TEST_F(Descriptors, EpiloguesWithTheirTypes) {
  const Layout a(CUDA_R_16F, 3, 7), b(CUDA_R_16F, 7, 5), d(CUDA_R_16F, 3, 5);
  const struct {
    uint32_t epilogue;
    operations::Cost added;
  } rows[] = {{CUBLASLT_EPILOGUE_RELU, {0, 0}},
              {CUBLASLT_EPILOGUE_BIAS, {15, 6}},
              {CUBLASLT_EPILOGUE_RELU_BIAS, {15, 6}},
              {CUBLASLT_EPILOGUE_GELU, {0, 0}},
              {CUBLASLT_EPILOGUE_GELU_BIAS, {15, 6}},
              {CUBLASLT_EPILOGUE_RELU_AUX, {0, 2}},
              {CUBLASLT_EPILOGUE_RELU_AUX_BIAS, {15, 8}},
              {CUBLASLT_EPILOGUE_DRELU, {0, 2}},
              {CUBLASLT_EPILOGUE_DRELU_BGRAD, {15, 8}},
              {CUBLASLT_EPILOGUE_GELU_AUX, {0, 30}},
              {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, {15, 36}},
              {CUBLASLT_EPILOGUE_DGELU, {0, 30}},
              {CUBLASLT_EPILOGUE_DGELU_BGRAD, {15, 36}},
              {CUBLASLT_EPILOGUE_BGRADA, {21, 6}},
              {CUBLASLT_EPILOGUE_BGRADB, {35, 10}}};
  for (const auto& [epilogue, added] : rows) {
    Product product;
    product.set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    EXPECT_EQ(cost_of(product, a, b, d), (operations::Cost{210, 172} + added)) << epilogue;
  }
  Product product;
  product.set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(CUBLASLT_EPILOGUE_GELU_AUX_BIAS))
      .set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t(CUDA_R_32F))
      .set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, int32_t(CUDA_R_8F_E4M3));
  EXPECT_EQ(cost_of(product, a, b, d), (operations::Cost{225, 172 + 12 + 15}));
}

TEST_F(Descriptors, FactorsOfBlocksOfSmallTypes) {
  const Layout a(CUDA_R_8F_E4M3, 70, 3), b(CUDA_R_8F_E4M3, 70, 130), d(CUDA_R_8F_E4M3, 3, 130);
  Product product;
  product.set(CUBLASLT_MATMUL_DESC_TRANSA, int32_t(CUBLAS_OP_T));
  const operations::Cost bare{2 * 3 * 130 * 70, 10090};
  EXPECT_EQ(cost_of(product, a, b, d), bare);
  product.set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, int32_t(CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0));
  EXPECT_EQ(cost_of(product, a, b, d), (bare + operations::Cost{0, 9}));
  product.set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, int32_t(CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0));
  EXPECT_EQ(cost_of(product, a, b, d), (bare + operations::Cost{0, 9 + 3 * 130}));
  product.set(CUBLASLT_MATMUL_DESC_D_OUT_SCALE_MODE, int32_t(CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0));
  EXPECT_EQ(cost_of(product, a, b, d), (bare + operations::Cost{0, 9 + 3 * 130 + 130}));
}

TEST_F(Descriptors, TheComputeTypeIsSeen) {
  const Layout a(CUDA_R_32F, 3, 7), b(CUDA_R_32F, 7, 5), d(CUDA_R_32F, 3, 5);
  EXPECT_EQ(told(Product(), a, b, d, d).operation.computed_as, Type::kF32);
  EXPECT_EQ(told(Product(CUBLAS_COMPUTE_32F_FAST_TF32), a, b, d, d).operation.computed_as, Type::kTF32);
  EXPECT_EQ(told(Product(CUBLAS_COMPUTE_32F_FAST_16BF), a, b, d, d).operation.computed_as, Type::kBF16);
}

TEST_F(Descriptors, ConversionsOfLayouts) {
  const Layout a(CUDA_R_8I, 3, 5, 2), b(CUDA_R_8I, 3, 5, 2), c(CUDA_R_32F, 3, 5, 2);
  const auto cost = [&](bool has_b) {
    Operation out;
    EXPECT_TRUE(
        describe(LtTransform{a.get_descriptor(), b.get_descriptor(), c.get_descriptor(), has_b}, &out));
    return out.cost;
  };
  EXPECT_EQ(cost(false), (operations::Cost{30, 2 * (15 + 60)}));
  EXPECT_EQ(cost(true), (operations::Cost{90, 2 * (15 + 15 + 60)}));
}

// In the program's own storage, with whatever lay there.
TEST_F(Descriptors, OfThePrograms) {
  for (const int garbage : {0x00, 0xab, 0xff}) {
    cublasLtMatrixLayoutOpaque_t a, b, d;
    cublasLtMatmulDescOpaque_t matmul;
    for (auto [storage, bytes] :
         {std::pair<void*, size_t>{&a, sizeof a}, {&b, sizeof b}, {&d, sizeof d}, {&matmul, sizeof matmul}})
      memset(storage, garbage, bytes);
    const auto init = TS_GET(cublasLtMatrixLayoutInit_internal);
    ASSERT_EQ(init(&a, sizeof a, CUDA_R_64F, 3, 7, 3), 0);
    ASSERT_EQ(init(&b, sizeof b, CUDA_R_64F, 7, 5, 7), 0);
    ASSERT_EQ(init(&d, sizeof d, CUDA_R_64F, 3, 5, 3), 0);
    ASSERT_EQ(TS_GET(cublasLtMatmulDescInit_internal)(&matmul, sizeof matmul, CUBLAS_COMPUTE_64F, CUDA_R_64F),
              0);
    Operation out;
    ASSERT_TRUE(describe(LtMatmul{&matmul, &a, &b, &d, &d}, &out));
    EXPECT_EQ(out.cost, (operations::Cost{210, 8 * 86}));
  }
}

// Attributes of descriptors change between calls.
TEST_F(Descriptors, OneDescriptorWithOneValueAfterTheOther) {
  std::mt19937 random(14);
  Layout a(CUDA_R_32F, 1, 1), b(CUDA_R_32F, 1, 1), d(CUDA_R_32F, 1, 1);
  Product product;
  for (int i = 0; i < 3000; i++) {
    const auto size = [&] { return uint64_t(1 + random() % 8); };
    const uint64_t m = size(), n = size(), k = size();
    const auto shape = [](Layout& layout, uint64_t rows, uint64_t columns) {
      layout.set(CUBLASLT_MATRIX_LAYOUT_ROWS, rows);
      layout.set(CUBLASLT_MATRIX_LAYOUT_COLS, columns);
    };
    shape(a, m, k), shape(b, k, n), shape(d, m, n);
    product.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(uint64_t(random())));
    ASSERT_EQ(cost_of(product, a, b, d), (operations::Cost{2 * m * n * k, 4 * (m * k + k * n + 2 * m * n)}))
        << i;
  }
}

template <class T, class Reader, class Attribute>
void expect_agreement(const Reader& reader, const void* descriptor, Attribute attribute) {
  ASSERT_NE(reader.places[attribute], library::kNoPlace) << attribute;
  T here{}, asked{};
  ASSERT_TRUE(reader.read(descriptor, attribute, &here));
  ASSERT_TRUE(reader.ask(descriptor, attribute, &asked, sizeof asked));
  EXPECT_EQ(here, asked) << attribute;
}

// All that is read has a place, and its getter says what stands there, whatever else the descriptor is given.
TEST_F(Descriptors, PlacesAgreeWithGetters) {
  LtPlaces places{};
  ASSERT_TRUE(find_places(dlopen(g_path, RTLD_NOW | RTLD_LOCAL), &places));
  cublasLtMatrixLayoutOpaque_t layout;
  cublasLtMatmulDescOpaque_t matmul;
  ASSERT_EQ(TS_GET(cublasLtMatrixLayoutInit_internal)(&layout, sizeof layout, CUDA_R_32F, 1, 1, 1), 0);
  ASSERT_EQ(TS_GET(cublasLtMatmulDescInit_internal)(&matmul, sizeof matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F),
            0);
  std::mt19937_64 random(16);
  for (int i = 0; i < 20'000; i++) {
    const uint64_t value = random() >> (random() % 64);
    const auto number = int(random() % 48);
    const size_t bytes = size_t{1} << (random() % 4);
    // Refused where this is no attribute, or no value of it.
    TS_GET(cublasLtMatrixLayoutSetAttribute)(&layout, cublasLtMatrixLayoutAttribute_t(number), &value, bytes);
    TS_GET(cublasLtMatmulDescSetAttribute)(&matmul, cublasLtMatmulDescAttributes_t(number), &value, bytes);
    for (const auto a : {kLayoutRows, kLayoutColumns}) expect_agreement<int64_t>(places.layout, &layout, a);
    for (const auto a : {kLayoutType, kLayoutBatch}) expect_agreement<int32_t>(places.layout, &layout, a);
    for (const auto a : {kComputeType, kTransposeA, kEpilogue, kAuxiliaryType, kVectorType, kScaleModeA,
                         kScaleModeB, kScaleModeC, kScaleModeD, kOutScaleModeD})
      expect_agreement<int32_t>(places.matmul, &matmul, a);
    if (HasFailure()) return;
  }
}

TEST_F(Descriptors, WhatIsMissingOrMeaninglessIsNotTold) {
  const Layout a(CUDA_R_32F, 3, 7), d(CUDA_R_32F, 3, 5), strange(cudaDataType(77), 3, 5);
  Layout negative(CUDA_R_32F, 3, 5);
  negative.set(CUBLASLT_MATRIX_LAYOUT_ROWS, uint64_t(1) << 63);
  const Product product;
  Operation out;
  const LtMatmul whole{product.get_descriptor(), a.get_descriptor(), a.get_descriptor(), d.get_descriptor(),
                       d.get_descriptor()};
  for (const void* LtMatmul::*part :
       {&LtMatmul::operation, &LtMatmul::a, &LtMatmul::b, &LtMatmul::c, &LtMatmul::d}) {
    LtMatmul what = whole;
    what.*part = nullptr;
    EXPECT_FALSE(describe(what, &out));
  }
  EXPECT_FALSE(told(product, a, a, d, strange).told);
  EXPECT_FALSE(told(product, a, a, d, negative).told);
  EXPECT_FALSE(told(Product().set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(12345)), a, a, d, d).told);
  EXPECT_FALSE(describe(LtTransform{a.get_descriptor(), nullptr, d.get_descriptor(), true}, &out));
  EXPECT_FALSE(describe(LtTransform{nullptr, nullptr, d.get_descriptor(), false}, &out));
}

// ---- pieces

static_assert(sizeof(LtCheckResult) == sizeof(cublasLtMatmulHeuristicResult_t) &&
              offsetof(LtCheckResult, workspace_bytes) ==
                  offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) &&
              sizeof LtCheckResult::algorithm == sizeof(cublasLtMatmulAlgo_t) &&
              sizeof(cublasLtMatrixLayoutOpaque_t) == kLayoutWords * sizeof(uint64_t) &&
              sizeof(cublasLtMatmulDescOpaque_t) == kMatmulWords * sizeof(uint64_t));

TEST_F(Descriptors, AreWholeInTheRoomThatTheHeaderGivesThem) {
  const auto layout = reinterpret_cast<InitLayout>(TS_GET(cublasLtMatrixLayoutInit_internal));
  const auto matmul = reinterpret_cast<InitMatmul>(TS_GET(cublasLtMatmulDescInit_internal));
  EXPECT_TRUE(are_whole_in<kLayoutWords>(layout));
  EXPECT_TRUE(are_whole_in<kMatmulWords>(matmul));
  // NVIDIA's library makes an older kind here.
  EXPECT_FALSE(are_whole_in<7>(matmul));
}

// Whether an algorithm does is asked with the call's handle: without one there is no answer.
TEST_F(Descriptors, NoAlgorithmDoesWithoutAHandle) {
  const Layout a(CUDA_R_32F, 8, 8);
  const Product product;
  cublasLtMatmulAlgo_t algorithm{};
  cublasLtMatmulHeuristicResult_t result{};
  const auto layout = static_cast<cublasLtMatrixLayout_t>(const_cast<void*>(a.get_descriptor()));
  EXPECT_EQ(TS_GET(cublasLtMatmulAlgoCheck)(
                nullptr, static_cast<cublasLtMatmulDesc_t>(const_cast<void*>(product.get_descriptor())),
                layout, layout, layout, layout, &algorithm, &result),
            CUBLAS_STATUS_NOT_INITIALIZED);
}

// The request that a piece makes of the library.
struct Asked {
  const void* operation;
  uint64_t a, b, c, d;
  const void *a_layout, *b_layout, *c_layout, *d_layout;
  static int keep(const void* to, const uint64_t* values) {
    auto& asked = *static_cast<Asked*>(const_cast<void*>(to));
    const auto at = [&](size_t i) { return reinterpret_cast<const void*>(values[i]); };
    asked = {at(0), values[1], values[3], values[5], values[7], at(2), at(4), at(6), at(8)};
    return 0;
  }
};
int64_t attribute(const void* layout, cublasLtMatrixLayoutAttribute_t number) {
  int64_t value = 0;
  size_t written = 0;
  const bool wide = number != CUBLASLT_MATRIX_LAYOUT_TYPE && number != CUBLASLT_MATRIX_LAYOUT_ORDER &&
                    number != CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
  EXPECT_EQ(
      TS_GET(cublasLtMatrixLayoutGetAttribute)(static_cast<cublasLtMatrixLayout_t>(const_cast<void*>(layout)),
                                               number, &value, wide ? 8 : 4, &written),
      0);
  return value;
}

class Pieces : public Descriptors {
 protected:
  LtArguments arguments(const Product& product, const Layout& a, const Layout& b, const Layout& c,
                        const Layout& d) const {
    return {.handle = this,
            .operation = product.get_descriptor(),
            .alpha = &one_,
            .beta = &one_,
            .a = {0x1'0000'0000, a.get_descriptor()},
            .b = {0x2'0000'0000, b.get_descriptor()},
            .c = {0x3'0000'0000, c.get_descriptor()},
            .d = {0x4'0000'0000, d.get_descriptor()},
            .algorithm = nullptr,
            .workspace = 0,
            .workspace_bytes = 0,
            .stream = nullptr};
  }
  const void* function() const { return reinterpret_cast<const void*>(TS_GET(cublasLtMatmul)); }
  Asked asked_ = {};
  const Repeater keep_{Asked::keep, &asked_};
  const float one_ = 1;
};

TEST_F(Pieces, LayoutsAreTheProgramsButForTheirSize) {
  Layout a(CUDA_R_16F, 9, 300), b(CUDA_R_16F, 9, 200), c(CUDA_R_16F, 300, 200), d(CUDA_R_16F, 300, 200);
  a.set(CUBLASLT_MATRIX_LAYOUT_LD, int64_t{11});
  d.set(CUBLASLT_MATRIX_LAYOUT_ORDER, int32_t(CUBLASLT_ORDER_ROW));
  d.set(CUBLASLT_MATRIX_LAYOUT_LD, int64_t{208});
  Product product;
  product.set(CUBLASLT_MATMUL_DESC_TRANSA, int32_t(CUBLAS_OP_T));
  LtCall call(function(), keep_, arguments(product, a, b, c, d));
  const auto cut = call.cut(4);
  ASSERT_EQ(cut, (operations::Split{operations::SplitAxis::kRows, 300, 128}));
  EXPECT_NE(call.settings(), 0u);
  ASSERT_EQ(call.issue(*cut, 2, 0x5'0000'0000), 0);
  EXPECT_EQ(asked_.a, 0x1'0000'0000u + 2 * 256 * 11);
  EXPECT_EQ(asked_.b, 0x2'0000'0000u);
  EXPECT_EQ(asked_.c, 0x3'0000'0000u + 2 * 256);
  EXPECT_EQ(asked_.d, 0x5'0000'0000u + 2 * 256 * 208);
  const struct {
    const void* layout;
    int64_t rows, columns, leading, order;
  } expected[] = {{asked_.a_layout, 9, 44, 11, CUBLASLT_ORDER_COL},
                  {asked_.b_layout, 9, 200, 9, CUBLASLT_ORDER_COL},
                  {asked_.c_layout, 44, 200, 300, CUBLASLT_ORDER_COL},
                  {asked_.d_layout, 44, 200, 208, CUBLASLT_ORDER_ROW}};
  for (const auto& x : expected) {
    EXPECT_EQ(attribute(x.layout, CUBLASLT_MATRIX_LAYOUT_TYPE), CUDA_R_16F);
    EXPECT_EQ(attribute(x.layout, CUBLASLT_MATRIX_LAYOUT_ROWS), x.rows);
    EXPECT_EQ(attribute(x.layout, CUBLASLT_MATRIX_LAYOUT_COLS), x.columns);
    EXPECT_EQ(attribute(x.layout, CUBLASLT_MATRIX_LAYOUT_LD), x.leading);
    EXPECT_EQ(attribute(x.layout, CUBLASLT_MATRIX_LAYOUT_ORDER), x.order);
  }
  // The program's are as they were.
  EXPECT_EQ(attribute(d.get_descriptor(), CUBLASLT_MATRIX_LAYOUT_ROWS), 300);
}

TEST_F(Pieces, BatchesByTheBatch) {
  Layout a(CUDA_R_32F, 3, 7, 10), b(CUDA_R_32F, 7, 5, 10), d(CUDA_R_32F, 3, 5, 10);
  b.set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, int64_t{40});
  d.set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, int64_t{15});
  const Product product;
  LtArguments given = arguments(product, a, b, d, d);
  given.c = given.d;
  LtCall call(function(), keep_, given);
  const auto cut = call.cut(4);
  ASSERT_EQ(cut, (operations::Split{operations::SplitAxis::kBatch, 10, 3}));
  ASSERT_EQ(call.issue(*cut, 3, 0x5'0000'0000), 0);
  EXPECT_EQ(asked_.a, 0x1'0000'0000u);  // the same for all
  EXPECT_EQ(asked_.b, 0x2'0000'0000u + 4 * 9 * 40);
  EXPECT_EQ(asked_.d, 0x5'0000'0000u + 4 * 9 * 15);
  EXPECT_EQ(asked_.c, asked_.d);
  for (const void* layout : {asked_.a_layout, asked_.b_layout, asked_.c_layout, asked_.d_layout})
    EXPECT_EQ(attribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT), 1);
  EXPECT_EQ(attribute(asked_.b_layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET), 40);
}

// By its number; empty: it has none.
std::vector<uint8_t> attribute_of_product(const void* product, int number) {
  const auto descriptor = static_cast<cublasLtMatmulDesc_t>(const_cast<void*>(product));
  const auto attribute = cublasLtMatmulDescAttributes_t(number);
  const auto read = TS_GET(cublasLtMatmulDescGetAttribute);
  size_t bytes = 0, written = 0;
  if (read(descriptor, attribute, nullptr, 0, &bytes) != 0) return {};
  std::vector<uint8_t> value(bytes);
  EXPECT_EQ(read(descriptor, attribute, value.data(), bytes, &written), 0) << number;
  EXPECT_EQ(written, bytes);
  return value;
}

// Every attribute is read back from the copy: nothing in a descriptor is elsewhere, or points into it.
TEST_F(Pieces, WithAnSmTargetOfItsOwnAProductIsOtherwiseTheSame) {
  const Layout a(CUDA_R_16F, 512, 8), b(CUDA_R_16F, 8, 512), d(CUDA_R_16F, 512, 512);
  std::mt19937_64 random(18);
  uint32_t set = 0;
  for (int round = 0; round < 200; round++) {
    Product product;
    const auto descriptor = static_cast<cublasLtMatmulDesc_t>(const_cast<void*>(product.get_descriptor()));
    for (int number = 0; number < 64; number++) {
      const uint64_t value = random() >> (random() % 64);
      const auto attribute = cublasLtMatmulDescAttributes_t(number);
      if (attribute == CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET) continue;
      for (const size_t bytes : {1, 4, 8})
        set += TS_GET(cublasLtMatmulDescSetAttribute)(descriptor, attribute, &value, bytes) == 0;
    }
    const cublasLtMatmulDescOpaque_t before = *descriptor;
    LtCall call(function(), keep_, arguments(product, a, b, d, d));
    ASSERT_TRUE(call.narrow(96));
    ASSERT_EQ(call.issue_whole(), 0);
    ASSERT_NE(asked_.operation, descriptor);
    EXPECT_EQ(memcmp(&before, descriptor, sizeof before), 0);
    EXPECT_EQ(asked_.a_layout, a.get_descriptor());
    EXPECT_EQ(asked_.d, 0x4'0000'0000u);
    const cublasLtMatmulDescOpaque_t copy = *static_cast<const cublasLtMatmulDescOpaque_t*>(asked_.operation);
    for (int number = 0; number < 64; number++) {
      if (number == CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET) {
        EXPECT_EQ(attribute_of_product(&copy, number), (std::vector<uint8_t>{96, 0, 0, 0}));
        EXPECT_EQ(attribute_of_product(descriptor, number), (std::vector<uint8_t>{0, 0, 0, 0}));
      } else {
        EXPECT_EQ(attribute_of_product(&copy, number), attribute_of_product(descriptor, number)) << number;
      }
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(set, 200u * 20);
}

TEST_F(Pieces, OfAProgramsOwnSmTargetAndItsAlgorithm) {
  const Layout a(CUDA_R_16F, 512, 8), b(CUDA_R_16F, 8, 512), d(CUDA_R_16F, 512, 512);
  const auto is_narrowed = [&](int32_t target, const void* algorithm) {
    Product product;
    product.set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, target);
    LtArguments given = arguments(product, a, b, d, d);
    given.algorithm = algorithm;
    LtCall call(function(), keep_, given);
    const bool narrowed = call.narrow(96);
    EXPECT_EQ(call.issue_whole(), 0);
    EXPECT_EQ(asked_.operation != product.get_descriptor(), narrowed);
    return narrowed;
  };
  const cublasLtMatmulAlgo_t algorithm{};
  EXPECT_TRUE(is_narrowed(0, nullptr));
  EXPECT_TRUE(is_narrowed(128, nullptr));
  EXPECT_FALSE(is_narrowed(96, nullptr));
  EXPECT_FALSE(is_narrowed(64, nullptr));
  EXPECT_FALSE(is_narrowed(0, &algorithm));
}

// Each makes another class, or cannot be cut.
TEST_F(Pieces, WhatBitsDependOnMakesAnotherClass) {
  const Layout a(CUDA_R_16F, 512, 8), b(CUDA_R_16F, 8, 512), d(CUDA_R_16F, 512, 512);
  std::set<uint64_t> classes;
  const auto add = [&](const LtArguments& given) {
    LtCall call(function(), keep_, given);
    EXPECT_TRUE(call.cut(4));
    const uint64_t key = call.settings();
    EXPECT_NE(key, 0u);
    EXPECT_TRUE(classes.insert(key).second);
  };
  const Product plain;
  const LtArguments whole = arguments(plain, a, b, d, d);
  add(whole);
  const auto with = [&](auto&& change) {
    LtArguments given = whole;
    change(given);
    add(given);
  };
  const float two = 2;
  cublasLtMatmulAlgo_t one{{1}}, other{{1, 0, 0, 0, 0, 0, 0, 1}};
  with([&](LtArguments& x) { x.alpha = &two; });
  with([&](LtArguments& x) { x.beta = &two; });
  with([&](LtArguments& x) { x.a.address += 2; });
  with([&](LtArguments& x) { x.d.address += 64; });
  with([&](LtArguments& x) { x.c = x.d; });
  with([&](LtArguments& x) { x.algorithm = &one; });
  with([&](LtArguments& x) { x.algorithm = &other; });
  with([&](LtArguments& x) { x.workspace_bytes = 100; });
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    Product product;
    product.set(attribute, value);
    add(arguments(product, a, b, d, d));
  };
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(CUBLASLT_EPILOGUE_GELU));
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(CUBLASLT_EPILOGUE_BIAS));
  set(CUBLASLT_MATMUL_DESC_POINTER_MODE, int32_t(CUBLASLT_POINTER_MODE_DEVICE));
  set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t(1));
  set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, int32_t(64));
  set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t(CUDA_R_32F));
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(&two));
  set(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, static_cast<const void*>(&two));
  const Product in_half(CUBLAS_COMPUTE_16F, CUDA_R_16F);
  add(arguments(in_half, a, b, d, d));
  Layout longer(CUDA_R_16F, 512, 8), apart(CUDA_R_16F, 512, 512);
  longer.set(CUBLASLT_MATRIX_LAYOUT_LD, int64_t{520});
  apart.set(CUBLASLT_MATRIX_LAYOUT_LD, int64_t{520});
  add(arguments(plain, longer, b, d, d));
  add(arguments(plain, a, b, apart, d));
  // The place of a factor or a bias is no part of it.
  Product elsewhere;
  elsewhere.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(&one_));
  LtCall call(function(), keep_, arguments(elsewhere, a, b, d, d));
  EXPECT_TRUE(call.cut(4));
  EXPECT_TRUE(classes.contains(call.settings()));
}

TEST_F(Pieces, ABiasLeavesColumnsOnly) {
  const Layout a(CUDA_R_32F, 1024, 8), b(CUDA_R_32F, 8, 256), d(CUDA_R_32F, 1024, 256);
  Product product;
  LtCall plain(function(), keep_, arguments(product, a, b, d, d));
  EXPECT_EQ(plain.cut(2), (operations::Split{operations::SplitAxis::kRows, 1024, 512}));
  product.set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(CUBLASLT_EPILOGUE_BIAS));
  LtCall biased(function(), keep_, arguments(product, a, b, d, d));
  EXPECT_EQ(biased.cut(2), (operations::Split{operations::SplitAxis::kColumns, 256, 128}));
}

TEST_F(Pieces, COverlapsDOrIsIt) {
  const Layout a(CUDA_R_32F, 512, 8), b(CUDA_R_32F, 8, 512), d(CUDA_R_32F, 512, 512);
  Layout apart(CUDA_R_32F, 512, 512);
  apart.set(CUBLASLT_MATRIX_LAYOUT_LD, int64_t{520});
  const Product product;
  LtArguments given = arguments(product, a, b, d, d);
  const auto is_cut = [&] { return LtCall(function(), keep_, given).cut(4).has_value(); };
  for (const auto& [distance, expected] : {std::pair<int64_t, bool>{0, true},
                                           {4, false},
                                           {-4, false},
                                           {512 * 512 * 4, true},
                                           {512 * 512 * 4 - 4, false}}) {
    given.c.address = given.d.address + uint64_t(distance);
    EXPECT_EQ(is_cut(), expected) << distance;
  }
  given.c = {given.d.address, apart.get_descriptor()};
  EXPECT_FALSE(is_cut());
  given.c.address = 0;
  EXPECT_TRUE(is_cut());
}

// Any bytes at all in the place of descriptors: told or not, and the library reads them back as before.
// Any bytes at all in the place of descriptors: told or not, and the library reads them back as before.
TEST_F(Descriptors, AnyBytes) {
  std::mt19937_64 random(15);
  cublasLtMatrixLayoutOpaque_t layouts[4];
  cublasLtMatmulDescOpaque_t matmul;
  for (int i = 0; i < 20'000; i++) {
    for (auto& layout : layouts)
      for (uint64_t& word : layout.data) word = random() >> (random() % 64);
    for (uint64_t& word : matmul.data) word = random() >> (random() % 64);
    const auto before = matmul;
    Operation out;
    describe(LtMatmul{&matmul, &layouts[0], &layouts[1], &layouts[2], &layouts[3]}, &out);
    describe(LtTransform{&layouts[0], &layouts[1], &layouts[2], i % 2 == 0}, &out);
    ASSERT_EQ(memcmp(&before, &matmul, sizeof matmul), 0);
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

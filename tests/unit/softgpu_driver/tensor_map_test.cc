// Tensor maps through the driver: what encoding accepts, and a matrix product as kernels for compute
// capability 9.0 write it, compiled by nvcc, against a host loop.
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "support.h"

namespace softgpu_driver_test {
namespace {

class TensorMaps : public Cuda {
 protected:
  struct Arguments {
    CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    unsigned rank = 2;
    uint64_t address = 4096;
    cuuint64_t sizes[5] = {64, 64, 4, 4, 4};
    cuuint64_t strides[4] = {256, 16384, 65536, 262144};
    cuuint32_t box[5] = {32, 8, 1, 1, 1}, steps[5] = {1, 1, 1, 1, 1};
    CUtensorMapInterleave interleave = CU_TENSOR_MAP_INTERLEAVE_NONE;
    CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
    CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_NONE;
    CUtensorMapFloatOOBfill fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
  };
  static CUresult encode(CUtensorMap* map, const Arguments& a) {
    return cuTensorMapEncodeTiled(map, a.type, a.rank, reinterpret_cast<void*>(a.address), a.sizes, a.strides,
                                  a.box, a.steps, a.interleave, a.swizzle, a.promotion, a.fill);
  }
  template <class Change>
  static CUresult with(Change change) {
    Arguments a;
    change(a);
    CUtensorMap map;
    return encode(&map, a);
  }
};

TEST_F(TensorMaps, EncodingChecksItsArguments) {
  EXPECT_CU(with([](Arguments&) {}));
  EXPECT_CU(with([](Arguments& a) { a.rank = 1; }));
  EXPECT_CU(with([](Arguments& a) { a.rank = 5; }));
  EXPECT_CU(with([](Arguments& a) { a.sizes[1] = cuuint64_t{1} << 32; }));
  EXPECT_CU(with([](Arguments& a) { a.swizzle = CU_TENSOR_MAP_SWIZZLE_128B; }));
  EXPECT_CU(with([](Arguments& a) { a.fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA; }));
  const auto invalid = [](auto change) { EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, with(change)); };
  invalid([](Arguments& a) { a.rank = 0; });
  invalid([](Arguments& a) { a.rank = 6; });
  invalid([](Arguments& a) { a.address = 0; });
  invalid([](Arguments& a) { a.address = 4104; });
  invalid([](Arguments& a) { a.sizes[0] = 0; });
  invalid([](Arguments& a) { a.sizes[1] = (cuuint64_t{1} << 32) + 1; });
  invalid([](Arguments& a) { a.strides[0] = 264; });
  invalid([](Arguments& a) { a.strides[0] = cuuint64_t{1} << 40; });
  invalid([](Arguments& a) { a.box[1] = 257; });
  invalid([](Arguments& a) { a.box[0] = 0; });
  invalid([](Arguments& a) { a.box[0] = 30; });
  invalid([](Arguments& a) { a.steps[1] = 9; });
  invalid([](Arguments& a) { a.steps[1] = 0; });
  invalid([](Arguments& a) { a.box[0] = 64, a.swizzle = CU_TENSOR_MAP_SWIZZLE_128B; });
  invalid([](Arguments& a) {
    a.type = CU_TENSOR_MAP_DATA_TYPE_INT32, a.fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
  });
  const auto unsupported = [](auto change) { EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, with(change)); };
  unsupported([](Arguments& a) { a.type = CU_TENSOR_MAP_DATA_TYPE_TFLOAT32; });
  unsupported([](Arguments& a) { a.type = CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B; });
  unsupported([](Arguments& a) { a.rank = 3, a.interleave = CU_TENSOR_MAP_INTERLEAVE_32B; });
  unsupported([](Arguments& a) { a.swizzle = CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B; });
  unsupported([](Arguments& a) { a.box[0] = 16, a.swizzle = CU_TENSOR_MAP_SWIZZLE_128B; });
  Arguments a;
  CUtensorMap map;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, encode(nullptr, a));
  ASSERT_CU(encode(&map, a));
  EXPECT_CU(cuTensorMapReplaceAddress(&map, reinterpret_cast<void*>(8192)));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuTensorMapReplaceAddress(&map, reinterpret_cast<void*>(8200)));
  std::memset(static_cast<void*>(&map), 0, sizeof map);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuTensorMapReplaceAddress(&map, reinterpret_cast<void*>(8192)));
}

// Small whole numbers as binary16.
uint16_t half(int x) {
  if (x == 0) return 0;
  const unsigned sign = x < 0 ? 0x8000 : 0, m = unsigned(x < 0 ? -x : x);
  unsigned e = 0;
  while (m >> (e + 1)) ++e;
  return uint16_t(sign | (e + 15) << 10 | ((m << 10 >> e) & 0x3ff));
}

// A product of two matrices of small whole numbers, in memory and on the host; sizes are no multiples of the
// tiles, so that boxes stick out of all three matrices.
class Products : public TensorMaps {
 protected:
  static constexpr unsigned kColumns = 72, kDepth = 328;
  void prepare(unsigned rows) {
    rows_ = rows;
    unsigned x = 1;
    const auto numbers = [&](unsigned n) {
      std::vector<int> v(n);
      for (int& each : v) each = int((x = x * 1664525 + 1013904223) >> 20) % 9 - 4;
      return v;
    };
    const auto upload = [&](const std::vector<int>& values) {
      std::vector<uint16_t> halves;
      for (int v : values) halves.push_back(half(v));
      const CUdeviceptr p = alloc(halves.size() * 2);
      EXPECT_CU(cuMemcpyHtoD(p, halves.data(), halves.size() * 2));
      return p;
    };
    a_ = numbers(rows * kDepth), b_ = numbers(kColumns * kDepth);
    pa_ = upload(a_), pb_ = upload(b_), pc_ = alloc(rows * kColumns * 4);
    ASSERT_CU(cuMemsetD32(pc_, 0xffffffff, rows * kColumns));
    std::ifstream in(TESSERA_TEST_IMAGES "/hopper.fatbin", std::ios::binary);
    const std::vector<char> image{std::istreambuf_iterator<char>(in), {}};
    ASSERT_CU(cuModuleLoadData(&hopper_, image.data()));
  }
  static CUtensorMap map_of(CUdeviceptr p, unsigned columns, unsigned rows, unsigned box_rows, bool sums) {
    Arguments arguments;
    arguments.type = sums ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    arguments.address = p;
    arguments.sizes[0] = columns, arguments.sizes[1] = rows;
    arguments.strides[0] = columns * (sums ? 4 : 2);
    arguments.box[0] = 64, arguments.box[1] = box_rows;
    arguments.swizzle = sums ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B;
    CUtensorMap map;
    EXPECT_CU(encode(&map, arguments));
    return map;
  }
  CUfunction kernel(const char* name) {
    CUfunction f = nullptr;
    EXPECT_CU(cuModuleGetFunction(&f, hopper_, name));
    return f;
  }
  void expect_product() {
    std::vector<float> c(rows_ * kColumns);
    ASSERT_CU(cuMemcpyDtoH(c.data(), pc_, c.size() * 4));
    unsigned wrong = 0;
    for (unsigned row = 0; row < rows_; ++row)
      for (unsigned column = 0; column < kColumns; ++column) {
        int sum = 0;
        for (unsigned i = 0; i < kDepth; ++i) sum += a_[row * kDepth + i] * b_[column * kDepth + i];
        wrong += c[row * kColumns + column] != float(sum);
      }
    EXPECT_EQ(wrong, 0u);
  }

  unsigned rows_ = 0;
  std::vector<int> a_, b_;
  CUdeviceptr pa_ = 0, pb_ = 0, pc_ = 0;
  CUmodule hopper_ = nullptr;
};

TEST_F(Products, OfWarpgroupsThroughBoxes) {
  prepare(100);
  CUtensorMap a = map_of(pa_, kDepth, rows_, 64, false), b = map_of(pb_, kDepth, kColumns, 64, false),
              c = map_of(pc_, kColumns, rows_, 64, true);
  int depth = kDepth;
  void* params[] = {&a, &b, &c, &depth};
  const CUfunction product = kernel("product");
  ASSERT_CU(cuLaunchKernel(product, 2, 2, 1, 128, 1, 1, 0, nullptr, params, nullptr));
  ASSERT_CU(cuCtxSynchronize());
  expect_product();
  // A map whose tensor is gone is found when a kernel uses it.
  ASSERT_CU(cuMemFree(pb_));
  ASSERT_CU(cuLaunchKernel(product, 2, 2, 1, 128, 1, 1, 0, nullptr, params, nullptr));
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

TEST_F(Products, OfClustersWithRoles) {
  prepare(200);
  CUtensorMap a = map_of(pa_, kDepth, rows_, 128, false), half_b = map_of(pb_, kDepth, kColumns, 32, false);
  int m = int(rows_), n = kColumns, depth = kDepth;
  void* params[] = {&a, &half_b, &pc_, &m, &n, &depth};
  constexpr unsigned kShared = 3 * 3 * 8192;
  const CUfunction product = kernel("product_of_cluster");
  ASSERT_CU(cuFuncSetAttribute(product, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kShared));
  ASSERT_CU(cuLaunchKernel(product, 2, 2, 1, 384, 1, 1, kShared, nullptr, params, nullptr));
  ASSERT_CU(cuCtxSynchronize());
  expect_product();
}

// Maps that a kernel makes, one per block, and boxes that are added up in memory.
TEST_F(TensorMaps, MadeByAKernelAndReduced) {
  struct Matrix {
    CUdeviceptr data;
    uint32_t columns, rows;
    uint64_t stride;
  };
  constexpr unsigned kBlocks = 6, kColumns = 30;  // of the sum: its box sticks out
  std::vector<Matrix> matrices;
  std::vector<float> want(8 * kColumns);
  for (unsigned i = 0; i < kBlocks; ++i) {
    const Matrix m = {alloc(64 * 16 * 4), 20 + 4 * i, 3 + i, (24 + 4 * i) * 4};
    std::vector<float> values(64 * 16, -1e6f);  // what lies between the rows must not count
    for (unsigned y = 0; y < m.rows; ++y)
      for (unsigned x = 0; x < m.columns; ++x) {
        values[y * m.stride / 4 + x] = float(i * 100 + y * 10 + x);
        if (y < 8 && x < kColumns) want[y * kColumns + x] += values[y * m.stride / 4 + x];
      }
    ASSERT_CU(cuMemcpyHtoD(m.data, values.data(), values.size() * 4));
    matrices.push_back(m);
  }
  CUdeviceptr list = alloc(sizeof(Matrix) * kBlocks), maps = alloc(sizeof(CUtensorMap) * kBlocks),
              sum = alloc(8 * 32 * 4);
  ASSERT_CU(cuMemcpyHtoD(list, matrices.data(), sizeof(Matrix) * kBlocks));
  ASSERT_CU(cuMemsetD32(sum, 0, 8 * 32));
  Arguments arguments;
  arguments.box[0] = 32, arguments.box[1] = 8;
  arguments.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  CUtensorMap pattern, of_sum;
  ASSERT_CU(encode(&pattern, arguments));
  arguments.address = sum;
  arguments.sizes[0] = kColumns, arguments.sizes[1] = 8, arguments.strides[0] = 32 * 4;
  ASSERT_CU(encode(&of_sum, arguments));
  std::ifstream in(TESSERA_TEST_IMAGES "/hopper.fatbin", std::ios::binary);
  const std::vector<char> image{std::istreambuf_iterator<char>(in), {}};
  CUmodule hopper;
  CUfunction sum_of_boxes;
  ASSERT_CU(cuModuleLoadData(&hopper, image.data()));
  ASSERT_CU(cuModuleGetFunction(&sum_of_boxes, hopper, "sum_of_boxes"));
  void* params[] = {&pattern, &list, &maps, &of_sum};
  ASSERT_CU(cuLaunchKernel(sum_of_boxes, kBlocks, 1, 1, 32, 1, 1, 0, nullptr, params, nullptr));
  std::vector<float> got(8 * 32);
  ASSERT_CU(cuMemcpyDtoH(got.data(), sum, got.size() * 4));
  for (unsigned y = 0; y < 8; ++y)
    for (unsigned x = 0; x < 32; ++x)
      EXPECT_EQ(got[y * 32 + x], x < kColumns ? want[y * kColumns + x] : 0) << x << ' ' << y;
}

}  // namespace
}  // namespace softgpu_driver_test

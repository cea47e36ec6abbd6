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

// Sizes that are no multiples of the tile, so that boxes stick out of all three matrices.
TEST_F(TensorMaps, ProductOfWarpgroupsThroughBoxes) {
  constexpr unsigned m = 100, n = 72, k = 328;
  std::vector<int> a(m * k), b(n * k);
  unsigned x = 1;
  for (int& v : a) v = int((x = x * 1664525 + 1013904223) >> 20) % 9 - 4;
  for (int& v : b) v = int((x = x * 1664525 + 1013904223) >> 20) % 9 - 4;
  const auto upload = [&](const std::vector<int>& values) {
    std::vector<uint16_t> halves;
    for (int v : values) halves.push_back(half(v));
    const CUdeviceptr p = alloc(halves.size() * 2);
    EXPECT_CU(cuMemcpyHtoD(p, halves.data(), halves.size() * 2));
    return p;
  };
  const CUdeviceptr pa = upload(a), pb = upload(b), pc = alloc(m * n * 4);
  ASSERT_CU(cuMemsetD32(pc, 0xffffffff, m * n));
  const auto map_of = [&](CUdeviceptr p, unsigned columns, unsigned rows, bool sums) {
    Arguments arguments;
    arguments.type = sums ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    arguments.address = p;
    arguments.sizes[0] = columns, arguments.sizes[1] = rows;
    arguments.strides[0] = columns * (sums ? 4 : 2);
    arguments.box[0] = arguments.box[1] = 64;
    arguments.swizzle = sums ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B;
    CUtensorMap map;
    EXPECT_CU(encode(&map, arguments));
    return map;
  };
  CUtensorMap ma = map_of(pa, k, m, false), mb = map_of(pb, k, n, false), mc = map_of(pc, n, m, true);

  std::ifstream in(TESSERA_TEST_IMAGES "/hopper.fatbin", std::ios::binary);
  const std::vector<char> image{std::istreambuf_iterator<char>(in), {}};
  CUmodule hopper;
  ASSERT_CU(cuModuleLoadData(&hopper, image.data()));
  CUfunction product;
  ASSERT_CU(cuModuleGetFunction(&product, hopper, "product"));
  int depth = k;
  void* params[] = {&ma, &mb, &mc, &depth};
  ASSERT_CU(cuLaunchKernel(product, 2, 2, 1, 128, 1, 1, 0, nullptr, params, nullptr));
  ASSERT_CU(cuCtxSynchronize());
  std::vector<float> c(m * n);
  ASSERT_CU(cuMemcpyDtoH(c.data(), pc, c.size() * 4));
  unsigned wrong = 0;
  for (unsigned row = 0; row < m; ++row)
    for (unsigned column = 0; column < n; ++column) {
      int sum = 0;
      for (unsigned i = 0; i < k; ++i) sum += a[row * k + i] * b[column * k + i];
      wrong += c[row * n + column] != float(sum);
    }
  EXPECT_EQ(wrong, 0u);
  // A map whose tensor is gone is found when a kernel uses it.
  ASSERT_CU(cuMemFree(pb));
  ASSERT_CU(cuLaunchKernel(product, 2, 2, 1, 128, 1, 1, 0, nullptr, params, nullptr));
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

}  // namespace
}  // namespace softgpu_driver_test

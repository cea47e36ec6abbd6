#include "operations/roofline.h"

#include <gtest/gtest.h>

#include "operations/gemm.h"
#include "profiles/gpu_description.h"

namespace tessera::operations {
namespace {

using ipc::abi::kResourceCompute;
using ipc::abi::kResourceMemory;
using ipc::abi::kResourceUnknown;

TEST(Roofline, TheLongerSideIsTheClass) {
  const Rates rates{.flop_per_s = 1e12, .bytes_per_s = 1e11};  // 10 FLOP a byte
  const Roofline compute = roofline({.flop = 2'000'000, .bytes = 100'000}, rates);
  EXPECT_EQ(compute.resource_class, kResourceCompute);
  EXPECT_DOUBLE_EQ(compute.at_least_ns, 2000);
  const Roofline memory = roofline({.flop = 100'000, .bytes = 100'000}, rates);
  EXPECT_EQ(memory.resource_class, kResourceMemory);
  EXPECT_DOUBLE_EQ(memory.at_least_ns, 1000);
  EXPECT_EQ(roofline({.flop = 1'000'000, .bytes = 100'000}, rates).resource_class,
            kResourceMemory);  // the ridge
}

TEST(Roofline, UnknownWithoutRatesOrWork) {
  const Cost cost{.flop = 1, .bytes = 1};
  EXPECT_EQ(roofline(cost, {.flop_per_s = 0, .bytes_per_s = 1}).resource_class, kResourceUnknown);
  EXPECT_EQ(roofline(cost, {.flop_per_s = 1, .bytes_per_s = 0}).resource_class, kResourceUnknown);
  EXPECT_EQ(roofline({}, {.flop_per_s = 1, .bytes_per_s = 1}).resource_class, kResourceUnknown);
  EXPECT_EQ(roofline({}, {.flop_per_s = 1, .bytes_per_s = 1}).at_least_ns, 0);
}

TEST(Roofline, RatesAreThoseOfThePipeThatTheTypeTakes) {
  const Peaks peaks{.fp64 = 1,
                    .tensor_fp64 = 2,
                    .fp32 = 3,
                    .tensor_tf32 = 8,
                    .fp16 = 4,
                    .tensor_fp16 = 5,
                    .tensor_fp8 = 6,
                    .tensor_int8 = 7};
  const struct {
    Type type;
    double flop_per_s;
  } rows[] = {{Type::kF64, 2},          {Type::kComplexF64, 2}, {Type::kF32, 3},  {Type::kComplexF32, 3},
              {Type::kF16, 5},          {Type::kBF16, 5},       {Type::kE4M3, 6}, {Type::kE5M2, 6},
              {Type::kI8, 7},           {Type::kU8, 7},         {Type::kTF32, 8}, {Type{33}, 0},
              {Type::kFromArguments, 0}};
  for (const auto& row : rows) {
    const Rates rates = rates_for(row.type, peaks, 9);
    EXPECT_EQ(rates.flop_per_s, row.flop_per_s) << int(row.type);
    EXPECT_EQ(rates.bytes_per_s, 9);
  }
  // Without tensor cores of that type.
  EXPECT_EQ(rates_for(Type::kF16, {.fp16 = 4}, 9).flop_per_s, 4);
}

// A large product is bound by arithmetic and one with a vector by memory, on a GPU as it is described.
TEST(Roofline, OnADescribedGpu) {
  const auto gpu = profiles::load_gpu_description(TESSERA_SOURCE_DIR "/profiles/gpus/h100.toml");
  ASSERT_TRUE(gpu.ok());
  const Rates rates{.flop_per_s = gpu.value().peak.fp32, .bytes_per_s = gpu.value().memory.bytes_per_s};
  const GemmTypes floats{Type::kF32, Type::kF32, Type::kF32};
  const auto large = gemm_cost(GemmShape{.m = 4096, .n = 4096, .k = 4096}, floats, false);
  ASSERT_TRUE(large);
  EXPECT_EQ(roofline(*large, rates).resource_class, kResourceCompute);
  EXPECT_NEAR(roofline(*large, rates).at_least_ns, 2.0 * 4096 * 4096 * 4096 / 67e12 * 1e9, 1);
  const auto vector = gemm_cost(GemmShape{.m = 4096, .n = 1, .k = 4096}, floats, false);
  ASSERT_TRUE(vector);
  EXPECT_EQ(roofline(*vector, rates).resource_class, kResourceMemory);
}

}  // namespace
}  // namespace tessera::operations

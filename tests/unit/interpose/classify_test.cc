// The bound of a kernel, from its PTX alone.
#include "interpose/track/classify.h"

#include <gtest/gtest.h>

#include "kernels/ptx/parser.h"

namespace tessera::track {
namespace {

namespace abi = ipc::abi;

struct Classified {
  ThreadCost cost;
  abi::ResourceClass kind;
};
Classified classified(const std::string& body, double slots_per_byte = 10) {
  const std::string text =
      ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n"
      ".reg .pred %p<4>;\n.reg .b32 %r<8>;\n.reg .f32 %f<8>;\n.reg .b64 %rd<8>;\n"
      "ld.param.u64 %rd1, [p];\ncvta.to.global.u64 %rd2, %rd1;\n" +
      body + "ret;\n}\n";
  auto module = ptx::parse(text);
  EXPECT_TRUE(module.ok()) << (module.ok() ? "" : module.error().text);
  const ThreadCost cost = cost_of(*module->find("k"));
  return {cost, classify(cost, slots_per_byte)};
}

const char kLoad[] = "ld.global.f32 %f1, [%rd2];\n";
const char kFma[] = "fma.rn.f32 %f2, %f1, %f2, %f2;\n";

std::string times(int n, const std::string& text) {
  std::string out;
  for (int i = 0; i < n; ++i) out += text;
  return out;
}

TEST(Classify, AStreamIsMemoryBoundAndArithmeticIsCompute) {
  EXPECT_EQ(classified(kLoad + std::string("st.global.f32 [%rd2], %f1;\n")).kind, abi::kResourceMemory);
  EXPECT_EQ(classified(kLoad + times(200, kFma)).kind, abi::kResourceCompute);
  EXPECT_EQ(classified(times(50, kFma)).kind, abi::kResourceCompute);  // no memory at all
}

TEST(Classify, NearTheBorderIsUnknown) {
  EXPECT_EQ(classified(kLoad + times(36, kFma)).kind, abi::kResourceUnknown);  // 10 slots per byte
  EXPECT_EQ(classified(kLoad + times(36, kFma), 40).kind, abi::kResourceMemory);
  EXPECT_EQ(classified(kLoad + times(36, kFma), 2).kind, abi::kResourceCompute);
  EXPECT_EQ(classify({}, 10), abi::kResourceUnknown);
}

TEST(Classify, LoopsWeighMoreThanWhatSurroundsThem) {
  const std::string once = times(8, kLoad);
  const std::string loop = "$L1:\n" + times(100, kFma) + "setp.lt.u32 %p1, %r1, 5;\n@%p1 bra $L1;\n";
  EXPECT_EQ(classified(once + loop).kind, abi::kResourceCompute);
  const std::string forward = "bra $L2;\n" + times(100, kFma) + "$L2:\n";  // runs once at most
  EXPECT_NEAR(classified(times(8, kLoad) + forward).cost.slots, 8 * 4 + 101, 1);
  const std::string nested = "$L3:\n$L4:\n" + std::string(kLoad) + "@%p1 bra $L4;\n@%p1 bra $L3;\n";
  EXPECT_DOUBLE_EQ(classified(nested).cost.bytes, 4 * 16 * 16);
}

TEST(Classify, OnlyDeviceMemoryCountsAsBytesAndVectorsCountWhole) {
  EXPECT_DOUBLE_EQ(classified("ld.shared.f32 %f1, [%rd2];\n").cost.bytes, 0);
  EXPECT_DOUBLE_EQ(classified("ld.f32 %f1, [%rd2];\n").cost.bytes, 4);  // generic
  EXPECT_DOUBLE_EQ(classified("ld.global.v4.f32 {%f1,%f2,%f3,%f4}, [%rd2];\n").cost.bytes, 16);
  EXPECT_DOUBLE_EQ(classified("atom.global.add.u32 %r1, [%rd2], 1;\n").cost.bytes, 4);
  EXPECT_DOUBLE_EQ(classified("cp.async.ca.shared.global [%rd3], [%rd2], 16;\n").cost.bytes, 16);
}

}  // namespace
}  // namespace tessera::track

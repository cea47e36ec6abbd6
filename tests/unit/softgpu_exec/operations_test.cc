// Floating-point operations are counted by active lanes, whatever the control flow.
#include "tests/unit/softgpu_exec/harness.h"

namespace tessera::softgpu::exec {
namespace {

Work work_of(const std::string& body, uint32_t threads, const std::string& before = "") {
  TestModule module(ptx_header() + before + ".visible .entry k()\n{\n.reg .pred %p<4>;\n.reg .b32 %r<8>;\n" +
                    ".reg .f32 %f<8>;\n.reg .f64 %d<4>;\nmov.u32 %r1, %tid.x;\nmov.f32 %f1, 0f3f800000;\n" +
                    "mov.f64 %d1, 0d3ff0000000000000;\nmov.u32 %r2, 0;\n" + body + "\nret;\n}\n");
  EXPECT_TRUE(module.ok()) << module.error;
  Work work;
  if (!module.ok()) return work;
  const Fault fault = module.run("k", {2, 1, 1}, {threads, 1, 1}, Params(), 0, &work);
  EXPECT_EQ(fault.kind, FaultKind::kNone) << fault.text;
  return work;
}

constexpr uint64_t kBlocks = 2, kThreads = 48;  // a whole warp and a half

TEST(Operations, ByTypeAndOpcode) {
  const Work w = work_of(
      "fma.rn.f32 %f2, %f1, %f1, %f1; add.f32 %f2, %f2, %f1; div.rn.f32 %f2, %f2, %f1; "
      "mul.f64 %d2, %d1, %d1; fma.rn.f64 %d2, %d2, %d1, %d1; fma.rn.f16x2 %r3, %r2, %r2, %r2; "
      "add.s32 %r3, %r3, 1; max.f32 %f2, %f2, %f1; setp.lt.f32 %p1, %f2, %f1;",
      kThreads);
  EXPECT_EQ(w.fp32_operations, (2 + 1 + 1) * kThreads * kBlocks);
  EXPECT_EQ(w.fp64_operations, (1 + 2) * kThreads * kBlocks);
  EXPECT_EQ(w.fp16_operations, 4 * kThreads * kBlocks);
  EXPECT_EQ(w.tensor_operations, 0u);
}

TEST(Operations, BranchesThatMeetAgain) {
  const Work w = work_of(
      "setp.lt.u32 %p1, %r1, 8;\n@%p1 bra THEN;\nadd.f64 %d2, %d1, %d1;\nbra.uni END;\n"
      "THEN:\nadd.f32 %f2, %f1, %f1;\nmul.f32 %f2, %f2, %f1;\nEND:\nadd.f32 %f3, %f1, %f1;",
      kThreads);
  EXPECT_EQ(w.fp32_operations, (2 * 8 + kThreads) * kBlocks);
  EXPECT_EQ(w.fp64_operations, (kThreads - 8) * kBlocks);
}

TEST(Operations, LoopsOfDifferentLength) {  // lane t goes round (t & 3) + 1 times
  const Work w = work_of(
      "and.b32 %r3, %r1, 3;\nLOOP:\nfma.rn.f32 %f2, %f1, %f1, %f1;\nadd.u32 %r2, %r2, 1;\n"
      "setp.le.u32 %p1, %r2, %r3;\n@%p1 bra LOOP;\nadd.f32 %f3, %f1, %f1;",
      kThreads);
  EXPECT_EQ(w.fp32_operations, (2 * kThreads / 4 * (1 + 2 + 3 + 4) + kThreads) * kBlocks);
}

TEST(Operations, FunctionsAndExchanges) {
  const Work w = work_of(
      "add.f32 %f2, %f1, %f1;\ncall.uni f;\nshfl.sync.idx.b32 %r3, %r1, 0, 31, 0xffff;\nadd.f32 %f2, %f1, "
      "%f1;",
      16, ".func f()\n{\n.reg .f32 %f<3>;\nmov.f32 %f1, 0f3f800000;\nmul.f32 %f2, %f1, %f1;\nret;\n}\n");
  EXPECT_EQ(w.fp32_operations, (1 + 1 + 1) * 16 * kBlocks);
}

}  // namespace
}  // namespace tessera::softgpu::exec

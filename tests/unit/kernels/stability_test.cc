#include "kernels/slice/stability.h"

#include <gtest/gtest.h>

#include "kernels/ptx/parser.h"

namespace tessera::slice {
namespace {

// A module with one of everything; `body` is the kernel's.
ptx::Module with(const std::string& body) {
  auto module = ptx::parse(R"(.version 8.0
.target sm_80
.address_size 64
.visible .const .align 4 .f32 scale;
.visible .global .align 4 .u32 counter;
.visible .global .align 4 .u32 other;
.global .texref image;
.extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);
.extern .func (.param .b64 r) malloc(.param .b64 n);
.extern .func elsewhere();
.func product(.param .b32 out) { .reg .f32 %f<3>; mul.f32 %f0, %f1, %f2; ret; }
.func counts() { .reg .b32 %r<3>; atom.global.add.u32 %r0, [counter], 1; ret; }
.func plain() { ret; }
.visible .entry k(.param .u64 counter_of_mine)
{
  .reg .pred %p<4>; .reg .b16 %h<8>; .reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .f32 %f<8>; .reg .f64 %d<8>;
  .reg .b64 %proto_target;
  .shared .align 4 .u32 other;
)" + body + "\n  ret;\n}\n");
  EXPECT_TRUE(module.ok()) << (module.ok() ? "" : module.error().text) << "\n" << body;
  return module.ok() ? std::move(*module) : ptx::Module();
}

Instability reason(const std::string& body) {
  return bit_stable_when_recompiled(with(body), "k").reason;
}

TEST(Stability, IntegersAndCorrectlyRoundedOperationsAreStable) {
  EXPECT_EQ(reason(""), Instability::kNone);
  EXPECT_EQ(reason("mul.lo.u32 %r0, %r1, %r2; add.u32 %r0, %r0, %r3;"), Instability::kNone);
  EXPECT_EQ(reason("fma.rn.f32 %f0, %f1, %f2, %f3; cvt.rn.f32.s32 %f1, %r0;"), Instability::kNone);
  EXPECT_EQ(reason("mul.rn.f32 %f0, %f1, %f2; add.f32 %f0, %f0, %f3;"), Instability::kNone);
  EXPECT_EQ(reason("mul.f32 %f0, %f1, %f2; add.rn.f32 %f0, %f0, %f3;"), Instability::kNone);
  EXPECT_EQ(reason("div.rn.f32 %f0, %f1, %f2; sqrt.rn.f64 %d0, %d1; rcp.rn.f32 %f3, %f0;"),
            Instability::kNone);
  EXPECT_EQ(reason("max.f32 %f0, %f1, %f2; setp.lt.f32 %p0, %f0, %f1; neg.f32 %f1, %f0;"),
            Instability::kNone);
}

TEST(Stability, ProductAndSumWithoutRoundingMayBeFused) {
  EXPECT_EQ(reason("mul.f32 %f0, %f1, %f2; add.f32 %f3, %f0, %f4;"), Instability::kContractible);
  EXPECT_EQ(reason("mul.ftz.f32 %f0, %f1, %f2; sub.ftz.f32 %f3, %f0, %f4;"), Instability::kContractible);
  EXPECT_EQ(reason("mul.f64 %d0, %d1, %d2; add.f64 %d3, %d0, %d4;"), Instability::kContractible);
  EXPECT_EQ(reason("mul.f16 %h0, %h1, %h2; add.f16 %h3, %h0, %h4;"), Instability::kContractible);
  EXPECT_EQ(reason("mul.f32 %f0, %f1, %f2;"), Instability::kNone);  // nothing to fuse it with
  EXPECT_EQ(reason("add.f32 %f0, %f1, %f2; sub.f32 %f0, %f0, %f2;"), Instability::kNone);
  // A called function is inlined.
  EXPECT_EQ(reason("add.f32 %f0, %f1, %f2; { .param .b32 a; call product, (a); }"),
            Instability::kContractible);
}

TEST(Stability, ApproximationsAndMatrixSumsAreNot) {
  for (const char* body :
       {"sin.approx.f32 %f0, %f1;", "ex2.approx.ftz.f32 %f0, %f1;", "div.full.f32 %f0, %f1, %f2;",
        "div.approx.f32 %f0, %f1, %f2;", "rsqrt.approx.f32 %f0, %f1;", "tanh.approx.f32 %f0, %f1;"})
    EXPECT_EQ(reason(body), Instability::kApproximate) << body;
  EXPECT_EQ(reason("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, "
                   "{%r4,%r5}, {%f4,%f5,%f6,%f7};"),
            Instability::kTensor);
  EXPECT_EQ(reason("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%r0,%r1}, {%r2}, {%r3}, {%r4,%r5};"),
            Instability::kNone);
}

TEST(Stability, TheUnknownIsNeverStable) {
  EXPECT_EQ(reason("frobnicate.f32 %f0, %f1;"), Instability::kUnknown);
  EXPECT_EQ(reason("call elsewhere;"), Instability::kUnknown);
  EXPECT_EQ(bit_stable_when_recompiled(with(""), "absent").reason, Instability::kUnknown);
}

TEST(Stability, NamesTheInstructionAndItsLine) {
  const BitStability b = bit_stable_when_recompiled(with("\n  sin.approx.f32 %f0, %f1;"), "k");
  EXPECT_NE(b.detail.find("sin.approx.f32"), std::string::npos) << b.detail;
  EXPECT_EQ(b.line, 20u);
  EXPECT_STREQ(instability_name(b.reason), "approximate");
}

ModuleState state(const std::string& body) {
  // The state's views die with the module: only what is compared here is looked at.
  static std::vector<ptx::Module> kept;
  kept.push_back(with(body));
  return module_state(kept.back(), "k");
}

TEST(State, OfAKernelThatNeedsNothing) {
  const ModuleState s = state("call plain;");
  EXPECT_TRUE(s.none());
  EXPECT_EQ(s.detail, "");
}

TEST(State, GlobalsAreListedOnceAlsoFromCallees) {
  EXPECT_EQ(state("ld.global.u32 %r0, [counter]; st.global.u32 [counter], %r0;").globals,
            std::vector<ptx::Name>({"counter"}));
  EXPECT_EQ(state("call counts;").globals, std::vector<ptx::Name>({"counter"}));
  EXPECT_EQ(state("mov.u64 %rd0, counter; cvta.global.u64 %rd0, %rd0;").globals.size(), 1u);
  // The body's own variable of the same name is another one.
  EXPECT_TRUE(state("st.shared.u32 [other], %r0;").none());
  EXPECT_TRUE(state("ld.param.u64 %rd0, [counter_of_mine];").none());
}

TEST(State, EverythingElseIsSaidWithItsLine) {
  const ModuleState constants = state("ld.const.f32 %f0, [scale];");
  EXPECT_TRUE(constants.constants);
  EXPECT_NE(constants.detail.find("line 19: ld.const.f32"), std::string::npos) << constants.detail;
  EXPECT_TRUE(state("tex.2d.v4.f32.f32 {%f0,%f1,%f2,%f3}, [image, {%f4,%f5}];").textures);
  EXPECT_TRUE(state("mov.u64 %rd0, plain;").function_addresses);
  EXPECT_FALSE(state("call plain;").function_addresses);
  EXPECT_TRUE(state("{ p: .callprototype _ (); call %rd0, (), p; }").indirect_calls);
  EXPECT_TRUE(state("call elsewhere;").unknown);
  EXPECT_TRUE(state("frobnicate.f32 %f0, %f1;").unknown);
  EXPECT_TRUE(module_state(with(""), "absent").unknown);
}

TEST(State, RuntimeFunctionsAreTold) {
  const ModuleState s = state(
      "{ .param .b64 n; .param .b64 r; call (r), malloc, (n); .param .b64 v; .param .b32 q; "
      "call (q), vprintf, (n, v); }");
  EXPECT_TRUE(s.device_heap);
  EXPECT_TRUE(s.printf_buffer);
  EXPECT_TRUE(s.none());
}

}  // namespace
}  // namespace tessera::slice

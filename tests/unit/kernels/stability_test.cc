#include "kernels/slice/stability.h"

#include <gtest/gtest.h>

#include "kernels/ptx/parser.h"
#include "kernels/ptx/printer.h"
#include "kernels/slice/globals.h"

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
.global .align 4 .b8 words[64];
.visible .global .attribute(.managed) .align 4 .u32 both;
.extern .global .align 4 .u32 outside;
.visible .global .align 4 .u32 twice;
.global .texref image;
.extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);
.extern .func (.param .b64 r) malloc(.param .b64 n);
.extern .func elsewhere();
.func product(.param .b32 out) { .reg .f32 %f<3>; mul.f32 %f0, %f1, %f2; ret; }
.func counts() { atom.global.add.u32 _, [counter], 1; ret; }
.func plain() { ret; }
.func local() { .global .align 4 .u32 twice; ret; }
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
  EXPECT_EQ(reason("tcgen05.mma.cta_group::1.kind::f16 [%r0], %rd0, %rd1, %r1, %p0;"), Instability::kTensor);
  EXPECT_EQ(reason("tcgen05.mma.cta_group::1.kind::i8 [%r0], %rd0, %rd1, %r1, %p0;"), Instability::kNone);
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
  EXPECT_EQ(b.line, 25u);
  EXPECT_EQ(b.reason, Instability::kApproximate);
}

using Obstacle = GlobalsObstacle;

PassedGlobals globals(const std::string& body) {
  return passed_globals(with(body), "k");
}
std::vector<std::string> passed(const std::string& body) {
  std::vector<std::string> names;
  const PassedGlobals g = globals(body);
  EXPECT_TRUE(g.possible()) << body << g.detail;
  for (const PassedVariable& v : g.passed) names.push_back(v.name);
  return names;
}
// The rest of the module, printed; "" if it is refused. Of the kernel's part of a module it is the same.
std::string sibling(const std::string& body) {
  ptx::Module module = with(body);
  const ptx::Module whole = with(body);
  const PassedGlobals g = passed_globals(module, "k");
  if (!g.possible() || !make_sibling(module, "k", g, {.verify_each_pass = true}).verdict.may_cut()) return "";
  ptx::Module part = part_of(whole, "k");
  EXPECT_LT(part.items.size(), whole.items.size());
  EXPECT_TRUE(make_sibling(part, "k", g, {.verify_each_pass = true}).verdict.may_cut());
  EXPECT_EQ(ptx::print(part), ptx::print(module));
  return ptx::print(module);
}

TEST(Globals, NothingIsPassedToAKernelThatNeedsNothing) {
  EXPECT_TRUE(passed("call plain;").empty());
  EXPECT_EQ(sibling("call plain;").find("_globals"), std::string::npos);
}

TEST(Globals, AreListedOnceAlsoFromCallees) {
  const std::vector<std::string> one = {"counter"};
  EXPECT_EQ(passed("ld.global.u32 %r0, [counter]; st.global.u32 [counter], %r0;"), one);
  EXPECT_EQ(passed("call counts;"), one);
  EXPECT_EQ(passed("mov.u64 %rd0, counter; cvta.global.u64 %rd0, %rd0;"), one);
  // The body's own variable of the same name is another one.
  EXPECT_TRUE(passed("st.shared.u32 [other], %r0;").empty());
  EXPECT_TRUE(passed("ld.param.u64 %rd0, [counter_of_mine];").empty());
  const PassedGlobals g = globals("red.global.add.u32 [words+8], 1;");
  EXPECT_EQ(g.passed.at(0).bytes, 64u);
  EXPECT_EQ(g.offset, 32u);  // 8 of its own, 24 of the origin
}

TEST(Globals, EachFormBecomesTheAddressThatIsPassed) {
  const std::string text = sibling(R"(
  ld.global.u32 %r0, [words+12]; st.global.v2.u32 [counter], {%r0, %r1}; prefetch.global.L2 [words];
  mov.u64 %rd0, words; @%p0 mov.b64 %rd1, words+4; cvta.global.u64 %rd2, counter; call counts;)");
  for (const char* line :
       {".param .align 8 .b8 k__tessera_slice_globals[16]", "[%tessera_global_1+12]",
        "st.global.v2.u32 [%tessera_global_0], {%r0, %r1}", "prefetch.global.L2 [%tessera_global_1]",
        "mov.u64 %rd0, %tessera_global_1", "@%p0 add.s64 %rd1, %tessera_global_1, 4",
        "cvta.global.u64 %rd2, %tessera_global_0", "cvta.to.global.u64 %tessera_global_0, %tessera_global_0",
        "call counts, (tessera_globals)", "st.param.b64 [tessera_globals+8], %tessera_global_1",
        "ld.param.u64 %tessera_global_0, [counts_globals]", "atom.global.add.u32 _, [%tessera_global_0], 1"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  EXPECT_EQ(text.find(" counter;"), std::string::npos) << text;  // the sibling declares none
  EXPECT_EQ(text.find(".global .align"), std::string::npos) << text;
}

TEST(Globals, EverythingElseIsAnObstacleWithItsLine) {
  const std::pair<const char*, Obstacle> cases[] = {
      {"ld.const.f32 %f0, [scale];", Obstacle::kConstant},
      {"ld.const.f32 %f0, [%rd0];", Obstacle::kConstant},  // an address of that module's constants
      {"mov.u64 %rd0, scale;", Obstacle::kConstant},
      {"tex.2d.v4.f32.f32 {%f0,%f1,%f2,%f3}, [image, {%f4,%f5}];", Obstacle::kTexture},
      {"mov.u64 %rd0, plain;", Obstacle::kFunctionAddress},
      {"{ p: .callprototype _ (); call %rd0, (), p; }", Obstacle::kUnknown},
      {"call elsewhere;", Obstacle::kUnknown},
      {"frobnicate.f32 %f0, %f1;", Obstacle::kUnknown},
      {"{ .param .b64 n; .param .b64 r; call (r), malloc, (n); }", Obstacle::kRuntime},
      {"{ .param .b64 n; .param .b32 q; call (q), vprintf, (n, n); }", Obstacle::kRuntime},
      {"ld.global.u32 %r0, [both];", Obstacle::kAttribute},
      {"ld.global.u32 %r0, [outside];", Obstacle::kLinkage},
      {"ld.global.u32 %r0, [twice];", Obstacle::kLinkage},  // a body has one of that name, too
      {"ld.u32 %r0, [counter];", Obstacle::kForm},          // generic
      {"ld.global.u32 %r0, [words+4294967296];", Obstacle::kForm},
      {"mov.b32 %r0, counter;", Obstacle::kForm},
      {"cvta.global.u64 %rd0, words+4;", Obstacle::kForm},
  };
  for (const auto& [body, obstacle] : cases) {
    const PassedGlobals g = globals(std::string("\n") + body);
    EXPECT_EQ(obstacle_name(g.obstacle), std::string(obstacle_name(obstacle))) << body;
    EXPECT_TRUE(g.detail.starts_with("line 25: ")) << body << ": " << g.detail;
    EXPECT_EQ(sibling(body), "") << body;
  }
  EXPECT_EQ(passed_globals(with(""), "absent").obstacle, Obstacle::kUnknown);
}

// A local variable of the same name hides it in one scope and not in the other: not told apart, so refused.
TEST(Globals, HiddenInOneScopeOnlyIsRefused) {
  EXPECT_EQ(sibling("{ .reg .b32 counter; mov.b32 counter, 1; } ld.global.u32 %r0, [counter];"), "");
}

// Elsewhere in the module, where it may be stored for this kernel to find.
TEST(Globals, GenericAddressesOfConstantsAreAnObstacleToAll) {
  const std::string head = ".version 8.0\n.target sm_80\n.address_size 64\n.const .align 4 .u32 c;\n";
  const std::string kernel = ".visible .entry k() { ret; }\n";
  for (const char* other : {".func f() { .reg .b64 %d; { cvta.const.u64 %d, c; } ret; }\n",
                            ".global .align 8 .u64 table[1] = {generic(c)};\n", ""}) {
    auto module = ptx::parse(head + other + kernel);
    ASSERT_TRUE(module.ok()) << module.error().text;
    EXPECT_EQ(passed_globals(*module, "k").obstacle, *other ? Obstacle::kConstant : Obstacle::kNone) << other;
  }
}

TEST(Globals, LimitsOfNumberAndOfParameters) {
  for (const uint32_t n : {64u, 65u}) {
    std::string variables, uses;
    for (uint32_t i = 0; i < n; i++) {
      variables += ".global .align 4 .u32 v" + std::to_string(i) + ";\n";
      uses += "st.global.u32 [v" + std::to_string(i) + "], 1;\n";
    }
    for (const uint32_t bytes : {8u, 3560u, 3568u}) {
      auto module = ptx::parse(".version 8.0\n.target sm_80\n.address_size 64\n" + variables +
                               ".visible .entry k(.param .align 8 .b8 p[" + std::to_string(bytes) + "]) {\n" +
                               uses + "ret;\n}\n");
      ASSERT_TRUE(module.ok()) << module.error().text;
      EXPECT_EQ(passed_globals(*module, "k").obstacle == Obstacle::kLimit, n == 65 || bytes == 3568)
          << n << " " << bytes;
    }
  }
}

}  // namespace
}  // namespace tessera::slice

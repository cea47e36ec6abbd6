// Every instruction that reads or writes predicates; check() runs each with its sources negated and constant,
// its results in pairs and thrown away.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/softgpu_exec/harness.h"
#include "tests/unit/softgpu_exec/instruction_case.h"

namespace tessera::softgpu::exec {
namespace {

TEST(Predicates, Logic) {
  for (const Case& c : std::vector<Case>{
           {"mov.pred $p, $a;", "pp", [](U a, U, U) { return a; }},
           {"not.pred $p, $a;", "pp", [](U a, U, U) { return U{!a}; }},
           {"and.pred $p, $a, $b;", "ppp", [](U a, U b, U) { return a & b; }},
           {"or.pred $p, $a, $b;", "ppp", [](U a, U b, U) { return a | b; }},
           {"xor.pred $p, $a, $b;", "ppp", [](U a, U b, U) { return a ^ b; }},
           {"and.pred $p, !$a, !$b;", "ppp", [](U a, U b, U) { return U{!a && !b}; }},
           {"@%p3 and.pred $p, $a, $b; @!%p3 and.pred $p, $a, $b;", "ppp", [](U a, U b, U) { return a & b; }},
       })
    check(c);
}

// The second result is the boolean operation with the opposite comparison.
TEST(Predicates, InComparisons) {
  struct Row {
    const char* name;
    bool (*combine)(bool, bool);
  };
  for (const Row& row :
       {Row{"and", [](bool x, bool y) { return x && y; }}, Row{"or", [](bool x, bool y) { return x || y; }},
        Row{"xor", [](bool x, bool y) { return x != y; }}}) {
    const std::string name = row.name;
    const auto both = [&](const std::string& operation, const std::string& types, bool (*less)(U, U)) {
      const auto combine = row.combine;
      check(Case{"setp.lt." + name + "." + operation + " $p, $a, $b, $c;", "p" + types + "p",
                 [=](U a, U b, U c) { return U{combine(less(a, b), c)}; }});
      check(Case{"{ .reg .pred q; setp.lt." + name + "." + operation + " q|$p, $a, $b, $c; }",
                 "p" + types + "p", [=](U a, U b, U c) { return U{combine(!less(a, b), c)}; }});
      check(Case{"setp.lt." + name + "." + operation + " _|$p, $a, $b, $c;", "p" + types + "p",
                 [=](U a, U b, U c) { return U{combine(!less(a, b), c)}; }});
      check(Case{"set.lt." + name + ".u32." + operation + " $d, $a, $b, $c;", "w" + types + "p",
                 [=](U a, U b, U c) { return combine(less(a, b), c) ? U{0xffffffff} : 0; }});
    };
    both("s32", "ww", [](U a, U b) { return S(a) < S(b); });
    both("u64", "dd", [](U a, U b) { return a < b; });
    both("s16", "hh", [](U a, U b) { return H(a) < H(b); });
  }
}

TEST(Predicates, InSelections) {
  check(Case{"selp.b32 $d, $a, $b, $c;", "wwwp", [](U a, U b, U c) { return c ? a : b; }});
  check(Case{"selp.b64 $d, $a, $b, $c;", "dddp", [](U a, U b, U c) { return c ? a : b; }});
  check(Case{"selp.b16 $d, $a, $b, $c;", "hhhp", [](U a, U b, U c) { return c ? a : b; }});
  check(Case{"selp.f32 $d, $a, $b, $c;", "wwwp", [](U a, U b, U c) { return c ? a : b; }});
}

// The value of %r2 in lane t, where %p1 is true in lanes t with t % 3 == 0, %p2 in all and %p3 in none.
std::vector<uint32_t> run_predicate_warp(const std::string& body) {
  DeviceArray<uint32_t> out(32);
  TestModule m(ptx_header() +
               ".visible .entry k(.param .u64 p)\n{\n.reg .pred %p<8>;\n.reg .b32 %r<8>;\n.reg .b64 %rd<3>;\n"
               "ld.param.u64 %rd1, [p];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\n"
               "add.s64 %rd1, %rd1, %rd2;\nrem.u32 %r3, %r1, 3;\nsetp.eq.u32 %p1, %r3, 0;\n"
               "setp.lt.u32 %p2, %r1, 32;\nsetp.gt.u32 %p3, %r1, 32;\n" +
               body + "\nst.global.u32 [%rd1], %r2;\nret;\n}\n");
  EXPECT_TRUE(m.ok()) << m.error;
  if (!m.ok()) return {};
  const Fault f = m.run("k", {1, 1, 1}, {32, 1, 1}, Params().add(out.address()));
  EXPECT_EQ(f.kind, FaultKind::kNone) << body << ": " << f.text;
  return out.values();
}

constexpr uint32_t kThirds = 0x49249249;  // lanes 0, 3, 6, ... 30

TEST(Predicates, AcrossTheWarpAndTheBlock) {
  struct Row {
    const char* text;  // with $p
    bool to_predicate;
    uint32_t (*want)(uint32_t lanes);
  };
  const Row rows[] = {
      {"vote.sync.ballot.b32 %r2, $p, -1;", false, [](uint32_t x) { return x; }},
      {"vote.sync.all.pred %p4, $p, -1;", true, [](uint32_t x) { return uint32_t{x == ~0u}; }},
      {"vote.sync.any.pred %p4, $p, -1;", true, [](uint32_t x) { return uint32_t{x != 0}; }},
      {"vote.sync.uni.pred %p4, $p, -1;", true, [](uint32_t x) { return uint32_t{x == 0 || x == ~0u}; }},
      {"bar.red.popc.u32 %r2, 0, $p;", false, [](uint32_t x) { return uint32_t(__builtin_popcount(x)); }},
      {"bar.red.and.pred %p4, 0, $p;", true, [](uint32_t x) { return uint32_t{x == ~0u}; }},
      {"bar.red.or.pred %p4, 0, $p;", true, [](uint32_t x) { return uint32_t{x != 0}; }},
      {"barrier.cta.red.popc.aligned.u32 %r2, 1, 32, $p;", false,
       [](uint32_t x) { return uint32_t(__builtin_popcount(x)); }},
      {"@$p mov.u32 %r2, 1; @!$p mov.u32 %r2, 0; vote.sync.all.pred %p5, %p2, -1;\n"
       "setp.ne.u32 %p6, %r2, 0; vote.sync.ballot.b32 %r2, %p6, -1;",
       false, [](uint32_t x) { return x; }},
  };
  const struct {
    const char* text;
    uint32_t lanes;
  } sources[] = {{"%p1", kThirds}, {"!%p1", ~kThirds}, {"%p2", ~0u}, {"!%p2", 0},
                 {"%p3", 0},       {"!%p3", ~0u},      {"1", ~0u},   {"0", 0}};
  for (const Row& row : rows)
    for (const auto& source : sources) {
      std::string text = row.text;
      if (text.find("@$p") != text.npos && source.text[0] != '%') continue;
      text = replace(text, "$p", source.text);
      if (row.to_predicate) text += " selp.u32 %r2, 1, 0, %p4;";
      EXPECT_EQ(run_predicate_warp(text), std::vector<uint32_t>(32, row.want(source.lanes))) << text;
    }
}

TEST(Predicates, OfShufflesMatchesAndElections) {
  const auto lanes = [](auto f) {
    std::vector<uint32_t> v;
    for (uint32_t t = 0; t < 32; ++t) v.push_back(f(t));
    return v;
  };
  EXPECT_EQ(run_predicate_warp("shfl.sync.up.b32 %r4|%p4, %r1, 1, 0, -1; selp.u32 %r2, %r4, 99, !%p4;"),
            lanes([](uint32_t t) { return t == 0 ? 0u : 99u; }));
  EXPECT_EQ(run_predicate_warp("shfl.sync.up.b32 %r2|_, %r1, 1, 0, -1;"),
            lanes([](uint32_t t) { return t == 0 ? 0 : t - 1; }));
  EXPECT_EQ(run_predicate_warp("shfl.sync.idx.b32 %r2, 5, 1, 31, -1;"), lanes([](uint32_t) { return 5u; }));
  EXPECT_EQ(run_predicate_warp("match.all.sync.b32 %r4|%p4, %r1, -1; selp.u32 %r2, 1, 2, !%p4;"),
            lanes([](uint32_t) { return 1u; }));
  EXPECT_EQ(run_predicate_warp("match.any.sync.b32 %r2, 7, -1;"), lanes([](uint32_t) { return ~0u; }));
  EXPECT_EQ(run_predicate_warp("elect.sync _|%p4, -1; selp.u32 %r2, 1, 0, %p4;"),
            lanes([](uint32_t t) { return t == 0 ? 1u : 0u; }));
}

// The former value of the second of two packed values does not show; a part of a register alone can be written.
TEST(Predicates, VectorsWithoutSomeElements) {
  check(Case{"{ .reg .b32 t; mov.b64 {$d, _}, $a; }", "wd", [](U a, U, U) { return a; }});
  check(Case{"{ mov.b64 {_, $d}, $a; }", "wd", [](U a, U, U) { return a >> 32; }});
  check(Case{"mov.b64 $d, {$a, $b};", "dww", [](U a, U b, U) { return a | b << 32; }});
  check(Case{"mov.b32 $d, {$a, $b};", "whh", [](U a, U b, U) { return a | b << 16; }});
  check(Case{"{ .reg .v2 .b32 v; mov.b64 v, $a; add.u32 $d, v.x, v.y; }", "wd",
             [](U a, U, U) { return a + (a >> 32); }});
  check(Case{"{ .reg .v2 .b32 v; mov.b32 v.x, $a; mov.b32 v.y, $b; mov.b64 $d, v; }", "dww",
             [](U a, U b, U) { return a | b << 32; }});
  check(Case{"{ .reg .v2 .b32 v; ld.global.v2.b32 v, [%rd1]; add.u32 $d, v.r, v.g; }", "wd",
             [](U a, U, U) { return a + (a >> 32); }});
  check(Case{
      "{ .reg .v2 .b32 v; mov.b64 v, $a; st.global.v2.b32 [%rd1], {v.y, v.x}; ld.global.b64 $d, [%rd1]; }",
      "dd", [](U a, U, U) { return a << 32 | a >> 32; }});
  check(
      Case{"{ .reg .v2 .b32 v; mov.b64 v, $a; add.u32 v.y, v.y, 1; st.global.v2.b32 [%rd1], v; ld.global.b64 "
           "$d, [%rd1]; }",
           "dd", [](U a, U, U) { return a + (U{1} << 32); }});
  check(Case{"{ ld.global.v2.b32 {_, $d}, [%rd1]; }", "wd", [](U a, U, U) { return a >> 32; }});
  check(Case{"{ st.global.v2.b32 [%rd1], {-1, 0x10}; ld.global.b64 $d, [%rd1]; }", "dd",
             [](U, U, U) { return U{0x10ffffffff}; }});
  check(Case{"{ st.global.v2.f32 [%rd1], {0.5, 0f40000000}; ld.global.b64 $d, [%rd1]; }", "dd",
             [](U, U, U) { return f32(0.5f) | f32(2) << 32; }});
  check(Case{"{ atom.global.add.u32 _, [%rd1], 3; ld.global.u32 $d, [%rd1]; }", "ww",
             [](U a, U, U) { return a + 3; }});
}

}  // namespace
}  // namespace tessera::softgpu::exec

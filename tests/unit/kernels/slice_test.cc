#include "kernels/slice/slice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "fixtures.h"
#include "kernels/ptx/parser.h"
#include "kernels/ptx/printer.h"
#include "kernels/ptx/verifier.h"
#include "kernels/slice/flow.h"
#include "kernels/slice/uniformity.h"

namespace tessera::slice {
namespace {

ptx::Module parsed(const std::string& text) {
  auto module = ptx::parse(text);
  EXPECT_TRUE(module.ok()) << (module.ok() ? "" : module.error().text);
  return module.ok() ? std::move(*module) : ptx::Module();
}

// Every range of a grid, block by block against the linear order.
void check_all_ranges(uint32_t x, uint32_t y, uint32_t z) {
  const uint32_t grid[3] = {x, y, z};
  const uint64_t total = uint64_t{x} * y * z;
  for (uint64_t first = 0; first < total; ++first) {
    for (uint64_t n = 1; n <= total - first + 1; ++n) {
      auto list = boxes(grid, first, n);
      ASSERT_LE(list.size(), 5u);
      uint64_t next = first;
      for (const Box& b : list) {
        for (uint32_t k = 0; k < b.extent[2]; ++k) {
          for (uint32_t j = 0; j < b.extent[1]; ++j) {
            for (uint32_t i = 0; i < b.extent[0]; ++i) {
              ASSERT_LT(b.origin[0] + i, x);
              ASSERT_LT(b.origin[1] + j, y);
              ASSERT_LT(b.origin[2] + k, z);
              ASSERT_EQ((uint64_t{b.origin[2] + k} * y + b.origin[1] + j) * x + b.origin[0] + i, next++);
            }
          }
        }
      }
      ASSERT_EQ(next, std::min(first + n, total))
          << x << " " << y << " " << z << " from " << first << " n " << n;
    }
  }
}

TEST(Boxes, CoverEveryRangeOfSmallGridsInOrder) {
  for (uint32_t x : {1, 2, 3, 5}) {
    for (uint32_t y : {1, 2, 4}) {
      for (uint32_t z : {1, 2, 3}) {
        check_all_ranges(x, y, z);
      }
    }
  }
}

TEST(Boxes, LargestGrid) {
  const uint32_t grid[3] = {2147483647, 65535, 65535};
  const uint64_t total = uint64_t{2147483647} * 65535 * 65535;
  auto all = boxes(grid, 0, UINT64_MAX);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].extent[0], 2147483647u);
  EXPECT_EQ(all[0].extent[2], 65535u);
  auto last = boxes(grid, total - 1, 10);
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].origin[0], 2147483646u);
  EXPECT_EQ(last[0].origin[1], 65534u);
  EXPECT_EQ(last[0].origin[2], 65534u);
  EXPECT_TRUE(boxes(grid, total, 1).empty());
  auto five = boxes(grid, 1, total - 2);
  EXPECT_EQ(five.size(), 5u);
  uint64_t sum = 0;
  for (const Box& b : five) {
    EXPECT_LE(b.extent[1], 65535u);
    EXPECT_LE(b.extent[2], 65535u);
    sum += uint64_t{b.extent[0]} * b.extent[1] * b.extent[2];
  }
  EXPECT_EQ(sum, total - 2);
  const uint32_t none[3] = {4, 0, 1};
  EXPECT_TRUE(boxes(none, 0, 4).empty());
  const uint32_t one[3] = {7, 1, 1};
  EXPECT_TRUE(boxes(one, 3, 0).empty());
}

TEST(Verdicts, NvccKernelsAreJudgedAsTheirNamesSay) {
  ptx::Module m = parsed(fixture("kernels.ptx"));
  auto reports = analyse(m);
  EXPECT_GE(reports.size(), 16u);
  for (const KernelReport& r : reports) {
    EXPECT_EQ(r.verdict.may_cut(), r.kernel.starts_with("accepted")) << r.kernel << ": " << r.verdict.detail;
    EXPECT_EQ(r.verdict.detail.empty(), r.verdict.may_cut());
  }
}

TEST(Verdicts, OrderDependenceIsAllowedOnlyOnRequest) {
  ptx::Module m = parsed(fixture("kernels.ptx"));
  Options options;
  options.allow_order_dependent = true;
  for (const KernelReport& r : analyse(m, options)) {
    if (r.kernel == "refused_float_sum" || r.kernel == "refused_append") {
      EXPECT_TRUE(r.verdict.may_cut()) << r.verdict.detail;
      EXPECT_TRUE(r.order_dependent);
    } else {
      EXPECT_EQ(r.verdict.may_cut(), r.kernel.starts_with("accepted")) << r.kernel;
    }
  }
}

class Variants : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Files, Variants, testing::Values("kernels.ptx", "kernels_debug.ptx"));

TEST_P(Variants, OriginalsStayAndVariantsNeverReadTheGridDirectly) {
  std::string text = fixture(GetParam());
  ptx::Module before = parsed(text), m = parsed(text);
  auto reports = add_variants(m, {.verify_each_pass = true});
  for (size_t i = 0; i < before.items.size(); ++i) {  // the originals, untouched
    ASSERT_EQ(m.items[i].kind, before.items[i].kind);
  }
  std::string printed = ptx::print(m);
  EXPECT_TRUE(printed.starts_with(ptx::print(before)));
  EXPECT_TRUE(ptx::verify(m).ok());
  for (const KernelReport& r : reports) {
    const ptx::Function* variant = m.find(r.kernel + kVariantSuffix);
    ASSERT_EQ(variant != nullptr, r.verdict.may_cut()) << r.kernel;
    if (!variant) {
      continue;
    }
    const ptx::Function* original = m.find(r.kernel);
    ASSERT_EQ(variant->params.size(), original->params.size() + 1);
    EXPECT_EQ(variant->params.size(), r.n_params + 1);
    EXPECT_EQ(variant->params.back().size_bytes(), sizeof(SliceOrigin));
    EXPECT_EQ(variant->directives.size(), original->directives.size());
    EXPECT_EQ(r.origin_offset % 4, 0u);
    EXPECT_EQ(r.origin_offset, r.param_bytes);
  }
  // In what was added, %ctaid stands only in the prologue and %nctaid nowhere.
  ptx::Module again = parsed(printed);
  std::set<std::string> bad;
  for (size_t i = before.items.size(); i < again.items.size(); ++i) {
    if (again.items[i].kind != ptx::Item::Kind::kFunction) {
      continue;
    }
    Flow flow = build_flow(*again.items[i].function);
    for (const Node& n : flow.nodes) {
      for (const ptx::Operand& o : n.instruction->operands) {
        if (o.name == "%nctaid" ||
            (o.name == "%ctaid" && !n.instruction->operands[0].name.starts_with("%tessera_launched"))) {
          bad.insert(std::string(again.items[i].function->name));
        }
      }
    }
  }
  EXPECT_TRUE(bad.empty()) << *bad.begin();
}

// What a variant does beyond its original: read a parameter and compute. No stores, atomics, barriers,
// branches, calls or loops over blocks, and no memory of its own in the module.
TEST_P(Variants, AddNoMemoryAndNoLoop) {
  ptx::Module m = parsed(fixture(GetParam()));
  const auto n_variables = [&] {
    return std::count_if(m.items.begin(), m.items.end(),
                         [](const ptx::Item& item) { return item.kind == ptx::Item::Kind::kVariable; });
  };
  const auto effects = [&](const ptx::Function& f) {
    std::map<std::string, int> counts;
    const Flow flow = build_flow(f);
    for (const Node& n : flow.nodes) {
      const std::string name(n.instruction->opcode);
      if (ptx::print(*n.instruction).find("st.param") != std::string::npos)
        continue;  // handed on to a function
      for (const char* plain : {"ld", "mov", "add", "sub", "mul", "mad"})
        if (name == plain || name.starts_with(std::string(plain) + ".")) counts[name] = -1;
      if (counts[name] >= 0) ++counts[name];
    }
    std::erase_if(counts, [](const auto& count) { return count.second < 0; });
    counts["loops"] = int(flow.loops.size());
    return counts;
  };
  const auto before = n_variables();
  size_t n = 0;
  for (const KernelReport& r : add_variants(m)) {
    const ptx::Function* variant = m.find(r.kernel + kVariantSuffix);
    if (!variant) continue;
    EXPECT_EQ(effects(*variant), effects(*m.find(r.kernel))) << r.kernel;
    ++n;
  }
  EXPECT_GE(n, 8u);
  EXPECT_EQ(n_variables(), before);
}

TEST(Variants, ASecondRunAddsNothing) {
  ptx::Module m = parsed(fixture("kernels.ptx"));
  add_variants(m);
  size_t n = m.items.size();
  auto reports = add_variants(m, {.verify_each_pass = true});
  EXPECT_EQ(m.items.size(), n);
  EXPECT_GE(reports.size(), 16u);
}

TEST(Variants, DumpAfterEachPass) {
  ptx::Module m = parsed(fixture("kernels.ptx"));
  std::vector<std::string> passes;
  Options options;
  options.dump_user = &passes;
  options.dump = [](void* user, const char* pass, const ptx::Module&) {
    static_cast<std::vector<std::string>*>(user)->push_back(pass);
  };
  add_variants(m, options);
  EXPECT_EQ(passes.front(), "clone");
  EXPECT_EQ(passes.size(), 5u);
}

// Depths of the loops found, outer first.
std::vector<unsigned> depths(const std::string& body) {
  ptx::Module m =
      parsed(".version 8.0\n.target sm_80\n.entry k() {\n.reg .pred p; .reg .b32 r;\n" + body + "\n}");
  Flow flow = build_flow(*m.items[0].function);
  std::vector<unsigned> list;
  for (const Loop& l : flow.loops) {
    list.push_back(l.depth);
  }
  return list;
}

TEST(Loops, NestedForest) {
  using D = std::vector<unsigned>;
  EXPECT_EQ(depths("ret;"), D{});
  EXPECT_EQ(depths("L: @p bra L; ret;"), D{0});
  EXPECT_EQ(depths("A: B: @p bra B; @p bra A; ret;"), (D{0, 1}));
  EXPECT_EQ(depths("A: add.s32 r, r, 1; B: @p bra B; @p bra A; ret;"), (D{0, 1}));
  EXPECT_EQ(depths("A: @p bra A; B: @p bra B; ret;"), (D{0, 0}));
  EXPECT_EQ(depths("A: add.s32 r,r,1; B: add.s32 r,r,2; C: @p bra C; @p bra B; @p bra A; ret;"),
            (D{0, 1, 2}));
  // Two entries into one cycle: found as a loop although it has no single header.
  EXPECT_EQ(depths("@p bra B; A: add.s32 r,r,1; B: add.s32 r,r,2; @p bra A; ret;"), D{0});
  // Labels of the same name in different scopes, as inline assembly repeats them.
  EXPECT_EQ(depths("{ W: @p bra D; bra W; D: } { W: @p bra D; bra W; D: } ret;"), (D{0, 0}));
  EXPECT_EQ(depths("T: .branchtargets A, B; A: add.s32 r, r, 1; brx.idx r, T; B: ret;"), D{0});
}

// ---- uniformity

struct UniformityCase {
  const char* what;
  const char* body;     // %r1 is the value asked for
  Same value, control;  // of %r1; of the block of the last instruction before the end
};

class UniformityOf : public testing::TestWithParam<UniformityCase> {};

TEST_P(UniformityOf, TheRegister) {
  const auto module = ptx::parse(std::string(R"(.version 8.0
.target sm_90
.address_size 64
.const .align 4 .u32 table[8];
.func (.param .b32 r) f(.param .b32 a) { ret; }
.visible .entry k(.param .u32 n, .param .u64 p)
{
  .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<4>; .param .b32 in; .param .b32 out;
  ld.param.u32 %r8, [n];
)") + GetParam().body + "\n  ret;\n}\n");
  ASSERT_TRUE(module.ok()) << module.error().text;
  const Flow flow = build_flow(*module->find("k"));
  const Uniformity u = uniformity(flow);
  ASSERT_FALSE(u.gave_up);
  for (const Node& node : flow.nodes) {
    if (!flow.writes(node).empty() && node.instruction->operands[0].name == "%r1") {
      EXPECT_EQ(u.objects[flow.writes(node)[0]], GetParam().value);
    }
  }
  const auto last = std::ranges::find_if(flow.blocks, [&](const Block& b) {
    return b.begin <= flow.nodes.size() - 2 && flow.nodes.size() - 2 < b.end;
  });
  EXPECT_EQ(u.control[size_t(last - flow.blocks.begin())], GetParam().control);
}

constexpr Same kG = Same::kGrid, kB = Same::kBlock, kW = Same::kWarp, kT = Same::kThread;
INSTANTIATE_TEST_SUITE_P(
    Table, UniformityOf,
    testing::Values(
        UniformityCase{"Parameter", "mov.u32 %r1, %r8;", kG, kG},
        UniformityCase{"Thread", "mov.u32 %r2, %tid.x; add.u32 %r1, %r8, %r2;", kT, kG},
        UniformityCase{"BlockOfManyThreads",
                       "mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mul.lo.u32 %r1, %r2, %r3;", kB, kG},
        UniformityCase{"Constant", "ld.const.u32 %r1, [table+4];", kG, kG},
        UniformityCase{"ConstantByThread",
                       "mov.u32 %r2, %tid.x; cvt.u64.u32 %rd1, %r2; ld.const.u32 %r1, [%rd1];", kT, kG},
        UniformityCase{"Memory", "ld.param.u64 %rd1, [p]; ld.global.u32 %r1, [%rd1];", kT, kG},
        UniformityCase{"Ballot",
                       "mov.u32 %r2, %tid.x; setp.eq.u32 %p1, %r2, 0; vote.sync.ballot.b32 %r1, %p1, -1;", kW,
                       kG},
        UniformityCase{"BallotOfSome", "setp.eq.u32 %p1, %r8, 0; vote.sync.ballot.b32 %r1, %p1, %r8;", kT,
                       kG},
        UniformityCase{"Exchange", "shfl.sync.idx.b32 %r1, %r8, 0, 31, -1;", kT, kG},
        UniformityCase{"Call", "st.param.b32 [in], %r8; call (out), f, (in); ld.param.b32 %r1, [out];", kT,
                       kG},
        UniformityCase{"Carry", "mov.u32 %r2, %tid.x; add.cc.u32 %r3, %r2, %r2; addc.u32 %r1, %r8, 0;", kT,
                       kG},
        // The one value of those that come there.
        UniformityCase{"BehindABoundsCheck",
                       "mov.u32 %r2, %tid.x; setp.ge.u32 %p1, %r2, %r8; @%p1 bra E; mov.u32 %r1, %r8; E:", kG,
                       kT},
        UniformityCase{"AfterAnEarlyReturn",
                       "mov.u32 %r2, %tid.x; setp.ge.u32 %p1, %r2, %r8; @%p1 ret; mov.u32 %r1, %r8;", kG, kT},
        UniformityCase{
            "ChosenByTheThread",
            "mov.u32 %r2, %tid.x; setp.ge.u32 %p1, %r2, %r8; mov.u32 %r1, 1; @%p1 bra E; mov.u32 %r1, 2; E: "
            "add.u32 %r3, %r1, 1;",
            kT, kG},
        UniformityCase{"ChosenByPredicate",
                       "mov.u32 %r2, %tid.x; setp.ge.u32 %p1, %r2, %r8; mov.u32 %r1, 1; @%p1 mov.u32 %r1, 2;",
                       kT, kG},
        UniformityCase{"ChosenByTheBlock",
                       "mov.u32 %r2, %ctaid.x; setp.ge.u32 %p1, %r2, %r8; mov.u32 %r1, 1; @%p1 bra E; "
                       "mov.u32 %r1, 2; E: "
                       "add.u32 %r3, %r1, 1;",
                       kB, kG},
        UniformityCase{"CountedLoop",
                       "mov.u32 %r1, 0; L: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, %r8; @%p1 bra L; "
                       "mov.u32 %r3, %r1;",
                       kG, kG},
        UniformityCase{"CountedLoopBehindABoundsCheck",
                       "mov.u32 %r2, %tid.x; setp.ge.u32 %p2, %r2, %r8; @%p2 ret; mov.u32 %r1, 0; L: add.u32 "
                       "%r1, %r1, 1; "
                       "setp.lt.u32 %p1, %r1, %r8; @%p1 bra L; mov.u32 %r3, %r1;",
                       kG, kT},
        UniformityCase{"LoopThatThreadsLeaveOneByOne",
                       "mov.u32 %r2, %tid.x; mov.u32 %r1, 0; L: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, "
                       "%r2; @%p1 bra L; "
                       "mov.u32 %r3, %r1;",
                       kT, kG},
        UniformityCase{"KeptFromAnEarlierPass",
                       "mov.u32 %r2, %tid.x; mov.u32 %r4, 0; L: setp.ne.u32 %p2, %r4, %r2; @%p2 bra S; "
                       "mov.u32 %r1, %r4; S: "
                       "add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, %r8; @%p1 bra L; mov.u32 %r3, %r1;",
                       kT, kG},
        UniformityCase{"JumpBehindTheEnd",
                       "mov.u32 %r2, %tid.x; setp.ge.u32 %p1, %r2, %r8; mov.u32 %r1, 1; @%p1 bra E; "
                       "mov.u32 %r1, 2; mov.u32 %r3, %r1; bra F; E: mov.u32 %r4, %r1; F:",
                       kT, kT},
        UniformityCase{
            "ChosenByTestsThatJumpIntoEachOther",  // (tid < n ? n == 1 : n != 1) ? 1 : 2
            "mov.u32 %r2, %tid.x; setp.lt.u32 %p1, %r2, %r8; setp.eq.u32 %p2, %r8, 1; @%p1 bra A; "
            "@%p2 bra Y; bra X; A: @%p2 bra X; bra Y; X: mov.u32 %r1, 1; bra M; Y: mov.u32 %r1, 2; "
            "M: add.u32 %r3, %r1, 1;",
            kT, kG},
        UniformityCase{"TableOfTargets",
                       "mov.u32 %r2, %tid.x; mov.u32 %r1, 1; T: .branchtargets A, B; brx.idx %r2, T; A: "
                       "mov.u32 %r1, 2; B: "
                       "mov.u32 %r3, %r1;",
                       kT, kG}),
    [](const auto& one) { return std::string(one.param.what); });

// Kernels with a barrier that not all threads of a block come to, each time together.
struct Barriers {
  int kernels = 0, barriers = 0;
  std::set<std::string> parted;
};
Barriers barriers_of(const std::string& text) {
  Barriers out;
  const ptx::Module module = parsed(text);
  for (const ptx::Item& item : module.items) {
    if (item.kind != ptx::Item::Kind::kFunction || !item.function->is_entry) {
      continue;
    }
    const Flow flow = build_flow(*item.function);
    const Uniformity u = uniformity(flow);
    EXPECT_EQ(u.gave_up, flow.gave_up) << item.function->name;
    ++out.kernels;
    for (size_t b = 0; b < flow.blocks.size(); ++b) {
      for (uint32_t k = flow.blocks[b].begin; k < flow.blocks[b].end; ++k) {
        const ptx::Instruction& i = *flow.nodes[k].instruction;
        if ((i.opcode != "bar" && i.opcode != "barrier") || i.has("warp")) {
          continue;
        }
        ++out.barriers;
        if (u.control[b] > Same::kBlock) {
          out.parted.insert(std::string(item.function->name));
        }
      }
    }
  }
  return out;
}

TEST(UniformityOfKernels, NoBarrierOfNvccIsUnderADivergentBranch) {
  for (const char* file : {"kernels.ptx", "kernels_debug.ptx"}) {
    const Barriers found = barriers_of(fixture(file));
    EXPECT_GT(found.barriers, 0) << file;
    EXPECT_EQ(found.parted, std::set<std::string>()) << file;
  }
}

TEST(UniformityOfKernels, BarriersOfTheGoldenKernels) {
  std::set<std::string> parted;
  int kernels = 0;
  for (const auto& entry : std::filesystem::directory_iterator(GOLDEN)) {
    std::ifstream in(entry.path());
    const std::string text(std::istreambuf_iterator<char>(in), {});
    if (!ptx::parse(text).ok()) {
      continue;  // kept to see the parser refuse it
    }
    Barriers found = barriers_of(text);
    kernels += found.kernels;
    parted.merge(found.parted);
  }
  EXPECT_GT(kernels, 50);
  // Hand-written: loops that what one thread loads may end, and a barrier of one warp behind an early return.
  EXPECT_EQ(parted, (std::set<std::string>{"refused_through_shared", "accepted_tiles_with_barrier",
                                           "accepted_tally_barrier_forms"}));
}

TEST(UniformityOfKernels, EndlessLoopsAreGivenUp) {
  const auto module =
      ptx::parse(".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() { L: bra L; }");
  ASSERT_TRUE(module.ok());
  EXPECT_TRUE(uniformity(build_flow(*module->find("k"))).gave_up);
}

}  // namespace
}  // namespace tessera::slice

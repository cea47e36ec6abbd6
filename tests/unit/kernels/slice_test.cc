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

namespace tessera::slice {
namespace {

ptx::Module parsed(const std::string& text) {
  auto module = ptx::parse(text);
  EXPECT_TRUE(module.ok()) << (module.ok() ? "" : module.error().text);
  return module.ok() ? std::move(*module) : ptx::Module();
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

// A variant adds this to its original: it reads a parameter and computes. No stores, atomics, barriers, branches, calls
// or loops over blocks, and no memory of its own in the module.
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

}  // namespace
}  // namespace tessera::slice

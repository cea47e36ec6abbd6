// Machine code of one compiler, cut and uncut: what is the same is proved, and every change of the arithmetic is found.
#include "kernels/sass/proof.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "kernels/ptx/parser.h"
#include "kernels/ptx/printer.h"
#include "kernels/sass/instruction.h"
#include "kernels/slice/globals.h"

namespace tessera::sass {
namespace {

namespace fs = std::filesystem;

std::string text_of_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class Family : public testing::TestWithParam<const char*> {
 protected:
  Family() {
    char name[] = "/tmp/tessera-proof-XXXXXX";
    folder_ = mkdtemp(name);
    ptx_ = text_of_file(SOURCE);
  }
  ~Family() override { fs::remove_all(folder_); }

  image::KernelCode compile(const std::string& ptx, const std::string& kernel) const {
    const std::string at = folder_ + "/made";
    std::ofstream(at + ".ptx") << ptx;
    const std::string command =
        std::string(PTXAS) + " -arch=" + GetParam() + " -e " + kernel + " " + at + ".ptx -o " + at + ".cubin";
    EXPECT_EQ(system(command.c_str()), 0) << ptx;
    const std::string cubin = text_of_file(at + ".cubin");
    auto code = image::kernel_code({reinterpret_cast<const uint8_t*>(cubin.data()), cubin.size()}, kernel);
    EXPECT_TRUE(code.ok()) << (code.ok() ? "" : code.error().text);
    return code.ok() ? *code : image::KernelCode();
  }
  // On sm_80 the compiler asks whether lanes are together (BRA.DIV), which is not known.
  static bool understood(const std::string& kernel) {
    return kernel != "lanes" || GetParam() != std::string("sm_80");
  }
  // PTX of the variant, and where it has its parameters.
  std::string variant(const std::string& kernel, VariantParameters* where) const {
    auto module = ptx::parse(ptx_);
    EXPECT_TRUE(module.ok());
    const auto globals = slice::passed_globals(*module, kernel);
    const auto report = slice::make_sibling(*module, kernel, globals);
    EXPECT_TRUE(report.verdict.may_cut()) << report.verdict.detail;
    *where = {report.origin_offset, globals.offset, {}};
    return ptx::print(*module);
  }
  Proof proof_of(const std::string& kernel, const std::string& from = "", const std::string& to = "") const {
    VariantParameters where;
    std::string cut = variant(kernel, &where);
    if (!from.empty()) {
      const size_t at = cut.find(from);
      EXPECT_NE(at, cut.npos) << from;
      if (at != cut.npos) cut.replace(at, from.size(), to);
    }
    return prove(original(kernel), compile(cut, kernel + slice::kVariantSuffix), where);
  }
  // Compiled once.
  const image::KernelCode& original(const std::string& kernel) const {
    const auto [made, is_new] = originals_.try_emplace(kernel);
    if (is_new) made->second = compile(ptx_, kernel);
    return made->second;
  }

  std::string folder_, ptx_;
  mutable std::map<std::string, image::KernelCode> originals_;
};

TEST_P(Family, TheSameCompilerMakesTheSameArithmetic) {
  for (const char* kernel : {"elements", "sums", "rows", "pairs", "wide", "lanes"}) {
    if (!understood(kernel)) continue;
    const Proof proof = proof_of(kernel);
    EXPECT_TRUE(proof.proved) << kernel << ": " << proof.difference;
    EXPECT_GT(proof.instructions, 30u);
  }
}

TEST_P(Family, AFunctionOfTheDriverIsNamed) {
  if (!understood("sums")) return;
  image::KernelCode code = original("sums");
  code.banks.push_back({4, std::vector<uint8_t>(8), {{0, image::kAddress64, "__cuda_syscall_copy", 0}}});
  EXPECT_EQ(prove(code, code, {}).difference, "calls __cuda_syscall_copy, which only the driver has");
}

struct Fault {
  const char *kernel, *what, *from, *to;
};
constexpr Fault kFaults[] = {
    {"elements", "a changed modifier", "ex2.approx.ftz.f32", "ex2.approx.f32"},
    {"elements", "another approximation", "sin.approx.f32", "cos.approx.f32"},
    {"elements", "a fused product", "add.rn.f32 %f10, %f9, %f2;", "fma.rn.f32 %f10, %f8, %f3, %f2;"},
    {"elements", "a product that is not fused any more", "add.f32 %f7, %f6, %f5;",
     "add.rn.f32 %f7, %f6, %f5;"},
    {"elements", "swapped operands", "sub.f32 %f8, %f7, %f2;", "sub.f32 %f8, %f2, %f7;"},
    {"elements", "swapped operands of a sum", "add.rn.f32 %f10, %f9, %f2;", "add.rn.f32 %f10, %f9, %f3;"},
    {"elements", "another rounding", "div.rn.f32", "div.rz.f32"},
    {"elements", "a dropped conversion", "cvt.f32.f16 %f12, %h1;", "mov.f32 %f12, %f11;"},
    {"elements", "another conversion", "cvt.rzi.s32.f32", "cvt.rni.s32.f32"},
    {"elements", "a smaller one", "max.f32", "min.f32"},
    {"elements", "another comparison", "setp.gt.f32", "setp.ge.f32"},
    {"elements", "another word of memory", "[%rd4+4]", "[%rd4+8]"},
    {"elements", "another parameter", "mul.f32 %f6, %f4, %f1;", "mul.f32 %f6, %f4, %f3;"},
    {"elements", "a double in float", "fma.rn.f64 %d3, %d1, %d2, %d1;", "fma.rn.f64 %d3, %d1, %d2, %d2;"},
    {"elements", "the block's own number", "mul.lo.s32 %r7", "add.s32 %r7"},
    {"sums", "another type", "f32.f16.f16.f32", "f32.bf16.bf16.f32"},
    {"sums", "swapped operands of the product", "{%r10, %r11}, {%f1", "{%r11, %r10}, {%f1"},
    {"sums", "another lane", "%r12, 1, 31, -1", "%r12, 2, 31, -1"},
    {"sums", "no barrier", "bar.sync 0;", ""},
    {"sums", "another shared word", "xor.b32 %r17, %r15, 4;", "xor.b32 %r17, %r15, 8;"},
    {"sums", "another reduction", "red.global.add.u32", "red.global.max.u32"},
    {"sums", "a fused product", "fma.rn.f32 %f8, %f6, %f7, %f2;", "fma.rn.f32 %f8, %f7, %f2, %f6;"},
    {"rows", "a changed modifier", "ex2.approx.ftz.f32", "ex2.approx.f32"},
    {"rows", "a fused product", "add.rn.ftz.f32 %f9, %f8, %f7;", "fma.rn.ftz.f32 %f9, %f7, %f1, %f7;"},
    {"rows", "swapped operands", "sub.ftz.f32 %f6, %f3, %f5;", "sub.ftz.f32 %f6, %f5, %f3;"},
    {"rows", "a dropped conversion", "cvt.f32.f16 %f2, %h1;", "mov.b32 %f2, {%h1, %h1};"},
    {"rows", "another remainder", "rem.s64 %rd8, %rd6, %rd4;", "rem.s64 %rd8, %rd6, %rd3;"},
    {"rows", "a remainder of the slice's own number", "rem.s64 %rd8, %rd6, %rd4;",
     "mov.u32 %r9, %ctaid.z; cvt.u64.u32 %rd6, %r9; rem.s64 %rd8, %rd6, %rd4;"},
    {"pairs", "a changed modifier", "rsqrt.approx.f32", "rsqrt.approx.ftz.f32"},
    {"pairs", "a fused product", "add.rn.f32 %f7, %f6, %f4;", "fma.rn.f32 %f7, %f5, %f1, %f4;"},
    {"pairs", "a product that is not fused any more", "fma.rn.f32 %f3, %f2, %f2, %f1;",
     "mul.rn.f32 %f3, %f2, %f2; add.rn.f32 %f3, %f3, %f1;"},
    {"pairs", "swapped operands of a sum", "%r12, %r10, %r11, %r10;", "%r12, %r10, %r11, %r11;"},
    {"pairs", "swapped halves", "%r14, %f8, %f5;", "%r14, %f5, %f8;"},
    {"pairs", "a dropped conversion", "cvt.rn.bf16x2.f32 %r14, %f8, %f5;", "mov.b32 %r14, %f8;"},
    {"wide", "an immediate's lower half", "0x1122334455667799", "0x112233445566779a"},
    {"wide", "an immediate's upper half", "0x1122334455667799", "0x1022334455667799"},
    {"wide", "a moved immediate's lower half", "0x3ff123456789abcd;", "0x3ff123456789abcf;"},
    {"wide", "a moved immediate's upper half", "0x3ff123456789abcd;", "0x7ff123456789abcd;"},
    {"wide", "a short immediate", "%rd12, 77;", "%rd12, 78;"},
    {"wide", "an immediate that is compared", "setp.gt.s64 %p1, %rd6, 5;", "setp.gt.s64 %p1, %rd6, 6;"},
    {"wide", "an immediate that is compared as negative", "%rd7, -7;", "%rd7, 4294967289;"},
    {"wide", "an immediate that is chosen", "%rd7, -9, %p1", "%rd7, 4294967287, %p1"},
    {"wide", "an immediate that is the least", "%rd8, 11;", "%rd8, 12;"},
    {"wide", "a double immediate that is added", "0d3FF8000000000000", "0d3FF8000080000000"},
    {"wide", "a double immediate's lower half", "0d3FF123456789ABCD", "0d3FF123456789ABCC"},
    {"wide", "a double immediate's upper half", "0d3FF123456789ABCD", "0d3FF023456789ABCD"},
    {"wide", "a double immediate that multiplies", "0d4006000000000000", "0dC006000000000000"},
    {"wide", "a double immediate of a fused sum", "0d4008000000000000", "0d4008000100000000"},
    {"wide", "a double immediate that is compared", "0d4010000000000000", "0d4010000200000000"},
    {"wide", "a double immediate that is chosen", "0d4014000000000000", "0d4014000000000001"},
    {"wide", "a fused product of doubles", "fma.rn.f64 %d6, %d5, %d5, 0d4008000000000000;",
     "mul.rn.f64 %d6, %d5, %d5; add.rn.f64 %d6, %d6, 0d4008000000000000;"},
    {"lanes", "another predicate", "%r9, %r10, %p6;", "%r9, %r10, %p4;"},
    {"lanes", "the opposite of a predicate", "@%p5 bra END;", "@!%p5 bra END;"},
    {"lanes", "another mask of a vote", "%r5, %p3, %r20;", "%r5, %p3, %r21;"},
    {"lanes", "another vote", "vote.sync.any.pred", "vote.sync.all.pred"},
    {"lanes", "another predicate of a vote", "%r5, %p3, %r20;", "%r5, %p1, %r20;"},
    {"lanes", "another mask of a shuffle", "%r6, 3, 0x1f, %r20;", "%r6, 3, 0x1f, %r21;"},
    {"lanes", "another segment of a shuffle", "%r6, 3, 0x1f", "%r6, 3, 0xf"},
    {"lanes", "another distance of a shuffle", "%r6, 3, 0x1f", "%r6, 2, 0x1f"},
    {"lanes", "another lane that is named by a register", "%r6, %r4, 0x1f", "%r6, %r3, 0x1f"},
    {"lanes", "another mask of a match", "%r9, %r8, %r20;", "%r9, %r8, %r21;"},
    {"lanes", "another reduction", "redux.sync.add.s32", "redux.sync.max.s32"},
    {"pairs", "another comparison", "setp.gt.s32 %p1", "setp.ge.s32 %p1"},
    {"pairs", "a comparison the other way round", "setp.gt.s32 %p1, %r1, %r8;", "setp.gt.s32 %p1, %r8, %r1;"},
};

TEST_P(Family, PlantedFaultsAreFound) {
  for (const Fault& f : kFaults) {
    if (!understood(f.kernel)) continue;
    const Proof proof = proof_of(f.kernel, f.from, f.to);
    EXPECT_FALSE(proof.proved) << f.what << ": " << f.from << " -> " << f.to;
    EXPECT_NE(proof.difference, "") << f.what;
  }
}

// A compiler may put two halves together by bytes or by sums: it is one value.
TEST_P(Family, HalvesOfWordsAreWhatTheyAreHoweverTheyWerePutTogether) {
  constexpr char kUpper[] = "prmt.b32 %r7, %r5, %r6, 0x7632;", kLower[] = "prmt.b32 %r8, %r5, %r6, 0x5410;";
  constexpr char kUpperSum[] =
      "shr.u32 %r9, %r5, 16; shr.u32 %r10, %r6, 16; mad.lo.u32 %r7, %r10, 65536, %r9;";
  const auto proved = [&](const char* from, const char* to) { return proof_of("halves", from, to).proved; };
  EXPECT_TRUE(proved("", ""));
  EXPECT_TRUE(proved(kUpper, kUpperSum)) << proof_of("halves", kUpper, kUpperSum).difference;
  EXPECT_FALSE(proved(kUpper, "prmt.b32 %r7, %r5, %r6, 0x7610;"));
  EXPECT_FALSE(proved(kUpper, "prmt.b32 %r7, %r6, %r5, 0x7632;"));
  EXPECT_FALSE(proved(kUpper, "prmt.b32 %r7, %r5, %r6, 0x7623;"));
  EXPECT_FALSE(proved(kLower, "prmt.b32 %r8, %r5, %r6, 0x5432;"));
  EXPECT_FALSE(proved(kLower, "prmt.b32 %r8, %r5, %r6, 0xd410;"));
}

// As nvdisasm reads them.
TEST(Decoder, KnowsWhatPackedAndWideElementsAreMadeOf) {
  struct Row {
    uint64_t low, high;
    const char* text;
    unsigned sm = 90;
  };
  constexpr Row kRows[] = {
      {0x200000ff10007234, 0x004fe20003903002, "HSETP2 | P0 P1 | R16"},
      {0x200000100c007234, 0x000fe40000726822, "HSETP2 | P1 | P0 R12 R16"},
      {0x3dcccccda820780a, 0x000fe40003804000, "FSET | R32 | R168"},
      {0x0000002800027304, 0x000e240000202000, "F2F | R2 | R40"},
      {0x0000000400047311, 0x000e22000020d900, "F2I.64 | R4 R5 | R4"},
      {0x1400000028338fae, 0x000fe20009121a5a, "LDGSTS | | P0 P2 R40 R41 R51 UR26 UR27"},
      {0x008000000cea9fae, 0x0009e2000b901d48, "LDGSTS | | P1 R12 R13 R234 UR8 UR9"},
      {0x00b0000002078fae, 0x000fe8000b981a06, "LDGSTS | | P0 R2 R3 R7 UR6 UR7", 100},
      {0x000000440f027233, 0x100fe20003803000, "HSET2 | R2 | R15 R68"},
      {0x0000000006007348, 0x000ff40003a00000, "WARPSYNC | | R6"},
      {0xffffffff00007948, 0x000fea0003800000, "WARPSYNC | |"},
      {0x0000000004087348, 0x002fea0003c00000, "WARPSYNC | | R4"},  // .COLLECTIVE
      {0x00000005020079a6, 0x000fe2000c10f386, "REDG | | R2 R3 R5 UR6 UR7"},
      {0x00000030280079a6, 0x0201e2000c10f790, "REDG | | R40 R41 R48 R49 R50 R51 UR16 UR17"},
      {0x0000004309097232, 0x000fe40000200000, "HMUL2 | R9 | R67 R9"},
      {0x2000001304047240, 0x000fc80007a20800, "HMNMX2 | R4 | R19 R4"},
      {0x2000000904047247, 0x004fc80007a22806, "VHMNMX | R4 | R4 R6 R9"},
      {0x00000004000572bf, 0x000fe20008000000, "UPOPC | UR5 | UR4"},
      {0x000000000000782e, 0x000fe20000000000, "ACQBULK | |"},
      {0x000000000000782d, 0x000fe20000000000, "PREEXIT | |"},
      {0x000000050910724a, 0x000fc80001040000, "FMUL2 | R16 R17 | R5 R9", 100},
      {0x000000100a10724a, 0x000fe40000040000, "FMUL2 | R16 R17 | R10 R16 R17", 100},
      {0x0000000408087249, 0x000fe40001240010, "FFMA2 | R8 R9 | R16 R4 R8", 100},
      {0x0000004b32327249, 0x008fc6000100002a, "FFMA2 | R50 R51 | R42 R43 R50 R51 R75", 100},
      {0x0f0000000e198fae, 0x000fe200089a1410, "LDGSTS | | P0 P1 R14 R15 R25 UR16 UR17", 120},
      {0x000000ff1a1a7607, 0x000fcc0002800000, "SEL | R26 R27 | P5 R26 R27", 120},
      {0x0000000a040a7c87, 0x000fe2000c000000, "USEL | UR10 UR11 | UP0 UR10 UR11 UR4 UR5", 120},
      {0x00000010ff127407, 0x000fe40006000000, "SEL | R18 R19 | P4", 120},
      {0xffffffff08087407, 0x000fe40000000001, "SEL | R8 R9 | P0 R8 R9", 120},
      {0x0000000a1000722a, 0x000fcc000390f000, "DSETP | P0 P1 | R10 R11 R16 R17"},
      {0x0000000602007e2a, 0x000fe2000bf2e000, "DSETP | P1 | R2 R3 UR6 UR7"},
      {0xfe0001040208797e, 0x001eaa000812190c, "LDG | R10 R11 R12 R13 R14 R15 R8 R9 | R2 R3 UR4 UR5", 100},
      {0xf8000208040c797f, 0x001fe2000f121804, "STG | | R10 R11 R12 R13 R14 R15 R4 R5 R8 R9 UR4 UR5", 100},
      {0x0000000a06087c17, 0x000fc8000fffe400, "IMNMX | R8 R9 | R6 R7 UR10 UR11", 120},
      {0x00000009ff0ab217, 0x000fe40007800200, "IMNMX | R10 | P3 R9", 80},
      {0x0000000c04047981, 0x000ea2200c0e1d00, "LDG | R4 R5 R6 R7 | R4 R5 UR12 UR13", 80},
  };
  for (const Row& row : kRows) {
    const auto i = decode(row.low, row.high, row.sm);
    ASSERT_TRUE(i) << row.text;
    EXPECT_EQ(text_of(*i), row.text);
  }
  EXPECT_FALSE(decode(0x00000030280079a6, 0x0201e2000c10f190, 90)) << "sums of a size that is not known";
}

// Each bit of an instruction but its scheduling is part of something that is compared.
bool same(const Instruction& a, const Instruction& b) {
  return a.opcode == b.opcode && a.rest_low == b.rest_low && a.rest_high == b.rest_high &&
         a.swapped == b.swapped && a.kind == b.kind && a.guard == b.guard && a.writes == b.writes &&
         a.reads == b.reads && a.target == b.target;
}
TEST_P(Family, EveryBitOfAnInstructionIsRead) {
  unsigned flipped = 0;
  for (const char* kernel : {"elements", "sums", "rows", "pairs", "halves", "wide", "lanes"}) {
    const image::KernelCode& code = original(kernel);
    for (size_t at = 0; at + kInstructionBytes <= code.code.size(); at += kInstructionBytes) {
      uint64_t words[2];
      memcpy(words, code.code.data() + at, sizeof words);
      const auto before = decode(words[0], words[1], code.sm);
      if (!before || before->kind == Kind::kNothing) continue;
      for (unsigned bit = 0; bit < 105; bit++) {
        uint64_t other[2] = {words[0], words[1]};
        other[bit / 64] ^= uint64_t(1) << bit % 64;
        const auto after = decode(other[0], other[1], code.sm);
        EXPECT_FALSE(after && same(*before, *after)) << text_of(*before) << ", bit " << bit;
        flipped++;
      }
    }
  }
  EXPECT_GT(flipped, 10'000u);
}

// "a > b" is "b < a", and what is equal is so in either order.
TEST_P(Family, ComparisonsMayStandTheOtherWayRound) {
  EXPECT_TRUE(proof_of("pairs", "setp.gt.s32 %p1, %r1, %r8;", "setp.lt.s32 %p1, %r8, %r1;").proved);
  EXPECT_FALSE(proof_of("pairs", "setp.gt.s32 %p1, %r1, %r8;", "setp.le.s32 %p1, %r8, %r1;").proved);
}

// Each middle computes R6 of R0, R2, R3, P0, UR4, UR5; then it is stored. nvdisasm reads the words as the comments say.
using Word = std::array<uint64_t, 2>;
image::KernelCode written(unsigned sm, const std::vector<Word>& middle, uint32_t param_bytes) {
  std::vector<Word> all = {{0x0000000000007919, 0x2100},      // S2R R0, SR_TID.X
                           {0x000000050000780c, 0x3f04270}};  // ISETP.GT.AND P0, PT, R0, 0x5, PT
  if (sm == 90)
    all.insert(all.end(), {{0x0000820000047ab9, 0xa00},    // ULDC.64 UR4, c[0x0][0x208]
                           {0x00008400ff027b82, 0xa00}});  // LDC.64 R2, c[0x0][0x210]
  else
    all.insert(all.end(), {{0x00006b00ff0477ac, 0x8000a00},  // LDCU.64 UR4, c[0x0][0x358]
                           {0x0000e000ff027b82, 0xa00}});    // LDC.64 R2, c[0x0][0x380]
  all.insert(all.end(), middle.begin(), middle.end());
  all.push_back({0x0000000602007986, 0xc101904});  // STG.E desc[UR4][R2.64], R6
  all.push_back({0x000000000000794d, 0x3800000});  // EXIT
  image::KernelCode out;
  out.sm = sm;
  out.param_base = sm == 90 ? 0x210 : 0x380;
  out.param_bytes = param_bytes;
  out.code.resize(all.size() * sizeof(Word));
  memcpy(out.code.data(), all.data(), out.code.size());
  return out;
}
struct Row {
  const char* what;
  std::vector<Word> original, equal, other;
  unsigned sm = 90;
  std::array<uint32_t, 3> required_threads = {};
};
void expect_equal_and_other(const Row& row) {
  image::KernelCode original = written(row.sm, row.original, 8);
  original.required_threads = row.required_threads;
  const VariantParameters where{.origin_offset = 8};
  const Proof same = prove(original, written(row.sm, row.equal, 32), where),
              other = prove(original, written(row.sm, row.other, 32), where);
  EXPECT_TRUE(same.proved) << row.what << ": " << same.difference;
  EXPECT_FALSE(other.proved) << row.what;
  EXPECT_NE(other.difference.find("the variant"), std::string::npos) << row.what << ": " << other.difference;
}
constexpr Word kMoveR0 = {0x0000000000067202, 0xf00},  // MOV R6, R0
    kMoveR2 = {0x0000000200067202, 0xf00},             // MOV R6, R2
    kMoveR3 = {0x0000000300067202, 0xf00},             // MOV R6, R3
    kIfR0 = {0x0000000000060202, 0xf00},               // @P0 MOV R6, R0
    kIfR2 = {0x0000000200060202, 0xf00},               // @P0 MOV R6, R2
    kStoreR0 = {0x0000000002007986, 0xc101904},        // STG.E desc[UR4][R2.64], R0
    kStoreR2 = {0x0000000202007986, 0xc101904},        // STG.E desc[UR4][R2.64], R2
    kStoreR6 = {0x0000000602007986, 0xc101904},        // STG.E desc[UR4][R2.64], R6
    kExit = {0x000000000000794d, 0x3800000};
// BRA over a number of instructions, under a guard: 0 P0, 1 P1, 8 !P0, 9 !P1.
constexpr uint64_t kAlways = 7;
constexpr Word branch(uint64_t over, uint64_t guard = kAlways) {
  return {0x947 | guard << 12 | over << 18, 0x3800000};
}

TEST(Machine, ComputesTheSameInOtherWords) {
  constexpr Word kElseR2 = {0x0000000200068202, 0xf00},  // @!P0 MOV R6, R2
      kElseR0 = {0x0000000000068202, 0xf00},             // @!P0 MOV R6, R0
      kCarry = {0x000000ffff067210, 0xffe4ff},           // IADD3.X R6, RZ, RZ, RZ, P1, !PT
      kBothCarries = {0x000000ffff067210, 0xfe44ff},     // IADD3.X R6, RZ, RZ, RZ, P1, P2
      kMoved = {0x0000000600067c02, 0x8000f00};          // MOV R6, UR6
  const Row rows[] = {
      {"a choice that is made in the other order", {kIfR0, kElseR2}, {kElseR2, kIfR0}, {kIfR2, kElseR0}},
      {"a choice of what nobody sees", {kIfR0, kElseR2}, {kIfR2, kElseR2, kIfR0}, {kIfR0, kElseR2, kIfR2}},
      {"the carry of a difference",
       {{0x0000000200057210, 0x7f3e1ff}, kCarry},   // IADD3 R5, P1, -R0, R2, RZ
       {{0x8000000002057210, 0x7f3e0ff}, kCarry},   // IADD3 R5, P1, R2, -R0, RZ
       {{0x8000000200057210, 0x7f3e0ff}, kCarry}},  // IADD3 R5, P1, R0, -R2, RZ
      {"the carries of three",
       {{0x0000000200057210, 0x7a3e003}, kBothCarries},   // IADD3 R5, P1, P2, R0, R2, R3
       {{0x0000000003057210, 0x7a3e002}, kBothCarries},   // IADD3 R5, P1, P2, R3, R0, R2
       {{0x0000000003057210, 0x7a3e000}, kBothCarries}},  // IADD3 R5, P1, P2, R3, R0, R0
      {"one of the carries of three",
       {{0x0000000200057210, 0x7a3e003}, kCarry},
       {{0x0000000200057210, 0x7a3e003}, kCarry},
       {{0x0000000003057210, 0x7a3e002}, kCarry}},
      {"a difference",
       {{0x8000000200067236, 0x0}},        // VIADD R6, R0, -R2
       {{0x8000000200067210, 0x7ffe0ff}},  // IADD3 R6, R0, -R2, RZ
       {{0x0000000200067236, 0x0}}},       // VIADD R6, R0, R2
      {"a move between uniform registers",
       {{0x0000000500067c82, 0x8000000}, kMoved},  // UMOV UR6, UR5
       {{0x0000000500067c02, 0x8000f00}},          // MOV R6, UR5
       {{0x0000000400067c02, 0x8000f00}}},         // MOV R6, UR4
      {"two registers that change places by exclusive sums",
       {kMoveR0},
       {{0x0000000200057212, 0x78e3cff},                                     // LOP3.LUT R5, R0, R2, RZ, 0x3c
        {0x0000000205067212, 0x78e3cff}},                                    // LOP3.LUT R6, R5, R2, RZ, 0x3c
       {{0x0000000200057212, 0x78e3cff}, {0x0000000005067212, 0x78e3cff}}},  // LOP3.LUT R6, R5, R0, RZ, 0x3c
      {"a bitwise function that is made in two steps",
       {{0x0000000200067212, 0x78e4003}},                                    // LOP3.LUT R6, R0, R2, R3, 0x40
       {{0x0000000200057212, 0x78ec0ff},                                     // LOP3.LUT R5, R0, R2, RZ, 0xc0
        {0x0000000305067212, 0x78e30ff}},                                    // LOP3.LUT R6, R5, R3, RZ, 0x30
       {{0x0000000200057212, 0x78ec0ff}, {0x0000000305067212, 0x78efcff}}},  // LOP3.LUT R6, R5, R3, RZ, 0xfc
      {"a conversion by the uniform unit",
       {{0x0000000400067d06, 0x8209000}},          // I2F.U32.RP R6, UR4
       {{0x000000040006725a, 0x8209000}, kMoved},  // UI2F.U32.RP UR6, UR4
       {{0x0000000400067d06, 0x8201000}}},         // I2F.U32 R6, UR4
  };
  for (const Row& row : rows) expect_equal_and_other(row);
}

TEST(Machine, ComputesTheSameOfWiderAndNarrowerWords) {
  constexpr Word kIfOtherR0 = {0x0000000000061202, 0xf00},  // @P1 MOV R6, R0
      kStoreHalf = {0x0000000502007986, 0xc101504},         // STG.E.U16 desc[UR4][R2.64], R5
      kR4 = {0x0000000000047202, 0xf00},                    // MOV R4, R0
      kR5 = {0x0000000000057202, 0xf00},                    // MOV R5, R0
      kUpper = {0x0000000700067202, 0xf00},                 // MOV R6, R7
      kUpperR5 = {0x0000000500067202, 0xf00},               // MOV R6, R5
      kMeet = {0x0000000000007348, 0x3800000},              // WARPSYNC R0
      kLoad = {0x0000000402067981, 0xc1e1900};              // LDG.E R6, desc[UR4][R2.64]
  const Row rows[] = {
      {"a shifted difference",
       {{0x0080000000067824, 0x78e0a02}},   // IMAD R6, R0, 0x800000, -R2
       {{0x8000000200067211, 0x78eb8ff}},   // LEA R6, R0, -R2, 0x17
       {{0x0000000200067211, 0x78eb8ff}}},  // LEA R6, R0, R2, 0x17
      {"the greater one of two",
       {{0x0000000200067248, 0x7fe0100}},   // VIMNMX R6, R0, R2, !PT
       {{0x0000000002067248, 0x7fe0100}},   // VIMNMX R6, R2, R0, !PT
       {{0x0000000002067248, 0x3fe0100}}},  // VIMNMX R6, R2, R0, PT
      {"half a word that is stored",
       {{0x0000761000057816, 0x2}, kStoreHalf},   // PRMT R5, R0, 0x7610, R2
       {{0x0000761000057816, 0x3}, kStoreHalf},   // PRMT R5, R0, 0x7610, R3
       {{0x0000761002057816, 0x2}, kStoreHalf}},  // PRMT R5, R2, 0x7610, R2
      {"a difference of 64 bits",
       {kR4, kR5, {0x8000000402067235, 0x78e0200}, kUpper},  // IADD.64 R6, R2, -R4
       {kR4, kR5, {0x0000000204067235, 0x78e0300}, kUpper},  // IADD.64 R6, -R4, R2
       {kR4, kR5, {0x8000000204067235, 0x78e0200}, kUpper},  // IADD.64 R6, R4, -R2
       120},
      {"the upper word of the greater one of two",
       {kR4, kR5, {0x0000000402067217, 0x7ffe400}, kUpper},  // IMNMX.U64 PT, PT, R6, R2, R4, !PT, !PT
       {kR4, kR5, {0x0000000402067217, 0x7ffe400}, kUpper},
       {kR4, kR5, {0x0000000404067217, 0x7ffe400}, kUpper},  // IMNMX.U64 PT, PT, R6, R4, R4, !PT, !PT
       120},
      {"inequality of 64 bits",
       {kMoveR2, {0x000000ff0200720c, 0x3f35270}, kIfOtherR0},  // ISETP.NE.S64.AND P1, PT, R2, RZ, PT
       {kMoveR2, {0x00000002ff00720c, 0x3f35270}, kIfOtherR0},  // ISETP.NE.S64.AND P1, PT, RZ, R2, PT
       {kMoveR2, {0x000000020200720c, 0x3f35270}, kIfOtherR0},  // ISETP.NE.S64.AND P1, PT, R2, R2, PT
       120},
      {"an immediate beside 64 bits, which is not the upper word",
       {kMoveR2, {0x000000050200780c, 0x3f35270}, kIfOtherR0},  // ISETP.NE.S64.AND P1, PT, R2, 0x5, PT
       {kMoveR2, {0x000000050200780c, 0x3f35270}, kIfOtherR0},
       {kMoveR2,
        {0x000000ff00047202, 0xf00},      // MOV R4, RZ
        {0x0000000500057802, 0xf00},      // MOV R5, 0x5
        {0x000000040200720c, 0x3f35270},  // ISETP.NE.S64.AND P1, PT, R2, R4, PT
        kIfOtherR0},
       120},
      {"the upper word of an immediate of 64 bits",
       {{0x456789abcd047402, 0x3ff123}, kUpperR5},  // MOV.64 R4, 0x3ff123456789abcd
       {{0x3ff1234500057802, 0xf00}, kUpperR5},     // MOV R5, 0x3ff12345
       {{0x3ff1234400057802, 0xf00}, kUpperR5},     // MOV R5, 0x3ff12344
       120},
      {"a load behind a meeting of the warp", {kMeet, kLoad}, {kMeet, kR4, kLoad}, {kLoad, kMeet}},
  };
  for (const Row& row : rows) expect_equal_and_other(row);
}

TEST(Machine, FollowsWhatIsSpilled) {
  // STL [R1 + 4 * word], R0 or R2; LDL.LU R6, [R1 + 4 * word]. Base 5: R5 in the place of R1.
  const auto store = [](uint64_t of, uint64_t word, uint64_t base = 1) {
    return Word{0x7387 | base << 24 | of << 32 | word << 42, 0x100800};
  };
  const auto load = [](uint64_t word, uint64_t base = 1) {
    return Word{0x67983 | base << 24 | word << 42, 0x300800};
  };
  const auto store_half = [](uint64_t of, uint64_t word) {  // STL.S16
    return Word{0x1007387 | of << 32 | word << 42, 0x100600};
  };
  const auto load_half = [](uint64_t to, uint64_t word) {  // LDL.S16
    return Word{0x1007983 | to << 16 | word << 42, 0x100600};
  };
  constexpr Word kHeldR0 = {0x0000000000057202, 0xf00},  // MOV R5, R0
      kHeldR2 = {0x0000000200057202, 0xf00},             // MOV R5, R2
      kStoreHalfR5 = {0x0000000502007986, 0xc101504},    // STG.E.U16 desc[UR4][R2.64], R5
      kPointer = {0x0000000100057202, 0xf00},            // MOV R5, R1
      kIfStore = {0x0000040001000387, 0x100800},         // @P0 STL [R1+0x4], R0
      kStoreHalf = {0x0000040001007387, 0x100400};       // STL.U16 [R1+0x4], R0
  const Row rows[] = {
      {"a word on the stack", {store(0, 1), load(1)}, {kMoveR0}, {store(2, 1), load(1)}},
      {"other words of the stack",
       {store(0, 1), store(2, 2), load(1)},
       {store(2, 5), store(0, 4), load(4)},
       {store(2, 5), store(0, 4), load(5)}},
      {"a word that is stored under a predicate",
       {store(2, 1), kIfStore, load(1)},
       {kMoveR2, kIfR0},
       {store(0, 1), kIfStore, load(1)}},
      {"a stack whose address another register has",
       {kPointer, store(0, 1), load(1, 5)},
       {kPointer, store(0, 1), load(1, 5)},
       {kMoveR0}},
      {"half a word on the stack", {kStoreHalf, load(1)}, {kStoreHalf, load(1)}, {kMoveR0}},
      {"halves of words on the stack",
       {store_half(0, 1), load_half(6, 1)},
       {store_half(2, 5), store_half(0, 4), load_half(6, 4)},
       {store_half(2, 5), store_half(0, 4), load_half(6, 5)}},
      {"a half of which the sign does not count",
       {store_half(0, 1), load_half(5, 1), kStoreHalfR5, kMoveR0},
       {kHeldR0, kStoreHalfR5, kMoveR0},
       {kHeldR2, kStoreHalfR5, kMoveR0}},
      {"a half of which the sign counts",
       {store_half(0, 1), load_half(6, 1)},
       {store_half(0, 1), load_half(6, 1)},
       {kMoveR0}},
      {"half of a word that was stored whole",
       {store(0, 1), load_half(6, 1)},
       {store_half(0, 1), load_half(6, 1)},
       {store(0, 2), load_half(6, 1)}},
      {"a word of which half was stored anew",
       {store(2, 1), store_half(0, 1), load(1)},
       {store(2, 3), store_half(0, 3), load(3)},
       {store_half(0, 1), load(1)}},
  };
  for (const Row& row : rows) expect_equal_and_other(row);
}

TEST(Machine, JoinsPredicatesInOtherWords) {
  constexpr Word kOther = {0x0000000a0200780c, 0x3f24270},  // ISETP.GT.AND P1, PT, R2, 0xa, PT
      kEither = {0x0000000a0200780c, 0x0724670},            // ISETP.GT.OR P1, PT, R2, 0xa, P0
      kBoth = {0x0000000a0200780c, 0x0724270},              // ISETP.GT.AND P1, PT, R2, 0xa, P0
      kThird = {0x000000050300780c, 0x3f44270},             // ISETP.GT.AND P2, PT, R3, 0x5, PT
      kThirdIfBoth = {0x000000050300180c, 0x3f44270},       // @P1 ISETP.GT.AND P2, PT, R3, 0x5, PT
      kThirdElse = {0x000000050300980c, 0x3f44270},         // @!P1 ISETP.GT.AND P2, PT, R3, 0x5, PT
      kChosenIfBoth = {0x0000000302061207, 0x1000000},      // @P1 SEL R6, R2, R3, P2
      kNeither = {0x0000000500069202, 0xf00};               // @!P1 MOV R6, R5
  const Row rows[] = {
      {"both hold",
       {kOther, {0x000000050000780c, 0x0f04270}, kIfR2},   // ISETP.GT.AND P0, PT, R0, 0x5, P1
       {{0x0000000a0200780c, 0x0704270}, kIfR2},           // ISETP.GT.AND P0, PT, R2, 0xa, P0
       {kOther, {0x000000050000780c, 0x0f04670}, kIfR2}},  // ISETP.GT.OR P0, PT, R0, 0x5, P1
      {"a predicate that is written where it is asked",
       {kMoveR0, kBoth, kThirdIfBoth, kChosenIfBoth},
       {kMoveR0, kBoth, kThird, kChosenIfBoth},
       {kMoveR0, kBoth, kThirdElse, kChosenIfBoth}},
      {"a predicate that follows from another one",
       {kMoveR0, {0x0000000300058202, 0xf00}, kEither, kNeither},   // @!P0 MOV R5, R3
       {kMoveR0, {0x0000000300057202, 0xf00}, kEither, kNeither},   // MOV R5, R3
       {kMoveR0, {0x0000000300050202, 0xf00}, kEither, kNeither}},  // @P0 MOV R5, R3
  };
  for (const Row& row : rows) expect_equal_and_other(row);
}

TEST(Machine, GoesTheSameWaysWhereverItsCodeStands) {
  constexpr Word kOtherP = {0x0000000a0000780c, 0x3f24270},  // ISETP.GT.AND P1, PT, R0, 0xa, PT
      kHeldR0 = {0x0000000000057202, 0xf00},                 // MOV R5, R0
      kHeldR2 = {0x0000000200057202, 0xf00},                 // MOV R5, R2
      kHeldR3 = {0x0000000300057202, 0xf00},                 // MOV R5, R3
      kHeld = {0x0000000500067202, 0xf00};                   // MOV R6, R5
  const auto mark = [](uint64_t number) {
    return Word{0x0000002000007945 | number << 16, 0x3800000};
  };                                                                                         // BSSY
  const auto meet = [](uint64_t number) { return Word{0x7941 | number << 16, 0x3800000}; };  // BSYNC
  const Row rows[] = {
      {"a way that computes nothing",
       {branch(2, 0), kMoveR2, branch(1), kMoveR0},
       {kMoveR0, branch(1, 0), kMoveR2},
       {kMoveR0, branch(1, 8), kMoveR2}},
      {"a block that two ways share",
       {kOtherP, kMoveR3, branch(4, 1), branch(2, 0), kMoveR2, branch(1), kMoveR0},
       {kOtherP, kMoveR3, branch(5, 1), branch(2, 0), kHeldR2, branch(1), kHeldR0, kHeld},
       {kOtherP, kMoveR3, branch(5, 1), branch(2, 0), kHeldR3, branch(1), kHeldR0, kHeld}},
      {"blocks in another order",
       {branch(2, 0), kStoreR2, branch(1), kStoreR0},
       {branch(1, 0), branch(2), kStoreR0, branch(1), kStoreR2},
       {branch(1, 0), branch(2), kStoreR2, branch(1), kStoreR0}},
      {"what a branch says of a choice",
       {kIfR0, branch(1, 0), kMoveR2},
       {kMoveR3, kIfR0, branch(1, 0), kMoveR2},
       {kMoveR3, kIfR2, branch(1, 0), kMoveR2}},
      {"a branch by the uniform unit",
       {kMoveR0,
        {0x000000010400788c, 0xbf06270},  // UISETP.GE.AND UP0, UPT, UR4, 0x1, UPT
        {0x0000000108047547, 0xb800000},  // BRA.U !UP0, over one instruction
        kMoveR2},
       {kMoveR0,
        {0x0000000400057c02, 0x8000f00},  // MOV R5, UR4
        {0x000000010500780c, 0x3f26270},  // ISETP.GE.AND P1, PT, R5, 0x1, PT
        branch(1, 9),
        kMoveR2},
       {kMoveR0, {0x0000000400057c02, 0x8000f00}, {0x000000010500780c, 0x3f26270}, branch(1, 1), kMoveR2},
       120},
      {"a meeting before the end", {mark(0), kStoreR0, meet(0), kExit}, {kStoreR0, kExit}, {kStoreR2, kExit}},
      {"the number of a barrier",
       {mark(0), kStoreR0, meet(0)},
       {mark(1), kStoreR0, meet(1)},
       {mark(1), kStoreR0, meet(0)}},
      {"a meeting that is not before the end",
       {mark(0), kStoreR0, meet(0)},
       {mark(0), kStoreR0, meet(0)},
       {kStoreR0}},
  };
  for (const Row& row : rows) expect_equal_and_other(row);
}

// A branch that a warp takes whole, around code that only computes and loads, is a predicate of that code. R2 and UR4 are the
// same in all threads, R0 is not.
TEST(Machine, TakesInBranchesThatAWarpTakesTogether) {
  constexpr Word kCommon = {0x0000000a0200780c, 0x3f24270},  // ISETP.GT.AND P1, PT, R2, 0xa, PT
      kOwn = {0x0000000a0000780c, 0x3f24270},                // ISETP.GT.AND P1, PT, R0, 0xa, PT
      kBoth = {0x0000000a0200780c, 0x0724270},               // ISETP.GT.AND P1, PT, R2, 0xa, P0
      kEither = {0x0000000a0200780c, 0x0724670},             // ISETP.GT.OR P1, PT, R2, 0xa, P0
      kIfR2OfP1 = {0x0000000200061202, 0xf00},               // @P1 MOV R6, R2
      kElseR2OfP1 = {0x0000000200069202, 0xf00},             // @!P1 MOV R6, R2
      kIfR3OfP1 = {0x0000000300061202, 0xf00},               // @P1 MOV R6, R3
      kElseR3OfP1 = {0x0000000300069202, 0xf00},             // @!P1 MOV R6, R3
      kLoad = {0x0000000402067981, 0xc1e1900},               // LDG.E R6, desc[UR4][R2.64]
      kLoadOfP1 = {0x0000000402061981, 0xc1e1900},           // @P1 LDG.E R6, desc[UR4][R2.64]
      kLoadElse = {0x0000000402069981, 0xc1e1900},           // @!P1 LDG.E R6, desc[UR4][R2.64]
      kStoreOfP1 = {0x0000000202001986, 0xc101904},          // @P1 STG.E desc[UR4][R2.64], R2
      kToUniform = {0x00000000020672ca, 0xe0000},            // R2UR UR6, R2
      kIfToUniform = {0x00000000020602ca, 0xe0000},          // @P0 R2UR UR6, R2
      kToUniformOfP1 = {0x00000000020612ca, 0xe0000},        // @P1 R2UR UR6, R2
      kMoved = {0x0000000600067c02, 0x8000f00},              // MOV R6, UR6
      kIfMoved = {0x0000000600061c02, 0x8000f00},            // @P1 MOV R6, UR6
      kElseMoved = {0x0000000600069c02, 0x8000f00};          // @!P1 MOV R6, UR6
  constexpr uint64_t kIfP1 = 1, kIfNotP1 = 9;
  using Words = std::vector<Word>;
  const Words around = {kMoveR0, kCommon, branch(1, kIfNotP1), kMoveR2},
              of_threads = {kMoveR0, kOwn, branch(1, kIfNotP1), kMoveR2};
  const Row rows[] = {
      {"around a move", around, {kMoveR0, kCommon, kIfR2OfP1}, {kMoveR0, kCommon, kElseR2OfP1}},
      {"that threads take apart from each other", of_threads, of_threads, {kMoveR0, kOwn, kIfR2OfP1}},
      {"with two sides",
       {kCommon, branch(2, kIfP1), kMoveR0, branch(1), kMoveR3},
       {kMoveR0, kCommon, kIfR3OfP1},
       {kMoveR0, kCommon, kElseR3OfP1}},
      {"in another one",
       {kMoveR0, kCommon, branch(4, kIfNotP1), kMoveR3, kCommon, branch(1, kIfP1), kMoveR0},
       {kMoveR0, kCommon, kIfR3OfP1},
       {kMoveR0, kCommon, kIfR2OfP1}},
      {"around code that has a predicate",
       {kMoveR0, kCommon, branch(1, kIfNotP1), kIfR2},
       {kMoveR0, kBoth, kIfR2OfP1},
       {kMoveR0, kEither, kIfR2OfP1}},
      {"whose predicate is written in it",
       {kMoveR0, kCommon, branch(2, kIfNotP1), kOwn, kMoveR2},
       {kMoveR0, kCommon, kIfR2OfP1},
       {kMoveR0, kOwn, kIfR2OfP1}},
      {"around a load",
       {kMoveR0, kCommon, branch(1, kIfNotP1), kLoad},
       {kMoveR0, kCommon, kLoadOfP1},
       {kMoveR0, kCommon, kLoadElse}},
      {"around a move to a uniform register",
       {kMoveR0, kCommon, branch(2, kIfNotP1), kToUniform, kMoved},
       {kMoveR0, kCommon, kToUniform, kIfMoved},
       {kMoveR0, kCommon, kToUniform, kElseMoved}},
      {"around a move to a uniform register under a predicate of its own",
       {kMoveR0, kCommon, branch(1, kIfNotP1), kIfToUniform, kMoved},
       {kMoveR0, kBoth, kToUniformOfP1, kMoved},
       {kMoveR0, kEither, kToUniformOfP1, kMoved}},
      {"around a store",
       {kCommon, branch(1, kIfNotP1), kStoreR2, kMoveR0},
       {kCommon, branch(1, kIfNotP1), kStoreR2, kMoveR0},
       {kCommon, kStoreOfP1, kMoveR0}},
      {"in a loop that a thread may leave alone",
       {kMoveR0,
        kCommon,
        branch(1, kIfNotP1),
        kMoveR2,
        {0xfffffffc00f00947, 0x383ffff}},  // @P0 BRA to kMoveR0
       {kMoveR0, kCommon, kIfR2OfP1, {0xfffffffc00f40947, 0x383ffff}},
       {kMoveR0, kCommon, kElseR2OfP1, {0xfffffffc00f40947, 0x383ffff}}},
  };
  for (const Row& row : rows) expect_equal_and_other(row);
}

// A value that each way has is no merge of theirs, and a loop that gives a register what it had leaves it as it was.
TEST(Machine, KnowsWhatNoWayChanges) {
  constexpr Word kHeldR2 = {0x0000000200057202, 0xf00},  // MOV R5, R2
      kHeldR3 = {0x0000000300057202, 0xf00},             // MOV R5, R3
      kCopied = {0x0000000500087202, 0xf00},             // MOV R8, R5
      kCopiedBack = {0x0000000800057202, 0xf00},         // MOV R5, R8
      kHeld = {0x0000000500067202, 0xf00},               // MOV R6, R5
      kSum = {0x0000000200057236, 0x0},                  // VIADD R5, R0, R2
      kOtherOrder = {0x0000000002057236, 0x0},           // VIADD R5, R2, R0
      kOther = {0x0000000300057236, 0x0};                // VIADD R5, R0, R3
  const auto again = [](uint64_t over) {  // @P0 BRA, back over itself and a number of instructions
    return Word{0x947 | uint64_t(0xff & (0x100 - 4 * (over + 1))) << 16 | uint64_t(0x3fffffff) << 34,
                0x383ffff};
  };
  const Row rows[] = {
      {"a sum on both ways",
       {branch(3, 0), kStoreR0, kSum, branch(2), kStoreR2, kOtherOrder, kHeld},
       {kSum, branch(2, 0), kStoreR0, branch(1), kStoreR2, kHeld},
       {branch(3, 0), kStoreR0, kSum, branch(2), kStoreR2, kOther, kHeld}},
      {"a register that a loop copies",
       {kHeldR2, kStoreR0, kCopied, kCopiedBack, again(3), kHeld},
       {kHeldR2, kStoreR0, again(1), kHeld},
       {kHeldR2, kStoreR0, kHeldR3, again(2), kHeld}},
  };
  for (const Row& row : rows) expect_equal_and_other(row);
}

TEST(Machine, KnowsTheLeastHoweverItWasChosen) {
  constexpr Word kLeast = {0x0000000200067248, 0x3fe0100},  // VIMNMX R6, R0, R2, PT
      kGreatest = {0x0000000200067248, 0x7fe0100},          // VIMNMX R6, R0, R2, !PT
      kLess = {0x000000020000720c, 0x3f21270},              // ISETP.LT.AND P1, PT, R0, R2, PT
      kLessUnsigned = {0x000000020000720c, 0x3f21070},      // ISETP.LT.U32.AND P1, PT, R0, R2, PT
      kAtLeast = {0x000000020000720c, 0x3f26270},           // ISETP.GE.AND P1, PT, R0, R2, PT
      kFirst = {0x0000000200067207, 0x800000},              // SEL R6, R0, R2, P1
      kSecond = {0x0000000002067207, 0x800000},             // SEL R6, R2, R0, P1
      kSumAndLeast = {0x0000000200067246, 0x3800103},       // VIADDMNMX R6, R0, R2, R3, PT
      kLessAndLeast = {0x8000000200067246, 0x3800103},      // VIADDMNMX R6, R0, -R2, R3, PT
      kSum = {0x0000000200057236, 0x0},                     // VIADD R5, R0, R2
      kOfSum = {0x0000000305067248, 0x3fe0100},             // VIMNMX R6, R5, R3, PT
      kGreatestOfSum = {0x0000000305067248, 0x7fe0100},     // VIMNMX R6, R5, R3, !PT
      kUnsignedOfSum = {0x0000000305067248, 0x3fe0000};     // VIMNMX.U32 R6, R5, R3, PT
  const Row rows[] = {
      {"by what is less", {kLeast}, {kLess, kFirst}, {kLess, kSecond}},
      {"the greatest", {kGreatest}, {kLess, kSecond}, {kLess, kFirst}},
      {"by what is not less", {kLeast}, {kAtLeast, kSecond}, {kAtLeast, kFirst}},
      {"without a sign", {kLeast}, {kLess, kFirst}, {kLessUnsigned, kFirst}},
      {"of a sum", {kSumAndLeast}, {kSum, kOfSum}, {kSum, kGreatestOfSum}},
      {"of a sum without a sign", {kSumAndLeast}, {kSum, kOfSum}, {kSum, kUnsignedOfSum}},
      {"of a difference", {kLessAndLeast}, {kLessAndLeast}, {kSum, kOfSum}},
  };
  for (const Row& row : rows) expect_equal_and_other(row);
}

// The vector unit and the uniform one name what is the same in other words.
TEST(Machine, KnowsWhatTheUniformUnitReads) {
  constexpr Word kByte = {0x00008400ff067b82, 0x0},       // LDC.U8 R6, c[0x0][0x210]
      kUniformByte = {0x0000840000067ab9, 0x0},           // ULDC.U8 UR6, c[0x0][0x210]
      kOtherByte = {0x0000844000067ab9, 0x0},             // ULDC.U8 UR6, c[0x0][0x211]
      kMoved = {0x0000000600067c02, 0x8000f00},           // MOV R6, UR6
      kNever = {0x000000000000781c, 0x3f2e170},           // PLOP3.LUT P1, PT, PT, PT, PT, 0x8, 0x0
      kAlwaysP1 = {0x000000000000781c, 0x3f2f070},        // PLOP3.LUT P1, PT, PT, PT, PT, 0x80, 0x0
      kIfR2OfP1 = {0x0000000200061202, 0xf00},            // @P1 MOV R6, R2
      kShifted = {0x0000840002067619, 0x10202},           // SHF.L.U64.HI R6, R2, R2, c[0x0][0x210]
      kUniformOfC = {0x0000840000067ab9, 0x800},          // ULDC UR6, c[0x0][0x210]
      kShiftedUniform = {0x0000000606067299, 0x8010206},  // USHF.L.U64.HI UR6, UR6, UR6, UR6
      kShiftedLower = {0x0000000606067299, 0x8000206};    // USHF.L.U64 UR6, UR6, UR6, UR6
  const Row rows[] = {
      {"a byte of a parameter", {kByte}, {kUniformByte, kMoved}, {kOtherByte, kMoved}},
      {"a predicate that never holds",
       {kMoveR0},
       {kMoveR0, kNever, kIfR2OfP1},
       {kMoveR0, kAlwaysP1, kIfR2OfP1}},
      {"a shift of 64 bits",
       {kShifted},
       {kUniformOfC, kShiftedUniform, kMoved},
       {kUniformOfC, kShiftedLower, kMoved}},
  };
  for (const Row& row : rows) expect_equal_and_other(row);
}

TEST(Machine, KnowsWhatIsNotReadOrNotWritten) {
  constexpr Word kFirst = {0x0000000500087c82, 0x8000000},  // UMOV UR8, UR5
      kOtherFirst = {0x0000000400087c82, 0x8000000},        // UMOV UR8, UR4
      kSecond = {0x00000005000a7c82, 0x8000000},            // UMOV UR10, UR5
      kOtherSecond = {0x00000004000a7c82, 0x8000000},       // UMOV UR10, UR4
      kByRegisters = {0x40e00008a8787df0, 0x8001878},       // HGMMA R120, R168, gdesc[UR8].tnspB, R120
      kByDescriptors = {0x0060000008a879f0, 0xc0018ff},     // HGMMA R168, gdesc[UR8], RZ
      kSame = {0x000000050000780c, 0x3f24270},              // ISETP.GT.AND P1, PT, R0, 0x5, PT
      kOther = {0x0000000a0000780c, 0x3f24270},             // ISETP.GT.AND P1, PT, R0, 0xa, PT
      kCopyByP0 = {0x1400000002067fae, 0x8121a44},          // LDGSTS [R6], desc[UR4][R2.64], P0
      kCopyByP1 = {0x1400000002067fae, 0x8921a44};          // LDGSTS [R6], desc[UR4][R2.64], P1
  const Row rows[] = {
      {"the place of a descriptor of a matrix that stands in registers",
       {kFirst, kSecond, kByRegisters},
       {kOtherFirst, kSecond, kByRegisters},
       {kFirst, kOtherSecond, kByRegisters}},
      {"the descriptor of the first matrix",
       {kFirst, kSecond, kByDescriptors},
       {kFirst, kSecond, kByDescriptors},
       {kOtherFirst, kSecond, kByDescriptors}},
      {"a predicate that a copy into shared memory asks",
       {kSame, kCopyByP0, kCopyByP0},
       {kSame, kCopyByP0, kCopyByP1},
       {kOther, kCopyByP0, kCopyByP1}},
  };
  for (const Row& row : rows) expect_equal_and_other(row);
}

// A register that only some passes of a loop write, or only some values of an index choose, has what it had before. Where one of the
// passes, or each value that the index can have, writes it, nobody sees that.
TEST(Machine, KnowsThatAnArrayInRegistersIsWritten) {
  constexpr Word kFirst = {0x000000ff00087202, 0xf00},  // MOV R8, RZ
      kNext = {0x0000000108087836, 0x0},                // VIADD R8, R8, 0x1
      kAdd = {0x0000000006067236, 0x0},                 // VIADD R6, R6, R0
      kIfOtherR0 = {0x0000000000061202, 0xf00},         // @P1 MOV R6, R0
      kIfOtherR2 = {0x0000000200061202, 0xf00};         // @P1 MOV R6, R2
  const auto is = [](uint64_t r, uint64_t number) {     // ISETP.EQ.AND P1, PT, R, number, PT
    return Word{0x780c | r << 24 | number << 32, 0x3f22270};
  };
  // Five instructions over and over, as long as R8 is not the number.
  const auto loop = [&](const Word& before, uint64_t pass, const Word& write, uint64_t passes) {
    return std::vector<Word>{
        before,
        kFirst,
        is(8, pass),
        write,
        kNext,
        {0x000000000800780c | passes << 32, 0x3f45270},  // ISETP.NE.AND P2, PT, R8, passes, PT
        {0xfffffffc00ec2947, 0x383ffff}};                // @P2 BRA
  };
  // R6 is one of R0, R2, R3, R0 by bits of the exponent of R0, if its magnitude is a number as large as that.
  const auto chosen = [&](const Word& before, uint64_t least, uint64_t last, const Word& write) {
    return std::vector<Word>{before,
                             {0x780b | least << 32, 0x3f26200},  // FSETP.GE.AND P1, PT, |R0|, least, PT
                             branch(15, 9),
                             {0x7f8000000000780b, 0x3f4d200},  // FSETP.NEU.AND P2, PT, |R0|, +INF, PT
                             branch(13, 10),
                             {0x00000017ff047819, 0x11600},    // SHF.R.U32.HI R4, RZ, 0x17, R0
                             {0x000000e004047812, 0x78ec0ff},  // LOP3.LUT R4, R4, 0xe0, RZ, 0xc0, !PT
                             {0xffffff8004047836, 0x0},        // VIADD R4, R4, 0xffffff80
                             {0x00000005ff047819, 0x11604},    // SHF.R.U32.HI R4, RZ, 0x5, R4
                             is(4, 0),
                             kIfOtherR0,
                             is(4, 1),
                             kIfOtherR2,
                             is(4, 2),
                             write,
                             is(4, last),
                             kIfOtherR0,
                             kStoreR6,
                             kMoveR0};
  };
  constexpr uint64_t kLarge = 0x47ce4780, kOne = 0x3f800000;  // 105615, 1
  const Row rows[] = {
      {"a pass that writes", loop(kMoveR2, 1, kIfOtherR0, 2), loop(kMoveR3, 1, kIfOtherR0, 2),
       loop(kMoveR3, 1, kIfOtherR2, 2), 100},
      {"a pass that does not come", loop(kMoveR2, 2, kIfOtherR0, 2), loop(kMoveR2, 2, kIfOtherR0, 2),
       loop(kMoveR3, 2, kIfOtherR0, 2), 100},
      {"a number of passes", loop(kMoveR2, 1, kAdd, 2), loop(kMoveR2, 1, kAdd, 2), loop(kMoveR2, 1, kAdd, 3),
       100},
      {"an index of each value that it can have", chosen(kMoveR2, kLarge, 3, kIfOtherR2),
       chosen(kMoveR3, kLarge, 3, kIfOtherR2), chosen(kMoveR3, kLarge, 3, kIfOtherR0), 100},
      {"an index that may be another one", chosen(kMoveR2, kLarge, 4, kIfOtherR2),
       chosen(kMoveR2, kLarge, 4, kIfOtherR2), chosen(kMoveR3, kLarge, 4, kIfOtherR2), 100},
      {"an index that may be below all", chosen(kMoveR2, kOne, 3, kIfOtherR2),
       chosen(kMoveR2, kOne, 3, kIfOtherR2), chosen(kMoveR3, kOne, 3, kIfOtherR2), 100},
  };
  for (const Row& row : rows) expect_equal_and_other(row);
}

TEST(Machine, KnowsWhoIsAskedAndWhoAnswers) {
  constexpr Word kBarrier = {0x0000000000007b1d, 0x10000},  // BAR.SYNC.DEFER_BLOCKING 0x0
      kMeet = {0x0000000000007948, 0x3800000},              // WARPSYNC.ALL
      kVote = {0x0000000000ff7886, 0x20000},                // VOTEU.ALL UP1, P0
      kVoteP1 = {0x0000000000ff7886, 0x820000},             // VOTEU.ALL UP1, P1
      kLoad = {0x0000000400077981, 0xc1e1900},              // LDG.E R7, desc[UR4][R0.64]
      kOneLoad = {0x0000000402077981, 0xc1e1900},           // LDG.E R7, desc[UR4][R2.64]
      kLoaded = {0x000000050700780c, 0x3f24270},            // ISETP.GT.AND P1, PT, R7, 0x5, PT
      kChoose = {0x00000001ff067887, 0xc800000},            // USEL UR6, URZ, 0x1, !UP1
      kMoved = {0x0000000600067c02, 0x8000f00},             // MOV R6, UR6
      kSomeEnd = {0x000000000000094d, 0x3800000},           // @P0 EXIT
      kMany = {0x0000000a0000780c, 0x3f24270},              // ISETP.GT.AND P1, PT, R0, 0xa, PT
      kOld = {0x0000000500067c82, 0x8000000},               // UMOV UR6, UR5
      kOtherOld = {0x0000000400067c82, 0x8000000},          // UMOV UR6, UR4
      kElect = {0x0000000000ff782f, 0x3820000},             // ELECT P1, URZ, PT
      kByOne = {0x00000000000612ca, 0xe0000},               // @P1 R2UR UR6, R0
      kOtherByOne = {0x00000000020612ca, 0xe0000},          // @P1 R2UR UR6, R2
      kBySome = {0x00000000000602ca, 0xe0000};              // @P0 R2UR UR6, R0
  const auto vote = [&](std::vector<Word> before, const Word& asked, int place,
                        std::vector<Word> behind = {}) {
    const std::vector<Word> all = {kBarrier, kMeet, kMeet, kBarrier};
    for (int k = 0; k < int(all.size()); k++) {
      before.push_back(all[size_t(k)]);
      if (k == place) before.push_back(asked);
    }
    before.insert(before.end(), behind.begin(), behind.end());
    before.insert(before.end(), {kChoose, kMoved});
    return before;
  };
  const std::vector<Word> loaded = {kLoad, kLoaded}, one_loaded = {kOneLoad, kLoaded},
                          apart = {branch(1, 0), kStoreR0, kOneLoad, kLoaded}, ended = {kSomeEnd},
                          others = {kMany, branch(1, 1), kExit},
                          again = {{0xfffffffc00e88947, 0x383ffff}},  // @!P0 BRA, to the first barrier
      again_while_voted = {{0xfffffffc00e80947, 0x383ffff}};          // @P0 BRA
  const Row rows[] = {
      {"a vote of the whole warp", vote({}, kVote, 0), vote({}, kVote, 3), vote({}, kVote, 1), 100},
      {"a vote about what was read", vote(loaded, kVoteP1, 0), vote(loaded, kVoteP1, 0),
       vote(loaded, kVoteP1, 3), 100},
      {"a vote about one word that all read at once", vote(one_loaded, kVoteP1, 0),
       vote(one_loaded, kVoteP1, 3), vote(loaded, kVoteP1, 3), 100},
      {"a vote about one word that threads read apart from each other", vote(apart, kVoteP1, 0),
       vote(apart, kVoteP1, 0), vote(apart, kVoteP1, 3), 100},
      {"a vote of all by a thread that goes on because it was against", vote({}, kVote, 0, again_while_voted),
       vote({}, kVote, 3, again_while_voted), vote({}, kVoteP1, 3, again_while_voted), 100},
      {"a vote after some have ended", vote(ended, kVote, 0), vote(ended, kVote, 0), vote(ended, kVote, 3),
       100},
      {"a vote after others have ended", vote(others, kVote, 0), vote(others, kVote, 0),
       vote(others, kVote, 3), 100},
      {"a vote in a loop", vote({}, kVote, 0, again), vote({}, kVote, 0, again), vote({}, kVote, 3, again),
       100},
      {"a uniform register that the elected thread writes",
       {kOld, kElect, kByOne, kMoved},
       {kOtherOld, kElect, kByOne, kMoved},
       {kOld, kElect, kOtherByOne, kMoved},
       100},
      {"a uniform register that some threads may write",
       {kOld, kBySome, kMoved},
       {kOld, kBySome, kMoved},
       {kOtherOld, kBySome, kMoved},
       100},
      {"a thread that was elected before others came",
       {kOld, kElect, kMeet, kByOne, kMoved},
       {kOld, kElect, kMeet, kByOne, kMoved},
       {kOtherOld, kElect, kMeet, kByOne, kMoved},
       100},
  };
  for (const Row& row : rows) expect_equal_and_other(row);
}

// A counter has one value in all threads of a warp where these have passed a barrier equally often. R8 counts to 100.
TEST(Machine, KnowsThatACounterIsTheSameInAWarp) {
  constexpr Word kFirst = {0x000000ff00087202, 0xf00},   // MOV R8, RZ
      kFirstOfThread = {0x0000000000087202, 0xf00},      // MOV R8, R0
      kNext = {0x0000000108087836, 0x0},                 // VIADD R8, R8, 0x1
      kNextOfThread = {0x0000000008087236, 0x0},         // VIADD R8, R8, R0
      kMore = {0x000000640800780c, 0x3f45270},           // ISETP.NE.AND P2, PT, R8, 0x64, PT
      kIsLast = {0x000000630800780c, 0x3f22270},         // ISETP.EQ.AND P1, PT, R8, 0x63, PT
      kBarrier = {0x0000000000007b1d, 0x10000},          // BAR.SYNC.DEFER_BLOCKING 0x0
      kSomeBarrier = {0x0000000000000b1d, 0x10000},      // @P0 BAR.SYNC.DEFER_BLOCKING 0x0
      kAny = {0x0000000000ff7886, 0x820100},             // VOTEU.ANY UP1, P1
      kAll = {0x0000000000ff7886, 0x820000},             // VOTEU.ALL UP1, P1
      kEqual = {0x0000000000ff7886, 0x820200},           // VOTEU.EQ UP1, P1
      kOpposite = {0x0000000000ff7886, 0x4820100},       // VOTEU.ANY UP1, !P1
      kUniform = {0x00000001ff067887, 0xc800000},        // USEL UR6, URZ, 0x1, !UP1
      kMoved = {0x0000000600067c02, 0x8000f00},          // MOV R6, UR6
      kOwn = {0x00000001ff067807, 0x4800000},            // SEL R6, RZ, 0x1, !P1
      kToUniform = {0x00000000080672ca, 0xe0000},        // R2UR UR6, R8
      kOwnNumber = {0x0000000800067202, 0xf00};          // MOV R6, R8
  const auto back = [](uint64_t over, uint64_t guard) {  // BRA over a number of instructions and itself
    return Word{0xfffffffc00000947 | guard << 12 | ((0x100 - 4 * over) & 0xff) << 16, 0x383ffff};
  };
  struct Loop {
    std::vector<Word> barrier, next = {};
    Word first, step;
    bool behind = false;  // it is asked behind the loop
    bool again = false;   // the loop is in another one
  };
  const auto loop = [&](const Loop& of, std::vector<Word> asked) {
    std::vector<Word> all = {of.first};
    all.insert(all.end(), of.barrier.begin(), of.barrier.end());
    all.push_back(kIsLast);
    if (!of.behind) all.insert(all.end(), asked.begin(), asked.end());
    all.push_back(of.step);
    all.insert(all.end(), of.next.begin(), of.next.end());
    all.push_back(kMore);
    all.push_back(back(all.size(), 2));
    if (of.again) all.push_back(back(all.size() + 1, 0));
    if (of.behind) all.insert(all.end(), asked.begin(), asked.end());
    return all;
  };
  const std::vector<Word> own = {kOwn}, any = {kAny, kUniform, kMoved}, all = {kAll, kUniform, kMoved},
                          equal = {kEqual, kUniform, kMoved}, opposite = {kOpposite, kUniform, kMoved};
  const Loop plain{.barrier = {kBarrier}, .first = kFirst, .step = kNext};
  const std::vector<Word> divides = {branch(1, 0), kMoveR2},
                          barrier_behind = {branch(1, 0), kMoveR2, kBarrier};
  const Loop later{.barrier = barrier_behind, .first = kFirst, .step = kNext},
      last{.barrier = {}, .next = barrier_behind, .first = kFirst, .step = kNext},
      apart{.barrier = divides, .next = barrier_behind, .first = kFirst, .step = kNext};
  Loop behind = plain;
  behind.behind = true;
  const Row proved[] = {
      {"one thread of a warp", loop(plain, own), loop(plain, any), loop(plain, opposite), 100},
      {"all threads of a warp", loop(plain, own), loop(plain, all), loop(plain, equal), 100},
      {"behind a loop", loop(behind, own), loop(behind, any), loop(behind, opposite), 100},
      {"a move to a uniform register", loop(plain, {kOwnNumber}), loop(plain, {kToUniform, kMoved}),
       loop(plain, {kMoveR0}), 100},
      {"a barrier in another block", loop(later, own), loop(later, any), loop(later, opposite), 100},
      {"a barrier behind the vote", loop(last, own), loop(last, any), loop(last, opposite), 100},
      {"blocks of their own", loop(apart, own), loop(apart, any), loop(apart, opposite), 100},
  };
  for (const Row& row : proved) expect_equal_and_other(row);
  const std::pair<const char*, Loop> different[] = {
      {"no barrier", {.barrier = {}, .first = kFirst, .step = kNext}},
      {"a barrier of some threads", {.barrier = {kSomeBarrier}, .first = kFirst, .step = kNext}},
      {"a barrier of some passes", {.barrier = {branch(1, 0), kBarrier}, .first = kFirst, .step = kNext}},
      {"a beginning of each thread", {.barrier = {kBarrier}, .first = kFirstOfThread, .step = kNext}},
      {"a step of each thread", {.barrier = {kBarrier}, .first = kFirst, .step = kNextOfThread}},
      {"a barrier that a pass comes to twice",
       {.barrier = {kBarrier, back(2, 0)}, .first = kFirst, .step = kNext}},
      {"a loop in a loop", {.barrier = {kBarrier}, .first = kFirst, .step = kNext, .again = true}},
      {"a step that some threads make twice",
       {.barrier = {kBarrier}, .next = {branch(1, 0), kNext}, .first = kFirst, .step = kNext}},
  };
  for (const auto& [what, of] : different)
    expect_equal_and_other({what, loop(of, any), loop(of, any), loop(of, own), 100});
}

// A word that a warp reads at one place of shared memory is the same in all of its threads, wherever it is moved to a
// uniform register.
TEST(Machine, KnowsThatAWarpReadsOneWord) {
  constexpr Word kBarrier = {0x0000000000007b1d, 0x10000},  // BAR.SYNC.DEFER_BLOCKING 0x0
      kLoad = {0x00000004ff077984, 0x8000800},              // LDS R7, [UR4]
      kOwnLoad = {0x0000000000077984, 0x800},               // LDS R7, [R0]
      kSomeLoad = {0x00000004ff070984, 0x8000800},          // @P0 LDS R7, [UR4]
      kMeet = {0x0000000000007948, 0x3800000},              // WARPSYNC.ALL
      kToUniform = {0x00000000070672ca, 0xe0000},           // R2UR UR6, R7
      kOtherToUniform = {0x00000000020672ca, 0xe0000},      // R2UR UR6, R2
      kMoved = {0x0000000600067c02, 0x8000f00},             // MOV R6, UR6
      kAgain = {0xfffffffc00e80947, 0x383ffff};             // @P0 BRA, to the barrier in front of five others
  using Words = std::vector<Word>;
  const auto early = [&](Words of, const Word& moved, const Word& last) {
    of.insert(of.end(), {moved, branch(1, 0), kStoreR2, last, kMoved});
    return of;
  };
  const auto late = [&](Words of, const Word& moved, const Word& last) {
    of.insert(of.end(), {branch(1, 0), kStoreR2, moved, last, kMoved});
    return of;
  };
  expect_equal_and_other({"one word beside a barrier", early({kBarrier, kLoad}, kToUniform, kMoved),
                          late({kBarrier, kLoad}, kToUniform, kMoved),
                          late({kBarrier, kLoad}, kOtherToUniform, kMoved), 100});
  const std::pair<const char*, Words> different[] = {
      {"no barrier", {kLoad}},
      {"a barrier before others came", {kBarrier, kMeet, kLoad}},
      {"a word of each thread", {kBarrier, kOwnLoad}},
      {"a word that some threads read", {kBarrier, kSomeLoad}}};
  for (const auto& [what, of] : different)
    expect_equal_and_other({what, early(of, kToUniform, kMoved), early(of, kToUniform, kMoved),
                            late(of, kToUniform, kMoved), 100});
  expect_equal_and_other({"a word that is read again", early({kBarrier, kLoad}, kToUniform, kAgain),
                          early({kBarrier, kLoad}, kToUniform, kAgain),
                          late({kBarrier, kLoad}, kToUniform, kAgain), 100});
}

// A mask of a half and bytes that are picked give one half, whatever the other one was.
TEST(Machine, KnowsHalvesThatAreMasked) {
  constexpr Word kLowerOf = {0x0000761000057816, 0x2},  // PRMT R5, R0, 0x7610, R2
      kOtherLower = {0x0000761002057816, 0x3},          // PRMT R5, R2, 0x7610, R3
      kUpperOf = {0x0000761002057816, 0x0},             // PRMT R5, R2, 0x7610, R0
      kLower = {0x0000ffff05067812, 0x78ec0ff},         // LOP3.LUT R6, R5, 0xffff, RZ, 0xc0, !PT
      kLowerR0 = {0x0000ffff00067812, 0x78ec0ff},       // LOP3.LUT R6, R0, 0xffff, RZ, 0xc0, !PT
      kFewer = {0x0000fffe05067812, 0x78ec0ff},         // LOP3.LUT R6, R5, 0xfffe, RZ, 0xc0, !PT
      kUpper = {0xffff000005067812, 0x78ec0ff},         // LOP3.LUT R6, R5, 0xffff0000, RZ, 0xc0, !PT
      kUpperR0 = {0xffff000000067812, 0x78ec0ff},       // LOP3.LUT R6, R0, 0xffff0000, RZ, 0xc0, !PT
      kEither = {0x0000ffff05067812, 0x78efcff},        // LOP3.LUT R6, R5, 0xffff, RZ, 0xfc, !PT
      kDown = {0x00000010ff067819, 0x11605},            // SHF.R.U32.HI R6, RZ, 0x10, R5
      kDownR2 = {0x00000010ff067819, 0x11602};          // SHF.R.U32.HI R6, RZ, 0x10, R2
  const Row rows[] = {
      {"the lower half", {kLowerR0}, {kLowerOf, kLower}, {kOtherLower, kLower}, 100},
      {"the lower half but for a bit", {kLowerR0}, {kLowerOf, kLower}, {kLowerOf, kFewer}, 100},
      {"a mask that is added", {kLowerR0}, {kLowerOf, kLower}, {kLowerOf, kEither}, 100},
      {"the upper half", {kUpperR0}, {kUpperOf, kUpper}, {kLowerOf, kUpper}, 100},
      {"the upper half below", {kDownR2}, {kLowerOf, kDown}, {kUpperOf, kDown}, 100},
      {"halves that change places twice",
       {kLowerR0},
       {{0x0000543202057816, 0x0}, {0x0000543205067816, 0xff}, {0x0000ffff06067812, 0x78ec0ff}},
       {{0x0000543202057816, 0x0}, kLower},  // PRMT R5, R2, 0x5432, R0; above: PRMT R6, R5, 0x5432, RZ; LOP3
       100},
  };
  for (const Row& row : rows) expect_equal_and_other(row);
}

// Some instructions read one half of a register.
TEST(Machine, KnowsHalvesThatNobodyReads) {
  constexpr Word kLower = {0x0000761000057816, 0x2},    // PRMT R5, R0, 0x7610, R2
      kSame = {0x0000761000057816, 0x3},                // PRMT R5, R0, 0x7610, R3
      kOther = {0x0000761003057816, 0x3},               // PRMT R5, R3, 0x7610, R3
      kZeroBelow = {0x00007610ff057816, 0x2},           // PRMT R5, RZ, 0x7610, R2
      kZeroBelowR3 = {0x00007610ff057816, 0x3},         // PRMT R5, RZ, 0x7610, R3
      kIfLower = {0x0000761000050816, 0x5},             // @P0 PRMT R5, R0, 0x7610, R5
      kHeldR2 = {0x0000000200057202, 0xf00},            // MOV R5, R2
      kHeldR3 = {0x0000000300057202, 0xf00},            // MOV R5, R3
      kUnpack = {0x00000005ff06723e, 0x20816ff},        // F2FP.BF16.E8.UNPACK_B R6, R5
      kUnpackUpper = {0x00000005ff06723e, 0x30816ff},   // F2FP.BF16.E8.UNPACK_B R6, R5.H1
      kSumOfLower = {0x0000000005067230, 0x200800},     // HADD2.BF16_V2 R6, R5.H0_H0, R0
      kSumOfUpper = {0x0000000005067230, 0x200c00},     // HADD2.BF16_V2 R6, R5.H1_H1, R0
      kSumOfBoth = {0x0000000005067230, 0x200000},      // HADD2.BF16_V2 R6, R5, R0
      kSumWithLower = {0x2000000500067230, 0x200000},   // HADD2.BF16_V2 R6, R0, R5.H0_H0
      kSumWithUpper = {0x3000000500067230, 0x200000},   // HADD2.BF16_V2 R6, R0, R5.H1_H1
      kBytes = {0x0000710405067816, 0xff},              // PRMT R6, R5, 0x7104, RZ
      kThirdByte = {0x0000720405067816, 0xff},          // PRMT R6, R5, 0x7204, RZ
      kMasked = {0x0000ffff00067812, 0x78ef805},        // LOP3.LUT R6, R0, 0xffff, R5, 0xf8, !PT
      kAdded = {0x0000ffff00067812, 0x78efe05},         // LOP3.LUT R6, R0, 0xffff, R5, 0xfe, !PT
      kWider = {0x0001ffff00067812, 0x78ef805},         // LOP3.LUT R6, R0, 0x1ffff, R5, 0xf8, !PT
      kChosen = {0x000000ff05047207, 0x0},              // SEL R4, R5, RZ, P0
      kStore = {0x0000000402007986, 0xc101504},         // STG.E.U16 desc[UR4][R2.64], R4
      kStoreWhole = {0x0000000402007986, 0xc101904},    // STG.E desc[UR4][R2.64], R4
      kTwice = {0x0000541005067816, 0x5},               // PRMT R6, R5, 0x5410, R5
      kLowerR0 = {0x0000ffff00057812, 0x78ec0ff},       // LOP3.LUT R5, R0, 0xffff, RZ, 0xc0, !PT
      kLowerR6 = {0x0000ffff06067812, 0x78ec0ff},       // LOP3.LUT R6, R6, 0xffff, RZ, 0xc0, !PT
      kMoved = {0x0000000500067202, 0xf00},             // MOV R6, R5
      kNegative = {0x200000ffff067231, 0x340905},       // HFMA2.BF16_V2 R6, -RZ.H0_H0, RZ.H0_H0, -R5.H0_H0
      kNegativeUpper = {0x200000ffff067231, 0x360905},  // HFMA2.BF16_V2 R6, -RZ.H0_H0, RZ.H0_H0, -R5.H1_H1
      kNegativeBoth = {0x200000ffff067231, 0x300905},   // HFMA2.BF16_V2 R6, -RZ.H0_H0, RZ.H0_H0, -R5
      kHeldR5 = {0x0000000500047202, 0xf00},            // MOV R4, R5
      kIfHeldR0 = {0x0000000000040202, 0xf00},          // @P0 MOV R4, R0
      kStoreByte = {0x0000000402007986, 0xc101104},     // STG.E.U8 desc[UR4][R2.64], R4
      kLowerR4 = {0x0000ffff04067812, 0x78ec0ff},       // LOP3.LUT R6, R4, 0xffff, RZ, 0xc0, !PT
      kUpperR4 = {0xffff000004067812, 0x78ec0ff};       // LOP3.LUT R6, R4, 0xffff0000, RZ, 0xc0, !PT
  const auto chosen = [&](const Word& half, const Word& use) {
    return std::vector<Word>{half, kHeldR5, kIfHeldR0, use};
  };
  const Row rows[] = {
      {"a third lower half twice", {kLower, kNegative}, {kSame, kNegative}, {kOther, kNegative}},
      {"a third upper half twice",
       {kLower, kNegativeUpper},
       {kLower, kNegativeUpper},
       {kSame, kNegativeUpper}},
      {"both halves of a third", {kLower, kNegativeBoth}, {kLower, kNegativeBoth}, {kSame, kNegativeBoth}},
      {"a half of a choice under a predicate", chosen(kLower, kStore), chosen(kSame, kStore),
       chosen(kOther, kStore)},
      {"a byte of it", chosen(kLower, kStoreByte), chosen(kSame, kStoreByte), chosen(kOther, kStoreByte)},
      {"all of it", chosen(kLower, kStoreWhole), chosen(kLower, kStoreWhole), chosen(kSame, kStoreWhole)},
      {"its lower half, masked", chosen(kLower, kLowerR4), chosen(kSame, kLowerR4), chosen(kOther, kLowerR4)},
      {"its upper half, masked", chosen(kLower, kUpperR4), chosen(kLower, kUpperR4), chosen(kSame, kUpperR4)},
      {"small floats of the lower half", {kLower, kUnpack}, {kSame, kUnpack}, {kOther, kUnpack}, 100},
      {"small floats of the upper half",
       {kLower, kUnpackUpper},
       {kLower, kUnpackUpper},
       {kSame, kUnpackUpper},
       100},
      {"small floats of the other half", {kLower, kUnpack}, {kSame, kUnpack}, {kLower, kUnpackUpper}, 100},
      {"a lower half twice", {kLower, kSumOfLower}, {kSame, kSumOfLower}, {kOther, kSumOfLower}},
      {"an upper half twice", {kLower, kSumOfUpper}, {kLower, kSumOfUpper}, {kSame, kSumOfUpper}},
      {"both halves", {kLower, kSumOfBoth}, {kLower, kSumOfBoth}, {kSame, kSumOfBoth}},
      {"a second lower half twice", {kLower, kSumWithLower}, {kSame, kSumWithLower}, {kOther, kSumWithLower}},
      {"a second upper half twice", {kLower, kSumWithUpper}, {kLower, kSumWithUpper}, {kSame, kSumWithUpper}},
      {"bytes of the lower half", {kLower, kBytes}, {kSame, kBytes}, {kOther, kBytes}},
      {"a byte of the upper half", {kLower, kThirdByte}, {kLower, kThirdByte}, {kSame, kThirdByte}},
      {"a mask of the lower half", {kLower, kMasked}, {kSame, kMasked}, {kOther, kMasked}},
      {"a mask that is added to it", {kLower, kAdded}, {kLower, kAdded}, {kSame, kAdded}},
      {"a mask of one bit more", {kLower, kWider}, {kLower, kWider}, {kSame, kWider}},
      {"a half that is chosen",
       {kLower, kChosen, kStore},
       {kSame, kChosen, kStore},
       {kOther, kChosen, kStore}},
      {"a word that is chosen",
       {kLower, kChosen, kStoreWhole},
       {kLower, kChosen, kStoreWhole},
       {kSame, kChosen, kStoreWhole}},
      {"a half that is written under a predicate",
       {kZeroBelow, kIfLower, kUnpack},
       {kZeroBelowR3, kIfLower, kUnpack},
       {kHeldR2, kIfLower, kUnpack},
       100},
      {"a half that is not written elsewhere",
       {kHeldR2, kIfLower, kUnpack},
       {kHeldR2, kIfLower, kUnpack},
       {kHeldR3, kIfLower, kUnpack},
       100},
      {"a half that is there twice", {kLowerR0, kMoved}, {kLowerR0, kTwice, kLowerR6}, {kLowerR0, kTwice}},
  };
  for (const Row& row : rows) expect_equal_and_other(row);
}

// Sums of 64 bits may be made in any order; each carry counts.
TEST(Machine, AddsWideWordsInAnyOrder) {
  constexpr uint64_t kCarries = 0x7f3e0ff, kTakes = 0xffe4ff, kNeither = 0x7ffe0ff,
                     kOpposite = uint64_t(1) << 63;
  const auto sum = [](uint64_t to, uint64_t a, uint64_t b, uint64_t how) {  // IADD3 to, P1, a, b, RZ; .X P1
    return Word{0x7210 | to << 16 | a << 24 | b << 32, how};
  };
  const auto difference = [&](uint64_t to, uint64_t a, uint64_t b, uint64_t how) {
    Word out = sum(to, a, b, how);
    out[0] |= kOpposite;
    return out;
  };
  // (R0, R2) + (R2, R3) + (R3, R0), and so on: the upper word.
  const auto three = [&](uint64_t first_how, uint64_t last_how) {
    return std::vector<Word>{sum(4, 0, 2, kCarries), sum(5, 2, 3, first_how), sum(4, 4, 3, kCarries),
                             sum(6, 5, 0, last_how)};
  };
  const std::vector<Word> other_order = {sum(4, 2, 3, kCarries), sum(5, 3, 0, kTakes), sum(4, 4, 0, kCarries),
                                         sum(6, 5, 2, kTakes)};
  const std::vector<Word> less_first = {difference(4, 0, 2, kCarries), difference(5, 2, 3, kTakes),
                                        sum(4, 4, 3, kCarries), sum(6, 5, 0, kTakes)},
                          less_last = {sum(4, 0, 3, kCarries), sum(5, 2, 0, kTakes),
                                       difference(4, 4, 2, kCarries), difference(6, 5, 3, kTakes)},
                          more_last = {sum(4, 0, 3, kCarries), sum(5, 2, 0, kTakes), sum(4, 4, 2, kCarries),
                                       difference(6, 5, 3, kTakes)};
  constexpr Word kProductAndSum = {0x0000000200047225, 0x78e0002},  // IMAD.WIDE.U32 R4, R0, R2, R2
      kProduct = {0x0000000200047225, 0x78e00ff},                   // IMAD.WIDE.U32 R4, R0, R2, RZ
      kSigned = {0x0000000200047225, 0x78e02ff},                    // IMAD.WIDE R4, R0, R2, RZ
      kUpper = {0x0000000500067202, 0xf00};                         // MOV R6, R5
  const std::vector<Word> added = {sum(4, 4, 2, kCarries), sum(6, 5, 3, kTakes)};
  const auto with = [&](const Word& product) { return std::vector<Word>{product, added[0], added[1]}; };
  const Row rows[] = {
      {"three", three(kTakes, kTakes), other_order, three(kTakes, kNeither)},
      {"a carry that is not taken", three(kTakes, kTakes), other_order, three(kNeither, kTakes)},
      {"a carry that is taken twice",
       three(kTakes, kTakes),
       other_order,
       {sum(4, 0, 2, kCarries), sum(5, 2, 3, kTakes), sum(5, 5, 255, kTakes), sum(4, 4, 3, kCarries),
        sum(6, 5, 0, kTakes)}},
      {"a difference", less_first, less_last, more_last},
      {"a product", {kProductAndSum, kUpper}, with(kProduct), with(kSigned)},
      {"a product without its carry",
       {kProductAndSum, kUpper},
       with(kProduct),
       {kProduct, sum(6, 5, 3, kNeither)}},
  };
  for (const Row& row : rows) expect_equal_and_other(row);
}

// Predicates that are kept as bits of a register, one by one.
TEST(Machine, FollowsBitsOfWords) {
  const auto without = [](uint64_t bits) {
    return Word{0x5057812 | (~bits & 0xffffffff) << 32, 0x78ec0ff};
  };                                                                                        // R5 &= ~bits
  const auto with = [](uint64_t bits) { return Word{0x5050812 | bits << 32, 0x78efcff}; };  // @P0 R5 |= bits
  const auto with_by_p1 = [](uint64_t bits) {
    return Word{0x5051812 | bits << 32, 0x78efcff};
  };                                                                                         // @P1 R5 |= bits
  const auto asked = [](uint64_t bits) { return Word{0x5ff7812 | bits << 32, 0x784c0ff}; };  // P2: R5 & bits
  constexpr Word kOther = {0x0000000a0200780c, 0x3f24270},  // ISETP.GT.AND P1, PT, R2, 0xa, PT
      kIfAskedR2 = {0x0000000200062202, 0xf00},             // @P2 MOV R6, R2
      kIfOtherR2 = {0x0000000200061202, 0xf00},             // @P1 MOV R6, R2
      kNone = {0x000000ff00057202, 0xf00},                  // MOV R5, RZ
      kIfOther8 = {0x0000000800051802, 0xf00},              // @P1 MOV R5, 0x8
      kIsSet = {0x000000ff0500720c, 0x3f45270},             // ISETP.NE.AND P2, PT, R5, RZ, PT
      kIsNotSet = {0x000000ff0500720c, 0x3f42270};          // ISETP.EQ.AND P2, PT, R5, RZ, PT
  const auto chosen = [&](const Word& asked_now) {
    return std::vector<Word>{kMoveR0, kOther, kNone, kIfOther8, asked_now, kIfAskedR2};
  };
  const auto kept = [&](uint64_t bits, unsigned up = 0) {
    return std::vector<Word>{kMoveR0,           kOther,           without(4 << up),
                             with(4 << up),     without(8 << up), with_by_p1(8 << up),
                             asked(bits << up), kIfAskedR2};
  };
  const Row rows[] = {
      {"the first one", {kMoveR0, kIfR2}, kept(4), kept(8)},
      {"the second one", {kMoveR0, kOther, kIfOtherR2}, kept(8), kept(4)},
      {"two at once", kept(12), kept(12), kept(4)},
      {"a word that is chosen", {kMoveR0, kOther, kIfOtherR2}, chosen(asked(8)), chosen(asked(4))},
      {"a chosen word that is compared", {kMoveR0, kOther, kIfOtherR2}, chosen(kIsSet), chosen(kIsNotSet)},
      {"a bit that nobody wrote", kept(16), kept(16), kept(4)},
      {"one of an upper half", {kMoveR0, kIfR2}, kept(4, 16), kept(8, 16)},
  };
  for (const Row& row : rows) expect_equal_and_other(row);
}

// Predicates that are kept as bits of a register.
TEST(Machine, FollowsPredicatesInWords) {
  const auto keep = [](uint64_t mask) {
    return Word{0x00000000ff057803 | mask << 32, 0x0};
  };                                                                // P2R R5, PR, RZ, mask
  const auto asked = [](uint64_t r, uint64_t number, bool equal) {  // ISETP P2, PT, R5, number
    return Word{0x780c | r << 24 | number << 32, equal ? 0x3f42270u : 0x3f45270u};
  };
  constexpr Word kOther = {0x0000000a0200780c, 0x3f24270},  // ISETP.GT.AND P1, PT, R2, 0xa, PT
      kIfOtherR2 = {0x0000000200061202, 0xf00},             // @P1 MOV R6, R2
      kIfAskedR2 = {0x0000000200062202, 0xf00},             // @P2 MOV R6, R2
      kCarry = {0x8000000002047210, 0x7f3e0ff},             // IADD3 R4, P1, R2, -R0, RZ
      kMoveR2R5 = {0x0000000200057202, 0xf00},              // MOV R5, R2
      kIfKeep = {0x00000002ff050803, 0x0};                  // @P0 P2R R5, PR, RZ, 0x2
  const auto kept = [&](uint64_t mask, uint64_t number, bool equal) {
    return std::vector<Word>{kMoveR0, kOther, keep(mask), asked(5, number, equal), kIfAskedR2};
  };
  const std::vector<Word> if_first = {kMoveR0, kIfR2},
                          if_one = {kMoveR0,
                                    {0x0000000a0200780c, 0x0724670},
                                    kIfOtherR2},  // ISETP.GT.OR P1, PT, R2, 0xa, P0

      if_other_alone = {
          kMoveR0, {0x0000000a0200780c, 0x4724270}, kIfOtherR2};  // ISETP.GT.AND P1, PT, R2, 0xa, !P0

  const Row rows[] = {
      {"a predicate", if_first, kept(1, 0, false), kept(2, 0, false)},
      {"the opposite of a predicate", if_first, kept(1, 1, true), kept(1, 0, true)},
      {"what is no predicate", kept(129, 0, false), kept(129, 0, false), kept(1, 0, false)},
      {"one of two predicates", if_one, kept(3, 0, false), kept(3, 1, false)},
      {"one of two predicates alone", if_other_alone, kept(3, 2, true), kept(3, 3, true)},
      {"a carry",
       {kMoveR0, kCarry, kIfOtherR2},
       {kMoveR0, kCarry, keep(2), asked(5, 0, false), kIfAskedR2},
       {kMoveR0, kCarry, keep(2), asked(5, 0, true), kIfAskedR2}},
      {"a carry that is kept under a predicate",
       {kMoveR0, kMoveR2R5, kCarry, kIfKeep, asked(5, 0, false), kIfAskedR2},
       {kMoveR0, kMoveR2R5, kCarry, kIfKeep, asked(5, 0, false), kIfAskedR2},
       {kMoveR0, kCarry, keep(2), asked(5, 0, false), kIfAskedR2}},
  };
  for (const Row& row : rows) expect_equal_and_other(row);
}

// Threads of a mark meet in memory as it was at the mark, if no way has changed it. Copies into shared memory do not change
// what is read from global memory. Stores do, of whatever size.
TEST(Machine, KnowsWhatChangesMemory) {
  constexpr Word kLoad = {0x0000000402067981, 0xc1e1900},  // LDG.E R6, desc[UR4][R2.64]
      kCopy = {0x1400000002007fae, 0x8121a44},             // LDGSTS [R0], desc[UR4][R2.64], P0
      kShared = {0x0000000000067984, 0x800},               // LDS R6, [R0]
      kLoad32 = {0xfe0001040208797e, 0x812190c},           // LDG.E.ENL2.256 R12, R8, desc[UR4][R2.64]
      kStore32 = {0xf8000208040c797f, 0xf121804},          // STG.E.ENL2.256 desc[UR4][R4.64], R8, R12
      kMoved = {0x0000000800067202, 0xf00},                // MOV R6, R8
      kElse = {0x0000000002007986, 0xc101904},             // STG.E desc[UR4][R2.64], R0
      kGroup = {0x00000000000079af, 0x0},                  // LDGDEPBAR
      kStoreShared = {0x0000000200007388, 0x800},          // STS [R0], R2
      kMark = {0x0000003000007945, 0x3800000},             // BSSY B0, behind the third instruction from here
      kSync = {0x0000000000007941, 0x3800000},             // BSYNC B0
      kMeet = {0x0000000000007948, 0x3800000};             // WARPSYNC.ALL
  const auto behind = [&](const Word& store, bool early) {
    std::vector<Word> out = {kMark, branch(1, 0), store, kSync};
    out.insert(early ? out.begin() : out.end(), kShared);
    return out;
  };
  const Row rows[] = {
      {"a group of copies in front of a load",
       {kShared, kGroup},
       {kGroup, kShared},
       {kGroup, kCopy, kShared}},
      {"a load in front of a branch that changes other memory", behind(kStoreR2, true),
       behind(kStoreR2, false), behind(kStoreR0, false)},
      {"a load in front of a branch that changes this memory", behind(kStoreShared, true),
       behind(kStoreShared, true), behind(kStoreShared, false)},
      {"a load in front of a meeting of the whole warp",
       {kShared, kMeet},
       {kShared, kMeet},
       {kMeet, kShared}},
      {"a copy behind a load", {kLoad, kCopy}, {kCopy, kLoad}, {kCopy, kElse, kLoad}},
      {"a copy in front of what it writes", {kCopy, kShared}, {kCopy, kShared}, {kShared, kCopy}},
      {"a store in front of a load", {kLoad, kElse}, {kLoad, kElse}, {kElse, kLoad}},
      {"a store in front of a load of 32 bytes",
       {kLoad32, kElse, kMoved},
       {kLoad32, kElse, kMoved},
       {kElse, kLoad32, kMoved},
       100},
      {"a store of 32 bytes in front of a load",
       {kLoad, kStore32},
       {kLoad, kStore32},
       {kStore32, kLoad},
       100},
  };
  for (const Row& row : rows) expect_equal_and_other(row);
}

// A choice in a half counts no more than a choice in a word where it is known how it was made.
TEST(Machine, KnowsAChoiceInAHalf) {
  constexpr Word kHeldR0 = {0x0000000000047202, 0xf00},  // MOV R4, R0
      kHeldR3 = {0x0000000300047202, 0xf00},             // MOV R4, R3
      kIfHeldR2 = {0x0000000200040202, 0xf00},           // @P0 MOV R4, R2
      kLower = {0x0000761004057816, 0x3},                // PRMT R5, R4, 0x7610, R3
      kIfStore = {0x0000000502000986, 0xc101504},        // @P0 STG.E.U16 desc[UR4][R2.64], R5
      kStore = {0x0000000502007986, 0xc101504};          // STG.E.U16 desc[UR4][R2.64], R5
  expect_equal_and_other({"where it was made",
                          {kHeldR0, kIfHeldR2, kLower, kIfStore},
                          {kHeldR3, kIfHeldR2, kLower, kIfStore},
                          {kHeldR0, kLower, kIfStore}});
  expect_equal_and_other({"everywhere",
                          {kHeldR0, kIfHeldR2, kLower, kStore},
                          {kHeldR0, kIfHeldR2, kLower, kStore},
                          {kHeldR3, kIfHeldR2, kLower, kStore}});
}

// Lanes that no thread with a use asks may shuffle anything. Threads below 16 have R2 in R5, the others something else.
TEST(Machine, KnowsWhichLanesAreAsked) {
  constexpr Word kHeldR0 = {0x0000000000057202, 0xf00},  // MOV R5, R0
      kHeldR3 = {0x0000000300057202, 0xf00},             // MOV R5, R3
      kIfHeldR2 = {0x0000000200059202, 0xf00},           // @!P1 MOV R5, R2
      kSum = {0x0000000405057221, 0x0},                  // FADD R5, R5, R4
      kFirst = {0x000000000000780c, 0x3f42270},          // ISETP.EQ.AND P2, PT, R0, 0x0, PT
      kOfRead = {0x000000000200780c, 0x3f42270},         // ISETP.EQ.AND P2, PT, R2, 0x0, PT
      kStore = {0x0000000502002986, 0xc101904};          // @P2 STG.E desc[UR4][R2.64], R5
  const auto least = [](uint64_t number) {               // ISETP.GE.U32.AND P1, PT, R0, number, PT
    return Word{0x780c | number << 32, 0x3f26070};
  };
  const auto below = [](uint64_t number) {  // ISETP.LT.U32.AND P2, PT, R0, number, PT
    return Word{0x780c | number << 32, 0x3f41070};
  };
  constexpr uint64_t kDown = 2, kButterfly = 3, kWholeWarp = 0x1f, kHalfWarp = 0x101f;
  const auto shuffle = [](uint64_t by, uint64_t how = 3, uint64_t lanes = 0x1f, uint64_t guard = 7) {
    return Word{0x05040f89 | guard << 12 | lanes << 40 | by << 53 | how << 58,
                0xe0000};  // SHFL R4, R5, by, lanes
  };
  struct Maximum {
    Word held, stored_by, has = {};
    std::vector<Word> shuffles = {};
  };
  const auto made = [&](const Maximum& of) {
    std::vector<Word> all = {of.held, of.has[0] ? of.has : least(16), kIfHeldR2};
    for (const Word& s :
         of.shuffles.empty() ? std::vector{shuffle(8), shuffle(4), shuffle(2), shuffle(1)} : of.shuffles)
      all.insert(all.end(), {s, kSum});
    all.insert(all.end(), {of.stored_by, kStore, kMoveR0});
    return all;
  };
  static constexpr std::array<uint32_t, 3> kOneAxis = {64, 1, 1};
  const Row row = {
      "nobody asks", made({kHeldR0, kFirst}), made({kHeldR3, kFirst}), made({kHeldR3, below(17)}), 90,
      kOneAxis};
  expect_equal_and_other(row);
  Row all_below = row;
  all_below.original = made({kHeldR0, below(16)}), all_below.equal = made({kHeldR3, below(16)});
  expect_equal_and_other(all_below);
  Row wide_axis = row;
  wide_axis.required_threads = {32, 4, 1};
  expect_equal_and_other(wide_axis);
  struct Refused {
    const char* what;
    Maximum of;
    std::array<uint32_t, 3> threads = kOneAxis;
  };
  const Refused refused[] = {
      {"a lane that stores has it", {kHeldR0, below(17)}},
      {"a lane of another warp stores", {kHeldR0, below(33)}},
      {"a lane that is asked has it", {kHeldR0, kFirst, least(15)}},
      {"a lane that is asked alone has it", {kHeldR0, kFirst, least(1), {shuffle(1)}}},
      {"a lane that is far is asked", {kHeldR0, kFirst, {}, {shuffle(16), shuffle(8)}}},
      {"a lane that is far is asked later", {kHeldR0, kFirst, {}, {shuffle(8), shuffle(16)}}},
      {"a lane above is asked", {kHeldR0, kFirst, {}, {shuffle(8, kDown)}}},
      {"lanes of a segment are asked", {kHeldR0, kFirst, {}, {shuffle(8, kButterfly, kHalfWarp)}}},
      {"lanes shuffle under a predicate", {kHeldR0, kFirst, {}, {shuffle(8, kButterfly, kWholeWarp, 8)}}},
      {"what is read says who stores", {kHeldR0, kOfRead}},
      {"blocks of any size", {kHeldR0, kFirst}, {}},
      {"blocks of rows that are no warps", {kHeldR0, kFirst}, {48, 2, 1}},
      {"blocks of too many threads", {kHeldR0, kFirst}, {2048, 1, 1}},
  };
  for (const auto& [what, of, threads] : refused) {
    Maximum other = of;
    other.held = kHeldR3;
    expect_equal_and_other({what, made(of), made(of), made(other), 90, threads});
  }
}

// A kernel may say how many threads its blocks have.
TEST_P(Family, RequiredThreadsAreRead) {
  const char* head = ".version 8.7\n.target sm_80\n.address_size 64\n.visible .entry k() ";
  const auto required = [&](const std::string& what) {
    return compile(head + what + " { ret; }", "k").required_threads;
  };
  EXPECT_EQ(required(".reqntid 64, 2"), (std::array<uint32_t, 3>{64, 2, 1}));
  EXPECT_EQ(required(".maxntid 64"), (std::array<uint32_t, 3>{}));
}

// A slice that begins elsewhere than it was told, or believes in another grid.
TEST_P(Family, OtherPlacesOfTheOriginAreFound) {
  VariantParameters where;
  const std::string cut = variant("elements", &where);
  const image::KernelCode& whole = original("elements");
  const image::KernelCode made = compile(cut, "elements__tessera_slice");
  EXPECT_TRUE(prove(whole, made, where).proved);
  for (const int by : {-4, 4, 8}) {
    VariantParameters other = where;
    other.origin_offset = uint32_t(int(other.origin_offset) + by);
    EXPECT_FALSE(prove(whole, made, other).proved) << by;
  }
  EXPECT_FALSE(prove(whole, whole, where).proved);
}

// One bit of each instruction that computes at a time. What is not found must be without consequence: a result that
// nobody reads.
TEST_P(Family, ChangedBitsOfTheCodeAreFound) {
  VariantParameters where;
  const std::string cut = variant("sums", &where);
  const image::KernelCode& whole = original("sums");
  image::KernelCode made = compile(cut, "sums__tessera_slice");
  unsigned planted = 0;
  for (size_t at = 0; at + kInstructionBytes <= made.code.size(); at += kInstructionBytes) {
    uint64_t words[2];
    memcpy(words, made.code.data() + at, sizeof words);
    const std::string name = name_of(words[0]);
    if (name != "FADD" && name != "FFMA" && name != "HMMA" && name != "F2I" && name != "RED" && name != "LDG")
      continue;
    for (unsigned bit = 0; bit < 105; bit++) {  // all but scheduling
      made.code[at + bit / 8] ^= uint8_t(1 << bit % 8);
      const Proof proof = prove(whole, made, where);
      made.code[at + bit / 8] ^= uint8_t(1 << bit % 8);
      EXPECT_FALSE(proof.proved) << name << " at " << at << ", bit " << bit;
      planted++;
    }
  }
  EXPECT_GT(planted, 500u);
}

INSTANTIATE_TEST_SUITE_P(Targets, Family, testing::Values("sm_80", "sm_90", "sm_100", "sm_120"),
                         [](const auto& target) { return std::string(target.param); });

}  // namespace
}  // namespace tessera::sass

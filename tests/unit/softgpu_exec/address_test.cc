// The forms in which instructions name memory.
#include "tests/unit/softgpu_exec/harness.h"
#include "tests/unit/softgpu_exec/instruction_case.h"

namespace tessera::softgpu::exec {
namespace {

// The value of %r2 in lane t: %r1 = t, shared memory s[512], local memory l[16].
std::vector<uint32_t> run_memory_warp(const std::string& body) {
  DeviceArray<uint32_t> out(32);
  TestModule m(
      ptx_header() +
      ".visible .entry k(.param .u64 p)\n{\n.reg .pred %p<8>;\n.reg .b32 %r<24>;\n.reg .b64 %rd<8>;\n"
      ".shared .align 16 .b8 s[512];\n.local .align 16 .b8 l[16];\nld.param.u64 %rd1, [p];\n"
      "mov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd1, %rd1, %rd2;\n" +
      body + "\nst.global.u32 [%rd1], %r2;\nret;\n}\n");
  EXPECT_TRUE(m.ok()) << m.error;
  if (!m.ok()) return {};
  const Fault f = m.run("k", {1, 1, 1}, {32, 1, 1}, Params().add(out.address()));
  EXPECT_EQ(f.kind, FaultKind::kNone) << f.text;
  return out.values();
}

// Elements of arrays, by constant numbers and by numbers in registers of every width, which count 32 bits.
TEST(Addresses, OfArrayElements) {
  DeviceArray<uint32_t> out(32 * 16);
  TestModule m(
      ptx_header() +
      ".global .align 8 .u64 v[8] = {10, 11, 12, 13, 14, 15, 16, 17};\n.global .align 16 .u32 table[40];\n"
      ".global .align 8 .v2 .u32 pairs[4];\n.const .align 4 .b16 small[4] = {1, 2, 3, 4};\n"
      ".visible .entry k(.param .u64 p, .param .u32 list[4])\n{\n.reg .pred %p<2>;\n.reg .b16 %h<4>;\n"
      ".reg .b8 %b1;\n.reg .b32 %r<32>;\n.reg .b64 %rd<24>;\n.shared .align 4 .b32 s[64];\n"
      ".local .align 4 .b32 l[4];\n"
      "ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x; mad.wide.u32 %rd1, %r1, 64, %rd1;\n"
      "and.b32 %r2, %r1, 3; cvt.u16.u32 %h1, %r2; cvt.u64.u32 %rd2, %r2; or.b64 %rd2, %rd2, 0x700000000;\n"
      "cvt.u8.u32 %b1, %r2; setp.gt.u32 %p1, %r1, 15;\n"
      "st.global.u32 table[%r1+1], %r1; st.global.u32 table[0], 77; st.global.u32 pairs[5], 5;\n"
      "st.shared.b32 s[%r1], %r1; st.shared.b32 s[40], 40; st.local.b32 l[%r2], %r1;\n"
      "ld.global.u64 %rd3, v[2]; ld.global.u64 %rd4, v[%r2]; ld.global.u64 %rd5, v[%rd2+1];\n"
      "ld.global.u64 %rd6, v[%h1+4]; ld.global.u64 %rd7, v[%b1]; mov.u64 %rd8, 0;\n"
      "@%p1 ld.global.u64 %rd8, v[%r2+-0]; mov.u64 %rd9, v[%r2]; ld.global.u64 %rd9, [%rd9+8];\n"
      "cvta.global.u64 %rd10, table[%r1]; ld.u32 %r3, [%rd10+4]; mov.u32 %r4, s[%r1]; ld.shared.u32 %r4, "
      "[%r4];\n"
      "ld.shared.u32 %r5, s[WARP_SZ+8]; ld.local.u32 %r6, l[%r2]; ld.const.u16 %r7, small[%r2];\n"
      "ld.param.u32 %r8, list[2]; ld.param.u32 %r9, list[%r2]; ld.global.u32 %r10, table[0];\n"
      "ld.global.v2.u32 {%r11, %r12}, pairs[4];\n"
      "st.global.v2.u64 [%rd1], {%rd3, %rd4}; st.global.v2.u32 [%rd1+16], {%r11, %r12};\n"
      "add.u64 %rd5, %rd5, %rd6; add.u64 %rd5, %rd5, %rd7; add.u64 %rd5, %rd5, %rd8; add.u64 %rd5, %rd5, "
      "%rd9;\n"
      "st.global.u64 [%rd1+24], %rd5; st.global.v4.u32 [%rd1+32], {%r3, %r4, %r5, %r6};\n"
      "st.global.v4.u32 [%rd1+48], {%r7, %r8, %r9, %r10};\nret;\n}\n");
  ASSERT_TRUE(m.ok()) << m.error;
  Params p;
  p.add(out.address()).add(20u).add(21u).add(22u).add(23u);
  const Fault f = m.run("k", {1, 1, 1}, {32, 1, 1}, p);
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  for (uint32_t t = 0; t < 32; ++t) {
    const uint32_t n = t & 3;
    const std::vector<uint32_t> want = {
        12, 0, 10 + n, 0,  0,      5, 11 + n + 14 + n + 10 + n + (t > 15 ? 10 + n : 0) + 11 + n, 0, t, t,
        40, t, 1 + n,  22, 20 + n, 77};
    EXPECT_EQ(std::vector<uint32_t>(&out[t * 16], &out[t * 16] + 16), want) << t;
  }
}

// Every instruction of a table with every way to write its address. Word k of each object is k; the registers
// point to word 8.
TEST(Addresses, InEveryForm) {
  struct Memory {
    const char *space, *object;
    std::vector<const char*> registers;  // that hold addresses
    bool writable = true;
  };
  const Memory memories[] = {{".global", "g", {"%rd5"}},
                             {".shared", "s", {"%r6", "%rd6"}},
                             {".shared::cta", "s", {"%r6", "%rd6"}},
                             {".local", "l", {"%r7", "%rd7"}},
                             {".const", "c", {"%rd8"}, false},
                             {"", "g", {"%rd9"}},
                             {"", "s", {"%rd10"}},
                             {"", "l", {"%rd11"}}};
  struct Form {
    const char *name, *text;  // R: the register, S: the object
    uint32_t word;
  };
  const Form forms[] = {{"register", "[R]", 8},          {"register_plus", "[R+8]", 10},
                        {"register_plus", "[R+ 8]", 10}, {"register_plus", "[R+-8]", 6},
                        {"register_minus", "[R-8]", 6},  {"register_hexadecimal", "[R+0x10]", 12},
                        {"register_sum", "[R+4*2]", 10}, {"register_octal", "[R+010]", 10},
                        {"register_far", "[R-32]", 0},   {"object", "[S]", 0},
                        {"object_plus", "[S+16]", 4},    {"object_sum", "[S+8+8]", 4},
                        {"object_minus", "[S-0]", 0},    {"subscript", "S[6]", 6},
                        {"subscript", "S[0x6]", 6},      {"subscript_register", "S[%r3]", 4},
                        {"subscript_sum", "S[%r3+2]", 6}};
  struct Row {
    const char *opcode, *text;  // M: space, A: address; into %r2
    bool writes;
    uint32_t (*want)(uint32_t word);
  };
  const Row rows[] = {
      {"ld.u32", "ldM.u32 %r2, A;", false, [](uint32_t w) { return w; }},
      {"ld.u8", "ldM.u8 %r2, A;", false, [](uint32_t w) { return w; }},
      {"ld.b64", "{ .reg .b64 t; ldM.b64 t, A; mov.b64 {_, %r2}, t; }", false,
       [](uint32_t w) { return w + 1; }},
      {"ld.v2", "{ .reg .b32 t; ldM.v2.u32 {t, %r2}, A; }", false, [](uint32_t w) { return w + 1; }},
      {"ld.volatile", "ld.volatileM.u32 %r2, A;", false, [](uint32_t w) { return w; }},
      {"ld.relaxed", "ld.relaxed.gpuM.u32 %r2, A;", false, [](uint32_t w) { return w; }},
      {"st.u32", "stM.u32 A, 77; ldM.u32 %r2, A;", true, [](uint32_t) { return 77u; }},
      {"st.v2", "stM.v2.u32 A, {1, 2}; ldM.u32 %r2, A;", true, [](uint32_t) { return 1u; }},
      {"st.volatile", "st.volatileM.u32 A, 78; ldM.u32 %r2, A;", true, [](uint32_t) { return 78u; }},
      {"atom.add", "atomM.add.u32 %r2, A, 0;", true, [](uint32_t w) { return w; }},
      {"atom.cas", "{ .reg .b32 t; ldM.u32 t, A; atomM.cas.b32 %r2, A, t, t; }", true,
       [](uint32_t w) { return w; }},
      {"red.max", "redM.max.u32 A, 99; ldM.u32 %r2, A;", true, [](uint32_t) { return 99u; }},
      {"prefetch", "prefetchM.L1 A; mov.u32 %r2, 3;", false, [](uint32_t) { return 3u; }},
  };
  std::string words = "0";
  for (int k = 1; k < 32; ++k) words += ", " + std::to_string(k);
  const std::string before =
      ".visible .entry k(.param .u64 p)\n{\n.reg .b32 %r<12>;\n.reg .b64 %rd<16>;\n.reg .pred %p<2>;\n"
      ".local .align 16 .b32 l[32];\n"
      "mov.u64 %rd5, g; mov.u32 %r6, s; mov.u64 %rd6, s; mov.u64 %rd7, l; mov.u64 %rd8, c; mov.u32 %r3, 4;\n"
      "cvta.global.u64 %rd9, %rd5; cvta.shared.u64 %rd10, %rd6; cvta.local.u64 %rd11, %rd7;\n"
      "cvt.u32.u64 %r7, %rd7; mov.u32 %r4, 0; mov.u32 %r2, 1000;\n"
      "FILL: mul.wide.u32 %rd1, %r4, 4; cvt.u32.u64 %r5, %rd1;\n"
      "add.u64 %rd2, %rd5, %rd1; st.global.u32 [%rd2], %r4; add.u64 %rd2, %rd7, %rd1; st.local.u32 [%rd2], "
      "%r4;\n"
      "add.u32 %r5, %r5, %r6; st.shared.u32 [%r5], %r4; add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, 32;\n"
      "@%p1 bra FILL;\n"
      "add.u64 %rd5, %rd5, 32; add.u32 %r6, %r6, 32; add.u64 %rd6, %rd6, 32; add.u64 %rd7, %rd7, 32;\n"
      "add.u32 %r7, %r7, 32; add.u64 %rd8, %rd8, 32; add.u64 %rd9, %rd9, 32; add.u64 %rd10, %rd10, 32;\n"
      "add.u64 %rd11, %rd11, 32;\n";
  for (const Memory& memory : memories)
    for (const Row& row : rows)
      for (const Form& form : forms) {
        if (row.writes && !memory.writable) continue;
        // The effect of a generic access to an element of an object in a window is not documented.
        const bool window = *memory.space == 0 && *memory.object != 'g';
        if (window && std::strstr(form.text, "[%r")) continue;
        for (const char* reg : memory.registers) {
          const std::string address = replace(replace(form.text, "R", reg), "S", memory.object);
          const std::string body = replace(replace(row.text, "M", memory.space), "A", address);
          const std::string text = ptx_header() + ".const .align 16 .b32 c[32] = {" + words +
                                   "};\n.global .align 16 .b32 g[32];\n.shared .align 16 .b32 s[32];\n" +
                                   before + body +
                                   "\nld.param.u64 %rd1, [p]; st.global.u32 [%rd1], %r2;\nret;\n}\n";
          const std::string name = std::string("operand.address.") + form.name + "." + row.opcode;
          DeviceArray<uint32_t> out(1);
          TestModule m(text);
          const Fault f = m.ok() ? m.run("k", {1, 1, 1}, {1, 1, 1}, Params().add(out.address())) : Fault{};
          if (m.ok() && f.kind == FaultKind::kNone && out[0] == row.want(form.word))
            note_form(name, true);
          else
            must_be_illegal(name, body + "\n" + m.error + f.text + "; got " + std::to_string(out[0]), text);
        }
      }
}

// Addresses of shared and local memory are 32 bits wide, and so is the sum of register and offset: compilers
// write `s[t - 3]` as a register below the object and an offset above it.
class OffsetsWrap : public testing::TestWithParam<const char*> {
 protected:
  static constexpr uint32_t kUntouched = 7;
  // The lanes that the guard lets through have f(t), the others kUntouched.
  template <class F>
  static std::vector<uint32_t> lanes(F f) {
    std::vector<uint32_t> want(32);
    for (uint32_t t = 0; t < 32; ++t) want[t] = *GetParam() && t % 3 == 0 ? kUntouched : f(t);
    return want;
  }
  // Word t of s is t + 100 (%r5). 640 below their places: %r4 word t, %r6 word 4, %r8 word 31 - t, %r9 words
  // 2 t and on (for t < 16).
  static constexpr const char* kPrepare =
      "mov.u32 %r2, 7; rem.u32 %r3, %r1, 3; setp.ne.u32 %p1, %r3, 0; mov.u32 %r3, s;\n"
      "mad.lo.u32 %r4, %r1, 4, %r3; add.u32 %r5, %r1, 100; st.shared.u32 [%r4], %r5; bar.warp.sync -1;\n"
      "sub.u32 %r3, %r3, 640; sub.u32 %r4, %r4, 640; add.u32 %r6, %r3, 16; sub.u32 %r7, 31, %r1;\n"
      "mad.lo.u32 %r8, %r7, 4, %r3; and.b32 %r9, %r1, 15; mad.lo.u32 %r9, %r9, 8, %r3;\n";
  static std::vector<uint32_t> run(const std::string& text, const std::string& after = "") {
    return run_memory_warp(kPrepare + (GetParam() + text) + "\nbar.warp.sync -1;\n" + after);
  }
};

TEST_P(OffsetsWrap, InLoads) {
  const auto own = lanes([](uint32_t t) { return 100 + t; });
  EXPECT_EQ(run("ld.shared.u32 %r2, [%r4+640];"), own);
  EXPECT_EQ(run("ld.volatile.shared.u32 %r2, [%r4+640];"), own);
  EXPECT_EQ(run("ld.shared.u32 %r2, [%r6+640];"), lanes([](uint32_t) { return 104; }));
  EXPECT_EQ(run("ld.shared.u32 %r2, [%r8+640];"), lanes([](uint32_t t) { return 131 - t; }));
  EXPECT_EQ(run("ld.shared.u8 %r2, [%r4+640];"), own);
  EXPECT_EQ(run("ld.shared.v2.u32 {%r10, %r2}, [%r9+640];"),
            lanes([](uint32_t t) { return 101 + t % 16 * 2; }));
  EXPECT_EQ(run("ld.shared.v4.u32 {%r10, %r11, %r12, %r2}, [%r6+640];"), lanes([](uint32_t) { return 107; }));
}
TEST_P(OffsetsWrap, InStores) {
  const std::string clear = "add.u32 %r10, %r4, 640; mov.u32 %r11, 7; st.shared.u32 [%r10], %r11;\n";
  const auto store = [&](const std::string& text) {
    return run_memory_warp(kPrepare + clear + "bar.warp.sync -1;\n" + (GetParam() + text) +
                           "\nbar.warp.sync -1; ld.shared.u32 %r2, [%r10];");
  };
  const auto own = lanes([](uint32_t t) { return 100 + t; });
  EXPECT_EQ(store("st.shared.u32 [%r4+640], %r5;"), own);
  EXPECT_EQ(store("st.volatile.shared.u32 [%r4+640], %r5;"), own);
  EXPECT_EQ(store("red.shared.max.u32 [%r4+640], %r5;"), own);
}
TEST_P(OffsetsWrap, InLocalMemory) {
  const std::string address =
      "mov.u64 %rd3, l; cvta.local.u64 %rd4, %rd3; cvt.u32.u64 %r10, %rd3;\n"
      "sub.u32 %r10, %r10, 64;\n";
  EXPECT_EQ(run_memory_warp(kPrepare + address + "st.local.u32 [%r10+68], %r5;\n" + GetParam() +
                            "ld.local.u32 %r2, [%r10+68];"),
            lanes([](uint32_t t) { return 100 + t; }));
}
TEST_P(OffsetsWrap, InAtomicsAndAsynchronousCopies) {
  EXPECT_EQ(run("atom.shared.add.u32 %r2, [%r4+640], 1;"), lanes([](uint32_t t) { return 100 + t; }));
  EXPECT_EQ(run("cp.async.ca.shared.global [%r4+640], [%rd1], 4;",
                "cp.async.wait_all; ld.shared.u32 %r2, [%r4+640];")[1],
            0u);
  const std::string prepare = kPrepare;
  EXPECT_EQ(run_memory_warp(prepare + "and.b32 %r10, %r1, 7; mad.lo.u32 %r10, %r10, 16, %r3;\n"
                                      "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r10+640];"),
            run_memory_warp(prepare + "ld.shared.u32 %r2, [%r4+640];"));
  EXPECT_EQ(
      run_memory_warp(prepare +
                      "mov.u32 %r2, 1; setp.eq.u32 %p2, %r1, 0; @%p2 mbarrier.init.shared.b64 [%r3+640], 1;\n"
                      "bar.warp.sync -1; @%p2 mbarrier.arrive.shared.b64 %rd3, [%r3+640];"),
      std::vector<uint32_t>(32, 1));
}
INSTANTIATE_TEST_SUITE_P(Lanes, OffsetsWrap, testing::Values("", "@%p1 "));

}  // namespace
}  // namespace tessera::softgpu::exec

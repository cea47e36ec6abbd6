// Matrix instructions of warpgroups: shared memory is laid out piece by piece as the PTX ISA draws it (atoms
// of eight rows, swizzled within), the product is made by a scalar loop. Small whole numbers, so all sums are
// exact.
#include <map>

#include "tests/unit/softgpu_exec/harness.h"
#include "tests/unit/softgpu_exec/matrix_types.h"

namespace tessera::softgpu::exec {
namespace {

constexpr unsigned kShared = 96 * 1024;

// One operand in shared memory. `rows` run along M or N, each of 32 bytes along K.
struct Operand {
  unsigned width;      // of the swizzle: 16 (none), 32, 64, 128 bytes
  bool transposed;     // rows run along K
  unsigned start;      // of the pattern
  unsigned first = 0;  // piece within a row of the atom where K begins (not transposed)
  unsigned base = 0;   // base offset
  unsigned gap = 0;    // bytes between atoms beyond their size
  unsigned rows = 0;

  unsigned atom() const { return 8 * width + gap; }
  // The place of 16 bytes: piece `column` of line `line` of an atom.
  unsigned in_atom(unsigned line, unsigned column) const {
    switch (width) {
      case 128:
        return line * 128 + (column ^ line) * 16;
      case 64:
        return line * 64 + (column ^ line / 2) * 16;
      case 32:
        return line * 32 + (column ^ line / 4) * 16;
      default:
        return line * 16;
    }
  }
  unsigned leading = 0, stride = 0;  // set by plan()
  void plan(unsigned n) {
    rows = n;
    const unsigned lines = transposed ? 0 : n / 8;  // atoms along M or N
    if (!transposed) {
      stride = atom();
      leading = width == 16 ? lines * atom() : 0;  // the second piece's atoms lie behind the first's
    } else if (width == 16) {
      stride = atom();                // from eight elements to the next eight
      leading = n / 8 * atom() + 16;  // from eight k to the next eight
    } else {
      leading = 2 * atom();  // from one atom along M or N to the next
      stride = atom();       // from eight k to the next eight
    }
  }
  // Byte address of the element (row, k) of `bytes` bytes.
  unsigned place(unsigned row, unsigned k, unsigned bytes) const {
    if (!transposed) {
      const unsigned piece = k * bytes / 16;
      if (width == 16)
        return start + row / 8 * stride + piece * leading + in_atom(row % 8, 0) + k * bytes % 16;
      return start + row / 8 * stride + in_atom(row % 8, first + piece) + k * bytes % 16;
    }
    const unsigned piece = row / 8, per = width / 16;
    if (width == 16) return start + piece * stride + k / 8 * leading + in_atom(k % 8, 0) + row % 8 * bytes;
    return start + piece / per * leading + k / 8 * stride + in_atom(k % 8, piece % per) + row % 8 * bytes;
  }
  U descriptor() const {
    const std::map<unsigned, U> modes = {{16, 0}, {128, 1}, {64, 2}, {32, 3}};
    return (start + first * 16) >> 4 | static_cast<U>(leading >> 4) << 16 |
           static_cast<U>(stride >> 4) << 32 | static_cast<U>(base) << 49 | modes.at(width) << 62;
  }
};

struct Wgmma {
  const Type &d, &a, &b;
  unsigned n;
  bool a_in_memory;
  Operand at_a, at_b;
  int sign_a = 1, sign_b = 1;
  bool accumulate = true;
  const char* extra = "";
  bool large = false;  // the sums given are near the ends of 32 bits
};

std::string operand_list(const char* prefix, unsigned n, unsigned first) {
  std::string s = "{";
  for (unsigned i = 0; i < n; ++i) s += (i ? ", " : "") + std::string(prefix) + std::to_string(first + i);
  return s + "}";
}
std::string text(U x) {
  return std::to_string(x);
}

// Copies the image to shared memory, loads sums and A, runs `instruction`, stores the sums.
std::string kernel(unsigned sums, const std::string& instruction, unsigned image_bytes) {
  std::string t = ptx_header() +
                  ".visible .entry k(.param .u64 image, .param .u64 a, .param .u64 c, .param .u64 d)\n{\n"
                  ".reg .pred %p<4>;\n.reg .b32 %r<8>, %s<128>, %a<4>, %v<4>;\n.reg .b64 %rd<16>;\n"
                  ".shared .align 1024 .b8 s[" +
                  std::to_string(kShared) +
                  "];\nmov.u32 %r1, %tid.x;\nld.param.u64 %rd1, [image];\nld.param.u64 %rd2, [a];\n"
                  "ld.param.u64 %rd3, [c];\nld.param.u64 %rd4, [d];\nmul.wide.u32 %rd5, %r1, 4;\n"
                  "add.u64 %rd2, %rd2, %rd5;\nadd.u64 %rd3, %rd3, %rd5;\nadd.u64 %rd4, %rd4, %rd5;\n"
                  "shl.b32 %r2, %r1, 4;\nmul.wide.u32 %rd6, %r1, 16;\nadd.u64 %rd1, %rd1, %rd6;\n"
                  "again:\nsetp.lt.u32 %p1, %r2, " +
                  std::to_string(image_bytes) +
                  ";\n@!%p1 bra filled;\nld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%rd1];\n"
                  "st.shared.v4.u32 [%r2], {%v0, %v1, %v2, %v3};\nadd.u32 %r2, %r2, 2048;\n"
                  "add.u64 %rd1, %rd1, 2048;\nbra again;\nfilled:\nbar.sync 0;\n";
  for (unsigned r = 0; r < 4; ++r)
    t += "ld.global.u32 %a" + std::to_string(r) + ", [%rd2+" + std::to_string(r * 512) + "];\n";
  for (unsigned r = 0; r < sums; ++r)
    t += "ld.global.u32 %s" + std::to_string(r) + ", [%rd3+" + std::to_string(r * 512) + "];\n";
  t += instruction;
  for (unsigned r = 0; r < sums; ++r)
    t += "st.global.u32 [%rd4+" + std::to_string(r * 512) + "], %s" + std::to_string(r) + ";\n";
  return t + "ret;\n}\n";
}

void check(Wgmma t) {
  const unsigned bytes = t.a.bits / 8, k = 32 / bytes, n = t.n, per = 32 / t.d.bits, sums = n / 2 / per;
  t.at_a.plan(64);
  t.at_b.plan(n);
  const bool integers = t.d.bits == 32 && t.d.encode == integer_bits, narrow = t.a.bits == 16;
  std::string form = "wgmma.mma_async.sync.aligned.m64n" + text(n) + "k" + text(k) + t.extra + "." +
                     t.d.name + "." + t.a.name + "." + t.b.name;
  std::string call = "mov.u64 %rd7, " + text(t.at_a.descriptor()) + ";\nmov.u64 %rd8, " +
                     text(t.at_b.descriptor()) + ";\nsetp.eq.u32 %p2, 1, " + (t.accumulate ? "1" : "0") +
                     ";\nwgmma.fence.sync.aligned;\n" + form + " " + operand_list("%s", sums, 0) + ", " +
                     (t.a_in_memory ? "%rd7" : operand_list("%a", 4, 0)) + ", %rd8, %p2";
  if (!integers) call += ", " + std::to_string(t.sign_a) + ", " + std::to_string(t.sign_b);
  if (narrow && t.a_in_memory) call += t.at_a.transposed ? ", 1" : ", 0";
  if (narrow) call += t.at_b.transposed ? ", 1" : ", 0";
  call += ";\nwgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n";
  SCOPED_TRACE(call);

  const std::vector<int> a = values(64 * k, t.a, n + 1), b = values(n * k, t.b, n + 2);
  std::vector<int> c = values(64 * n, t.d, n + 3);
  if (t.large)
    for (size_t i = 0; i < c.size(); ++i) c[i] = i % 2 ? INT32_MAX - 5 : INT32_MIN + 5;
  DeviceArray<uint8_t> image(kShared, 0xee);
  const auto fill = [&](const Operand& at, const Type& type, const std::vector<int>& from, unsigned rows) {
    for (unsigned row = 0; row < rows; ++row)
      for (unsigned i = 0; i < k; ++i) {
        const U bits = type.encode(from[row * k + i]);
        const unsigned place = at.place(row, i, bytes);
        ASSERT_LE(place + bytes, kShared);
        std::memcpy(image.data() + place, &bits, bytes);
      }
  };
  if (t.a_in_memory) fill(t.at_a, t.a, a, 64);
  fill(t.at_b, t.b, b, n);
  // Words by register and thread.
  DeviceArray<uint32_t> wa(4 * 128), wc(sums * 128), wd(sums * 128);
  const auto each_sum = [&](auto f) {
    for (unsigned thread = 0; thread < 128; ++thread)
      for (unsigned e = 0; e < n / 2; ++e) {
        const unsigned lane = thread % 32, row = thread / 32 * 16 + lane / 4 + (e % 4 < 2 ? 0 : 8),
                       column = e / 4 * 8 + lane % 4 * 2 + e % 2;
        f(e / per * 128 + thread, e % per * t.d.bits, row, column);
      }
  };
  each_sum([&](unsigned word, unsigned shift, unsigned row, unsigned column) {
    wc[word] |= static_cast<uint32_t>(t.d.encode(c[row * n + column]) << shift);
  });
  for (unsigned thread = 0; thread < 128; ++thread)
    for (unsigned r = 0; r < 4; ++r)
      for (unsigned j = 0; j < 4 / bytes; ++j) {
        const unsigned lane = thread % 32, row = thread / 32 * 16 + lane / 4 + (r & 1) * 8,
                       column = (r / 2 * 16 + lane % 4 * 4) / bytes + j;
        wa[r * 128 + thread] |= static_cast<uint32_t>(t.a.encode(a[row * k + column]) << (j * t.a.bits));
      }
  TestModule m(kernel(sums, call, kShared));
  ASSERT_TRUE(m.ok()) << m.error;
  Work work;
  const Fault f =
      m.run("k", {1, 1, 1}, {128, 1, 1},
            Params().add(image.address()).add(wa.address()).add(wc.address()).add(wd.address()), 0, &work);
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  EXPECT_EQ(work.tensor_operations, 2ull * 64 * n * k);
  unsigned wrong = 0;
  each_sum([&](unsigned word, unsigned shift, unsigned row, unsigned column) {
    int64_t sum = t.accumulate ? c[row * n + column] : 0;
    for (unsigned i = 0; i < k; ++i) sum += t.sign_a * a[row * k + i] * t.sign_b * b[column * k + i];
    if (t.extra[0]) sum = std::min<int64_t>(std::max<int64_t>(sum, INT32_MIN), INT32_MAX);
    const uint32_t mask = t.d.bits == 32 ? ~0u : 0xffff;
    const uint32_t want = static_cast<uint32_t>(t.d.encode(static_cast<int>(sum))) & mask;
    if ((wd[word] >> shift & mask) != want && ++wrong == 1)
      ADD_FAILURE() << "row " << row << " column " << column << ": " << (wd[word] >> shift & mask) << " not "
                    << want;
  });
  EXPECT_EQ(wrong, 0u);
}

TEST(Warpgroup, EveryTypeSwizzleAndSource) {
  struct Types {
    const Type &d, &a, &b;
  };
  const Types kTypes[] = {{kF32, kF16, kF16},      {kF16Sum, kF16, kF16}, {kF32, kBf16, kBf16},
                          {kF32, kTf32, kTf32},    {kF32, kE4m3, kE4m3},  {kF32, kE4m3, kE5m2},
                          {kF32, kE5m2, kE4m3},    {kF32, kE5m2, kE5m2},  {kF16Sum, kE4m3, kE4m3},
                          {kF16Sum, kE4m3, kE5m2}, {kS32, kS8, kS8},      {kS32, kS8, kU8},
                          {kS32, kU8, kS8},        {kS32, kU8, kU8}};
  unsigned turn = 0, next_n = 0;
  std::map<unsigned, int> seen;
  for (const Types& types : kTypes)
    for (unsigned width : {16u, 32u, 64u, 128u})
      for (bool memory : {true, false}) {
        ++turn;
        // All column counts, from the largest to the smallest, in turn.
        const bool integers = &types.d == &kS32;
        unsigned n = 256 - next_n++ % 32 * 8;
        if (integers && n > 32 && n % 16) n -= 8;
        ++seen[n];
        const bool narrow = types.a.bits == 16;
        Wgmma t{types.d, types.a, types.b, n, memory, {}, {}};
        t.at_a = Operand{width, narrow && memory && turn % 4 < 2, 0};
        t.at_b = Operand{width, narrow && turn % 3 == 0, 40 * 1024};
        if (!t.at_a.transposed && width > 16) t.at_a.first = turn % (width / 32) * 2;
        if (!t.at_b.transposed && width > 16) t.at_b.first = (turn + 1) % (width / 32) * 2;
        if (turn % 5 == 0) t.at_a.gap = 1024;
        if (!integers) t.sign_a = turn % 4 == 1 ? -1 : 1, t.sign_b = turn % 8 > 4 ? -1 : 1;
        t.accumulate = turn % 6 != 0;
        check(t);
      }
  EXPECT_EQ(seen.size(), 32u);  // every number of columns there is
}
TEST(Warpgroup, BothTranspositionsWithEverySwizzle) {
  for (unsigned width : {16u, 32u, 64u, 128u})
    for (unsigned which = 0; which < 4; ++which) {
      Wgmma t{kF32, kBf16, kBf16, 8 + 56 * which, true, {}, {}};
      t.at_a = Operand{width, (which & 1) != 0, 0};
      t.at_b = Operand{width, (which & 2) != 0, 40 * 1024};
      t.at_b.gap = which == 3 ? 1024 : 0;
      check(t);
    }
}
// The pattern need not begin where it would repeat: the base offset says where it does.
TEST(Warpgroup, BaseOffset) {
  for (unsigned at : {1u, 3u, 7u}) {
    Wgmma t{kF32, kF16, kF16, 64, true, {}, {}};
    t.at_a = Operand{128, false, at * 128, 2, at};
    t.at_b = Operand{128, true, 40 * 1024 + at * 128, 0, at};
    check(t);
  }
}
TEST(Warpgroup, IntegerSumsWrapOrSaturate) {
  for (const char* extra : {"", ".satfinite"}) {
    Wgmma t{kS32, kS8, kS8, 32, true, {128, false, 0}, {64, false, 40 * 1024}};
    t.extra = extra;
    t.large = true;
    check(t);
  }
}

// Infinity times zero: the one NaN of f32 in the row of A that has it, zeros elsewhere.
TEST(Warpgroup, NotANumber) {
  Operand a{16, false, 0}, b{16, false, 40 * 1024};
  a.plan(64), b.plan(8);
  DeviceArray<uint8_t> image(kShared, 0);
  const uint16_t infinity = 0x7c00;
  std::memcpy(image.data() + a.place(37, 5, 2), &infinity, 2);
  DeviceArray<uint32_t> in(512), out(512);
  TestModule m(kernel(4,
                      "mov.u64 %rd7, " + text(a.descriptor()) + ";\nmov.u64 %rd8, " + text(b.descriptor()) +
                          ";\nsetp.eq.u32 %p2, 0, 0;\nwgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
                          "{%s0, %s1, %s2, %s3}, %rd7, %rd8, %p2, 1, 1, 0, 0;\n",
                      kShared));
  ASSERT_TRUE(m.ok()) << m.error;
  const Fault f = m.run("k", {1, 1, 1}, {128, 1, 1},
                        Params().add(image.address()).add(in.address()).add(in.address()).add(out.address()));
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  for (unsigned thread = 0; thread < 128; ++thread)
    for (unsigned r = 0; r < 4; ++r)
      EXPECT_EQ(out[r * 128 + thread],
                thread / 32 * 16 + thread % 32 / 4 + r / 2 * 8 == 37 ? 0x7fffffffu : 0u);
}

// --- misuse: refused, or reported when it happens
std::string call_text(const std::string& form, const std::string& rest, unsigned sums = 4) {
  return "mov.u64 %rd7, 0;\nmov.u64 %rd8, 0;\nsetp.eq.u32 %p2, 0, 0;\n" + form + " " +
         operand_list("%s", sums, 0) + rest + "\n";
}
const char* const kForm = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16";
Fault run_misuse(const std::string& instructions, unsigned threads) {
  TestModule m(kernel(4, instructions, 0));
  EXPECT_TRUE(m.ok()) << m.error;
  DeviceArray<uint32_t> memory(8192);
  const U p = memory.address();
  return m.run("k", {1, 1, 1}, {threads, 1, 1}, Params().add(p).add(p).add(p).add(p));
}
TEST(Warpgroup, MisuseIsReported) {
  const std::string good = call_text(kForm, ", %rd7, %rd8, %p2, 1, 1, 0, 0;");
  EXPECT_EQ(run_misuse(good, 128).kind, FaultKind::kNone);
  EXPECT_EQ(run_misuse(good, 256).kind, FaultKind::kNone);
  const auto expect = [](const Fault& f, FaultKind kind, const char* what) {
    EXPECT_EQ(f.kind, kind) << f.text;
    EXPECT_NE(f.text.find(what), std::string::npos) << f.text;
  };
  constexpr FaultKind kIllegal = FaultKind::kIllegalInstruction;
  expect(run_misuse(good, 96), kIllegal, "fewer than the four");
  expect(run_misuse(good, 112), kIllegal, "part of a warp");
  expect(run_misuse("setp.lt.u32 %p1, %r1, 100;\n@%p1 wgmma.fence.sync.aligned;\n", 128), kIllegal,
         "part of a warp");
  // A warp that never comes; one that has gone; one at another instruction.
  expect(run_misuse("setp.lt.u32 %p1, %r1, 96;\n@!%p1 bra other;\n" + good + "other:\nbar.sync 0;\n", 128),
         FaultKind::kDeadlock, "the other warps of its warpgroup");
  expect(run_misuse("setp.lt.u32 %p1, %r1, 32;\n@%p1 exit;\n" + good, 128), kIllegal, "has exited");
  expect(run_misuse(
             "setp.lt.u32 %p1, %r1, 96;\n@!%p1 bra other;\n" + good + "bra end;\nother:\n" + good + "end:\n",
             128),
         kIllegal, "different ones");
  // Lanes, then warps, that disagree.
  const std::string before = "mov.u64 %rd7, 0;\nmov.u64 %rd8, 0;\nsetp.eq.u32 %p2, 0, 0;\n",
                    call = std::string(kForm) + " {%s0, %s1, %s2, %s3}, %rd7, %rd8, %p2, 1, 1, 0, 0;\n";
  expect(run_misuse(before + "cvt.u64.u32 %rd8, %r1;\n" + call, 128), kIllegal, "lanes give different");
  expect(run_misuse(before + "setp.lt.u32 %p2, %r1, 17;\n" + call, 128), kIllegal, "lanes give different");
  expect(run_misuse(before + "setp.lt.u32 %p2, %r1, 64;\n" + call, 128), kIllegal, "warps give different");
  // A descriptor that leads out of shared memory.
  expect(run_misuse(before + "mov.u64 %rd8, 0x3fff;\n" + call, 128), FaultKind::kIllegalAddress,
         "shared memory");
}
TEST(Warpgroup, FormsThatDoNotExistAreRefused) {
  const auto refused = [](const std::string& text) {
    TestModule m(kernel(4, text, 0));
    EXPECT_TRUE(m.ok()) << m.error;
    return m.ok() && m.program->refused().count("k") == 1;
  };
  const std::string form = "wgmma.mma_async.sync.aligned.";
  EXPECT_FALSE(refused(call_text(kForm, ", %rd7, %rd8, %p2, 1, 1, 0, 0;")));
  EXPECT_FALSE(refused(call_text(form + "m64n8k32.s32.s8.u8", ", %rd7, %rd8, %p2;")));
  EXPECT_TRUE(refused(call_text(kForm, ", %rd7, %rd8, %p2, 2, 1, 0, 0;")));
  EXPECT_TRUE(refused(call_text(kForm, ", %rd7, %rd8, %p2, 1, 1, -1, 0;")));
  EXPECT_TRUE(refused(call_text(kForm, ", %rd7, %rd8, %p2, 1, 1, 0;")));
  EXPECT_TRUE(refused(call_text(kForm, ", {%a0, %a1}, %rd8, %p2, 1, 1, 0;")));
  EXPECT_TRUE(refused(call_text(kForm, ", %rd7, %rd8, %p2, 1, 1, 0, 0;", 8)));
  EXPECT_TRUE(refused(call_text(form + "m64n65544k16.f32.f16.f16", ", %rd7, %rd8, %p2, 1, 1, 0, 0;")));
  EXPECT_TRUE(refused(call_text(form + "m64n12k16.f32.f16.f16", ", %rd7, %rd8, %p2, 1, 1, 0, 0;", 6)));
  EXPECT_TRUE(refused(call_text(form + "m64n8k32.f32.f16.f16", ", %rd7, %rd8, %p2, 1, 1, 0, 0;")));
  EXPECT_TRUE(refused(call_text(form + "m64n40k32.s32.s8.s8", ", %rd7, %rd8, %p2;", 20)));
  EXPECT_TRUE(refused(call_text(form + "m64n8k16.f16.bf16.bf16", ", %rd7, %rd8, %p2, 1, 1, 0, 0;", 2)));
  EXPECT_TRUE(refused(call_text(form + "m64n8k16.f32.f16.bf16", ", %rd7, %rd8, %p2, 1, 1, 0, 0;")));
  EXPECT_TRUE(refused(call_text(form + "m64n8k8.f32.tf32.tf32", ", %rd7, %rd8, %p2, 1, 1, 0, 1;")));
  EXPECT_TRUE(refused(
      "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%s0, %s1, %s2, %s3}, %rd7, %rd8, %r1, 0, "
      "%p2, 1, 1, 0, 0;\n"));
}

}  // namespace
}  // namespace tessera::softgpu::exec

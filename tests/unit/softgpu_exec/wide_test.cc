// Accesses and atomics wider than one register: vectors of floats, 128 bits, vectors of eight.
#include <algorithm>

#include "tests/unit/softgpu_exec/harness.h"
#include "tests/unit/softgpu_exec/instruction_case.h"

namespace tessera::softgpu::exec {
namespace {

constexpr uint32_t kWideThreads = 70;

// %rd1 memory, %rd2 operands, %rd3 results, each advanced by `bytes` per thread.
std::string kernel(unsigned bytes, const std::string& body) {
  return ptx_header() +
         ".visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c)\n{\n.reg .pred %p<4>;\n.reg .b16 "
         "%h<20>;\n"
         ".reg .b32 %r<20>;\n.reg .b64 %rd<20>;\n.reg .b128 %q<6>;\nld.param.u64 %rd1, [a];\nld.param.u64 "
         "%rd2, [b];\n"
         "ld.param.u64 %rd3, [c];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd4, %r1, " +
         std::to_string(bytes) +
         ";\nadd.s64 %rd1, %rd1, %rd4;\nadd.s64 %rd2, %rd2, %rd4;\nadd.s64 %rd3, %rd3, %rd4;\n" + body +
         "\nret;\n}\n";
}

std::string list(const std::string& prefix, unsigned n, unsigned first) {
  std::string s = "{";
  for (unsigned i = 0; i < n; ++i) s += (i ? ", " : "") + prefix + std::to_string(first + i);
  return s + "}";
}

// bfloat16 by definition: the upper half of binary32; nearest even of an exact sum of two.
double from_brain(U x) {
  return static_cast<double>(F(x << 16));
}
U to_brain(double x) {
  if (x != x) return 0x7fff;
  U low = 0, high = 0x7f80;
  const U sign = std::signbit(x) ? 0x8000 : 0;
  x = std::fabs(x);
  if (x >= from_brain(0x7f7f) + (from_brain(0x7f7f) - from_brain(0x7f7e)) / 2) return sign | 0x7f80;
  while (high - low > 1) {
    const U middle = (low + high) / 2;
    (from_brain(middle) <= x ? low : high) = middle;
  }
  const double below = from_brain(low), above = high == 0x7f80 ? std::ldexp(1.0, 128) : from_brain(high);
  if (x - below < above - x) return sign | low;
  if (x - below > above - x) return sign | high;
  return sign | (low & 1 ? high : low);
}
double lower(double a, double b) {
  return a != a ? b : b != b ? a : a == b ? (std::signbit(a) ? a : b) : a < b ? a : b;
}
double upper(double a, double b) {
  return a != a ? b : b != b ? a : a == b ? (std::signbit(a) ? b : a) : a > b ? a : b;
}

TEST(Wide, AtomicsOnVectorsOfFloats) {
  struct Row {
    const char* type;
    unsigned bits;     // of an element
    unsigned numbers;  // in an element
    std::vector<unsigned> vectors;
  };
  const std::vector<U> halves = {0,      0x8000, 1,      0x8001, 0x3ff,  0x400,  0x3c00, 0xbc00, 0x3c01,
                                 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x4248, 0xc500, 0x1400};
  const std::vector<U> brains = {0,      0x8000, 1,      0x8001, 0x7f,   0x80,   0x3f80, 0xbf80, 0x3f81,
                                 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0x4049, 0xc0a0, 0x3a00};
  std::vector<U> singles;
  for (float x :
       {0.0f, -0.0f, 1.0f, -1.5f, 1e-40f, -1e-45f, 3e38f, -3e38f, HUGE_VALF, -HUGE_VALF, NAN, 0.1f, 1e-38f})
    singles.push_back(std::bit_cast<uint32_t>(x));
  for (const Row& row :
       {Row{"f32", 32, 1, {2, 4}}, Row{"f16", 16, 1, {2, 4, 8}}, Row{"bf16", 16, 1, {2, 4, 8}},
        Row{"f16x2", 32, 2, {2, 4}}, Row{"bf16x2", 32, 2, {2, 4}}})
    for (const unsigned vector : row.vectors)
      for (const std::string how : {"add", "min", "max"})
        for (const bool red : {false, true})
          for (const bool generic : {false, true}) {
            const bool single = row.type == std::string("f32"), brain = row.type[0] == 'b';
            if (single && how != "add") continue;
            const unsigned bytes = row.bits / 8 * vector, each = row.bits / row.numbers;
            const std::string reg = row.bits == 16 ? "%h" : "%r", bits = row.bits == 16 ? "b16" : "b32";
            std::string text;
            for (unsigned k = 0; k < vector; ++k)
              text += "ld.global." + bits + " " + reg + std::to_string(2 + k) + ", [%rd2+" +
                      std::to_string(k * row.bits / 8) + "];\n";
            const std::string form = std::string(red ? "red" : "atom") + (generic ? "" : ".global") + ".v" +
                                     std::to_string(vector) + "." + row.type + "." + how;
            // The order of the modifiers is the manual's: operation, .noftz, vector, type.
            text += std::string(red ? "red" : "atom") + ".relaxed.gpu" + (generic ? "" : ".global") + "." +
                    how + (single ? "" : ".noftz") + ".v" + std::to_string(vector) + "." + row.type + " " +
                    (red ? "" : list(reg, vector, 10) + ", ") + "[%rd1], " + list(reg, vector, 2) + ";\n";
            for (unsigned k = 0; k < vector && !red; ++k)
              text += "st.global." + bits + " [%rd3+" + std::to_string(k * row.bits / 8) + "], " + reg +
                      std::to_string(10 + k) + ";\n";
            SCOPED_TRACE(form);
            TestModule m(kernel(bytes, text));
            ASSERT_TRUE(m.ok()) << m.error;
            const std::vector<U>& edges = single ? singles : brain ? brains : halves;
            const size_t n = kWideThreads * vector * row.numbers, unit = each / 8;
            DeviceArray<char> memory(n * unit), operands(n * unit), results(n * unit);
            for (size_t i = 0; i < n; ++i) {
              std::memcpy(memory.data() + i * unit, &edges[i % edges.size()], unit);
              std::memcpy(operands.data() + i * unit, &edges[(i / edges.size() + i * 3) % edges.size()],
                          unit);
            }
            const std::vector<char> before = memory.values();
            const Fault f =
                m.run("k", {1, 1, 1}, {kWideThreads, 1, 1},
                      Params().add(memory.address()).add(operands.address()).add(results.address()));
            ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
            for (size_t i = 0; i < n; ++i) {
              U old = 0, x = 0, got = 0, result = 0, want = 0;
              std::memcpy(&old, before.data() + i * unit, unit);
              std::memcpy(&x, operands.data() + i * unit, unit);
              std::memcpy(&got, memory.data() + i * unit, unit);
              std::memcpy(&result, results.data() + i * unit, unit);
              if (single) {
                want = f32(ftz(ftz(F(old)) + ftz(F(x))));
              } else {
                const double a = brain ? from_brain(old) : from_half(old),
                             b = brain ? from_brain(x) : from_half(x);
                // Sums of two of them are exact in the host's long double.
                const long double sum = static_cast<long double>(a) + b;
                double r = how == "add" ? static_cast<double>(sum) : how == "min" ? lower(a, b) : upper(a, b);
                if (how == "add" && static_cast<long double>(r) != sum && std::isfinite(r))  // to odd
                  r = std::bit_cast<U>(r) & 1 ? r : std::nextafter(r, sum > r ? HUGE_VAL : -HUGE_VAL);
                want = brain ? to_brain(r) : to_half(r);
              }
              ASSERT_EQ(got, want) << std::hex << old << " " << x;
              if (!red) {
                ASSERT_EQ(result, old);
              }
            }
          }
}

TEST(Wide, AtomicsOf128Bits) {
  // Threads with even numbers find what they compare with.
  TestModule m(kernel(
      16,
      "ld.global.b128 %q1, [%rd2];\nmov.b64 %rd5, 77;\ncvt.u64.u32 %rd6, %r1;\nmov.b128 %q2, {%rd5, %rd6};\n"
      "atom.global.cas.b128 %q3, [%rd1], %q1, %q2;\nst.global.b128 [%rd3], %q3;\n"
      "atom.exch.b128 %q4, [%rd1], %q1;\nmov.b128 {%rd7, %rd8}, %q4;\nst.global.v2.u64 [%rd2], {%rd7, "
      "%rd8};\n"
      "mov.b128 %q5, %q3;\nmov.b128 {%rd9, %rd10}, %q5;\nsetp.ne.u64 %p1, %rd9, 3;\n@%p1 trap;"));
  ASSERT_TRUE(m.ok()) << m.error;
  DeviceArray<uint64_t> memory(2 * kWideThreads), operands(2 * kWideThreads), results(2 * kWideThreads);
  for (uint64_t i = 0; i < kWideThreads; ++i) {
    memory[2 * i] = 3, memory[2 * i + 1] = i * i;
    operands[2 * i] = 3, operands[2 * i + 1] = i * i + i % 2;
  }
  const auto asked = operands.values();
  const Fault f = m.run("k", {1, 1, 1}, {kWideThreads, 1, 1},
                        Params().add(memory.address()).add(operands.address()).add(results.address()));
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  for (uint64_t i = 0; i < kWideThreads; ++i) {
    EXPECT_EQ(results[2 * i], 3u);
    EXPECT_EQ(results[2 * i + 1], i * i);
    EXPECT_EQ(operands[2 * i], i % 2 ? 3u : 77u) << i;  // what the exchange found
    EXPECT_EQ(operands[2 * i + 1], i % 2 ? i * i : i) << i;
    EXPECT_EQ(memory[2 * i], asked[2 * i]);
    EXPECT_EQ(memory[2 * i + 1], asked[2 * i + 1]);
  }
}

// Blocks on several threads count in a 128-bit word.
TEST(Wide, CompareAndSwapIsAtomicBetweenBlocks) {
  TestModule m(kernel(
      0,
      "mov.u64 %rd11, 0;\nmov.b128 %q1, {%rd11, %rd11};\nAGAIN:\nmov.b128 {%rd5, %rd6}, %q1;\nadd.u64 %rd7, "
      "%rd5, 1;\n"
      "sub.u64 %rd8, %rd6, 1;\nmov.b128 %q2, {%rd7, %rd8};\natom.global.cas.b128 %q3, [%rd1], %q1, %q2;\n"
      "mov.b128 {%rd9, %rd10}, %q3;\nsetp.ne.u64 %p1, %rd9, %rd5;\nsetp.ne.or.u64 %p1, %rd10, %rd6, %p1;\n"
      "mov.b128 %q1, %q3;\n@%p1 bra AGAIN;"));
  ASSERT_TRUE(m.ok()) << m.error;
  DeviceArray<uint64_t> memory(2);
  const Fault f = m.run("k", {40, 1, 1}, {32, 1, 1},
                        Params().add(memory.address()).add(uint64_t{0}).add(uint64_t{0}), 0, nullptr, 0, 4);
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  EXPECT_EQ(memory[0], 1280u);
  EXPECT_EQ(memory[1], uint64_t{0} - 1280);
}

TEST(Wide, VectorsOfEight) {
  TestModule m(kernel(32,
                      "ld.global.v8.b32 {%r2, %r3, %r4, %r5, %r6, _, %r8, %r9}, [%rd1];\n"
                      "add.u32 %r2, %r2, %r1;\nmov.u32 %r7, 5;\n"
                      "st.global.v8.b32 [%rd3], {%r9, %r8, %r7, %r6, %r5, %r4, %r3, %r2};\n"
                      "ld.global.v4.u64 {%rd5, %rd6, %rd7, %rd8}, [%rd1];\n"
                      "st.global.v4.u64 [%rd2], {%rd8, %rd7, %rd6, %rd5};"));
  ASSERT_TRUE(m.ok()) << m.error;
  DeviceArray<uint32_t> in(8 * kWideThreads), swapped(8 * kWideThreads), out(8 * kWideThreads);
  for (uint32_t i = 0; i < in.size(); ++i) in[i] = i * 2654435761u;
  const auto run = [&](uint64_t offset) {
    return m.run("k", {1, 1, 1}, {offset ? 1u : kWideThreads, 1, 1},
                 Params().add(in.address() + offset).add(swapped.address()).add(out.address()));
  };
  const Fault f = run(0);
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  for (uint32_t t = 0; t < kWideThreads; ++t)
    for (uint32_t k = 0; k < 8; ++k) {
      EXPECT_EQ(out[t * 8 + 7 - k], k == 5 ? 5u : in[t * 8 + k] + (k == 0 ? t : 0));
      EXPECT_EQ(swapped[t * 8 + k], in[t * 8 + (3 - k / 2) * 2 + k % 2]);
    }
  EXPECT_EQ(run(16).kind, FaultKind::kMisalignedAddress);
}

TEST(Wide, FormsThatDoNotExist) {
  for (const std::string text :
       {"red.global.min.v2.f32 [%rd1], {%r1, %r2};", "red.shared.add.v2.f32 [%r1], {%r1, %r2};",
        "red.global.add.v8.f32 [%rd1], {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8};",
        "atom.add.b128 %q1, [%rd1], %q2;",
        "ld.shared.v8.b32 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%r9];",
        "multimem.red.relaxed.sys.global.add.u32 [%rd1], %r1;",
        "multimem.ld_reduce.relaxed.sys.global.add.u32 %r1, [%rd1];", "ld.global.b64 %q1, [%rd1];"}) {
    TestModule m(kernel(16, text));
    ASSERT_TRUE(m.ok()) << m.error;
    EXPECT_EQ(m.program->refused().count("k"), 1u) << text;
  }
}

}  // namespace
}  // namespace tessera::softgpu::exec

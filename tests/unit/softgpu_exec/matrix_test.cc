// Matrix instructions of every shape and type: fragments are filled and read by the layouts of the PTX ISA,
// written out here. Values are small whole numbers, so that every sum is exact in every type.
#include <functional>

#include "tests/unit/softgpu_exec/harness.h"
#include "tests/unit/softgpu_exec/matrix_types.h"

namespace tessera::softgpu::exec {
namespace {

std::vector<int> product(const std::vector<int>& a, const std::vector<int>& b, const std::vector<int>& c,
                         unsigned m, unsigned n, unsigned k) {
  std::vector<int> d(c);
  for (unsigned i = 0; i < m; ++i)
    for (unsigned j = 0; j < n; ++j)
      for (unsigned t = 0; t < k; ++t) d[i * n + j] += a[i * k + t] * b[t * n + j];
  return d;
}

std::string list(const char* prefix, unsigned n, unsigned first) {
  std::string s = "{";
  for (unsigned i = 0; i < n; ++i) s += (i ? ", " : "") + std::string(prefix) + std::to_string(first + i);
  return s + "}";
}

struct Mma {
  unsigned m, n, k;
  const Type &d, &a, &b, &c;
  const char* extra = "";  // before the types
};

void check(const Mma& t) {
  const std::string shape = "m" + std::to_string(t.m) + "n" + std::to_string(t.n) + "k" + std::to_string(t.k);
  const std::string form = "mma.sync.aligned." + shape + ".row.col" + t.extra + "." + t.d.name + "." +
                           t.a.name + "." + t.b.name + "." + t.c.name;
  SCOPED_TRACE(form);
  const bool wide = t.a.bits == 64;
  const unsigned unit = wide ? 64 : 32;
  const auto registers = [&](const Type& type, unsigned elements) {
    return elements * type.bits / unit / 32;
  };
  const unsigned na = registers(t.a, t.m * t.k), nb = registers(t.b, t.k * t.n),
                 nc = registers(t.c, t.m * t.n), nd = registers(t.d, t.m * t.n);
  const std::vector<int> a = values(t.m * t.k, t.a, 1), b = values(t.k * t.n, t.b, 2),
                         c = values(t.m * t.n, t.c, 3);
  // Words by register and lane.
  std::vector<U> wa(na * 32), wb(nb * 32), wc(nc * 32), wd(nd * 32);
  const unsigned per_a = unit / t.a.bits, per_c = std::max(1u, unit / t.c.bits),
                 per_d = std::max(1u, unit / t.d.bits);
  const unsigned row_groups = t.m / 8;
  // Element of the accumulators in register r, part j: two neighbours per row, then eight rows below.
  const auto place = [&](unsigned lane, unsigned r, unsigned j, unsigned per) {
    const unsigned e = r * per + j;
    return (lane / 4 + e / 2 * 8) * t.n + lane % 4 * 2 + e % 2;
  };
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned g = lane / 4, q = lane % 4;
    for (unsigned r = 0; r < na; ++r)
      for (unsigned j = 0; j < per_a; ++j) {
        const unsigned row = g + r % row_groups * 8, column = r / row_groups * 4 * per_a + q * per_a + j;
        wa[r * 32 + lane] |= t.a.encode(a[row * t.k + column]) << (j * t.a.bits % 64);
      }
    for (unsigned r = 0; r < nb; ++r)
      for (unsigned j = 0; j < per_a; ++j)
        wb[r * 32 + lane] |= t.b.encode(b[(r * 4 * per_a + q * per_a + j) * t.n + g]) << (j * t.b.bits % 64);
    for (unsigned r = 0; r < nc; ++r)
      for (unsigned j = 0; j < per_c; ++j)
        wc[r * 32 + lane] |= t.c.encode(c[place(lane, r, j, per_c)]) << (j * t.c.bits % 64);
  }
  const std::string bits = std::to_string(unit), reg = wide ? "%rd" : "%r";
  std::string s =
      ptx_header() +
      ".visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd)\n{\n.reg .b32 "
      "%r<80>;\n.reg .b64 %rd<80>;\nmov.u32 %r79, %tid.x;\nmul.wide.u32 %rd79, %r79, 8;\n";
  const auto transfer = [&](const char* name, unsigned n, unsigned first, bool store) {
    s += std::string("ld.param.u64 %rd78, [") + name + "];\nadd.s64 %rd78, %rd78, %rd79;\n";
    for (unsigned r = 0; r < n; ++r) {
      const std::string where = "[%rd78+" + std::to_string(r * 256) + "]",
                        what = reg + std::to_string(first + r);
      s += store ? "st.global.b" + bits + " " + where + ", " + what + ";\n"
                 : "ld.global.b" + bits + " " + what + ", " + where + ";\n";
    }
  };
  transfer("pa", na, 0, false);
  transfer("pb", nb, 16, false);
  transfer("pc", nc, 32, false);
  s += form + " " + list(reg.c_str(), nd, 48) + ", " + list(reg.c_str(), na, 0) + ", " +
       list(reg.c_str(), nb, 16) + ", " + list(reg.c_str(), nc, 32) + ";\n";
  transfer("pd", nd, 48, true);
  TestModule module(s + "ret;\n}\n");
  ASSERT_TRUE(module.ok()) << module.error;
  DeviceArray<U> da(wa), db(wb), dc(wc), dd(nd * 32);
  const Fault f =
      module.run("k", {1, 1, 1}, {32, 1, 1},
                 Params().add(da.address()).add(db.address()).add(dc.address()).add(dd.address()));
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  const std::vector<int> want = product(a, b, c, t.m, t.n, t.k);
  for (unsigned lane = 0; lane < 32; ++lane)
    for (unsigned r = 0; r < nd; ++r)
      for (unsigned j = 0; j < per_d; ++j) {
        const U mask = t.d.bits == 64 ? ~U{0} : (U{1} << t.d.bits) - 1;
        const unsigned e = place(lane, r, j, per_d);
        EXPECT_EQ(dd[r * 32 + lane] >> (j * t.d.bits % 64) & mask, t.d.encode(want[e]) & mask)
            << "row " << e / t.n << " column " << e % t.n << " " << want[e];
      }
}

TEST(Mma, EveryShapeAndType) {
  for (const Mma& t : {Mma{16, 8, 8, kF32, kF16, kF16, kF32},
                       Mma{16, 8, 16, kF32, kF16, kF16, kF32},
                       Mma{16, 8, 8, kF16Sum, kF16, kF16, kF16Sum},
                       Mma{16, 8, 16, kF16Sum, kF16, kF16, kF16Sum},
                       Mma{16, 8, 8, kF32, kBf16, kBf16, kF32},
                       Mma{16, 8, 16, kF32, kBf16, kBf16, kF32},
                       Mma{16, 8, 4, kF32, kTf32, kTf32, kF32},
                       Mma{16, 8, 8, kF32, kTf32, kTf32, kF32},
                       Mma{8, 8, 4, kF64, kF64, kF64, kF64},
                       Mma{16, 8, 4, kF64, kF64, kF64, kF64},
                       Mma{16, 8, 8, kF64, kF64, kF64, kF64},
                       Mma{16, 8, 16, kF64, kF64, kF64, kF64},
                       Mma{8, 8, 16, kS32, kS8, kS8, kS32},
                       Mma{8, 8, 16, kS32, kU8, kS8, kS32},
                       Mma{16, 8, 16, kS32, kS8, kU8, kS32},
                       Mma{16, 8, 32, kS32, kS8, kS8, kS32},
                       Mma{16, 8, 32, kS32, kU8, kU8, kS32, ".satfinite"},
                       Mma{16, 8, 32, kF32, kE4m3, kE4m3, kF32},
                       Mma{16, 8, 32, kF32, kE5m2, kE4m3, kF32},
                       Mma{16, 8, 32, kF32, kE4m3, kE5m2, kF32}})
    check(t);
}

TEST(Mma, IntegersSaturateOnlyIfAsked) {
  // Every product is 127 * 127, the sum starts just below the largest integer.
  for (const bool saturate : {false, true}) {
    TestModule m(
        ptx_header() +
        ".visible .entry k(.param .u64 p)\n{\n.reg .b32 %r<8>;\n.reg .b64 %rd<4>;\nld.param.u64 %rd1, [p];\n"
        "mov.u32 %r1, 0x7f7f7f7f;\nmov.u32 %r2, 0x7ffffff0;\nmov.u32 %r3, 5;\n"
        "mma.sync.aligned.m8n8k16.row.col" +
        std::string(saturate ? ".satfinite" : "") +
        ".s32.s8.s8.s32 {%r4, %r5}, {%r1}, {%r1}, {%r2, %r3};\nst.global.v2.u32 [%rd1], {%r4, "
        "%r5};\nret;\n}\n");
    ASSERT_TRUE(m.ok()) << m.error;
    DeviceArray<uint32_t> out(2);
    ASSERT_EQ(m.run("k", {1, 1, 1}, {32, 1, 1}, Params().add(out.address())).kind, FaultKind::kNone);
    EXPECT_EQ(out[0], saturate ? 0x7fffffffu : 0x7ffffff0u + 16 * 127 * 127);
    EXPECT_EQ(out[1], 5u + 16 * 127 * 127);
  }
}

// --- wmma: fragments are opaque, so through memory, in every layout.

struct Wmma {
  unsigned m, n, k;
  const Type &ab, &c;
  unsigned na, nb, nc;  // registers
};

void check(const Wmma& t, bool a_column, bool b_column, bool c_column) {
  const std::string shape = "m" + std::to_string(t.m) + "n" + std::to_string(t.n) + "k" + std::to_string(t.k);
  const auto word = [](bool column) { return column ? std::string("col") : std::string("row"); };
  SCOPED_TRACE(shape + " " + t.ab.name + " " + t.c.name + " " + word(a_column) + " " + word(b_column) + " " +
               word(c_column));
  const std::vector<int> a = values(t.m * t.k, t.ab, 5), b = values(t.k * t.n, t.ab, 6),
                         c = values(t.m * t.n, t.c, 7);
  const auto fill = [](const std::vector<int>& v, const Type& type, unsigned rows, unsigned columns,
                       bool column, unsigned stride, DeviceArray<char>& to) {
    for (unsigned i = 0; i < rows; ++i)
      for (unsigned j = 0; j < columns; ++j) {
        const U bits = type.encode(v[i * columns + j]);
        std::memcpy(to.data() + (column ? j * stride + i : i * stride + j) * type.bits / 8, &bits,
                    type.bits / 8);
      }
  };
  // Strides are multiples of 16 bytes beyond the matrix.
  const unsigned gap_ab = 128 / t.ab.bits, gap_c = 128 / t.c.bits;
  const unsigned sa = (a_column ? t.m : t.k) + gap_ab, sb = (b_column ? t.k : t.n) + gap_ab,
                 sc = (c_column ? t.m : t.n) + gap_c;
  DeviceArray<char> da(64 * 64 * 8), db(64 * 64 * 8), dc(64 * 64 * 8), dd(64 * 64 * 8);
  fill(a, t.ab, t.m, t.k, a_column, sa, da);
  fill(b, t.ab, t.k, t.n, b_column, sb, db);
  fill(c, t.c, t.m, t.n, c_column, sc, dc);
  const char* reg_ab = t.ab.bits == 64 ? "%rd" : "%r";
  const char* reg_c = t.c.bits == 64 ? "%rd" : "%r";
  const std::string types = t.ab.name == std::string("f16")
                                ? std::string(t.c.name) + "." + t.c.name
                                : std::string(t.c.name) + "." + t.ab.name + "." + t.ab.name + "." + t.c.name;
  const auto load = [&](const char* which, const std::string& layout, const Type& type,
                        const std::string& regs, unsigned stride) {
    return std::string("ld.param.u64 %rd70, [p") + which + "];\nwmma.load." + which + ".sync.aligned." +
           layout + "." + shape + ".global." + type.name + " " + regs + ", [%rd70], " +
           std::to_string(stride) + ";\n";
  };
  TestModule m(ptx_header() +
               ".visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd)\n{\n.reg "
               ".b32 %r<80>;\n"
               ".reg .b64 %rd<80>;\n" +
               load("a", word(a_column), t.ab, list(reg_ab, t.na, 0), sa) +
               load("b", word(b_column), t.ab, list(reg_ab, t.nb, 16), sb) +
               load("c", word(c_column), t.c, list(reg_c, t.nc, 32), sc) + "wmma.mma.sync.aligned." +
               word(a_column) + "." + word(b_column) + "." + shape + "." + types + " " +
               list(reg_c, t.nc, 48) + ", " + list(reg_ab, t.na, 0) + ", " + list(reg_ab, t.nb, 16) + ", " +
               list(reg_c, t.nc, 32) + ";\nld.param.u64 %rd70, [pd];\nwmma.store.d.sync.aligned." +
               word(c_column) + "." + shape + ".global." + t.c.name + " [%rd70], " + list(reg_c, t.nc, 48) +
               ", " + std::to_string(sc) + ";\nret;\n}\n");
  ASSERT_TRUE(m.ok()) << m.error;
  const Fault f = m.run("k", {1, 1, 1}, {32, 1, 1},
                        Params().add(da.address()).add(db.address()).add(dc.address()).add(dd.address()));
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  const std::vector<int> want = product(a, b, c, t.m, t.n, t.k);
  DeviceArray<char> expected(64 * 64 * 8);
  fill(want, t.c, t.m, t.n, c_column, sc, expected);
  EXPECT_EQ(dd.values(), expected.values());
}

TEST(WmmaForms, EveryShapeTypeAndLayout) {
  const Type few{"f16", 16, half_bits, -3, 3};
  for (const Wmma& t : {Wmma{16, 16, 16, kF16, kF32, 8, 8, 8}, Wmma{8, 32, 16, kF16, kF32, 8, 8, 8},
                        Wmma{32, 8, 16, kF16, kF32, 8, 8, 8}, Wmma{16, 16, 16, few, few, 8, 8, 4},
                        Wmma{8, 32, 16, few, few, 8, 8, 4}, Wmma{32, 8, 16, few, few, 8, 8, 4},
                        Wmma{16, 16, 16, kBf16, kF32, 4, 4, 8}, Wmma{8, 32, 16, kBf16, kF32, 2, 8, 8},
                        Wmma{32, 8, 16, kBf16, kF32, 8, 2, 8}, Wmma{16, 16, 8, kTf32, kF32, 4, 4, 8},
                        Wmma{16, 16, 16, kS8, kS32, 2, 2, 8}, Wmma{8, 32, 16, kS8, kS32, 1, 4, 8},
                        Wmma{32, 8, 16, kU8, kS32, 4, 1, 8}, Wmma{8, 8, 4, kF64, kF64, 1, 1, 2}})
    for (int layout = 0; layout < 8; ++layout) check(t, layout & 1, layout & 2, layout & 4);
}

// --- 8-bit floats, by definition

double from_e4m3(U x) {
  const int e = static_cast<int>(x >> 3 & 15), m = static_cast<int>(x & 7);
  const double v = e == 15 && m == 7 ? NAN : e ? std::ldexp(8 + m, e - 10) : std::ldexp(m, -9);
  return x & 0x80 ? -v : v;
}
double from_e5m2(U x) {
  return from_half(x << 8);
}
// Nearest even by search; beyond the largest number it is that number.
U nearest8(double x, double (*value)(U), U largest) {
  if (x != x) return 0x7f;
  const U sign = std::signbit(x) ? 0x80 : 0;
  x = std::fabs(x);
  if (x >= value(largest)) return sign | largest;
  U low = 0, high = largest;
  while (high - low > 1) {
    const U middle = (low + high) / 2;
    (value(middle) <= x ? low : high) = middle;
  }
  const double below = x - value(low), above = value(high) - x;
  return sign | (below < above ? low : above < below ? high : low & 1 ? high : low);
}

TEST(Floats8, Conversions) {
  struct Row {
    const char* name;
    double (*value)(U);
    U largest;
  };
  for (const Row& row : {Row{"e4m3x2", from_e4m3, 0x7e}, Row{"e5m2x2", from_e5m2, 0x7b}}) {
    const std::string name = row.name;
    for (const bool relu : {false, true}) {
      const auto one = [&row, relu](double x) {
        const U r = nearest8(x, row.value, row.largest);
        return relu && x == x && std::signbit(x) ? U{0} : r;
      };
      const std::string modifier = relu ? ".satfinite.relu." : ".satfinite.";
      check(Case{
          "cvt.rn" + modifier + name + ".f32 $d, $a, $b;", "hww",
          [&](U a, U b, U) { return one(static_cast<double>(F(a))) << 8 | one(static_cast<double>(F(b))); },
          0, 'f'});
      check(Case{"cvt.rn" + modifier + name + ".f16x2 $d, $a;", "hw",
                 [&](U a, U, U) { return one(from_half(a >> 16)) << 8 | one(from_half(a & 0xffff)); }});
    }
    check(Case{"cvt.rn.f16x2." + name + " $d, $a;", "wh", [&](U a, U, U) {
                 return to_half(row.value(a >> 8 & 0xff)) << 16 | to_half(row.value(a & 0xff));
               }});
  }
  // All 256 of each, two at a time.
  for (const Row& row : {Row{"e4m3x2", from_e4m3, 0x7e}, Row{"e5m2x2", from_e5m2, 0x7b}}) {
    TestModule m(
        ptx_header() +
        ".visible .entry k(.param .u64 p)\n{\n.reg .b16 %h<4>;\n.reg .b32 %r<8>;\n.reg .b64 "
        "%rd<4>;\nld.param.u64 "
        "%rd1, [p];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd1, %rd1, %rd2;\nmul.lo.u32 "
        "%r2, %r1, 257;\ncvt.u16.u32 %h1, %r2;\ncvt.rn.f16x2." +
        std::string(row.name) + " %r3, %h1;\nst.global.u32 [%rd1], %r3;\nret;\n}\n");
    ASSERT_TRUE(m.ok()) << m.error;
    DeviceArray<uint32_t> out(256);
    ASSERT_EQ(m.run("k", {1, 1, 1}, {256, 1, 1}, Params().add(out.address())).kind, FaultKind::kNone);
    for (U x = 0; x < 256; ++x) {
      const U want = to_half(row.value(x));
      EXPECT_EQ(out[x], want << 16 | want) << row.name << " " << x;
    }
  }
}

}  // namespace
}  // namespace tessera::softgpu::exec

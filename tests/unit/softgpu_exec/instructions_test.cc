// Each instruction form against a reference written here, on edge values and random ones. One instruction is
// wrapped in a kernel that loads its operands, runs it and stores the result; lanes beyond the data are
// inactive, so partial masks are covered too. CTest runs this once per instruction set of the interpreter
// (TESSERA_EXEC_ISA).
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "tests/unit/softgpu_exec/harness.h"

namespace tessera::softgpu::exec {
namespace {

using U = uint64_t;
using Reference = std::function<U(U, U, U)>;

struct Case {
  std::string text;   // instruction with $d $a $b $c (and $p, a predicate, for comparisons)
  std::string types;  // of d, a, b, c: one letter each: h 16 bits, w 32, d 64; "p" as d: a predicate
  Reference want;
  double relative = 0;  // > 0: floats may differ by this much
  char values = 'i';    // i integers, f floats of the operand width, s small shift counts in b and c
};

unsigned bytes_of(char c) {
  return c == 'h' ? 2 : c == 'd' ? 8 : 4;
}
const char* bits_of(char c) {
  return c == 'h' ? "b16" : c == 'd' ? "b64" : "b32";
}

std::string replace(std::string text, const std::string& what, const std::string& with) {
  for (size_t at = 0; (at = text.find(what, at)) != text.npos; at += with.size())
    text.replace(at, what.size(), with);
  return text;
}

std::string kernel_text(const Case& c) {
  const char d = c.types[0] == 'p' ? 'w' : c.types[0];
  std::string s = ptx_header() +
                  ".visible .entry k(.param .u64 pd, .param .u64 pa, .param .u64 pb, .param .u64 pc, "
                  ".param .u32 pn)\n{\n.reg .pred %p<4>;\n.reg .b32 %r<8>;\n.reg .b64 %rd<8>;\n";
  s += std::string(".reg .") + bits_of(d) + " %d;\n";
  for (size_t i = 1; i < c.types.size(); ++i)
    s += std::string(".reg .") + bits_of(c.types[i]) + " %" + static_cast<char>('a' + i - 1) + "x;\n";
  s += "mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %ntid.x;\nmov.u32 %r3, %tid.x;\nmad.lo.u32 %r4, %r1, %r2, %r3;\n"
       "ld.param.u32 %r5, [pn];\nsetp.ge.u32 %p1, %r4, %r5;\n@%p1 bra DONE;\n";
  const char* params[] = {"pa", "pb", "pc"};
  for (size_t i = 1; i < c.types.size(); ++i)
    s += std::string("ld.param.u64 %rd1, [") + params[i - 1] + "];\nmul.wide.u32 %rd2, %r4, " +
         std::to_string(bytes_of(c.types[i])) + ";\nadd.s64 %rd1, %rd1, %rd2;\nld.global." +
         bits_of(c.types[i]) + " %" + static_cast<char>('a' + i - 1) + "x, [%rd1];\n";
  std::string text = c.text;
  text = replace(text, "$d", "%d");
  text = replace(text, "$a", "%ax");
  text = replace(text, "$b", "%bx");
  text = replace(text, "$c", "%cx");
  text = replace(text, "$p", "%p2");
  s += text + "\n";
  if (c.types[0] == 'p') s += "selp.b32 %d, 1, 0, %p2;\n";
  s += "ld.param.u64 %rd1, [pd];\nmul.wide.u32 %rd2, %r4, " + std::to_string(bytes_of(d)) +
       ";\nadd.s64 %rd1, %rd1, %rd2;\nst.global." + bits_of(d) + " [%rd1], %d;\nDONE:\nret;\n}\n";
  return s;
}

std::vector<U> edges(char type, char values) {
  std::vector<U> v;
  if (values == 'f') {
    if (type == 'h')
      v = {0,      0x8000, 1,      0x8001, 0x3ff,  0x400,  0x3c00, 0xbc00, 0x3c01,
           0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x4248, 0xc500, 0x1400};
    else if (type == 'd')
      for (double x : {0.0, -0.0, 1.0, -1.0, 0.5, 3.25, -7.125, 1e300, -1e300, 1e-300, 5e-324, HUGE_VAL,
                       -HUGE_VAL, 2147483647.5, -2147483648.5, 4294967296.0, 1e19, 0.1})
        v.push_back(std::bit_cast<U>(x));
    else
      for (float x : {0.0f,  -0.0f,         1.0f,   -1.0f,  0.5f,        2.5f,      3.5f,       -7.125f,
                      1e38f, -3e38f,        1e-38f, 1e-45f, -1e-40f,     HUGE_VALF, -HUGE_VALF, NAN,
                      0.1f,  2147483648.0f, -4e9f,  255.5f, 0.99999994f, 1.0000001f})
        v.push_back(std::bit_cast<uint32_t>(x));
  } else {
    v = {0,
         1,
         2,
         3,
         7,
         31,
         32,
         33,
         63,
         64,
         127,
         128,
         255,
         0x7fff,
         0x8000,
         0xffff,
         0x7fffffff,
         0x80000000,
         0xffffffff,
         0x123456789abcdef0,
         0x7fffffffffffffff,
         0x8000000000000000,
         0xffffffffffffffff};
  }
  std::mt19937_64 random(7);
  for (int i = 0; i < 6; ++i) {
    U x = random();
    if (values == 'f' && type == 'w')
      x = std::bit_cast<uint32_t>(
          std::ldexp(static_cast<float>(static_cast<int32_t>(x)), static_cast<int>(x >> 40 & 31) - 46));
    if (values == 'f' && type == 'd')
      x = std::bit_cast<U>(std::ldexp(static_cast<double>(static_cast<int64_t>(x)), -60));
    v.push_back(x);
  }
  const U mask = bytes_of(type) == 8 ? ~U{0} : (U{1} << (8 * bytes_of(type))) - 1;
  for (U& x : v) x &= mask;
  return v;
}

void store(std::vector<char>& to, size_t i, unsigned bytes, U value) {
  std::memcpy(to.data() + i * bytes, &value, bytes);
}

void check(const Case& c) {
  SCOPED_TRACE(c.text);
  TestModule m(kernel_text(c));
  ASSERT_TRUE(m.ok()) << m.error;
  // Operand combinations: all pairs; the third walks along.
  std::vector<U> lists[3];
  for (size_t k = 1; k < c.types.size(); ++k) {
    lists[k - 1] = edges(c.types[k], c.values == 's' && k > 1 ? 'i' : c.values == 's' ? 'i' : c.values);
    if (c.values == 's' && k > 1) lists[k - 1] = {0, 1, 5, 8, 16, 31, 32, 33, 40, 63, 64, 100, 255};
  }
  std::vector<std::array<U, 3>> inputs;
  const size_t nb = std::max<size_t>(lists[1].size(), 1);
  for (size_t i = 0; i < lists[0].size(); ++i)
    for (size_t j = 0; j < nb; ++j) {
      const size_t thirds = lists[2].empty() ? 1 : 3;
      for (size_t k = 0; k < thirds; ++k)
        inputs.push_back({lists[0][i], lists[1].empty() ? 0 : lists[1][j],
                          lists[2].empty() ? 0 : lists[2][(i * 5 + j * 3 + k * 7) % lists[2].size()]});
    }
  const size_t n = inputs.size();
  const unsigned db = c.types[0] == 'p' ? 4 : bytes_of(c.types[0]);
  DeviceArray<char> d(n * db);
  std::vector<std::unique_ptr<DeviceArray<char>>> arrays;
  Params params;
  params.add(d.address());
  for (size_t k = 1; k < 4; ++k) {
    const unsigned bytes = k < c.types.size() ? bytes_of(c.types[k]) : 4;
    std::vector<char> data(n * bytes);
    for (size_t i = 0; i < n; ++i) store(data, i, bytes, inputs[i][k - 1]);
    arrays.push_back(std::make_unique<DeviceArray<char>>(data));
    params.add(arrays.back()->address());
  }
  params.add(static_cast<uint32_t>(n));
  const Fault f = m.run("k", {static_cast<uint32_t>((n + 95) / 96), 1, 1}, {96, 1, 1}, params);
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  unsigned wrong = 0;
  for (size_t i = 0; i < n && wrong < 3; ++i) {
    U got = 0;
    std::memcpy(&got, d.data() + i * db, db);
    const U mask = db == 8 ? ~U{0} : (U{1} << (8 * db)) - 1;
    const U want = c.want(inputs[i][0], inputs[i][1], inputs[i][2]) & mask;
    if (got == want) continue;
    if (c.relative > 0) {
      const double g =
          db == 8 ? std::bit_cast<double>(got) : std::bit_cast<float>(static_cast<uint32_t>(got));
      const double w =
          db == 8 ? std::bit_cast<double>(want) : std::bit_cast<float>(static_cast<uint32_t>(want));
      if ((g != g && w != w) || std::fabs(g - w) <= c.relative * std::fabs(w)) continue;
    }
    ++wrong;
    ADD_FAILURE() << std::hex << "a " << inputs[i][0] << " b " << inputs[i][1] << " c " << inputs[i][2]
                  << ": got " << got << " want " << want;
  }
}

// --- reference helpers, independent of the interpreter's
// -------------------------------------------------------------

float F(U x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x));
}
double D(U x) {
  return std::bit_cast<double>(x);
}
U f32(float x) {
  return x != x ? 0x7fffffffu : std::bit_cast<uint32_t>(x);
}
U f64(double x) {
  return std::bit_cast<U>(x);
}
float ftz(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}
float sat(float x) {
  return x != x ? 0.0f : x < 0 ? 0.0f : x > 1 ? 1.0f : x == 0 ? 0.0f : x;
}
int32_t S(U x) {
  return static_cast<int32_t>(x);
}
uint32_t W(U x) {
  return static_cast<uint32_t>(x);
}
int64_t L(U x) {
  return static_cast<int64_t>(x);
}
int16_t H(U x) {
  return static_cast<int16_t>(x);
}
// binary16 by definition
double from_half(U h) {
  const int e = h >> 10 & 31, m = h & 1023;
  const double v = e == 31 ? (m ? NAN : HUGE_VAL) : e ? std::ldexp(1024 + m, e - 25) : std::ldexp(m, -24);
  return h & 0x8000 ? -v : v;
}
// Nearest even by search over all binary16 values: slow and obvious.
U to_half(double x) {
  if (x != x) return 0x7fff;
  const U sign = std::signbit(x) ? 0x8000 : 0;
  x = std::fabs(x);
  if (x >= 65520) return sign | 0x7c00;
  U low = 0, high = 0x7c00;
  while (high - low > 1) {
    const U middle = (low + high) / 2;
    (from_half(middle) <= x ? low : high) = middle;
  }
  const double below = from_half(low), above = high == 0x7c00 ? 65536.0 : from_half(high);
  if (x - below < above - x) return sign | low;
  if (x - below > above - x) return sign | high;
  return sign | (low & 1 ? high : low);
}

TEST(Instructions, IntegerArithmetic) {
  for (const Case& c : std::vector<Case>{
           {"add.s32 $d, $a, $b;", "www", [](U a, U b, U) { return a + b; }},
           {"add.sat.s32 $d, $a, $b;", "www", [](U a, U b, U) { return static_cast<U>(std::clamp<int64_t>(int64_t{S(a)} + S(b), INT32_MIN, INT32_MAX)); }},
           {"sub.sat.s32 $d, $a, $b;", "www", [](U a, U b, U) { return static_cast<U>(std::clamp<int64_t>(int64_t{S(a)} - S(b), INT32_MIN, INT32_MAX)); }},
           {"add.s64 $d, $a, $b;", "ddd", [](U a, U b, U) { return a + b; }},
           {"add.u16 $d, $a, $b;", "hhh", [](U a, U b, U) { return a + b; }},
           {"sub.s32 $d, $a, $b;", "www", [](U a, U b, U) { return a - b; }},
           {"sub.u64 $d, $a, $b;", "ddd", [](U a, U b, U) { return a - b; }},
           {"mul.lo.s32 $d, $a, $b;", "www", [](U a, U b, U) { return a * b; }},
           {"mul.lo.s64 $d, $a, $b;", "ddd", [](U a, U b, U) { return a * b; }},
           {"mul.lo.s16 $d, $a, $b;", "hhh", [](U a, U b, U) { return a * b; }},
           {"mul.hi.s32 $d, $a, $b;", "www", [](U a, U b, U) { return static_cast<U>(int64_t{S(a)} * S(b) >> 32); }},
           {"mul.hi.u32 $d, $a, $b;", "www", [](U a, U b, U) { return a * b >> 32; }},
           {"mul.hi.u64 $d, $a, $b;", "ddd", [](U a, U b, U) { return static_cast<U>((static_cast<unsigned __int128>(a) * b) >> 64); }},
           {"mul.hi.s64 $d, $a, $b;", "ddd", [](U a, U b, U) { return static_cast<U>((static_cast<__int128>(L(a)) * L(b)) >> 64); }},
           {"mul.wide.s32 $d, $a, $b;", "dww", [](U a, U b, U) { return static_cast<U>(int64_t{S(a)} * S(b)); }},
           {"mul.wide.u32 $d, $a, $b;", "dww", [](U a, U b, U) { return a * b; }},
           {"mul.wide.u16 $d, $a, $b;", "whh", [](U a, U b, U) { return a * b; }},
           {"mul.wide.s16 $d, $a, $b;", "whh", [](U a, U b, U) { return static_cast<U>(H(a) * H(b)); }},
           {"mul24.lo.u32 $d, $a, $b;", "www", [](U a, U b, U) { return (a & 0xffffff) * (b & 0xffffff); }},
           {"mad.lo.s32 $d, $a, $b, $c;", "wwww", [](U a, U b, U c) { return a * b + c; }},
           {"mad.lo.u64 $d, $a, $b, $c;", "dddd", [](U a, U b, U c) { return a * b + c; }},
           {"mad.hi.s32 $d, $a, $b, $c;", "wwww", [](U a, U b, U c) { return static_cast<U>(int64_t{S(a)} * S(b) >> 32) + c; }},
           {"mad.wide.u32 $d, $a, $b, $c;", "dwwd", [](U a, U b, U c) { return a * b + c; }},
           {"mad.wide.s32 $d, $a, $b, $c;", "dwwd", [](U a, U b, U c) { return static_cast<U>(int64_t{S(a)} * S(b)) + c; }},
           {"min.s32 $d, $a, $b;", "www", [](U a, U b, U) { return static_cast<U>(std::min(S(a), S(b))); }},
           {"max.s32 $d, $a, $b;", "www", [](U a, U b, U) { return static_cast<U>(std::max(S(a), S(b))); }},
           {"min.u32 $d, $a, $b;", "www", [](U a, U b, U) { return std::min(a, b); }},
           {"max.u32 $d, $a, $b;", "www", [](U a, U b, U) { return std::max(a, b); }},
           {"min.s64 $d, $a, $b;", "ddd", [](U a, U b, U) { return static_cast<U>(std::min(L(a), L(b))); }},
           {"max.u64 $d, $a, $b;", "ddd", [](U a, U b, U) { return std::max(a, b); }},
           {"max.s16 $d, $a, $b;", "hhh", [](U a, U b, U) { return static_cast<U>(std::max(H(a), H(b))); }},
           {"min.u16 $d, $a, $b;", "hhh", [](U a, U b, U) { return std::min(a, b); }},
           {"abs.s32 $d, $a;", "ww", [](U a, U, U) { return S(a) < 0 ? -a : a; }},
           {"neg.s32 $d, $a;", "ww", [](U a, U, U) { return -a; }},
           {"neg.s64 $d, $a;", "dd", [](U a, U, U) { return -a; }},
           {"abs.s64 $d, $a;", "dd", [](U a, U, U) { return L(a) < 0 ? -a : a; }},
           {"div.u32 $d, $a, $b;", "www", [](U a, U b, U) { return b ? a / b : ~U{0}; }},
           {"rem.u32 $d, $a, $b;", "www", [](U a, U b, U) { return b ? a % b : a; }},
           {"div.s32 $d, $a, $b;", "www", [](U a, U b, U) { return b ? static_cast<U>(int64_t{S(a)} / S(b)) : ~U{0}; }},
           {"rem.s32 $d, $a, $b;", "www", [](U a, U b, U) { return b ? static_cast<U>(int64_t{S(a)} % S(b)) : a; }},
           {"div.u64 $d, $a, $b;", "ddd", [](U a, U b, U) { return b ? a / b : ~U{0}; }},
           {"div.s64 $d, $a, $b;", "ddd", [](U a, U b, U) { return b ? static_cast<U>(static_cast<__int128>(L(a)) / L(b)) : ~U{0}; }},
           {"rem.s64 $d, $a, $b;", "ddd", [](U a, U b, U) { return b ? static_cast<U>(static_cast<__int128>(L(a)) % L(b)) : a; }},
           {"div.u16 $d, $a, $b;", "hhh", [](U a, U b, U) { return b ? a / b : ~U{0}; }},
           {"sad.u32 $d, $a, $b, $c;", "wwww", [](U a, U b, U c) { return (a > b ? a - b : b - a) + c; }},
           {"dp4a.s32.s32 $d, $a, $b, $c;", "wwww", [](U a, U b, U c) { for (int k = 0; k < 4; ++k) c += static_cast<U>(static_cast<int8_t>(a >> 8 * k) * static_cast<int8_t>(b >> 8 * k)); return c; }},
           {"dp4a.u32.u32 $d, $a, $b, $c;", "wwww", [](U a, U b, U c) { for (int k = 0; k < 4; ++k) c += (a >> 8 * k & 255) * (b >> 8 * k & 255); return c; }},
           {"dp2a.lo.s32.s32 $d, $a, $b, $c;", "wwww", [](U a, U b, U c) { for (int k = 0; k < 2; ++k) c += static_cast<U>(static_cast<int16_t>(a >> 16 * k) * static_cast<int8_t>(b >> 8 * k)); return c; }},
           {"vabsdiff4.u32.u32.u32 $d, $a, $b, 0;", "www", [](U a, U b, U) { U r = 0; for (int k = 0; k < 4; ++k) { const int x = a >> 8 * k & 255, y = b >> 8 * k & 255; r |= static_cast<U>(std::abs(x - y)) << 8 * k; } return r; }},
           {"add.cc.u32 $d, $a, $b; addc.u32 $d, 0, 0;", "www", [](U a, U b, U) { return (a + b) >> 32; }},
           {"sub.cc.u32 $d, $a, $b; subc.u32 $d, 0, 0;", "www", [](U a, U b, U) { return a < b ? ~U{0} : 0; }},
           {"mad.lo.cc.u32 $d, $a, $b, $c; madc.hi.u32 $d, $a, $b, 0;", "wwww", [](U a, U b, U c) { return (a * b + c) >> 32; }},
       })
    check(c);
}

TEST(Instructions, Bits) {
  for (const Case& c : std::vector<Case>{
           {"and.b32 $d, $a, $b;", "www", [](U a, U b, U) { return a & b; }},
           {"or.b64 $d, $a, $b;", "ddd", [](U a, U b, U) { return a | b; }},
           {"xor.b16 $d, $a, $b;", "hhh", [](U a, U b, U) { return a ^ b; }},
           {"not.b32 $d, $a;", "ww", [](U a, U, U) { return ~a; }},
           {"not.b64 $d, $a;", "dd", [](U a, U, U) { return ~a; }},
           {"cnot.b32 $d, $a;", "ww", [](U a, U, U) { return U{a == 0}; }},
           {"shl.b32 $d, $a, $b;", "www", [](U a, U b, U) { return b > 31 ? 0 : a << b; }, 0, 's'},
           {"shr.u32 $d, $a, $b;", "www", [](U a, U b, U) { return b > 31 ? 0 : a >> b; }, 0, 's'},
           {"shr.s32 $d, $a, $b;", "www",
            [](U a, U b, U) { return static_cast<U>(S(a) >> std::min<U>(b, 31)); }, 0, 's'},
           {"shl.b64 $d, $a, $b;", "ddw", [](U a, U b, U) { return b > 63 ? 0 : a << b; }, 0, 's'},
           {"shr.u64 $d, $a, $b;", "ddw", [](U a, U b, U) { return b > 63 ? 0 : a >> b; }, 0, 's'},
           {"shr.s64 $d, $a, $b;", "ddw",
            [](U a, U b, U) { return static_cast<U>(L(a) >> std::min<U>(b, 63)); }, 0, 's'},
           {"shl.b16 $d, $a, $b;", "hhw", [](U a, U b, U) { return b > 15 ? 0 : a << b; }, 0, 's'},
           {"shr.u16 $d, $a, $b;", "hhw", [](U a, U b, U) { return b > 15 ? 0 : a >> b; }, 0, 's'},
           {"shr.s16 $d, $a, $b;", "hhw",
            [](U a, U b, U) { return static_cast<U>(H(a) >> std::min<U>(b, 15)); }, 0, 's'},
           {"shf.l.wrap.b32 $d, $a, $b, $c;", "wwww",
            [](U a, U b, U c) { return ((b << 32 | a) << (c & 31)) >> 32; }},
           {"shf.r.wrap.b32 $d, $a, $b, $c;", "wwww",
            [](U a, U b, U c) { return (b << 32 | a) >> (c & 31); }},
           {"shf.r.clamp.b32 $d, $a, $b, $c;", "wwww",
            [](U a, U b, U c) { return (b << 32 | a) >> std::min<U>(c, 32); }},
           {"clz.b32 $d, $a;", "ww", [](U a, U, U) { return static_cast<U>(std::countl_zero(W(a))); }},
           {"clz.b64 $d, $a;", "wd", [](U a, U, U) { return static_cast<U>(std::countl_zero(a)); }},
           {"popc.b32 $d, $a;", "ww", [](U a, U, U) { return static_cast<U>(std::popcount(a)); }},
           {"popc.b64 $d, $a;", "wd", [](U a, U, U) { return static_cast<U>(std::popcount(a)); }},
           {"brev.b32 $d, $a;", "ww",
            [](U a, U, U) {
              U r = 0;
              for (int i = 0; i < 32; ++i) r |= (a >> i & 1) << (31 - i);
              return r;
            }},
           {"bfind.u32 $d, $a;", "ww",
            [](U a, U, U) { return a ? static_cast<U>(31 - std::countl_zero(W(a))) : ~U{0}; }},
           {"bfind.shiftamt.u32 $d, $a;", "ww",
            [](U a, U, U) { return a ? static_cast<U>(std::countl_zero(W(a))) : ~U{0}; }},
           {"bfind.s32 $d, $a;", "ww",
            [](U a, U, U) {
              const uint32_t x = S(a) < 0 ? ~W(a) : W(a);
              return x ? static_cast<U>(31 - std::countl_zero(x)) : ~U{0};
            }},
           {"bfe.u32 $d, $a, $b, $c;", "wwww",
            [](U a, U b, U c) {
              const U p = b & 255, n = c & 255;
              const U x = p > 63 ? 0 : a >> p;
              return n >= 32 ? x : x & ((U{1} << n) - 1);
            },
            0, 's'},
           {"bfe.s32 $d, $a, $b, $c;", "wwww",
            [](U a, U b, U c) {
              const U p = b & 255, n = c & 255;
              if (!n) return U{0};
              const int64_t x = static_cast<int64_t>(S(a));
              const U at = std::min<U>(p, 63);
              if (n >= 32 || p + n > 32) return static_cast<U>(x >> at);
              return static_cast<U>(static_cast<int64_t>(static_cast<U>(x >> at) << (64 - n)) >> (64 - n));
            },
            0, 's'},
           {"bfi.b32 $d, $a, $b, 4, 7;", "www",
            [](U a, U b, U) { return (b & ~U{0x7f0}) | (a << 4 & 0x7f0); }},
           {"bfi.b64 $d, $a, $b, 32, 32;", "ddd", [](U a, U b, U) { return (b & 0xffffffff) | a << 32; }},
           {"bmsk.clamp.b32 $d, $a, $b;", "www",
            [](U a, U b, U) { return a > 31 ? 0 : (b > 31 ? 0xffffffffu : (U{1} << b) - 1) << a; }},
           {"prmt.b32 $d, $a, $b, $c;", "wwww",
            [](U a, U b, U c) {
              const U both = b << 32 | a;
              U r = 0;
              for (int k = 0; k < 4; ++k) {
                const U s = c >> (4 * k) & 15;
                U x = both >> (8 * (s & 7)) & 255;
                if (s & 8) x = x & 128 ? 255 : 0;
                r |= x << (8 * k);
              }
              return r;
            }},
           {"prmt.b32.rc16 $d, $a, $b, $c;", "wwww",
            [](U a, U, U c) {
              const U x = c & 1 ? a >> 16 : a & 0xffff;
              return x | x << 16;
            }},
           {"lop3.b32 $d, $a, $b, $c, 0x96;", "wwww", [](U a, U b, U c) { return a ^ b ^ c; }},
           {"lop3.b32 $d, $a, $b, $c, 0xe8;", "wwww",
            [](U a, U b, U c) { return (a & b) | (b & c) | (a & c); }},
       })
    check(c);
}

TEST(Instructions, FloatArithmetic) {
  for (const Case& c : std::vector<Case>{
           {"add.f32 $d, $a, $b;", "www", [](U a, U b, U) { return f32(F(a) + F(b)); }, 0, 'f'},
           {"add.ftz.f32 $d, $a, $b;", "www", [](U a, U b, U) { return f32(ftz(ftz(F(a)) + ftz(F(b)))); }, 0, 'f'},
           {"add.sat.f32 $d, $a, $b;", "www", [](U a, U b, U) { return f32(sat(F(a) + F(b))); }, 0, 'f'},
           {"sub.f32 $d, $a, $b;", "www", [](U a, U b, U) { return f32(F(a) - F(b)); }, 0, 'f'},
           {"mul.f32 $d, $a, $b;", "www", [](U a, U b, U) { return f32(F(a) * F(b)); }, 0, 'f'},
           {"mul.ftz.f32 $d, $a, $b;", "www", [](U a, U b, U) { return f32(ftz(ftz(F(a)) * ftz(F(b)))); }, 0, 'f'},
           {"fma.rn.f32 $d, $a, $b, $c;", "wwww", [](U a, U b, U c) { return f32(std::fma(F(a), F(b), F(c))); }, 0, 'f'},
           {"fma.rn.ftz.f32 $d, $a, $b, $c;", "wwww", [](U a, U b, U c) { return f32(ftz(std::fma(ftz(F(a)), ftz(F(b)), ftz(F(c))))); }, 0, 'f'},
           {"div.rn.f32 $d, $a, $b;", "www", [](U a, U b, U) { return f32(F(a) / F(b)); }, 0, 'f'},
           {"div.full.f32 $d, $a, $b;", "www", [](U a, U b, U) { return f32(F(a) / F(b)); }, 1e-6, 'f'},
           {"rcp.rn.f32 $d, $a;", "ww", [](U a, U, U) { return f32(1.0f / F(a)); }, 0, 'f'},
           {"rcp.approx.ftz.f32 $d, $a;", "ww", [](U a, U, U) { return f32(ftz(1.0f / ftz(F(a)))); }, 1e-6, 'f'},
           {"sqrt.rn.f32 $d, $a;", "ww", [](U a, U, U) { return f32(std::sqrt(F(a))); }, 0, 'f'},
           {"rsqrt.approx.f32 $d, $a;", "ww", [](U a, U, U) { return f32(static_cast<float>(1 / std::sqrt(double{F(a)}))); }, 1e-6, 'f'},
           {"neg.f32 $d, $a;", "ww", [](U a, U, U) { return a ^ 0x80000000; }, 0, 'f'},
           {"abs.f32 $d, $a;", "ww", [](U a, U, U) { return a & 0x7fffffff; }, 0, 'f'},
           {"copysign.f32 $d, $a, $b;", "www", [](U a, U b, U) { return (a & 0x80000000) | (b & 0x7fffffff); }, 0, 'f'},
           {"min.f32 $d, $a, $b;", "www", [](U a, U b, U) { const float x = F(a), y = F(b); if (x != x) return f32(y); if (y != y) return f32(x); return x == y ? (std::signbit(x) ? a : b) : f32(x < y ? x : y); }, 0, 'f'},
           {"max.f32 $d, $a, $b;", "www", [](U a, U b, U) { const float x = F(a), y = F(b); if (x != x) return f32(y); if (y != y) return f32(x); return x == y ? (std::signbit(x) ? b : a) : f32(x > y ? x : y); }, 0, 'f'},
           {"max.NaN.f32 $d, $a, $b;", "www", [](U a, U b, U) { const float x = F(a), y = F(b); if (x != x || y != y) return U{0x7fffffff}; return x == y ? (std::signbit(x) ? b : a) : f32(x > y ? x : y); }, 0, 'f'},
           {"add.f64 $d, $a, $b;", "ddd", [](U a, U b, U) { return f64(D(a) + D(b)); }, 1e-300, 'f'},
           {"sub.f64 $d, $a, $b;", "ddd", [](U a, U b, U) { return f64(D(a) - D(b)); }, 1e-300, 'f'},
           {"mul.f64 $d, $a, $b;", "ddd", [](U a, U b, U) { return f64(D(a) * D(b)); }, 1e-300, 'f'},
           {"div.rn.f64 $d, $a, $b;", "ddd", [](U a, U b, U) { return f64(D(a) / D(b)); }, 1e-300, 'f'},
           {"fma.rn.f64 $d, $a, $b, $c;", "dddd", [](U a, U b, U c) { return f64(std::fma(D(a), D(b), D(c))); }, 1e-300, 'f'},
           {"sqrt.rn.f64 $d, $a;", "dd", [](U a, U, U) { return f64(std::sqrt(D(a))); }, 1e-300, 'f'},
           {"neg.f64 $d, $a;", "dd", [](U a, U, U) { return a ^ U{1} << 63; }, 0, 'f'},
           {"abs.f64 $d, $a;", "dd", [](U a, U, U) { return a & ~(U{1} << 63); }, 0, 'f'},
           {"add.rz.f32 $d, $a, $b;", "www", [](U a, U b, U) { const double x = double{F(a)} + F(b); float r = static_cast<float>(x); if (std::isfinite(x) && std::fabs(r) > std::fabs(x)) r = std::nextafter(r, 0.0f); return f32(r); }, 2e-7, 'f'},
           {"mul.rz.f32 $d, $a, $b;", "www", [](U a, U b, U) { const double x = double{F(a)} * F(b); float r = static_cast<float>(x); if (std::isfinite(x) && std::fabs(double{r}) > std::fabs(x)) r = std::nextafter(r, 0.0f); return f32(r); }, 0, 'f'},
           {"fma.rm.f32 $d, $a, $b, 0f00000000;", "www", [](U a, U b, U) { const double x = double{F(a)} * F(b); if (x == 0) return U{std::signbit(x) ? 0x80000000u : 0u}; float r = static_cast<float>(x); if (x == x && double{r} > x) r = std::nextafter(r, -HUGE_VALF); return f32(r); }, 1e-45, 'f'},
           {"mul.rp.f32 $d, $a, $b;", "www", [](U a, U b, U) { const double x = double{F(a)} * F(b); float r = static_cast<float>(x); if (x == x && double{r} < x) r = std::nextafter(r, HUGE_VALF); return f32(r); }, 0, 'f'},
           {"mul.rm.f32 $d, $a, $b;", "www", [](U a, U b, U) { const double x = double{F(a)} * F(b); float r = static_cast<float>(x); if (x == x && double{r} > x) r = std::nextafter(r, -HUGE_VALF); return f32(r); }, 0, 'f'},
       })
    check(c);
}

TEST(Instructions, Approximations) {
  const auto relative = [](const char* text, double (*f)(double), double error) {
    check(Case{text, "ww", [f](U a, U, U) { return f32(static_cast<float>(f(F(a)))); }, error, 'f'});
  };
  relative(
      "ex2.approx.f32 $d, $a;", [](double x) { return std::exp2(x); }, 3e-7);
  relative(
      "lg2.approx.f32 $d, $a;", [](double x) { return std::log2(x); }, 3e-7);
  relative(
      "sin.approx.f32 $d, $a;", [](double x) { return std::sin(x); }, 1e-6);
  relative(
      "cos.approx.f32 $d, $a;", [](double x) { return std::cos(x); }, 1e-6);
  relative(
      "tanh.approx.f32 $d, $a;", [](double x) { return std::tanh(x); }, 1e-5);
}

TEST(Instructions, Half) {
  for (const Case& c : std::vector<Case>{
           {"add.f16 $d, $a, $b;", "hhh", [](U a, U b, U) { return to_half(from_half(a) + from_half(b)); }, 0,
            'f'},
           {"sub.f16 $d, $a, $b;", "hhh", [](U a, U b, U) { return to_half(from_half(a) - from_half(b)); }, 0,
            'f'},
           {"mul.f16 $d, $a, $b;", "hhh", [](U a, U b, U) { return to_half(from_half(a) * from_half(b)); }, 0,
            'f'},
           {"neg.f16 $d, $a;", "hh", [](U a, U, U) { return a ^ 0x8000; }, 0, 'f'},
           {"abs.f16 $d, $a;", "hh", [](U a, U, U) { return a & 0x7fff; }, 0, 'f'},
           {"add.f16x2 $d, $a, $b;", "www",
            [](U a, U b, U) {
              return to_half(from_half(a & 0xffff) + from_half(b & 0xffff)) |
                     to_half(from_half(a >> 16) + from_half(b >> 16)) << 16;
            }},
           {"cvt.f32.f16 $d, $a;", "wh", [](U a, U, U) { return f32(static_cast<float>(from_half(a))); }, 0,
            'f'},
           {"cvt.rn.f16.f32 $d, $a;", "hw", [](U a, U, U) { return to_half(F(a)); }, 0, 'f'},
           {"cvt.rn.f16x2.f32 $d, $a, $b;", "www",
            [](U a, U b, U) { return to_half(F(a)) << 16 | to_half(F(b)); }, 0, 'f'},
           {"cvt.f32.bf16 $d, $a;", "wh", [](U a, U, U) { return f32(F(a << 16)); }},
           {"cvt.rn.bf16.f32 $d, $a;", "hw",
            [](U a, U, U) {
              if (F(a) != F(a)) return U{0x7fff};
              const U rest = a & 0xffff;
              const U q = a >> 16;
              return rest > 0x8000 || (rest == 0x8000 && (q & 1)) ? q + 1 : q;
            },
            0, 'f'},
       })
    check(c);
}

TEST(Instructions, Conversions) {
  const auto clamp = [](double x, double low, double high) {
    return x != x ? 0.0 : std::clamp(x, low, high);
  };
  for (const Case& c : std::vector<Case>{
           {"cvt.s64.s32 $d, $a;", "dw", [](U a, U, U) { return static_cast<U>(int64_t{S(a)}); }},
           {"cvt.u64.u32 $d, $a;", "dw", [](U a, U, U) { return a; }},
           {"cvt.u32.u64 $d, $a;", "wd", [](U a, U, U) { return a; }},
           {"cvt.u32.u16 $d, $a;", "wh", [](U a, U, U) { return a; }},
           {"cvt.s32.s16 $d, $a;", "wh", [](U a, U, U) { return static_cast<U>(int64_t{H(a)}); }},
           {"cvt.u16.u32 $d, $a;", "hw", [](U a, U, U) { return a; }},
           {"cvt.u16.u32 $d, $a;", "ww", [](U a, U, U) { return a & 0xffff; }},
           {"cvt.s32.s8 $d, $a;", "ww",
            [](U a, U, U) { return static_cast<U>(int64_t{static_cast<int8_t>(a)}); }},
           {"cvt.s16.s8 $d, $a;", "hh",
            [](U a, U, U) { return static_cast<U>(int64_t{static_cast<int8_t>(a)}); }},
           {"cvt.u32.u8 $d, $a;", "ww", [](U a, U, U) { return a & 255; }},
           {"cvt.s64.s16 $d, $a;", "dh", [](U a, U, U) { return static_cast<U>(int64_t{H(a)}); }},
           {"cvt.u64.u16 $d, $a;", "dh", [](U a, U, U) { return a; }},
           {"cvt.sat.s8.s32 $d, $a;", "ww",
            [](U a, U, U) { return static_cast<U>(int64_t{std::clamp(S(a), -128, 127)}); }},
           {"cvt.sat.u8.s32 $d, $a;", "ww",
            [](U a, U, U) { return static_cast<U>(std::clamp(S(a), 0, 255)); }},
           {"cvt.rn.f32.s32 $d, $a;", "ww", [](U a, U, U) { return f32(static_cast<float>(S(a))); }},
           {"cvt.rn.f32.u32 $d, $a;", "ww", [](U a, U, U) { return f32(static_cast<float>(W(a))); }},
           {"cvt.rn.f32.s64 $d, $a;", "wd", [](U a, U, U) { return f32(static_cast<float>(L(a))); }},
           {"cvt.rn.f32.u64 $d, $a;", "wd", [](U a, U, U) { return f32(static_cast<float>(a)); }},
           {"cvt.rn.f64.s64 $d, $a;", "dd", [](U a, U, U) { return f64(static_cast<double>(L(a))); }},
           {"cvt.rn.f64.u64 $d, $a;", "dd", [](U a, U, U) { return f64(static_cast<double>(a)); }},
           {"cvt.rn.f64.s32 $d, $a;", "dw", [](U a, U, U) { return f64(S(a)); }},
           {"cvt.rn.f32.s16 $d, $a;", "wh", [](U a, U, U) { return f32(H(a)); }},
           {"cvt.rn.f32.u16 $d, $a;", "wh", [](U a, U, U) { return f32(static_cast<float>(a)); }},
           {"cvt.rzi.s32.f32 $d, $a;", "ww",
            [clamp](U a, U, U) {
              return static_cast<U>(
                  static_cast<int64_t>(std::trunc(clamp(F(a), -2147483648.0, 2147483647.0))));
            },
            0, 'f'},
           {"cvt.rni.s32.f32 $d, $a;", "ww",
            [clamp](U a, U, U) {
              return static_cast<U>(
                  static_cast<int64_t>(std::nearbyint(clamp(F(a), -2147483648.0, 2147483647.0))));
            },
            0, 'f'},
           {"cvt.rmi.s32.f32 $d, $a;", "ww",
            [clamp](U a, U, U) {
              return static_cast<U>(
                  static_cast<int64_t>(std::floor(clamp(F(a), -2147483648.0, 2147483647.0))));
            },
            0, 'f'},
           {"cvt.rpi.u32.f32 $d, $a;", "ww",
            [clamp](U a, U, U) { return static_cast<U>(std::ceil(clamp(F(a), 0, 4294967295.0))); }, 0, 'f'},
           {"cvt.rzi.s32.f64 $d, $a;", "wd",
            [clamp](U a, U, U) {
              return static_cast<U>(
                  static_cast<int64_t>(std::trunc(clamp(D(a), -2147483648.0, 2147483647.0))));
            },
            0, 'f'},
           {"cvt.rzi.s64.f32 $d, $a;", "dw",
            [](U a, U, U) {
              const float x = F(a);
              if (x != x) return U{0};
              if (x >= 0x1p63f) return U{INT64_MAX};
              if (x <= -0x1p63f) return U{1} << 63;
              return static_cast<U>(static_cast<int64_t>(x));
            },
            0, 'f'},
           {"cvt.f64.f32 $d, $a;", "dw", [](U a, U, U) { return f64(F(a)); }, 1e-300, 'f'},
           {"cvt.rn.f32.f64 $d, $a;", "wd", [](U a, U, U) { return f32(static_cast<float>(D(a))); }, 0, 'f'},
           {"cvt.rni.f32.f32 $d, $a;", "ww", [](U a, U, U) { return f32(std::nearbyint(F(a))); }, 0, 'f'},
           {"cvt.rmi.f64.f64 $d, $a;", "dd", [](U a, U, U) { return f64(std::floor(D(a))); }, 0, 'f'},
           {"cvt.sat.f32.f32 $d, $a;", "ww", [](U a, U, U) { return f32(sat(F(a))); }, 0, 'f'},
           {"cvt.ftz.f32.f32 $d, $a;", "ww", [](U a, U, U) { return f32(ftz(F(a))); }, 0, 'f'},
           {"mov.b64 $d, {$a, $b};", "dww", [](U a, U b, U) { return a | b << 32; }},
           {"mov.b32 $d, {$a, $b};", "whh", [](U a, U b, U) { return a | b << 16; }},
           {"{ .reg .b32 hi; mov.b64 {hi, $d}, $a; }", "wd", [](U a, U, U) { return a >> 32; }},
           {"@!%p1 mov.b32 $d, $a;", "ww", [](U a, U, U) { return a; }},
       })
    check(c);
}

TEST(Instructions, Comparisons) {
  for (const Case& c : std::vector<Case>{
           {"setp.lt.s32 $p, $a, $b;", "pww", [](U a, U b, U) { return U{S(a) < S(b)}; }},
           {"setp.ge.u32 $p, $a, $b;", "pww", [](U a, U b, U) { return U{a >= b}; }},
           {"setp.ne.b64 $p, $a, $b;", "pdd", [](U a, U b, U) { return U{a != b}; }},
           {"setp.gt.s64 $p, $a, $b;", "pdd", [](U a, U b, U) { return U{L(a) > L(b)}; }},
           {"setp.le.u64 $p, $a, $b;", "pdd", [](U a, U b, U) { return U{a <= b}; }},
           {"setp.lt.s16 $p, $a, $b;", "phh", [](U a, U b, U) { return U{H(a) < H(b)}; }},
           {"setp.hi.u16 $p, $a, $b;", "phh", [](U a, U b, U) { return U{a > b}; }},
           {"setp.eq.b16 $p, $a, $b;", "phh", [](U a, U b, U) { return U{a == b}; }},
           {"setp.lt.f32 $p, $a, $b;", "pww", [](U a, U b, U) { return U{F(a) < F(b)}; }, 0, 'f'},
           {"setp.ne.f32 $p, $a, $b;", "pww", [](U a, U b, U) { return U{F(a) < F(b) || F(a) > F(b)}; }, 0,
            'f'},
           {"setp.neu.f32 $p, $a, $b;", "pww", [](U a, U b, U) { return U{!(F(a) == F(b))}; }, 0, 'f'},
           {"setp.geu.f32 $p, $a, $b;", "pww", [](U a, U b, U) { return U{!(F(a) < F(b))}; }, 0, 'f'},
           {"setp.equ.f64 $p, $a, $b;", "pdd", [](U a, U b, U) { return U{!(D(a) < D(b) || D(a) > D(b))}; },
            0, 'f'},
           {"setp.num.f32 $p, $a, $b;", "pww", [](U a, U b, U) { return U{F(a) == F(a) && F(b) == F(b)}; }, 0,
            'f'},
           {"setp.nan.f32 $p, $a, $b;", "pww", [](U a, U b, U) { return U{F(a) != F(a) || F(b) != F(b)}; }, 0,
            'f'},
           {"setp.eq.ftz.f32 $p, $a, $b;", "pww", [](U a, U b, U) { return U{ftz(F(a)) == ftz(F(b))}; }, 0,
            'f'},
           {"setp.gt.f16 $p, $a, $b;", "phh", [](U a, U b, U) { return U{from_half(a) > from_half(b)}; }, 0,
            'f'},
           {"{ .reg .pred q; setp.lt.s32 q, $b, 5; setp.lt.and.s32 $p|q, $a, $b, q; }", "pww",
            [](U a, U b, U) { return U{S(a) < S(b) && S(b) < 5}; }},
           {"{ .reg .pred q, r; setp.lt.s32 q, $b, 5; setp.lt.or.s32 r|$p, $a, $b, !q; }", "pww",
            [](U a, U b, U) { return U{!(S(a) < S(b)) || !(S(b) < 5)}; }},
           {"set.lt.u32.s32 $d, $a, $b;", "www", [](U a, U b, U) { return S(a) < S(b) ? ~U{0} : 0; }},
           {"set.gt.f32.f32 $d, $a, $b;", "www", [](U a, U b, U) { return F(a) > F(b) ? U{0x3f800000} : 0; },
            0, 'f'},
           {"{ .reg .pred q; setp.lt.u32 q, $a, $b; selp.b32 $d, $a, $b, q; }", "www",
            [](U a, U b, U) { return std::min(a, b); }},
           {"{ .reg .pred q; setp.lt.u64 q, $a, $b; selp.b64 $d, $a, $b, q; }", "ddd",
            [](U a, U b, U) { return std::min(a, b); }},
           {"slct.u32.s32 $d, $a, $b, $c;", "wwww", [](U a, U b, U c) { return S(c) >= 0 ? a : b; }},
           {"testp.infinite.f32 $p, $a;", "pw", [](U a, U, U) { return U{std::isinf(F(a))}; }, 0, 'f'},
           {"{ .reg .pred q, r; setp.lt.s32 q, $a, 3; setp.gt.s32 r, $b, 3; xor.pred $p, q, r; not.pred $p, "
            "$p; }",
            "pww", [](U a, U b, U) { return U{!((S(a) < 3) ^ (S(b) > 3))}; }},
       })
    check(c);
}

}  // namespace
}  // namespace tessera::softgpu::exec

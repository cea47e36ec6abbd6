// The common instruction forms, each against a reference written here. forms_test.cc has the systematic rest.
// CTest runs both once per instruction set of the interpreter (TESSERA_EXEC_ISA).
#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/softgpu_exec/instruction_case.h"

namespace tessera::softgpu::exec {
namespace {

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

// Two f32 in one register: each as if alone.
TEST(Instructions, PairsOfFloats) {
  const auto halves = [](auto f) {
    return [f](U a, U b, U c) {
      return f32(f(F(W(a)), F(W(b)), F(W(c)))) | f32(f(F(W(a >> 32)), F(W(b >> 32)), F(W(c >> 32)))) << 32;
    };
  };
  const auto flushed = [](auto f) {
    return [f](float a, float b, float c) { return ftz(f(ftz(a), ftz(b), ftz(c))); };
  };
  const auto add = [](float a, float b, float) { return a + b; };
  const auto sub = [](float a, float b, float) { return a - b; };
  const auto mul = [](float a, float b, float) { return a * b; };
  const auto fma = [](float a, float b, float c) { return std::fma(a, b, c); };
  for (const Case& c : std::vector<Case>{
           {"add.f32x2 $d, $a, $b;", "ddd", halves(add)},
           {"add.rn.ftz.f32x2 $d, $a, $b;", "ddd", halves(flushed(add))},
           {"sub.rn.f32x2 $d, $a, $b;", "ddd", halves(sub)},
           {"mul.f32x2 $d, $a, $b;", "ddd", halves(mul)},
           {"mul.rn.ftz.f32x2 $d, $a, $b;", "ddd", halves(flushed(mul))},
           {"fma.rn.f32x2 $d, $a, $b, $c;", "dddd", halves(fma)},
           {"fma.rn.ftz.f32x2 $d, $a, $b, $c;", "dddd", halves(flushed(fma))},
           // Towards zero: 1 + 2^-24 and -1 - 2^-24 stay what they were.
           {"{ .reg .b64 x, y; mov.b64 x, {0f3F800000, 0fBF800000}; mov.b64 y, {0f33800001, 0fB3800001}; "
            "add.rz.f32x2 $d, x, y; }",
            "dd", [](U, U, U) { return U{0xBF8000003F800000}; }},
           {"{ .reg .b64 x, y; mov.b64 x, {0f3F800000, 0fBF800000}; mov.b64 y, {0f33800001, 0fB3800001}; "
            "add.rp.f32x2 $d, x, y; }",
            "dd", [](U, U, U) { return U{0xBF8000003F800001}; }},
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
           {"cvt.s32.u32 $d, $a;", "ww", [](U a, U, U) { return a; }},
           {"cvt.sat.s32.u32 $d, $a;", "ww", [](U a, U, U) { return std::min<U>(a, INT32_MAX); }},
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

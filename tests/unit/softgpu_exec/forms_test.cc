// Every supported type of the data instructions, from tables: references are arithmetic on 128-bit integers
// and 113-bit floats, written from the PTX ISA's definitions.
#include <algorithm>
#include <vector>

#include "tests/unit/softgpu_exec/harness.h"
#include "tests/unit/softgpu_exec/instruction_case.h"

namespace tessera::softgpu::exec {
namespace {

using I = __int128;

struct Integer {
  const char* name;
  char letter;
  unsigned bits;
  bool is_signed;
  std::string text(const std::string& form) const {  // T: the type, W: twice as wide
    std::string s = form;
    for (size_t at; (at = s.find(".T")) != s.npos;) s.replace(at, 2, std::string(".") + name);
    return s;
  }
  std::string types(const std::string& pattern) const {  // t: this type, x: twice as wide
    std::string s = pattern;
    for (char& c : s) c = c == 't' ? letter : c == 'x' ? (letter == 'h' ? 'w' : 'd') : c;
    return s;
  }
  U mask() const { return bits == 64 ? ~U{0} : (U{1} << bits) - 1; }
  I value(U x) const {
    x &= mask();
    return is_signed && x >> (bits - 1) ? static_cast<I>(x) - (I{1} << bits) : static_cast<I>(x);
  }
};
constexpr Integer kIntegers[] = {{"u16", 'h', 16, false}, {"s16", 'h', 16, true},  {"u32", 'w', 32, false},
                                 {"s32", 'w', 32, true},  {"u64", 'd', 64, false}, {"s64", 'd', 64, true}};

using IntegerReference = I (*)(const Integer&, I, I, I);
struct IntegerRow {
  const char* text;
  const char* types;
  IntegerReference want;
  char values = 'i';
  unsigned least = 16, most = 64;  // bits
  int only = -1;                   // 1 signed, 0 unsigned
};
I magnitude(I x) {
  return x < 0 ? -x : x;
}
// Product shifted down by the width; the product of unsigned 64-bit numbers needs all 128 bits.
I high(const Integer& t, I a, I b) {
  return t.is_signed ? (a * b) >> t.bits
                     : static_cast<I>(
                           (static_cast<unsigned __int128>(a) * static_cast<unsigned __int128>(b)) >> t.bits);
}
I quotient(I a, I b) {
  return b ? a / b : -1;
}

const IntegerRow kIntegerRows[] = {
    {"mov.T $d, $a;", "tt", [](const Integer&, I a, I, I) { return a; }},
    {"add.T $d, $a, $b;", "ttt", [](const Integer&, I a, I b, I) { return a + b; }},
    {"sub.T $d, $a, $b;", "ttt", [](const Integer&, I a, I b, I) { return a - b; }},
    {"mul.lo.T $d, $a, $b;", "ttt",
     [](const Integer&, I a, I b, I) { return static_cast<I>(static_cast<U>(a) * static_cast<U>(b)); }},
    {"mul.hi.T $d, $a, $b;", "ttt", [](const Integer& t, I a, I b, I) { return high(t, a, b); }},
    {"mad.lo.T $d, $a, $b, $c;", "tttt",
     [](const Integer&, I a, I b, I c) {
       return static_cast<I>(static_cast<U>(a) * static_cast<U>(b) + static_cast<U>(c));
     }},
    {"mad.hi.T $d, $a, $b, $c;", "tttt", [](const Integer& t, I a, I b, I c) { return high(t, a, b) + c; }},
    {"mul.wide.T $d, $a, $b;", "xtt", [](const Integer&, I a, I b, I) { return a * b; }, 'i', 16, 32},
    {"mad.wide.T $d, $a, $b, $c;", "xttx", [](const Integer&, I a, I b, I c) { return a * b + c; }, 'i', 16,
     32},
    {"div.T $d, $a, $b;", "ttt", [](const Integer&, I a, I b, I) { return quotient(a, b); }},
    {"rem.T $d, $a, $b;", "ttt", [](const Integer&, I a, I b, I) { return b ? a % b : a; }},
    {"min.T $d, $a, $b;", "ttt", [](const Integer&, I a, I b, I) { return std::min(a, b); }},
    {"max.T $d, $a, $b;", "ttt", [](const Integer&, I a, I b, I) { return std::max(a, b); }},
    {"min.T $d, $a, $b, $c;", "tttt",
     [](const Integer&, I a, I b, I c) {
       return std::min({a, b, c});
     },
     'i', 32, 32},
    {"max.T $d, $a, $b, $c;", "tttt",
     [](const Integer&, I a, I b, I c) {
       return std::max({a, b, c});
     },
     'i', 32, 32},
    {"sad.T $d, $a, $b, $c;", "tttt", [](const Integer&, I a, I b, I c) { return magnitude(a - b) + c; }},
    {"neg.T $d, $a;", "tt", [](const Integer&, I a, I, I) { return -a; }, 'i', 16, 64, 1},
    {"abs.T $d, $a;", "tt", [](const Integer&, I a, I, I) { return magnitude(a); }, 'i', 16, 64, 1},
    {"shr.T $d, $a, $b;", "ttw", [](const Integer& t, I a, I b, I) { return a >> std::min<I>(b, t.bits); },
     's'},
    {"{ .reg .pred q; setp.le.T q, $a, $b; selp.T $d, $a, $b, q; }", "ttt",
     [](const Integer&, I a, I b, I) { return std::min(a, b); }},
    {"set.gt.u32.T $d, $a, $b;", "wtt",
     [](const Integer&, I a, I b, I) { return a > b ? I{0xffffffff} : 0; }},
    {"slct.T.s32 $d, $a, $b, $c;", "tttw",
     [](const Integer&, I a, I b, I c) { return static_cast<int32_t>(c) >= 0 ? a : b; }},
    {"slct.T.f32 $d, $a, $b, $c;", "tttw",
     [](const Integer&, I a, I b, I c) { return F(static_cast<U>(c)) >= 0 ? a : b; }},
    {"add.cc.T $d, $a, $b; addc.T $d, 0, 0;", "ttt",
     [](const Integer& t, I a, I b, I) {
       return (static_cast<I>(static_cast<U>(a) & t.mask()) + static_cast<I>(static_cast<U>(b) & t.mask())) >>
              t.bits;
     },
     'i', 32},
    {"sub.cc.T $d, $a, $b; subc.T $d, $c, 0;", "tttt",
     [](const Integer& t, I a, I b, I c) {
       return c - ((static_cast<U>(a) & t.mask()) < (static_cast<U>(b) & t.mask()));
     },
     'i', 32},
    {"mad.lo.cc.T $d, $a, $b, $c; madc.hi.T $d, $a, $b, 0;", "tttt",
     [](const Integer& t, I a, I b, I c) {
       const U low = static_cast<U>(a) * static_cast<U>(b) & t.mask();
       return high(t, a, b) +
              ((static_cast<I>(low) + static_cast<I>(static_cast<U>(c) & t.mask())) >> t.bits);
     },
     'i', 32},
    {"bfind.T $d, $a;", "wt",
     [](const Integer& t, I a, I, I) {
       for (int k = static_cast<int>(t.bits) - 1; k >= 0; --k)
         if ((a >> k & 1) != (a < 0)) return static_cast<I>(k);
       return I{-1};
     },
     'i', 32},
    {"bfe.T $d, $a, $b, $c;", "ttww",
     [](const Integer& t, I a, I b, I c) {  // the ISA's definition, bit by bit
       const int msb = static_cast<int>(t.bits) - 1, p = static_cast<int>(b & 255),
                 n = static_cast<int>(c & 255);
       const I fill = !t.is_signed || n == 0 ? I{0} : a >> std::min(p + n - 1, msb) & 1;
       I r = 0;
       for (int k = 0; k <= msb; ++k) r |= (k < n && p + k <= msb ? a >> (p + k) & 1 : fill) << k;
       return r;
     },
     's', 32},
    {"mul24.lo.T $d, $a, $b;", "ttt",
     [](const Integer& t, I a, I b, I) {
       const Integer n{"", 'w', 24, t.is_signed};
       return n.value(static_cast<U>(a)) * n.value(static_cast<U>(b));
     },
     'i', 32, 32},
    {"mul24.hi.T $d, $a, $b;", "ttt",
     [](const Integer& t, I a, I b, I) {
       const Integer n{"", 'w', 24, t.is_signed};
       return (n.value(static_cast<U>(a)) * n.value(static_cast<U>(b))) >> 16;
     },
     'i', 32, 32},
    {"mad24.lo.T $d, $a, $b, $c;", "tttt",
     [](const Integer& t, I a, I b, I c) {
       const Integer n{"", 'w', 24, t.is_signed};
       return n.value(static_cast<U>(a)) * n.value(static_cast<U>(b)) + c;
     },
     'i', 32, 32},
    {"mad24.hi.T $d, $a, $b, $c;", "tttt",
     [](const Integer& t, I a, I b, I c) {
       const Integer n{"", 'w', 24, t.is_signed};
       return ((n.value(static_cast<U>(a)) * n.value(static_cast<U>(b))) >> 16) + c;
     },
     'i', 32, 32},
    {"szext.clamp.T $d, $a, $b;", "ttw",
     [](const Integer& t, I a, I b, I) {
       const Integer n{"", 'w', static_cast<unsigned>(std::min<I>(b, 32)), t.is_signed};
       return n.bits ? n.value(static_cast<U>(a)) : 0;
     },
     's', 32, 32},
    {"szext.wrap.T $d, $a, $b;", "ttw",
     [](const Integer& t, I a, I b, I) {
       const Integer n{"", 'w', static_cast<unsigned>(b & 31), t.is_signed};
       return n.bits ? n.value(static_cast<U>(a)) : 0;
     },
     's', 32, 32},
};

TEST(Forms, IntegersOfEveryWidth) {
  for (const IntegerRow& row : kIntegerRows)
    for (const Integer& t : kIntegers) {
      if (t.bits < row.least || t.bits > row.most || (row.only >= 0 && t.is_signed != (row.only == 1)))
        continue;
      const std::string types = t.types(row.types);
      const auto operand = [&t, types](size_t k, U x) {  // the third of mad.wide is unlike the others
        if (k >= types.size() || types[k] == t.letter) return t.value(x);
        return static_cast<I>(x);
      };
      check(Case{t.text(row.text), types,
                 [&row, &t, operand](U a, U b, U c) {
                   return static_cast<U>(row.want(t, operand(1, a), operand(2, b), operand(3, c)));
                 },
                 0, row.values});
    }
}

// Ordered comparisons are false with a NaN, those with u are true.
TEST(Forms, EveryComparisonOfEveryType) {
  struct Row {
    const char *name, *alias;   // alias: of unsigned integers
    bool less, equal, greater;  // true if the first operand is ...
  };
  const Row rows[] = {{"eq", "eq", false, true, false}, {"ne", "ne", true, false, true},
                      {"lt", "lo", true, false, false}, {"le", "ls", true, true, false},
                      {"gt", "hi", false, false, true}, {"ge", "hs", false, true, true}};
  for (const Row& row : rows) {
    const auto holds = [row](auto a, auto b) {
      return U{a < b ? row.less : a == b ? row.equal : row.greater};
    };
    for (const Integer& t : kIntegers) {
      const auto want = [holds, t](U a, U b, U) { return holds(t.value(a), t.value(b)); };
      check(Case{std::string("setp.") + row.name + "." + t.name + " $p, $a, $b;", t.types("ptt"), want});
      if (!t.is_signed)
        check(Case{std::string("setp.") + row.alias + "." + t.name + " $p, $a, $b;", t.types("ptt"), want});
      if (!t.is_signed && row.less == row.greater)
        check(Case{std::string("setp.") + row.name + ".b" + std::to_string(t.bits) + " $p, $a, $b;",
                   t.types("ptt"), want});
    }
    for (const bool unordered : {false, true}) {
      const std::string name = std::string("setp.") + row.name + (unordered ? "u" : "");
      const auto compare = [holds, unordered](auto a, auto b) {
        return a != a || b != b ? U{unordered} : holds(a, b);
      };
      check(Case{name + ".f32 $p, $a, $b;", "pww", [compare](U a, U b, U) { return compare(F(a), F(b)); }, 0,
                 'f'});
      check(Case{name + ".ftz.f32 $p, $a, $b;", "pww",
                 [compare](U a, U b, U) { return compare(ftz(F(a)), ftz(F(b))); }, 0, 'f'});
      check(Case{name + ".f64 $p, $a, $b;", "pdd", [compare](U a, U b, U) { return compare(D(a), D(b)); }, 0,
                 'f'});
      check(Case{name + ".f16 $p, $a, $b;", "phh",
                 [compare](U a, U b, U) { return compare(from_half(a), from_half(b)); }, 0, 'f'});
    }
  }
  for (const bool num : {true, false}) {
    const std::string name = num ? "setp.num" : "setp.nan";
    const auto want = [num](auto a, auto b) { return U{(a == a && b == b) == num}; };
    check(Case{name + ".f32 $p, $a, $b;", "pww", [want](U a, U b, U) { return want(F(a), F(b)); }, 0, 'f'});
    check(Case{name + ".f64 $p, $a, $b;", "pdd", [want](U a, U b, U) { return want(D(a), D(b)); }, 0, 'f'});
  }
}

// Bit i of the table is the result where a, b, c have the bits of i.
TEST(Forms, EveryKindOfLogicTable) {
  for (const unsigned table :
       {0x00u, 0x01u, 0x02u, 0x04u, 0x10u, 0x80u, 0xaau, 0xccu, 0xf0u, 0x1bu, 0x69u, 0xfeu, 0xffu})
    check(Case{"lop3.b32 $d, $a, $b, $c, " + std::to_string(table) + ";", "wwww", [table](U a, U b, U c) {
                 U r = 0;
                 for (int k = 0; k < 32; ++k)
                   r |= static_cast<U>(table >> ((a >> k & 1) * 4 + (b >> k & 1) * 2 + (c >> k & 1)) & 1)
                        << k;
                 return r;
               }});
}

TEST(Forms, BitsOfEveryWidth) {
  const auto reversed = [](U x, unsigned n) {
    U r = 0;
    for (unsigned k = 0; k < n; ++k) r |= (x >> k & 1) << (n - 1 - k);
    return r;
  };
  const auto inserted = [](U a, U b, U c, unsigned n) {
    for (unsigned k = 0; k < 7 && (c & 255) + k < n; ++k)
      b = (b & ~(U{1} << ((c & 255) + k))) | (a >> k & 1) << ((c & 255) + k);
    return b;
  };
  // The offset-th set bit of a at or above the base (below for negative offsets).
  const auto nth = [](U a, U base, int offset) {
    const int step = offset < 0 ? -1 : 1;
    int left = std::abs(offset);
    for (int k = static_cast<int>(base & 31); k >= 0 && k < 32; k += step)
      if ((a >> k & 1) && --left == 0) return static_cast<U>(k);
    return ~U{0};
  };
  for (const Case& c : std::vector<Case>{
           {"and.b16 $d, $a, $b;", "hhh", [](U a, U b, U) { return a & b; }},
           {"and.b64 $d, $a, $b;", "ddd", [](U a, U b, U) { return a & b; }},
           {"or.b16 $d, $a, $b;", "hhh", [](U a, U b, U) { return a | b; }},
           {"or.b32 $d, $a, $b;", "www", [](U a, U b, U) { return a | b; }},
           {"xor.b32 $d, $a, $b;", "www", [](U a, U b, U) { return a ^ b; }},
           {"xor.b64 $d, $a, $b;", "ddd", [](U a, U b, U) { return a ^ b; }},
           {"not.b16 $d, $a;", "hh", [](U a, U, U) { return ~a; }},
           {"cnot.b16 $d, $a;", "hh", [](U a, U, U) { return U{a == 0}; }},
           {"cnot.b64 $d, $a;", "dd", [](U a, U, U) { return U{a == 0}; }},
           {"brev.b64 $d, $a;", "dd", [&](U a, U, U) { return reversed(a, 64); }},
           {"bfi.b32 $d, $a, $b, $c, 7;", "wwww", [&](U a, U b, U c) { return inserted(a, b, c, 32); }, 0,
            's'},
           {"bfi.b64 $d, $a, $b, $c, 7;", "dddw", [&](U a, U b, U c) { return inserted(a, b, c, 64); }, 0,
            's'},
           {"fns.b32 $d, $a, $b, 2;", "www", [&](U a, U b, U) { return nth(a, b, 2); }},
           {"fns.b32 $d, $a, $b, -3;", "www", [&](U a, U b, U) { return nth(a, b, -3); }},
           {"shf.l.clamp.b32 $d, $a, $b, $c;", "wwww",
            [](U a, U b, U c) { return c > 31 ? a : (b << 32 | a) << c >> 32; }},
       }) {
    Case limited = c;
    if (c.text.starts_with("fns"))  // a base beyond the word is undefined
      limited.text = "and.b32 $b, $b, 31; " + c.text;
    check(limited);
  }
}

// --- small floats

#ifdef __x86_64__
using Exact = __float128;
#else
using Exact = long double;  // of 113 bits, too
#endif

struct Small {
  const char* name;
  int exponent_bits, mantissa_bits;
  U infinity() const { return ((U{1} << exponent_bits) - 1) << mantissa_bits; }
  Exact value(U x) const {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const U magnitude = x & 0x7fff, e = magnitude >> mantissa_bits,
            m = magnitude & ((U{1} << mantissa_bits) - 1);
    const bool special = magnitude >= infinity();
    const double r = special ? (m ? NAN : HUGE_VAL)
                     : e     ? std::ldexp(static_cast<double>(m | U{1} << mantissa_bits),
                                          static_cast<int>(e) - bias - mantissa_bits)
                             : std::ldexp(static_cast<double>(m), 1 - bias - mantissa_bits);
    return x & 0x8000 ? -r : r;
  }
  // Nearest even, by search over all values of the format.
  U nearest(Exact x) const {
    if (x != x) return 0x7fff;
    const U sign = x < 0 || (x == 0 && std::signbit(static_cast<double>(x))) ? 0x8000 : 0;
    if (x < 0) x = -x;
    const Exact beyond = 2 * value(infinity() - (U{1} << mantissa_bits));  // what infinity would be worth
    U low = 0, top = infinity();
    while (top - low > 1) {
      const U middle = (low + top) / 2;
      (value(middle) <= x ? low : top) = middle;
    }
    const Exact below = value(low), above = top == infinity() ? beyond : value(top);
    if (x - below < above - x) return sign | low;
    if (x - below > above - x) return sign | top;
    return sign | (low & 1 ? top : low);
  }
  bool subnormal(U x) const { return (x & 0x7fff) < (U{1} << mantissa_bits); }
};
constexpr Small kSmalls[] = {{"f16", 5, 10}, {"bf16", 8, 7}};

// A term too small for 113 bits still decides what is exactly half way.
Exact sum(Exact a, Exact b) {
  const Exact r = a + b;
  return b != 0 && r == a && std::isfinite(static_cast<double>(a))
             ? r + ((a > 0) == (b > 0) ? a : -a) * 0x1p-110
             : r;
}
template <bool kMaximum>
Exact choose(Exact a, Exact b) {
  if (a != a) return b;
  if (b != b) return a;
  if (a == b) return std::signbit(static_cast<double>(a)) == kMaximum ? b : a;
  return (a > b) == kMaximum ? a : b;
}
struct SmallRow {
  const char* text;
  unsigned operands;
  Exact (*want)(Exact, Exact, Exact);
  bool ftz_result = false;
};
const SmallRow kSmallRows[] = {
    {"add.rn.T $d, $a, $b;", 2, [](Exact a, Exact b, Exact) { return sum(a, b); }},
    {"sub.rn.T $d, $a, $b;", 2, [](Exact a, Exact b, Exact) { return sum(a, -b); }},
    {"mul.rn.T $d, $a, $b;", 2, [](Exact a, Exact b, Exact) -> Exact { return a * b; }},
    {"fma.rn.T $d, $a, $b, $c;", 3, [](Exact a, Exact b, Exact c) { return sum(a * b, c); }},
    {"fma.rn.relu.T $d, $a, $b, $c;", 3,
     [](Exact a, Exact b, Exact c) -> Exact {
       const Exact r = sum(a * b, c);
       return r != r || r > 0 ? r : 0;
     }},
    {"min.T $d, $a, $b;", 2, [](Exact a, Exact b, Exact) { return choose<false>(a, b); }},
    {"max.T $d, $a, $b;", 2, [](Exact a, Exact b, Exact) { return choose<true>(a, b); }},
    {"tanh.approx.T $d, $a;", 1,
     [](Exact a, Exact, Exact) -> Exact { return std::tanh(static_cast<double>(a)); }},
    {"ex2.approx.ftz.T $d, $a;", 1,
     [](Exact a, Exact, Exact) -> Exact { return std::exp2(static_cast<double>(a)); }, true},
};

TEST(Forms, HalvesAndTheirPairs) {
  for (const Small& t : kSmalls)
    for (bool pair : {false, true}) {
      const auto both = [pair](auto one) {
        return Reference([pair, one](U a, U b, U c) {
          const U low = one(a & 0xffff, b & 0xffff, c & 0xffff);
          return pair ? low | one(a >> 16 & 0xffff, b >> 16 & 0xffff, c >> 16 & 0xffff) << 16 : low;
        });
      };
      const auto run = [&](std::string text, unsigned operands, const Reference& want) {
        const std::string name = std::string(t.name) + (pair ? "x2" : "");
        for (size_t at; (at = text.find(".T")) != text.npos;) text.replace(at, 2, "." + name);
        check(Case{text, std::string(operands + 1, pair ? 'w' : 'h'), want, 0, pair ? 'i' : 'f'});
      };
      for (const SmallRow& row : kSmallRows) {
        if (row.ftz_result && t.exponent_bits == 5) {  // only bf16 needs .ftz
          run("ex2.approx.T $d, $a;", 1,
              both([&](U a, U b, U c) { return t.nearest(row.want(t.value(a), b, c)); }));
          continue;
        }
        run(row.text, row.operands, both([&](U a, U b, U c) {
              const U r = t.nearest(row.want(t.value(a), t.value(b), t.value(c)));
              return row.ftz_result && t.subnormal(r) ? r & 0x8000 : r;
            }));
      }
      run("neg.T $d, $a;", 1, both([](U a, U, U) { return a ^ 0x8000; }));
      run("abs.T $d, $a;", 1, both([](U a, U, U) { return a & 0x7fff; }));
      if (!pair) {
        run("mov.b16 $d, $a;", 1, both([](U a, U, U) { return a; }));
        check(Case{std::string("setp.ltu.") + t.name + " $p, $a, $b;", "phh",
                   [&](U a, U b, U) { return U{!(t.value(a) >= t.value(b))}; }, 0, 'f'});
        check(Case{std::string("set.ge.u32.") + t.name + " $d, $a, $b;", "whh",
                   [&](U a, U b, U) { return t.value(a) >= t.value(b) ? ~U{0} : 0; }, 0, 'f'});
        continue;
      }
      const U one = t.exponent_bits == 5 ? 0x3c00 : 0x3f80;
      run("set.lt.T.T $d, $a, $b;", 2,
          both([&, one](U a, U b, U) { return t.value(a) < t.value(b) ? one : U{0}; }));
      check(Case{std::string("{ .reg .pred q; setp.lt.") + t.name + "x2 $p|q, $a, $b; xor.pred $p, $p, q; }",
                 "pww", [&](U a, U b, U) {
                   return U{(t.value(a & 0xffff) < t.value(b & 0xffff)) !=
                            (t.value(a >> 16) < t.value(b >> 16))};
                 }});
    }
}

TEST(Forms, FloatExtras) {
  for (const Case& c : std::vector<Case>{
           {"min.f64 $d, $a, $b;", "ddd",
            [](U a, U b, U) {
              const double x = D(a), y = D(b);
              return f64(x == y ? (std::signbit(x) ? x : y) : std::fmin(x, y));
            },
            0, 'f'},
           {"max.f64 $d, $a, $b;", "ddd",
            [](U a, U b, U) {
              const double x = D(a), y = D(b);
              return f64(x == y ? (std::signbit(x) ? y : x) : std::fmax(x, y));
            },
            0, 'f'},
           {"max.f32 $d, $a, $b, $c;", "wwww",
            [](U a, U b, U c) {
              return f32(static_cast<float>(choose<true>(choose<true>(F(a), F(b)), F(c))));
            },
            0, 'f'},
           {"min.f32 $d, $a, $b, $c;", "wwww",
            [](U a, U b, U c) {
              return f32(static_cast<float>(choose<false>(choose<false>(F(a), F(b)), F(c))));
            },
            0, 'f'},
           {"max.xorsign.abs.f32 $d, $a, $b;", "www",
            [](U a, U b, U) {
              const float r = static_cast<float>(choose<true>(std::fabs(F(a)), std::fabs(F(b))));
              return f32(std::signbit(F(a)) != std::signbit(F(b)) ? -r : r);
            },
            0, 'f'},
           {"copysign.f64 $d, $a, $b;", "ddd",
            [](U a, U b, U) { return (a & U{1} << 63) | (b & ~(U{1} << 63)); }, 0, 'f'},
           {"rsqrt.approx.f64 $d, $a;", "dd", [](U a, U, U) { return f64(1 / std::sqrt(D(a))); }, 1e-6, 'f'},
           {"rcp.rn.f64 $d, $a;", "dd", [](U a, U, U) { return f64(1 / D(a)); }, 1e-300, 'f'},
           {"testp.finite.f32 $p, $a;", "pw", [](U a, U, U) { return U{std::isfinite(F(a))}; }, 0, 'f'},
           {"testp.number.f32 $p, $a;", "pw", [](U a, U, U) { return U{F(a) == F(a)}; }, 0, 'f'},
           {"testp.notanumber.f32 $p, $a;", "pw", [](U a, U, U) { return U{F(a) != F(a)}; }, 0, 'f'},
           {"testp.subnormal.f32 $p, $a;", "pw",
            [](U a, U, U) { return U{std::fpclassify(F(a)) == FP_SUBNORMAL}; }, 0, 'f'},
           {"testp.normal.f64 $p, $a;", "pd", [](U a, U, U) { return U{std::isnormal(D(a))}; }, 0, 'f'},
           {"set.le.u32.f64 $d, $a, $b;", "wdd", [](U a, U b, U) { return D(a) <= D(b) ? ~U{0} : 0; }, 0,
            'f'},
           {"slct.f32.f32 $d, $a, $b, $c;", "wwww", [](U a, U b, U c) { return F(c) >= 0 ? a : b; }, 0, 'f'},
           {"{ .reg .pred q; setp.lt.f64 q, $a, $b; selp.f64 $d, $a, $b, q; }", "ddd",
            [](U a, U b, U) { return D(a) < D(b) ? a : b; }, 0, 'f'},
       })
    check(c);
}

// --- every conversion between numbers

struct Number {
  const char* name;
  char letter;  // its register; 8-bit numbers live in 32 bits
  unsigned bits;
  bool is_signed, is_float;
};
constexpr Number kNumbers[] = {
    {"u8", 'w', 8, false, false},   {"s8", 'w', 8, true, false},    {"u16", 'h', 16, false, false},
    {"s16", 'h', 16, true, false},  {"u32", 'w', 32, false, false}, {"s32", 'w', 32, true, false},
    {"u64", 'd', 64, false, false}, {"s64", 'd', 64, true, false},  {"f16", 'h', 16, true, true},
    {"bf16", 'h', 15, true, true},  {"f32", 'w', 32, true, true},   {"f64", 'd', 64, true, true}};

Exact number(const Number& t, U x) {
  if (!t.is_float) return static_cast<Exact>(Integer{"", 'd', t.bits, t.is_signed}.value(x));
  if (t.letter == 'h') return kSmalls[t.bits == 15].value(x);
  return t.bits == 32 ? static_cast<Exact>(F(x)) : static_cast<Exact>(D(x));
}
U integer_bits(const Number& t, I x) {
  const U r = static_cast<U>(Integer{"", 'd', t.bits, t.is_signed}.value(static_cast<U>(x)));
  return t.bits == 8 ? r & 0xffffffff : r;  // extended into its register
}
U converted(const Number& to, Exact x, bool from_float) {
  if (to.is_float) {
    if (to.letter == 'h') return kSmalls[to.bits == 15].nearest(x);
    return to.bits == 32 ? f32(static_cast<float>(x)) : f64(static_cast<double>(x));
  }
  if (!from_float) return integer_bits(to, static_cast<I>(x));
  const I low = to.is_signed ? -(I{1} << (to.bits - 1)) : 0;
  const I top = (I{1} << (to.bits - to.is_signed)) - 1;
  if (x != x) return 0;
  return integer_bits(to, x <= static_cast<Exact>(low)   ? low
                          : x >= static_cast<Exact>(top) ? top
                                                         : static_cast<I>(x));
}

TEST(Forms, EveryConversion) {
  for (const Number& to : kNumbers)
    for (const Number& from : kNumbers) {
      const bool widens = from.is_float && to.is_float &&
                          (to.bits == 64 || (to.bits == 32 && from.letter == 'h')) && to.bits != from.bits;
      const bool same = &to == &from && to.is_float;
      const std::string rounding = !to.is_float && from.is_float ? ".rzi"
                                   : same                        ? ".rni"
                                   : to.is_float && !widens      ? ".rn"
                                                                 : "";
      check(Case{"cvt" + rounding + "." + to.name + "." + from.name + " $d, $a;",
                 std::string{to.letter, from.letter},
                 [&](U a, U, U) {
                   Exact x = number(from, a);
                   if (same && x == x && std::isfinite(static_cast<double>(x))) {
                     const double y = std::nearbyint(static_cast<double>(x));
                     x = y;
                   }
                   return converted(to, x, from.is_float);
                 },
                 from.is_float && to.bits == 64 && to.is_float ? 1e-300 : 0, from.is_float ? 'f' : 'i'});
    }
}

// --- memory

TEST(Forms, NarrowAndWideMemory) {
  struct Row {
    const char* type;
    char letter;
    unsigned bits;
    bool is_signed;
  };
  for (const Row& row : {Row{"u8", 'w', 8, false}, Row{"s8", 'w', 8, true}, Row{"u16", 'h', 16, false},
                         Row{"s16", 'h', 16, true}, Row{"s16", 'w', 16, true}, Row{"u32", 'w', 32, false},
                         Row{"u64", 'd', 64, false}}) {
    const std::string type = row.type;
    const Reference want = [row](U a, U, U) {
      return static_cast<U>(Integer{"", 'd', row.bits, row.is_signed}.value(a));
    };
    const std::string types = {row.letter, row.letter};
    // %rd1 holds the address of the lane's operand, %r3 its thread.
    check(Case{"ld.global." + type + " $d, [%rd1];", types, want});
    check(Case{"st.global." + type + " [%rd1], $a; ld.global." + type + " $d, [%rd1];", types, want});
    check(
        Case{"{ .shared .align 8 .b8 s[768]; .reg .b32 t; mov.u32 t, s; mad.lo.u32 t, %r3, 8, t; st.shared." +
                 type + " [t], $a; ld.shared." + type + " $d, [t]; }",
             types, want});
    check(Case{"{ .local .align 8 .b8 s[8]; .reg .b64 t; mov.u64 t, s; st.local." + type +
                   " [t], $a; ld.local." + type + " $d, [t]; }",
               types, want});
  }
}

// A register that is written once with a parameter stands for it; one that is written twice, or under a
// guard, is loaded. Both must see what the type says, and count as instructions.
TEST(Forms, ParametersOfEveryType) {
  const std::string params =
      ".param .u64 p, .param .s8 a, .param .u8 b, .param .s16 c, .param .u16 d, .param .s32 e, .param .u64 "
      "f, "
      ".param .align 8 .b8 g[16]";
  const auto body = [](const std::string& before, const std::string& guard) {
    std::string s =
        "ld.param.u64 %rd1, [p];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd9, %r1, 64;\n"
        "add.s64 %rd1, %rd1, %rd9;\nsetp.lt.u32 %p1, %r1, 20;\n" +
        before;
    for (const char* load : {"s8 %r2, [a]", "u8 %r3, [b]", "s16 %r4, [c]", "u16 %r5, [d]", "s32 %r6, [e]",
                             "u64 %rd3, [f]", "v2.u32 {%r7, %r8}, [g]", "f64 %rd4, [g+8]"})
      s += guard + "ld.param." + load + ";\n";
    return s +
           "st.global.v4.u32 [%rd1], {%r2, %r3, %r4, %r5};\nst.global.v2.u32 [%rd1+16], {%r6, %r7};\n"
           "st.global.v2.u64 [%rd1+32], {%rd3, %rd4};\nst.global.u32 [%rd1+24], %r8;\n";
  };
  std::string zero;
  for (int k = 2; k <= 8; ++k) zero += "mov.b32 %r" + std::to_string(k) + ", 9;\n";
  zero += "mov.b64 %rd3, 9;\nmov.b64 %rd4, 9;\n";
  for (int way = 0; way < 3; ++way) {
    TestModule m(ptx_header() + ".visible .entry k(" + params +
                 ")\n{\n.reg .pred %p<2>;\n.reg .b32 %r<12>;\n.reg .b64 %rd<10>;\n" +
                 body(way == 0 ? "" : zero, way == 2 ? "@%p1 " : "") + "ret;\n}\n");
    ASSERT_TRUE(m.ok()) << m.error;
    DeviceArray<uint32_t> out(16 * 40);
    Params p;
    p.add(out.address()).add(int8_t{-5}).add(uint8_t{250}).add(int16_t{-300}).add(uint16_t{65000});
    p.add(int32_t{-7}).add(uint64_t{0x123456789abcdef0}).add(uint64_t{0x1111111122222222}).add(2.5);
    Work work;
    const Fault f = m.run("k", {1, 1, 1}, {40, 1, 1}, p, 0, &work);
    ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
    EXPECT_EQ(work.warp_instructions, 2u * (way == 0 ? 18 : 27));
    for (uint32_t t = 0; t < 40; ++t) {
      std::vector<uint32_t> want = {~4u,        250, ~299u,       65000,       ~6u, 0x22222222,
                                    0x11111111, 0,   0x9abcdef0u, 0x12345678u, 0,   0x40040000u};
      if (way == 2 && t >= 20) want = {9, 9, 9, 9, 9, 9, 9, 0, 9, 0, 9, 0};
      EXPECT_EQ(std::vector<uint32_t>(&out[t * 16], &out[t * 16] + 12), want) << way << " " << t;
    }
  }
}

// Compilers lay loops out with their ends first: a register may be read above the one place that writes it.
TEST(Forms, ConstantsReadAboveTheirDefinition) {
  TestModule m(
      ptx_header() +
      ".visible .entry k(.param .u64 p, .param .u32 a)\n{\n.reg .pred %p<2>;\n.reg .b32 %r<12>;\n"
      ".reg .b64 %rd<4>;\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, 0;\nbra START;\nEND:\n"
      "add.u32 %r3, %r4, %r5;\nadd.u32 %r3, %r3, %r6;\nmul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd3, %rd1, "
      "%rd2;\nst.global.u32 [%rd3], %r3;\nbra DONE;\nSTART:\nadd.u32 %r2, %r2, 1;\nmov.u32 %r4, 100;\n"
      "mov.u32 %r5, %ntid.x;\nld.param.u32 %r6, [a];\nld.param.u64 %rd1, [p];\nsetp.lt.u32 %p1, %r2, 3;\n"
      "@%p1 bra START;\nbra END;\nDONE:\nret;\n}\n");
  ASSERT_TRUE(m.ok()) << m.error;
  DeviceArray<uint32_t> out(70);
  const Fault f = m.run("k", {1, 1, 1}, {70, 1, 1}, Params().add(out.address()).add(uint32_t{5}));
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  for (uint32_t t = 0; t < 70; ++t) EXPECT_EQ(out[t], 175u) << t;
}

TEST(Forms, EveryAtomic) {
  struct Row {
    const char* form;
    char letter;
    U (*want)(U memory, U operand);
    char values = 'i';
  };
  for (const Row& row : {
           Row{"add.u32", 'w', [](U m, U x) { return m + x; }},
           Row{"add.u64", 'd', [](U m, U x) { return m + x; }},
           Row{"add.f32", 'w', [](U m, U x) { return f32(ftz(ftz(F(m)) + ftz(F(x)))); }, 'f'},
           Row{"add.f64", 'd', [](U m, U x) { return f64(D(m) + D(x)); }, 'f'},
           Row{"min.s32", 'w', [](U m, U x) { return S(m) < S(x) ? m : x; }},
           Row{"min.u32", 'w', [](U m, U x) { return std::min(m, x); }},
           Row{"min.s64", 'd', [](U m, U x) { return L(m) < L(x) ? m : x; }},
           Row{"max.s32", 'w', [](U m, U x) { return S(m) > S(x) ? m : x; }},
           Row{"max.u64", 'd', [](U m, U x) { return std::max(m, x); }},
           Row{"and.b32", 'w', [](U m, U x) { return m & x; }},
           Row{"or.b64", 'd', [](U m, U x) { return m | x; }},
           Row{"xor.b32", 'w', [](U m, U x) { return m ^ x; }},
           Row{"exch.b64", 'd', [](U, U x) { return x; }},
           Row{"inc.u32", 'w', [](U m, U x) { return m >= x ? 0 : m + 1; }},
           Row{"dec.u32", 'w', [](U m, U x) { return m == 0 || m > x ? x : m - 1; }},
       }) {
    const std::string bits = row.letter == 'd' ? "b64" : "b32", types(3, row.letter);
    const Reference after = [row](U x, U m, U) { return row.want(m, x); };
    const double relative = row.letter == 'd' && row.values == 'f' ? 1e-300 : 0;
    // %rd1 is the address of $b.
    check(Case{std::string("{ .reg .") + bits + " t; atom.global." + row.form + " t, [%rd1], $a; ld.global." +
                   bits + " $d, [%rd1]; }",
               types, after, relative, row.values});
    check(Case{std::string("atom.") + row.form + " $d, [%rd1], $a;", types, [](U, U m, U) { return m; },
               relative, row.values});
    // Both results at once, in shared memory, by addresses of 32 and of 64 bits.
    if (row.values == 'f') continue;  // the sum of two NaNs is either of them
    for (const char* address : {"t", "w"})
      check(Case{std::string("{ .shared .align 8 .b8 s[768]; .reg .b32 t; .reg .b64 w; .reg .") + bits +
                     " old, now; mov.u32 t, s; mad.lo.u32 t, %r3, 8, t; cvt.u64.u32 w, t; st.shared." + bits +
                     " [t], $b; atom.shared." + row.form + " old, [" + address + "], $a; ld.shared." + bits +
                     " now, [t]; xor." + bits + " $d, old, now; }",
                 types, [row](U x, U m, U) { return m ^ row.want(m, x); }, 0, row.values});
  }
  for (const char* space : {"global", "shared"}) {
    // 96 threads at 3 words: each sees another old value, and all of them are there in the end.
    DeviceArray<uint32_t> words(3), seen(96);
    const bool shared = *space == 's';
    TestModule m(
        ptx_header() +
        ".visible .entry k(.param .u64 p, .param .u64 q)\n{\n.reg .pred %p<3>;\n.reg .b32 %r<8>;\n"
        ".reg .b64 %rd<8>;\n.shared .align 4 .b8 s[12];\nld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [q];\n"
        "mov.u32 %r1, %tid.x; rem.u32 %r2, %r1, 3; mul.wide.u32 %rd3, %r2, 4; mul.wide.u32 %rd4, %r1, 4;\n"
        "add.u64 %rd2, %rd2, %rd4; add.u64 %rd5, %rd1, %rd3; mov.u64 %rd6, s; add.u64 %rd6, %rd6, %rd3;\n"
        "st.shared.u32 [%rd6], 0; bar.sync 0;\n" +
        "atom." + space + ".add.u32 %r3, [" + (shared ? "%rd6" : "%rd5") +
        "], 1; st.global.u32 [%rd2], %r3; bar.sync 0;\n" +
        (shared ? "ld.shared.u32 %r4, [%rd6]; st.global.u32 [%rd5], %r4;" : "") + "\nret;\n}\n");
    ASSERT_TRUE(m.ok()) << m.error;
    const Fault f = m.run("k", {1, 1, 1}, {96, 1, 1}, Params().add(words.address()).add(seen.address()));
    ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
    EXPECT_EQ(words.values(), std::vector<uint32_t>(3, 32)) << space;
    std::vector<uint32_t> all = seen.values(), want;
    std::sort(all.begin(), all.end());
    for (uint32_t i = 0; i < 96; ++i) want.push_back(i / 3);
    EXPECT_EQ(all, want) << space;
  }
  // In shared memory additions keep subnormal numbers.
  check(Case{
      "{ .shared .align 4 .b8 s[384]; .reg .b32 t; mov.u32 t, s; mad.lo.u32 t, %r3, 4, t; st.shared.u32 [t], "
      "$b; red.shared.add.f32 [t], $a; ld.shared.u32 $d, [t]; }",
      "www", [](U x, U m, U) { return f32(F(m) + F(x)); }, 0, 'f'});
  check(Case{"{ .reg .b32 t; atom.global.cas.b32 t, [%rd1], 7, $a; ld.global.b32 $d, [%rd1]; }", "www",
             [](U x, U m, U) { return m == 7 ? x : m; }});
}

TEST(Forms, Clocks) {
  const Reference yes = [](U, U, U) { return U{1}; };
  for (const char* clock : {"%clock64", "%globaltimer"})
    check(Case{std::string("{ .reg .b64 t, u; .reg .pred q; mov.u64 t, ") + clock + "; mov.u64 u, " + clock +
                   "; setp.ge.u64 q, u, t; selp.b32 $d, 1, 0, q; }",
               "ww", yes});
  // The halves belong to the whole, read between two readings of it.
  struct Row {
    const char *half, *whole;
    int shift;
  };
  for (const Row& row :
       {Row{"%clock", "%clock64", 0}, Row{"%clock_hi", "%clock64", 32},
        Row{"%globaltimer_lo", "%globaltimer", 0}, Row{"%globaltimer_hi", "%globaltimer", 32}})
    check(Case{std::string("{ .reg .b64 t, u, v; .reg .b32 h, x, y; .reg .pred q; mov.u64 t, ") + row.whole +
                   "; mov.u32 h, " + row.half + "; mov.u64 u, " + row.whole + "; shr.u64 t, t, " +
                   std::to_string(row.shift) + "; shr.u64 u, u, " + std::to_string(row.shift) +
                   "; cvt.u32.u64 x, t; cvt.u32.u64 y, u; sub.u32 y, y, x; sub.u32 x, h, x;"
                   " setp.le.u32 q, x, y; selp.b32 $d, 1, 0, q; }",
               "ww", yes});
}

// --- a whole warp

std::vector<uint32_t> warp(const std::string& body) {
  DeviceArray<uint32_t> out(32);
  TestModule m(
      ptx_header() +
      ".visible .entry k(.param .u64 p)\n{\n.reg .pred %p<8>;\n.reg .b32 %r<16>;\n.reg .b64 %rd<4>;\n"
      ".shared .align 16 .b8 s[512];\nld.param.u64 %rd1, [p];\nmov.u32 %r1, %tid.x;\n"
      "mul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd1, %rd1, %rd2;\n" +
      body + "\nst.global.u32 [%rd1], %r2;\nret;\n}\n");
  EXPECT_TRUE(m.ok()) << m.error;
  const Fault f = m.run("k", {1, 1, 1}, {32, 1, 1}, Params().add(out.address()));
  EXPECT_EQ(f.kind, FaultKind::kNone) << f.text;
  return out.values();
}

TEST(Forms, WarpReductions) {
  const auto all = [](uint32_t x) { return std::vector<uint32_t>(32, x); };
  const std::string input = "xor.b32 %r3, %r1, -20;\n";  // both signs
  int least = INT32_MAX, most = INT32_MIN;
  uint32_t both = ~0u, any = 0, odd = 0;
  for (uint32_t i = 0; i < 32; ++i) {
    const uint32_t x = i ^ static_cast<uint32_t>(-20);
    least = std::min(least, static_cast<int>(x)), most = std::max(most, static_cast<int>(x));
    both &= x, any |= x, odd ^= x;
  }
  EXPECT_EQ(warp(input + "redux.sync.min.s32 %r2, %r3, -1;"), all(static_cast<uint32_t>(least)));
  EXPECT_EQ(warp(input + "redux.sync.max.s32 %r2, %r3, -1;"), all(static_cast<uint32_t>(most)));
  EXPECT_EQ(warp(input + "redux.sync.and.b32 %r2, %r3, -1;"), all(both));
  EXPECT_EQ(warp(input + "redux.sync.or.b32 %r2, %r3, -1;"), all(any));
  EXPECT_EQ(warp(input + "redux.sync.xor.b32 %r2, %r3, -1;"), all(odd));
}

TEST(Forms, WarpVotes) {
  const auto all = [](uint32_t x) { return std::vector<uint32_t>(32, x); };
  const std::string seven = "setp.eq.u32 %p1, %r1, 7;\n", yes = "setp.lt.u32 %p1, %r1, 32;\n",
                    result = "selp.u32 %r2, 1, 0, %p2;";
  EXPECT_EQ(warp(seven + "vote.sync.all.pred %p2, %p1, -1;" + result), all(0));
  EXPECT_EQ(warp(yes + "vote.sync.all.pred %p2, %p1, -1;" + result), all(1));
  EXPECT_EQ(warp(seven + "vote.sync.any.pred %p2, %p1, -1;" + result), all(1));
  EXPECT_EQ(warp(yes + "vote.sync.any.pred %p2, !%p1, -1;" + result), all(0));
  EXPECT_EQ(warp(seven + "vote.sync.uni.pred %p2, %p1, -1;" + result), all(0));
  EXPECT_EQ(warp(yes + "vote.sync.uni.pred %p2, !%p1, -1;" + result), all(1));
  EXPECT_EQ(warp("shr.u32 %r3, %r1, 5; match.all.sync.b32 %r2|%p2, %r3, -1; @!%p2 mov.u32 %r2, 9;"),
            all(~0u));
  EXPECT_EQ(warp("match.all.sync.b32 %r2|%p2, %r1, -1; selp.u32 %r4, 5, 6, %p2; add.u32 %r2, %r2, %r4;"),
            all(6));
}

TEST(Forms, WarpControl) {
  std::vector<uint32_t> first(32), halves(32);
  const auto elected = warp("elect.sync _|%p1, -1; selp.u32 %r2, 1, 0, %p1;");
  EXPECT_EQ(std::count(elected.begin(), elected.end(), 1u), 1);
  for (uint32_t i = 0; i < 32; ++i) halves[i] = i < 16 ? i + 1 : 0;
  EXPECT_EQ(warp("setp.ge.u32 %p1, %r1, 16; @%p1 exit; add.u32 %r2, %r1, 1;"), halves);
  // Through shared memory across lanes, with the warp's own barrier and a pause.
  for (uint32_t i = 0; i < 32; ++i) first[i] = 31 - i;
  EXPECT_EQ(
      warp("mov.u32 %r4, s; mad.lo.u32 %r5, %r1, 4, %r4; st.shared.u32 [%r5], %r1; nanosleep.u32 20;"
           "bar.warp.sync -1; sub.u32 %r6, 31, %r1; mad.lo.u32 %r5, %r6, 4, %r4; ld.shared.u32 %r2, [%r5];"),
      first);
}

// Loads from shared memory in the patterns of tiles: near one another, repeated, in any order, at both ends
// of the memory, by some lanes only, aligned or not.
TEST(Forms, SharedPatterns) {
  struct Pattern {
    uint32_t base, step, wrap;  // word of a lane: base + (lane * step & wrap)
  };
  const std::string fill =
      "mov.u32 %r4, s; mul.lo.u32 %r5, %r1, 16; add.u32 %r5, %r5, %r4; shl.b32 %r6, %r1, 2; add.u32 %r7, "
      "%r6, 1;"
      "add.u32 %r8, %r6, 2; add.u32 %r9, %r6, 3; st.shared.v4.u32 [%r5], {%r6, %r7, %r8, %r9}; bar.warp.sync "
      "-1;\n";
  for (const Pattern& p : {Pattern{0, 1, 15}, Pattern{3, 5, 31}, Pattern{96, 3, 31}, Pattern{64, 7, 63},
                           Pattern{124, 1, 3}, Pattern{0, 4, 127}, Pattern{40, 11, 12}})
    for (unsigned vector : {1u, 2u, 4u})
      for (bool wide : {false, true})
        for (bool some : {false, true}) {
          const uint32_t base = p.base / vector * vector, wrap = p.wrap & ~(vector - 1);
          const std::string address = wide ? "[%rd3]" : "[%r10]", guard = some ? "@%p1 " : "";
          const std::string load = vector == 1   ? "ld.shared.u32 %r2, " + address
                                   : vector == 2 ? "ld.shared.v2.u32 {%r11, %r2}, " + address
                                                 : "ld.shared.v4.u32 {%r11, %r12, %r13, %r2}, " + address;
          SCOPED_TRACE(load + " from " + std::to_string(base));
          const auto got =
              warp(fill + "mul.lo.u32 %r10, %r1, " + std::to_string(p.step) + "; and.b32 %r10, %r10, " +
                   std::to_string(wrap) + "; add.u32 %r10, %r10, " + std::to_string(base) +
                   "; shl.b32 %r10, %r10, 2; add.u32 %r10, %r10, %r4; cvt.u64.u32 %rd3, %r10;"
                   "mov.u32 %r2, 1000; mov.u32 %r3, 0x5a5a5a58; shr.u32 %r3, %r3, %r1; and.b32 %r3, %r3, 1;"
                   "setp.eq.u32 %p1, %r3, 1;\n" +
                   guard + load + ";");
          for (uint32_t lane = 0; lane < 32; ++lane) {
            const bool loads = !some || (0x5a5a5a58u >> lane & 1);
            EXPECT_EQ(got[lane], loads ? base + (lane * p.step & wrap) + vector - 1 : 1000) << lane;
          }
        }
}
TEST(Forms, SharedPatternsKeepToTheMemory) {
  const auto fault = [](const std::string& address) {
    TestModule m(
        ptx_header() +
        ".visible .entry k()\n{\n.reg .b32 %r<8>;\n.shared .align 16 .b8 s[512];\nmov.u32 %r1, %tid.x;\n"
        "mov.u32 %r4, s;\nand.b32 %r2, %r1, 3;\n" +
        address + "ld.shared.u32 %r3, [%r2];\nret;\n}\n");
    EXPECT_TRUE(m.ok()) << m.error;
    return m.run("k", {1, 1, 1}, {32, 1, 1}, Params());
  };
  EXPECT_EQ(fault("mad.lo.u32 %r2, %r2, 4, 496; add.u32 %r2, %r2, %r4;\n").kind, FaultKind::kNone);
  const Fault beyond = fault("mad.lo.u32 %r2, %r2, 4, 500; add.u32 %r2, %r2, %r4;\n");
  EXPECT_EQ(beyond.kind, FaultKind::kIllegalAddress);
  EXPECT_EQ(beyond.thread[0], 3u);
  EXPECT_EQ(fault("mad.lo.u32 %r2, %r2, 4, 18; add.u32 %r2, %r2, %r4;\n").kind,
            FaultKind::kMisalignedAddress);
}

// Sectors of 32 bytes: neighbouring lanes in one sector count once.
TEST(Forms, SectorsOfScatteredLoads) {
  for (uint32_t step : {3u, 8u, 11u, 37u})
    for (uint32_t lanes : {32u, 27u}) {
      DeviceArray<uint32_t> a(64);
      TestModule m(
          ptx_header() +
          ".visible .entry k(.param .u64 p)\n{\n.reg .pred %p<2>;\n.reg .b32 %r<8>;\n.reg .b64 %rd<4>;\n"
          "ld.param.u64 %rd1, [p];\nmov.u32 %r1, %tid.x;\nmul.lo.u32 %r2, %r1, " +
          std::to_string(step) +
          ";\nand.b32 %r2, %r2, 63;\nmul.wide.u32 %rd2, %r2, 4;\nadd.s64 %rd2, %rd2, %rd1;\n"
          "ld.global.u32 %r3, [%rd2];\nret;\n}\n");
      ASSERT_TRUE(m.ok()) << m.error;
      uint64_t want = 0, last = ~uint64_t{0};
      for (uint32_t lane = 0; lane < lanes; ++lane) {
        const uint64_t sector = (a.address() + (lane * step & 63) * 4) / 32;
        want += sector != last ? 32 : 0;
        last = sector;
      }
      for (int round = 0; round < 2; ++round) {  // the second finds the range remembered
        Work work;
        ASSERT_EQ(m.run("k", {2, 1, 1}, {lanes, 1, 1}, Params().add(a.address()), 0, &work).kind,
                  FaultKind::kNone);
        EXPECT_EQ(work.global_bytes, 2 * want) << step << " " << lanes;
      }
    }
}

// A matrix of 8x8 halves: lane i holds the elements 2i and 2i+1 of it in row-major order.
TEST(Forms, MatrixTransposeAndStore) {
  std::vector<uint32_t> transposed(32), rows(32);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const auto at = [](uint32_t e) { return e % 8 * 8 + e / 8; };  // element e of the transposed matrix
    transposed[lane] = at(2 * lane) | at(2 * lane + 1) << 16;
    rows[lane] = 2 * lane | (2 * lane + 1) << 16;
  }
  const std::string make =
      "shl.b32 %r3, %r1, 1; add.u32 %r4, %r3, 1; shl.b32 %r4, %r4, 16; or.b32 %r3, %r3, %r4;\n";
  EXPECT_EQ(warp(make + "movmatrix.sync.aligned.m8n8.trans.b16 %r2, %r3;"), transposed);
  const std::string store = "mov.u32 %r5, s; and.b32 %r6, %r1, 7; mad.lo.u32 %r6, %r6, 16, %r5;\n",
                    load = "bar.warp.sync -1; mad.lo.u32 %r7, %r1, 4, %r5; ld.shared.u32 %r2, [%r7];";
  EXPECT_EQ(warp(make + store + "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r6], {%r3};" + load), rows);
  EXPECT_EQ(warp(make + store + "stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%r6], {%r3};" + load),
            transposed);
}

}  // namespace
}  // namespace tessera::softgpu::exec

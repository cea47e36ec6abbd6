// One instruction against a reference: it is wrapped in a kernel that loads its operands, runs it and stores
// the result, on edge values and random ones. Lanes beyond the data are inactive, so partial masks are
// covered too. Then the same with its operands in the other forms that PTX has for them: see
// operand_forms.cc. The helpers below are for references and share nothing with the interpreter.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>

namespace tessera::softgpu::exec {

using U = uint64_t;
using Reference = std::function<U(U, U, U)>;

// The threads that execute the instruction; the result of the others is kUntouched.
enum class Guard : uint8_t { kNone, kOdd, kEven };
inline constexpr U kUntouched = 77;

struct Case {
  std::string text;   // instruction with $d $a $b $c (and $p, a predicate, for comparisons)
  std::string types;  // of d, a, b, c: one letter each: h 16 bits, w 32, d 64, p a predicate (as d: in $p)
  Reference want;
  double relative = 0;  // > 0: floats may differ by this much
  char values = 'i';    // i integers, f floats of the operand width, s small shift counts in b and c
  size_t unread = 0;    // number of the source that the text does not name; 0: it names all
  Guard guard = Guard::kNone;
};

void check(const Case& c);

// For check() and what makes variants of a case.
enum class Outcome : uint8_t { kRight, kRefused, kWrong };
Outcome outcome_of(const Case& c, std::string* why);
void check_operand_forms(const Case& c);
// A form that did not come out right (`why`): a failure if ptxas accepts the kernel k of the module, which
// needs nothing else of it but c[32], g[32] and s[32] (words in constant, global and shared memory).
void must_be_illegal(const std::string& form, const std::string& why, const std::string& module);
std::string kernel_text(const Case& c);
std::string replace(std::string text, const std::string& what, const std::string& with);
const char* bits_of(char type);

inline float F(U x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x));
}
inline double D(U x) {
  return std::bit_cast<double>(x);
}
inline U f32(float x) {
  return x != x ? 0x7fffffffu : std::bit_cast<uint32_t>(x);
}
inline U f64(double x) {
  return std::bit_cast<U>(x);
}
inline float ftz(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}
inline float sat(float x) {
  return x != x ? 0.0f : x < 0 ? 0.0f : x > 1 ? 1.0f : x == 0 ? 0.0f : x;
}
inline int32_t S(U x) {
  return static_cast<int32_t>(x);
}
inline uint32_t W(U x) {
  return static_cast<uint32_t>(x);
}
inline int64_t L(U x) {
  return static_cast<int64_t>(x);
}
inline int16_t H(U x) {
  return static_cast<int16_t>(x);
}
// binary16 by definition
inline double from_half(U h) {
  const int e = h >> 10 & 31, m = h & 1023;
  const double v = e == 31 ? (m ? NAN : HUGE_VAL) : e ? std::ldexp(1024 + m, e - 25) : std::ldexp(m, -24);
  return h & 0x8000 ? -v : v;
}
// Nearest even by search over all binary16 values: slow and obvious.
inline U to_half(double x) {
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

}  // namespace tessera::softgpu::exec

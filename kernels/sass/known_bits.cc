#include "kernels/sass/known_bits.h"

#include <bit>

#include "kernels/sass/builder.h"

namespace tessera::sass {
namespace {

constexpr unsigned kMostOperations = 24;  // of operations in each other: indices of arrays have less

// Sums and products are known up to the first bit that is unknown in one of both.
Bits known_below(uint32_t value, uint32_t both_known) {
  const int n = std::countr_one(both_known);
  const uint32_t known = n == 32 ? ~uint32_t(0) : (uint32_t(1) << n) - 1;
  return {value & known, known};
}

}  // namespace

Bits KnownBits::of(const Value& value, unsigned depth) {
  Bits sum = Bits::of(0);
  for (const Term& t : value.terms()) {
    Bits product = Bits::of(t.factor);
    for (const uint32_t atom : t.atoms) {
      const Bits b = of_atom(atom, depth);
      if (product.constant() == 0) break;
      // A power of two moves what is known.
      const auto factor = product.constant();
      if (factor && std::has_single_bit(*factor))
        product = {b.value * *factor, b.known * *factor | (*factor - 1)};
      else
        product = known_below(product.value * b.value, product.known & b.known);
    }
    sum = sum.constant() == 0 ? product : known_below(sum.value + product.value, sum.known & product.known);
  }
  return sum;
}

Bits KnownBits::of_atom(uint32_t atom, unsigned depth) {
  const auto [found, is_new] = atoms_.try_emplace(atom);
  if (!is_new || depth > kMostOperations || values_.is_merge(atom)) return found->second;
  Bits bits;
  const auto& operands = values_.operands(atom);
  if (values_.is_logic(atom)) {
    bits = of_logic(atom, depth + 1);
  } else if (const Label& label = values_.label(atom); label[0] == kShiftedRight) {
    const Bits b = of(operands[0], depth + 1);
    const auto n = unsigned(label[1]);
    bits = {b.value >> n, b.known >> n | ~(~uint32_t(0) >> n)};
  } else if (label[0] == kSelect) {
    const auto guard = of(operands[0], depth + 1).constant();
    const Bits x = of(operands[guard == 0 ? 2 : 1], depth + 1), y = guard ? x : of(operands[2], depth + 1);
    bits.known = x.known & y.known & ~(x.value ^ y.value);
    bits.value = x.value & bits.known;
  } else if (label[0] == kBothHold) {
    const auto a = of(operands[0], depth + 1).constant(), b = of(operands[1], depth + 1).constant();
    if (a == 0 || b == 0 || (a && b)) bits = Bits::of(a && b && *a && *b);
  } else if (label == Label{kLogicPredicate, 0} && operands[1].is(0)) {  // whether it is not 0
    const Bits b = of(operands[0], depth + 1);
    if (b.value || b.constant()) bits = Bits::of(b.value != 0);
  } else if (label[0] == kOperation) {
    bits = of_comparison(label, atom, depth + 1);
  }
  return atoms_[atom] = bits;
}

Bits KnownBits::of_logic(uint32_t atom, unsigned depth) {
  const auto& operands = values_.operands(atom);
  Bits in[3], out;
  for (size_t k = 0; k < 3; k++) in[k] = of(operands[k], depth);
  const uint32_t table = values_.table(atom);
  for (unsigned bit = 0; bit < 32; bit++) {
    bool can_be[2] = {};
    for (unsigned entry = 0; entry < 8; entry++) {
      bool fits = true;
      for (unsigned k = 0; k < 3; k++)
        fits = fits && (!(in[k].known >> bit & 1) || (in[k].value >> bit & 1) == (entry >> (2 - k) & 1));
      if (fits) can_be[table >> entry & 1] = true;
    }
    if (can_be[0] == can_be[1]) continue;
    out.known |= uint32_t(1) << bit;
    out.value |= uint32_t(can_be[1]) << bit;
  }
  return out;
}

// ISETP of words.
Bits KnownBits::of_comparison(const Label& label, uint32_t atom, unsigned depth) {
  constexpr uint64_t kCompares = 0x00c, kSigned = 1 << 9;
  constexpr unsigned kHow = 12;
  const auto& operands = values_.operands(atom);
  if (label[1] != kCompares || label[2] || (label[3] & ~(kSigned | uint64_t(7) << kHow)) || label[4] ||
      operands.size() != 3)
    return {};
  const auto a = of(operands[0], depth).constant(), b = of(operands[1], depth).constant();
  if (!a || !b) return {};
  const bool less = label[3] & kSigned ? int32_t(*a) < int32_t(*b) : *a < *b;
  const uint64_t order = less ? 1 : *a == *b ? 2 : 4;  // bits of less, equal, greater
  return Bits::of((label[3] >> kHow & order) != 0);
}

}  // namespace tessera::sass

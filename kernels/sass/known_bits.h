// The bits of a value that are known where some atoms are. Integer functions and comparisons are followed; what any other
// instruction gives is unknown. Private to kernels/sass; pure.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "kernels/sass/values.h"

namespace tessera::sass {

struct Bits {
  uint32_t value = 0, known = 0;  // value: 0 where it is not known

  static Bits of(uint32_t constant) { return {constant, ~uint32_t(0)}; }
  std::optional<uint32_t> constant() const {
    return known == ~uint32_t(0) ? std::optional(value) : std::nullopt;
  }
};

class KnownBits {
 public:
  explicit KnownBits(const Values& values) : values_(values) {}

  void set(uint32_t atom, Bits bits) { atoms_[atom] = bits; }
  Bits of(const Value& value, unsigned depth = 0);

 private:
  Bits of_atom(uint32_t atom, unsigned depth);
  Bits of_logic(uint32_t atom, unsigned depth);
  Bits of_comparison(const Label& label, uint32_t atom, unsigned depth);

  const Values& values_;
  std::unordered_map<uint32_t, Bits> atoms_;
};

}  // namespace tessera::sass

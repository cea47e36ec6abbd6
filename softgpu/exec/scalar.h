// Lane-by-lane handlers: the complete instruction set, the definition of what an operation means. fast.cc has
// vector versions of the common ones. Stateless.
#pragma once

#include <bit>
#include <type_traits>

#include "softgpu/exec/machine.h"

namespace tessera::softgpu::exec {

// Null if the operation does not exist for the type.
Handler scalar_handler(Operation operation, Ty type);
// Scalar conversion between any two types of Op::type2 -> Op::type; rounding in sub.
const Op* convert_any(Warp& w, const Op* op);
// The handler in Op::target (a vector one) in the rounding mode of Op::sub.
const Op* op_rounded(Warp& w, const Op* op);

namespace lane {

// A 16-bit float in a lane; distinct types so that handlers can be written per type.
struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

template <class T>
using Stored = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <class T>
inline T get(Warp& w, uint32_t operand, unsigned i) {
  const Stored<T> s = at<Stored<T>>(w, operand)[i];
  if constexpr (std::is_floating_point_v<T>)
    return std::bit_cast<T>(s);
  else if constexpr (std::is_integral_v<T>)
    return static_cast<T>(s);
  else
    return T{static_cast<uint16_t>(s)};
}
template <class T>
inline void put(Warp& w, uint32_t operand, unsigned i, T value) {
  Stored<T>& s = at<Stored<T>>(w, operand)[i];
  if constexpr (std::is_floating_point_v<T>)
    s = std::bit_cast<Stored<T>>(value);
  else if constexpr (std::is_integral_v<T>)
    s = static_cast<Stored<T>>(value);
  else
    s = value.bits;
}

template <class F>
inline const Op* each(Warp& w, const Op* op, F f) {
  for (Mask left = w.mask; left; left &= left - 1) f(static_cast<unsigned>(std::countr_zero(left)));
  return op + 1;
}

}  // namespace lane
}  // namespace tessera::softgpu::exec

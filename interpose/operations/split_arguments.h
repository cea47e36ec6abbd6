// The arguments of one call of a library, and calling it again with some of them replaced. Templates over the exact signature:
// nothing is cast but pointers to numbers and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>

#include "interpose/operations/split.h"

namespace tessera::library {

template <class T>
uint64_t as_number(T argument) {
  if constexpr (std::is_pointer_v<T>)
    return reinterpret_cast<uint64_t>(argument);
  else
    return static_cast<uint64_t>(argument);
}

template <class To>
To as_argument(uint64_t number) {
  if constexpr (std::is_pointer_v<To>)
    return reinterpret_cast<To>(number);
  else
    return static_cast<To>(number);
}

// By the places of arguments, those of `values` (Repeater::issue) one after the other. Lives as long as the call.
template <class Function, class Arguments, size_t... kPlaces>
class PieceCall {
 public:
  PieceCall(Function* function, const Arguments& arguments) : function_(function), arguments_(arguments) {}
  Repeater repeater() const { return {&issue, this}; }

 private:
  static int issue(const void* context, const uint64_t* values) {
    const auto& self = *static_cast<const PieceCall*>(context);
    if (!values) return std::apply(self.function_, self.arguments_);
    Arguments changed = self.arguments_;
    ((std::get<kPlaces>(changed) = as_argument<std::tuple_element_t<kPlaces, Arguments>>(*values++)), ...);
    return std::apply(self.function_, changed);
  }

  Function* const function_;
  const Arguments& arguments_;
};

}  // namespace tessera::library

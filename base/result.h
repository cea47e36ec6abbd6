// A value or an error, without exceptions. The error says what went wrong and, in its text, what the
// reader can do about it. Used by every module; allocation-free unless the text is.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace tessera::base {

// Coarse reason, for code that must branch on it; the text is for people.
enum class Code : int {
  kInvalid = 1,  // malformed input or argument
  kNotFound,     // file, symbol, process or entry does not exist
  kUnsupported,  // well-formed, but outside what we do
  kPermission,   // refused by the kernel or by configuration
  kUnavailable,  // peer absent or gone; trying later may help
  kVersion,      // peers do not speak a common version
  kExhausted,    // a bound was reached
  kInternal,     // our own invariant broke
};

struct Error {
  Code code = Code::kInternal;
  std::string text;  // one line, no trailing full stop or newline
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit by design
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit by design

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & { return *std::get_if<0>(&state_); }
  const T& value() const& { return *std::get_if<0>(&state_); }
  T&& value() && { return std::move(*std::get_if<0>(&state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return std::get_if<0>(&state_); }
  const T* operator->() const { return std::get_if<0>(&state_); }
  const Error& error() const { return *std::get_if<1>(&state_); }

 private:
  std::variant<T, Error> state_;
};

// Result without a value: `Status s = f(); if (!s.ok()) ...`.
struct Unit {};
using Status = Result<Unit>;
inline Status ok() {
  return Status(Unit{});
}
inline Error error(Code code, std::string text) {
  return Error{code, std::move(text)};
}

}  // namespace tessera::base

// toml++ as everybody here must include it: a bad file is an error with its place, never the end of the
// process. Included by those who read TOML files. Any thread, no state.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>

// One mode for the whole program: toml++ 3.3 shares classes between its two modes whose layouts differ.
#define TOML_EXCEPTIONS 0
// toml++ 3.3 asserts on input like "[)a]" where its release build goes on to report the error.
#define TOML_ASSERT(condition) static_cast<void>(0)
#include <toml++/toml.h>

namespace tessera::base {

struct TextPlace {
  size_t line, column;  // from 1, in bytes
};

// toml++ 3.3 has undefined behaviour on some characters outside ASCII where a key should be: look for one
// before parsing, and refuse it.
inline std::optional<TextPlace> first_outside_ascii(std::string_view text) {
  const auto odd = std::find_if(text.begin(), text.end(), [](char c) { return (c & 0x80) != 0; });
  if (odd == text.end()) return std::nullopt;
  const size_t at = size_t(odd - text.begin()), line_begin = text.rfind('\n', at) + 1;  // npos + 1 is 0
  return TextPlace{1 + size_t(std::count(text.begin(), odd, '\n')), at - line_begin + 1};
}

}  // namespace tessera::base

// Text of somebody else (a program's name, a kernel's) as it may stand on a terminal, in a log line, in a
// label: printable ASCII stays, every other byte becomes \xNN, so that no text moves a cursor, ends a line or
// looks like another. What is printable stays as it is when it passes twice. Any thread.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace tessera::base {

constexpr bool is_printable(char c) {
  return c >= 0x20 && c < 0x7f;
}
inline bool is_printable(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return is_printable(c); });
}

// Calls put(char) for each character of the text as it may be shown. Allocates nothing.
template <class Put>
constexpr void put_printable(std::string_view text_untrusted, Put&& put) {
  constexpr char kDigits[] = "0123456789abcdef";
  for (const char c : text_untrusted) {
    if (is_printable(c)) {
      put(c);
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    for (const char escaped : {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]}) put(escaped);
  }
}

inline std::string printable(std::string_view text_untrusted) {
  std::string out;
  put_printable(text_untrusted, [&](char c) { out += c; });
  return out;
}

}  // namespace tessera::base

// Cuts PTX text into tokens. Used by parser.cc only. Tokens are views into the text; nothing is allocated.
// `ld.global.u32` is an identifier and two dot names; `shared::cta` after a dot is one dot name.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/ptx/ir.h"

namespace tessera::ptx {

enum class TokenKind : uint8_t {
  kEnd,
  kIdentifier,   // name, %name, $name, _
  kDotName,      // .name, text includes the dot
  kInteger,      // 12, 0x1F, 0b1, 017, with optional U; without sign
  kFloat,        // 0fXXXXXXXX, 0dXXXXXXXXXXXXXXXX, 1.5, 1e-3
  kString,       // "..." with its quotes
  kPunctuation,  // one character (two for << >> && || == != <= >=): first in `mark`
  kBad,          // a character or literal that PTX does not have
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  char mark = 0;  // kPunctuation of one character: it; else 0
  std::string_view text;
  Location at;

  bool is(char c) const { return mark == c; }
  const char* begin() const { return text.data(); }
  const char* end() const { return text.data() + text.size(); }
};

class Lexer {
 public:
  explicit Lexer(std::string_view text) : p_(text.data()), end_(text.data() + text.size()), line_start_(p_) {}
  Token next();

 private:
  bool skip_blank();  // false: a comment without end
  Token make(TokenKind kind, const char* begin) const;
  Token number();

  const char* p_;
  const char* end_;
  const char* line_start_;
  uint32_t line_ = 1;
};

}  // namespace tessera::ptx

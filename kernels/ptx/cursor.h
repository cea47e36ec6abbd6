// One token of look-ahead over a Lexer, with the first error kept. Shared by parser.cc and expression.cc.
#pragma once

#include <string>
#include <string_view>

#include "kernels/ptx/lexer.h"

namespace tessera::ptx {

struct Cursor {
  explicit Cursor(std::string_view text) : lexer(text) { advance(); }

  Lexer lexer;
  Token now;
  const char* last_end = nullptr;  // end of the token before `now`
  std::string error;               // "line:column: ..."; first one wins

  void advance() {
    last_end = now.end();
    now = lexer.next();
  }
  bool take(char mark) {
    if (!now.is(mark)) return false;
    advance();
    return true;
  }
  bool fail(std::string_view expected) {  // always false
    if (error.empty()) {
      error = std::to_string(now.at.line) + ":" + std::to_string(now.at.column) + ": expected ";
      error += expected;
      error += ", found ";
      if (now.kind == TokenKind::kEnd) {
        error += "the end of the text";
      } else {
        error += "'";
        for (char c : now.text.substr(0, 40)) error += (c >= ' ' && c < 127) ? c : '?';
        error += "'";
      }
    }
    return false;
  }
  bool expect(char mark, std::string_view what) { return take(mark) || fail(what); }
  std::string_view since(const char* begin) const {  // text from begin to the end of the last token taken
    return {begin, static_cast<size_t>(last_end - begin)};
  }
};

}  // namespace tessera::ptx

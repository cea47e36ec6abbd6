#include "kernels/ptx/lexer.h"

#include <array>

namespace tessera::ptx {
namespace {

enum : uint8_t { kStart = 1, kFollow = 2, kDigit = 4, kHex = 8, kBlank = 16 };

constexpr std::array<uint8_t, 256> make_classes() {
  std::array<uint8_t, 256> c{};
  for (int i = 'a'; i <= 'z'; ++i) c[i] = c[i - 32] = kStart | kFollow;
  for (int i = '0'; i <= '9'; ++i) c[i] = kDigit | kFollow | kHex;
  for (int i = 'a'; i <= 'f'; ++i) {
    c[i] |= kHex;
    c[i - 32] |= kHex;
  }
  c['_'] = c['$'] = kStart | kFollow;
  c['%'] = kStart;
  for (char b : {' ', '\t', '\r', '\v', '\f'}) c[static_cast<uint8_t>(b)] = kBlank;
  return c;
}
constexpr auto kClass = make_classes();
inline bool is(char c, uint8_t cls) {
  return kClass[static_cast<uint8_t>(c)] & cls;
}

}  // namespace

Token Lexer::make(TokenKind kind, const char* begin) const {
  Token t;
  t.kind = kind;
  t.text = std::string_view(begin, static_cast<size_t>(p_ - begin));
  t.at = {line_, static_cast<uint32_t>(begin - line_start_) + 1};
  return t;
}

bool Lexer::skip_blank() {
  while (p_ < end_) {
    char c = *p_;
    if (c == '\n') {
      line_start_ = ++p_;
      ++line_;
    } else if (is(c, kBlank)) {
      ++p_;
    } else if (c == '/' && p_ + 1 < end_ && p_[1] == '/') {
      while (p_ < end_ && *p_ != '\n') ++p_;
    } else if (c == '/' && p_ + 1 < end_ && p_[1] == '*') {
      const char* q = p_ + 2;
      while (q + 1 < end_ && !(q[0] == '*' && q[1] == '/')) {
        if (*q == '\n') {
          ++line_;
          line_start_ = q + 1;
        }
        ++q;
      }
      if (q + 1 >= end_) return false;
      p_ = q + 2;
    } else if (c == '#' && p_ == line_start_) {  // line markers of a preprocessor, PTX ISA 4.1
      while (p_ < end_ && *p_ != '\n') ++p_;
    } else {
      break;
    }
  }
  return true;
}

Token Lexer::number() {
  const char* begin = p_;
  auto run = [&](uint8_t cls) {
    const char* from = p_;
    while (p_ < end_ && is(*p_, cls)) ++p_;
    return p_ - from;
  };
  TokenKind kind = TokenKind::kInteger;
  char second = p_ + 1 < end_ ? static_cast<char>(p_[1] | 0x20) : 0;
  if (*p_ == '0' && (second == 'f' || second == 'd')) {
    p_ += 2;
    bool whole = run(kHex) == (second == 'f' ? 8 : 16);
    kind = whole ? TokenKind::kFloat : TokenKind::kBad;
  } else if (*p_ == '0' && (second == 'x' || second == 'b')) {
    p_ += 2;
    kind = run(kHex) > 0 ? TokenKind::kInteger : TokenKind::kBad;
    if (p_ < end_ && *p_ == 'U') ++p_;
  } else {
    run(kDigit);
    if (p_ < end_ && *p_ == '.') {
      kind = TokenKind::kFloat;
      ++p_;
      run(kDigit);
    }
    if (p_ < end_ && (*p_ | 0x20) == 'e') {
      kind = TokenKind::kFloat;
      ++p_;
      if (p_ < end_ && (*p_ == '+' || *p_ == '-')) ++p_;
      if (run(kDigit) == 0) kind = TokenKind::kBad;
    }
    if (kind == TokenKind::kInteger && p_ < end_ && *p_ == 'U') ++p_;
  }
  if (p_ < end_ && is(*p_, kFollow)) {  // 12abc
    run(kFollow);
    kind = TokenKind::kBad;
  }
  return make(kind, begin);
}

Token Lexer::next() {
  if (!skip_blank()) {
    const char* begin = p_;
    p_ = end_;
    Token t = make(TokenKind::kBad, begin);
    t.text = t.text.substr(0, 2);
    return t;
  }
  if (p_ >= end_) return make(TokenKind::kEnd, p_);
  const char* begin = p_;
  char c = *p_;
  if (is(c, kStart)) {
    ++p_;
    while (p_ < end_ && is(*p_, kFollow)) ++p_;
    // A lone '%' is the remainder operator of constant expressions.
    if (c == '%' && p_ == begin + 1) {
      Token t = make(TokenKind::kPunctuation, begin);
      t.mark = '%';
      return t;
    }
    return make(TokenKind::kIdentifier, begin);
  }
  if (is(c, kDigit)) return number();
  if (c == '.' && p_ + 1 < end_ && is(p_[1], kFollow)) {
    p_ += 2;
    while (p_ < end_)
      if (is(*p_, kFollow))
        ++p_;
      else if (*p_ == ':' && p_ + 2 < end_ && p_[1] == ':' && is(p_[2], kFollow))
        p_ += 3;
      else
        break;
    return make(TokenKind::kDotName, begin);
  }
  if (c == '"') {
    ++p_;
    while (p_ < end_ && *p_ != '"' && *p_ != '\n')
      p_ += (*p_ == '\\' && p_ + 1 < end_ && p_[1] != '\n') ? 2 : 1;
    if (p_ >= end_ || *p_ != '"') return make(TokenKind::kBad, begin);
    ++p_;
    return make(TokenKind::kString, begin);
  }
  ++p_;
  if (p_ < end_ && *p_ == c && (c == '<' || c == '>' || c == '&' || c == '|' || c == '=' || c == '@')) {
    ++p_;
    return make(TokenKind::kPunctuation, begin);
  }
  if (p_ < end_ && *p_ == '=' && (c == '<' || c == '>' || c == '!')) {
    ++p_;
    return make(TokenKind::kPunctuation, begin);
  }
  constexpr std::string_view kMarks = "{}[]()<>,;:|@!+-*/=&^~?.";
  if (kMarks.find(c) == std::string_view::npos) return make(TokenKind::kBad, begin);
  Token t = make(TokenKind::kPunctuation, begin);
  t.mark = c;
  return t;
}

}  // namespace tessera::ptx

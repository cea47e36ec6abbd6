#include "kernels/ptx/expression.h"

#include <bit>
#include <charconv>

namespace tessera::ptx {
namespace {

constexpr int kMaxDepth = 64;

struct BinaryRow {
  std::string_view text;
  int precedence;  // higher binds tighter
};
constexpr BinaryRow kBinary[] = {
    {"||", 1}, {"&&", 2}, {"|", 3},  {"^", 4},  {"&", 5}, {"==", 6}, {"!=", 6}, {"<", 7},  {">", 7},
    {"<=", 7}, {">=", 7}, {"<<", 8}, {">>", 8}, {"+", 9}, {"-", 9},  {"*", 10}, {"/", 10}, {"%", 10},
};

int precedence_of(const Token& token) {
  if (token.kind == TokenKind::kPunctuation) {
    for (const BinaryRow& row : kBinary)
      if (row.text == token.text) return row.precedence;
  }
  return 0;
}

Constant apply(std::string_view op, Constant a, Constant b) {
  Constant r;
  r.known = a.known && b.known;
  r.is_unsigned = a.is_unsigned || b.is_unsigned;
  const uint64_t x = a.bits, y = b.bits;
  const auto sx = static_cast<int64_t>(x), sy = static_cast<int64_t>(y);
  const bool u = r.is_unsigned;
  auto truth = [&](bool value) {
    r.bits = value;
    r.is_unsigned = false;
  };
  if (op == "+") {
    r.bits = x + y;
  } else if (op == "-") {
    r.bits = x - y;
  } else if (op == "*") {
    r.bits = x * y;
  } else if (op == "/" || op == "%") {
    bool quotient = op == "/";
    if (y == 0 || (!u && sx == INT64_MIN && sy == -1))
      r.known = false;
    else if (u)
      r.bits = quotient ? x / y : x % y;
    else
      r.bits = static_cast<uint64_t>(quotient ? sx / sy : sx % sy);
  } else if (op == "<<" || op == ">>") {
    r.is_unsigned = a.is_unsigned;
    if (y > 63)
      r.bits = op == ">>" && !a.is_unsigned && sx < 0 ? ~uint64_t{0} : 0;
    else if (op == "<<")
      r.bits = x << y;
    else
      r.bits = a.is_unsigned ? x >> y : static_cast<uint64_t>(sx >> y);
  } else if (op == "&") {
    r.bits = x & y;
  } else if (op == "|") {
    r.bits = x | y;
  } else if (op == "^") {
    r.bits = x ^ y;
  } else if (op == "&&") {
    truth(x && y);
  } else if (op == "||") {
    truth(x || y);
  } else if (op == "==") {
    truth(x == y);
  } else if (op == "!=") {
    truth(x != y);
  } else if (op == "<") {
    truth(u ? x < y : sx < sy);
  } else if (op == ">") {
    truth(u ? x > y : sx > sy);
  } else if (op == "<=") {
    truth(u ? x <= y : sx <= sy);
  } else if (op == ">=") {
    truth(u ? x >= y : sx >= sy);
  } else {
    r.known = false;
  }
  return r;
}

bool ternary(Cursor& c, Constant* value, int depth);

bool unary(Cursor& c, Constant* value, int depth) {
  if (depth > kMaxDepth) return c.fail("a constant expression that is nested less deeply");
  if (c.take('-')) {
    if (!unary(c, value, depth + 1)) return false;
    value->bits = -value->bits;
    return true;
  }
  if (c.take('+')) return unary(c, value, depth + 1);
  if (c.take('~') || c.take('!')) {
    bool logical = *(c.last_end - 1) == '!';
    if (!unary(c, value, depth + 1)) return false;
    value->bits = logical ? uint64_t{value->bits == 0} : ~value->bits;
    return true;
  }
  if (c.take('(')) {
    if (c.now.kind == TokenKind::kDotName) {  // (.s64) or (.u64) cast
      bool is_unsigned = c.now.text == ".u64";
      if (!is_unsigned && c.now.text != ".s64") return c.fail("the cast .s64 or .u64");
      c.advance();
      if (!c.expect(')', "')' after the cast") || !unary(c, value, depth + 1)) return false;
      value->is_unsigned = is_unsigned;
      return true;
    }
    return ternary(c, value, depth + 1) && c.expect(')', "')'");
  }
  if (c.now.kind == TokenKind::kInteger) {
    if (!integer_value(c.now.text, value)) return c.fail("an integer of at most 64 bits");
    c.advance();
    return true;
  }
  *value = {};
  if (c.now.kind == TokenKind::kFloat) {
    c.advance();
    return true;
  }
  if (c.now.kind == TokenKind::kIdentifier) {
    if (c.now.text == "WARP_SZ") *value = {32, false, true};
    c.advance();
    if (c.take('('))  // generic(x), mask(...)
      return ternary(c, value, depth + 1) && (value->known = false, c.expect(')', "')'"));
    return true;
  }
  return c.fail("a constant");
}

bool binary(Cursor& c, Constant* value, int least, int depth) {
  if (!unary(c, value, depth)) return false;
  for (;;) {
    int precedence = precedence_of(c.now);
    if (precedence == 0 || precedence < least) return true;
    std::string_view op = c.now.text;
    c.advance();
    Constant right;
    if (!binary(c, &right, precedence + 1, depth + 1)) return false;
    *value = apply(op, *value, right);
  }
}

bool ternary(Cursor& c, Constant* value, int depth) {
  if (!binary(c, value, 1, depth)) return false;
  if (!c.take('?')) return true;
  Constant yes, no;
  if (!ternary(c, &yes, depth + 1) || !c.expect(':', "':' of '?:'") || !ternary(c, &no, depth + 1))
    return false;
  bool known = value->known && yes.known && no.known;
  *value = value->bits ? yes : no;
  value->known = known;
  return true;
}

}  // namespace

bool constant_expression(Cursor& cursor, Constant* value) {
  return ternary(cursor, value, 0);
}

bool integer_value(std::string_view text, Constant* value) {
  *value = {0, false, true};
  if (!text.empty() && text.back() == 'U') {
    value->is_unsigned = true;
    text.remove_suffix(1);
  }
  int base = 10;
  if (text.size() > 2 && text[0] == '0' && (text[1] | 0x20) == 'x')
    base = 16;
  else if (text.size() > 2 && text[0] == '0' && (text[1] | 0x20) == 'b')
    base = 2;
  else if (text.size() > 1 && text[0] == '0')
    base = 8;
  text.remove_prefix(base == 16 || base == 2 ? 2 : base == 8 ? 1 : 0);
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value->bits, base);
  if (code != std::errc{} || end != text.data() + text.size()) return false;
  value->is_unsigned |= value->bits > static_cast<uint64_t>(INT64_MAX);
  return true;
}

bool float_value(std::string_view text, uint64_t* bits, bool* is_f64) {
  char second = text.size() > 1 ? static_cast<char>(text[1] | 0x20) : 0;
  if (text[0] == '0' && (second == 'f' || second == 'd')) {
    *is_f64 = second == 'd';
    auto [end, code] = std::from_chars(text.data() + 2, text.data() + text.size(), *bits, 16);
    return code == std::errc{} && end == text.data() + text.size();
  }
  double value = 0;
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  *is_f64 = true;
  *bits = std::bit_cast<uint64_t>(value);
  return (code == std::errc{} || code == std::errc::result_out_of_range) && end == text.data() + text.size();
}

}  // namespace tessera::ptx

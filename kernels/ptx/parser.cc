#include "kernels/ptx/parser.h"

#include <array>
#include <iterator>
#include <utility>

#include "kernels/ptx/cursor.h"
#include "kernels/ptx/expression.h"
#include "kernels/ptx/scope.h"
#include "kernels/ptx/subscript.h"

namespace tessera::ptx {
namespace {

constexpr unsigned kMaxScopeDepth = 200;    // nested { } of hostile text must not exhaust the stack
constexpr unsigned kMaxOperandDepth = 16;   // {..}, (..), [..] inside each other
constexpr uint64_t kMaxLabelRange = 65536;  // .branchtargets L<N>

constexpr std::pair<Name, Space> kSpaces[] = {
    {".reg", Space::kReg},     {".param", Space::kParam},   {".shared", Space::kShared},
    {".local", Space::kLocal}, {".global", Space::kGlobal}, {".const", Space::kConst},
    {".sreg", Space::kSreg},   {".tex", Space::kTex},
};
constexpr Name kLinkages[] = {".visible", ".extern", ".weak", ".common"};

Space space_from(Name name) {
  for (const auto& [text, space] : kSpaces)
    if (text == name) return space;
  return Space::kNone;
}

class Parser {
 public:
  Parser(Module& module, std::string_view text) : module_(module), c_(text) {}

  bool run() {
    if (!header()) return false;
    while (c_.now.kind != TokenKind::kEnd)
      if (!top_level()) return false;
    return true;
  }
  std::string take_error() { return std::move(c_.error); }

 private:
  // --- small pieces ----------------------------------------------------------------------------------------
  bool at_dot(Name name) const { return c_.now.kind == TokenKind::kDotName && c_.now.text == name; }
  bool take_dot(Name name) {
    if (!at_dot(name)) return false;
    c_.advance();
    return true;
  }
  bool identifier(Name* name, std::string_view what) {
    if (c_.now.kind != TokenKind::kIdentifier) return c_.fail(what);
    *name = c_.now.text;
    c_.advance();
    return true;
  }
  bool integer(uint64_t* value, std::string_view what) {
    Constant constant;
    if (c_.now.kind != TokenKind::kInteger || !integer_value(c_.now.text, &constant)) return c_.fail(what);
    *value = constant.bits;
    c_.advance();
    return true;
  }
  bool small_integer(uint32_t* value, std::string_view what) {
    uint64_t wide = 0;
    Token before = c_.now;
    if (!integer(&wide, what)) return false;
    if (wide > UINT32_MAX) {
      c_.now = before;
      return c_.fail(what);
    }
    *value = static_cast<uint32_t>(wide);
    return true;
  }
  bool bad() const { return c_.now.kind == TokenKind::kEnd || c_.now.kind == TokenKind::kBad; }

  // Takes everything up to `stop` (or ',' if `comma`) outside brackets; the stop is not taken.
  bool raw_until(char stop, bool comma, std::string_view what) {
    int depth = 0;
    while (!bad()) {
      char m = c_.now.mark;
      if (depth == 0 && (m == stop || (comma && m == ','))) return true;
      depth += (m == '(' || m == '{' || m == '[') - (m == ')' || m == '}' || m == ']');
      if (depth < 0) break;
      c_.advance();
    }
    return c_.fail(what);
  }
  bool raw_statement(Name* text, const char* begin, std::string_view what) {  // up to and with ';'
    if (!raw_until(';', false, what)) return false;
    c_.advance();
    *text = c_.since(begin);
    return true;
  }
  void append_attribute(Name* attributes, Name text) {
    *attributes =
        attributes->empty() ? text : module_.keep(std::string(*attributes) + " " + std::string(text));
  }
  bool parenthesised() {
    return c_.expect('(', "'('") && raw_until(')', false, "')'") && c_.expect(')', "')'");
  }

  // --- module ----------------------------------------------------------------------------------------------
  bool header();
  bool top_level();
  bool target_list();
  bool raw_item(const char* begin);
  bool file_directive();
  bool loc_directive();
  bool section();
  bool dwarf_line();

  // --- declarations ----------------------------------------------------------------------------------------
  bool variable_type(Variable* variable);
  bool declarator(Variable* variable);
  bool initializer(Variable* variable);
  template <class Sink>
  bool variables(Name linkage, Location at, Sink sink);
  bool parameters(std::vector<Variable>* list);

  // --- functions -------------------------------------------------------------------------------------------
  bool function(Name linkage, Location at);
  bool function_directive(Function* f);
  bool statements(std::vector<Statement>* list, unsigned depth);
  bool statement(std::vector<Statement>* list, unsigned depth);
  bool directive_statement(std::vector<Statement>* list);
  bool prototype(Statement* s);
  bool target_names(std::vector<Name>* names);
  bool instruction(Statement* s);

  // --- operands --------------------------------------------------------------------------------------------
  bool comma_separated(List<Operand>* list, bool is_call, unsigned depth, size_t n_before);
  void take_pending(List<Operand>* list, size_t base);
  bool operand_list(List<Operand>* list, char close, std::string_view what, unsigned depth);
  bool operand(Operand* o, bool is_call, unsigned depth);
  bool single(Operand* o, bool is_call, unsigned depth);
  bool constant(Operand* o);
  bool named(Operand* o);
  bool offset(Operand* o);
  bool subscript(Name array);
  bool bracket(Operand* o, unsigned depth);
  Statement& add(std::vector<Statement>* list, Statement::Kind kind) {
    Statement& s = list->emplace_back();
    s.kind = kind;
    return s;
  }
  List<Name> modifiers();

  Module& module_;
  Cursor c_;
  Scopes scopes_;
  std::vector<Operand> pending_;  // operands of the instruction being read, so that lists are sized exactly
  Subscript subscript_;           // of the instruction being read
  std::vector<Name> modifiers_;
  struct Recent {
    Name text;
    List<Name> list;
  };
  std::array<Recent, 256> recent_modifiers_;  // a module has few sets of them: instructions share the lists
};

bool Parser::header() {
  if (!take_dot(".version")) return c_.fail("'.version' (the text must begin with .version MAJOR.MINOR)");
  Name version = c_.now.text;
  size_t dot = version.find('.');
  uint64_t major = 0, minor = 0;
  Constant part;
  bool good = c_.now.kind == TokenKind::kFloat && dot != Name::npos;
  good = good && integer_value(version.substr(0, dot), &part) && (major = part.bits, true);
  good = good && integer_value(version.substr(dot + 1), &part) && (minor = part.bits, true);
  if (!good || major > 1000 || minor > 1000) return c_.fail("a PTX version such as 9.0");
  module_.version_major = static_cast<unsigned>(major);
  module_.version_minor = static_cast<unsigned>(minor);
  c_.advance();
  if (!at_dot(".target")) return c_.fail("'.target' after .version");
  c_.advance();
  if (!target_list()) return false;
  if (take_dot(".address_size")) {
    uint64_t bits = 0;
    Token before = c_.now;
    if (!integer(&bits, "32 or 64")) return false;
    if (bits != 32 && bits != 64) {
      c_.now = before;
      return c_.fail("32 or 64");
    }
    module_.address_bits = static_cast<unsigned>(bits);
  }
  return true;
}

bool Parser::target_list() {
  do {
    Name name;
    if (!identifier(&name, "a target such as sm_90")) return false;
    module_.target.push_back(name);
  } while (c_.take(','));
  return true;
}

bool Parser::raw_item(const char* begin) {
  Item& item = module_.items.emplace_back();
  item.kind = Item::Kind::kRaw;
  item.text = c_.since(begin);
  return true;
}

bool Parser::file_directive() {
  uint64_t ignored = 0;
  c_.advance();
  if (!integer(&ignored, "a file number")) return false;
  if (c_.now.kind != TokenKind::kString) return c_.fail("a file name in quotes");
  c_.advance();
  while (c_.take(','))
    if (!integer(&ignored, "a time stamp or size")) return false;
  return true;
}

bool Parser::loc_directive() {  // .loc f l c [, function_name label [+ n]] [, inlined_at f l c]
  uint64_t ignored = 0;
  c_.advance();
  for (int i = 0; i < 3; ++i)
    if (!integer(&ignored, "three numbers after .loc")) return false;
  while (c_.take(',')) {
    Name word, label;
    if (!identifier(&word, "function_name or inlined_at")) return false;
    if (word == "function_name") {
      if (!identifier(&label, "a label")) return false;
      if (c_.take('+') && !integer(&ignored, "an offset")) return false;
    } else {
      for (int i = 0; i < 3; ++i)
        if (!integer(&ignored, "three numbers after inlined_at")) return false;
    }
  }
  return true;
}

bool Parser::section() {
  c_.advance();
  if (c_.now.kind != TokenKind::kDotName && c_.now.kind != TokenKind::kIdentifier)
    return c_.fail("a section name");
  c_.advance();
  return c_.expect('{', "'{' after the section name") &&
         raw_until('}', false, "'}' at the end of the section") && c_.expect('}', "'}'");
}

bool Parser::dwarf_line() {  // @@DWARF ... to the end of the line
  uint32_t line = c_.now.at.line;
  while (!bad() && c_.now.at.line == line) c_.advance();
  return true;
}

bool Parser::top_level() {
  Location at = c_.now.at;
  const char* begin = c_.now.begin();
  if (c_.now.kind == TokenKind::kPunctuation && c_.now.text == "@@") return dwarf_line() && raw_item(begin);
  if (c_.take(';')) return true;
  if (c_.now.kind != TokenKind::kDotName) return c_.fail("a directive (.entry, .func, .global, ...)");
  Name linkage;
  for (bool more = true; more;) {
    more = false;
    for (Name name : kLinkages) {
      if (at_dot(name)) {
        linkage = linkage.empty() || linkage == name
                      ? name
                      : module_.keep(std::string(linkage) + " " + std::string(name));
        c_.advance();
        more = true;
      }
    }
  }
  if (at_dot(".entry") || at_dot(".func")) return function(linkage, at);
  if (c_.now.kind == TokenKind::kDotName && space_from(c_.now.text) != Space::kNone) {
    return variables(linkage, at, [&](Variable&& v) {
      Item& item = module_.items.emplace_back();
      item.kind = Item::Kind::kVariable;
      item.variable = std::move(v);
    });
  }
  if (!linkage.empty()) return c_.fail("'.entry', '.func' or a state space after the linkage");
  if (at_dot(".file")) return file_directive() && raw_item(begin);
  if (at_dot(".section")) return section() && raw_item(begin);
  if (at_dot(".loc")) return loc_directive() && raw_item(begin);
  if (at_dot(".target")) {  // more targets than the first, PTX ISA 11.1.2
    c_.advance();
    return target_list();
  }
  if (at_dot(".alias") || at_dot(".pragma")) {
    Name text;
    return raw_statement(&text, begin, "';'") && raw_item(begin);
  }
  return c_.fail("a module directive (.entry, .func, .global, .const, .shared, .file, .section, .alias)");
}

// --- declarations ------------------------------------------------------------------------------------------

bool Parser::variable_type(Variable* v) {
  bool seen_ptr = false;
  while (c_.now.kind == TokenKind::kDotName) {
    Name word = c_.now.text;
    const char* begin = c_.now.begin();
    if (word == ".align") {
      c_.advance();
      uint32_t bytes = 0;
      if (!small_integer(&bytes, "an alignment in bytes")) return false;
      if (seen_ptr)
        append_attribute(&v->attributes, c_.since(begin));
      else
        v->align = bytes;
    } else if (word == ".attribute") {
      c_.advance();
      if (!parenthesised()) return false;
      append_attribute(&v->attributes, c_.since(begin));
    } else if (word == ".ptr") {
      seen_ptr = true;
      c_.advance();
      append_attribute(&v->attributes, word);
    } else if (word == ".v2" || word == ".v4" || word == ".v8") {
      v->vector = static_cast<uint8_t>(word[2] - '0');
      c_.advance();
    } else if (seen_ptr) {
      append_attribute(&v->attributes, word);
      c_.advance();
    } else {
      v->type = type_from(word.substr(1));
      if (v->type == Type::kNone) {
        v->type = Type::kOther;
        v->other_type = word;
      }
      c_.advance();
    }
  }
  return v->type != Type::kNone || c_.fail("a type such as .b32");
}

bool Parser::initializer(Variable* v) {
  const char* begin = c_.now.begin();
  if (!raw_until(';', true, "an initializer and ';'")) return false;
  if (c_.now.begin() == begin) return c_.fail("an initializer");
  v->initializer = c_.since(begin);
  return true;
}

bool Parser::declarator(Variable* v) {
  v->at = c_.now.at;
  if (!identifier(&v->name, "a name")) return false;
  if (c_.take('<')) {
    if (!small_integer(&v->count, "a register count of at most 32 bits") || !c_.expect('>', "'>'"))
      return false;
    if (v->count == 0) return c_.fail("a register count above 0 before this");
  }
  while (c_.take('[')) {
    v->is_array = true;
    if (c_.take(']')) {
      v->dims.push_back(0);
      continue;
    }
    Constant size;
    if (!constant_expression(c_, &size)) return false;
    if (!size.known) return c_.fail("a constant array size before this");
    v->dims.push_back(size.bits);
    if (!c_.expect(']', "']'")) return false;
  }
  return true;
}

template <class Sink>
bool Parser::variables(Name linkage, Location at, Sink sink) {
  Variable common;
  common.space = space_from(c_.now.text);
  common.linkage = linkage;
  c_.advance();
  if (!variable_type(&common)) return false;
  bool first = true;
  do {
    Variable v = common;
    if (!declarator(&v)) return false;
    if (first) {
      v.at = at;
      first = false;
    }
    if (c_.take('=') && !initializer(&v)) return false;
    scopes_.declare(v);
    sink(std::move(v));
  } while (c_.take(','));
  return c_.expect(';', "';' after the declaration");
}

bool Parser::parameters(std::vector<Variable>* list) {
  if (!c_.expect('(', "'('")) return false;
  if (c_.take(')')) return true;
  do {
    Variable v;
    if (!at_dot(".param") && !at_dot(".reg")) return c_.fail("'.param' or '.reg'");
    v.space = space_from(c_.now.text);
    c_.advance();
    if (!variable_type(&v) || !declarator(&v)) return false;
    scopes_.declare(v);
    list->push_back(std::move(v));
  } while (c_.take(','));
  return c_.expect(')', "',' or ')' after the parameter");
}

// --- functions ---------------------------------------------------------------------------------------------

bool Parser::function_directive(Function* f) {
  Directive d;
  const char* begin = c_.now.begin();
  d.name = c_.now.text;
  c_.advance();
  if (d.name == ".pragma") {
    if (!raw_statement(&d.text, begin, "';' after .pragma")) return false;
  } else if (c_.now.kind == TokenKind::kInteger) {
    do {
      uint64_t value = 0;
      if (!integer(&value, "a number")) return false;
      d.values.push_back(value);
    } while (c_.take(','));
  }
  f->directives.push_back(std::move(d));
  return true;
}

bool Parser::function(Name linkage, Location at) {
  auto f = std::make_unique<Function>();
  f->at = at;
  f->linkage = linkage;
  f->is_entry = c_.now.text == ".entry";
  c_.advance();
  scopes_.push();
  while (at_dot(".attribute")) {
    const char* begin = c_.now.begin();
    c_.advance();
    if (!parenthesised()) return false;
    append_attribute(&f->attributes, c_.since(begin));
  }
  if (c_.now.is('(') && !parameters(&f->returns)) return false;
  if (!identifier(&f->name, "a function name")) return false;
  if (c_.now.is('(') && !parameters(&f->params)) return false;
  while (c_.now.kind == TokenKind::kDotName)
    if (!function_directive(f.get())) return false;
  if (c_.take('{')) {
    f->has_body = true;
    if (!statements(&f->body, 0)) return false;
    f->body.shrink_to_fit();  // statements are large, and a module is kept
  } else if (!c_.expect(';', "'{' or ';'")) {
    return false;
  }
  scopes_.pop();
  Item& item = module_.items.emplace_back();
  item.kind = Item::Kind::kFunction;
  item.function = std::move(f);
  return true;
}

bool Parser::statements(std::vector<Statement>* list, unsigned depth) {  // takes the closing brace
  if (depth > kMaxScopeDepth) return c_.fail("scopes that are nested less deeply");
  while (!c_.take('}'))
    if (!statement(list, depth)) return false;
  list->shrink_to_fit();
  return true;
}

bool Parser::directive_statement(std::vector<Statement>* list) {
  Location at = c_.now.at;
  const char* begin = c_.now.begin();
  if (at_dot(".loc")) {
    if (!loc_directive()) return false;
    add(list, Statement::Kind::kLoc).text = c_.since(begin);
    return true;
  }
  if (at_dot(".pragma")) {
    Name text;
    if (!raw_statement(&text, begin, "';' after .pragma")) return false;
    add(list, Statement::Kind::kPragma).text = text;
    return true;
  }
  if (at_dot(".file")) {
    if (!file_directive()) return false;
    add(list, Statement::Kind::kRaw).text = c_.since(begin);
    return true;
  }
  Name linkage;
  for (Name name : kLinkages)
    if (take_dot(name)) linkage = name;
  if (c_.now.kind == TokenKind::kDotName && space_from(c_.now.text) != Space::kNone) {
    return variables(linkage, at, [&](Variable&& v) {
      add(list, Statement::Kind::kVariable).variable = Box(std::move(v));
    });
  }
  return c_.fail("a declaration, .loc or .pragma");
}

bool Parser::target_names(std::vector<Name>* names) {
  do {
    Name name;
    if (!identifier(&name, "a label or function name")) return false;
    if (!c_.take('<')) {
      names->push_back(name);
      continue;
    }
    uint64_t n = 0;
    if (!integer(&n, "a count") || !c_.expect('>', "'>'")) return false;
    if (n > kMaxLabelRange) return c_.fail("fewer labels in one range before this");
    for (uint64_t i = 0; i < n; ++i) names->push_back(module_.keep(std::string(name) + std::to_string(i)));
  } while (c_.take(','));
  return true;
}

bool Parser::prototype(Statement* s) {
  const char* begin = c_.now.begin();
  s->kind = Statement::Kind::kPrototype;
  bool is_prototype = at_dot(".callprototype");
  c_.advance();
  Prototype& p = s->prototype.edit();
  if (is_prototype) return raw_statement(&p.text, begin, "';' after .callprototype");
  if (!target_names(&p.targets) || !c_.expect(';', "';'")) return false;
  p.text = c_.since(begin);
  return true;
}

bool Parser::statement(std::vector<Statement>* list, unsigned depth) {
  if (c_.now.kind == TokenKind::kIdentifier) {
    Token first = c_.now;
    c_.advance();
    if (c_.take(':')) {
      Statement& s = add(list, Statement::Kind::kLabel);
      s.label = first.text;
      bool listed = at_dot(".callprototype") || at_dot(".branchtargets") || at_dot(".calltargets");
      return !listed || prototype(&s);
    }
    Statement& s = add(list, Statement::Kind::kInstruction);
    s.instruction.opcode = first.text;
    s.instruction.at = first.at;
    return instruction(&s);
  }
  if (c_.now.is('@')) {
    Statement& s = add(list, Statement::Kind::kInstruction);
    Instruction& i = s.instruction;
    i.at = c_.now.at;
    c_.advance();
    i.guard_negated = c_.take('!');
    if (!identifier(&i.guard, "a predicate register after '@'") || !identifier(&i.opcode, "an instruction"))
      return false;
    return instruction(&s);
  }
  if (c_.take('{')) {
    Statement& s = add(list, Statement::Kind::kScope);
    std::vector<Statement> inner;
    scopes_.push();
    if (!statements(&inner, depth + 1)) return false;
    scopes_.pop();
    s.scope = Box(std::move(inner));
    return true;
  }
  if (c_.take(';')) return true;
  if (c_.now.kind == TokenKind::kPunctuation && c_.now.text == "@@") {
    const char* begin = c_.now.begin();
    if (!dwarf_line()) return false;
    add(list, Statement::Kind::kRaw).text = c_.since(begin);
    return true;
  }
  if (c_.now.kind == TokenKind::kDotName) return directive_statement(list);
  return c_.fail("an instruction, a label, a declaration or '}'");
}

List<Name> Parser::modifiers() {
  const char* begin = c_.now.begin();
  modifiers_.clear();
  do {
    modifiers_.push_back(c_.now.text.substr(1));
    c_.advance();
  } while (c_.now.kind == TokenKind::kDotName);
  const Name text = c_.since(begin);
  const size_t middle = static_cast<uint8_t>(text[text.size() / 2]), last = static_cast<uint8_t>(text.back());
  Recent& recent = recent_modifiers_[(text.size() * 7 + middle * 5 + last * 3) % recent_modifiers_.size()];
  if (recent.text != text) {
    recent.text = text;
    recent.list.assign(modifiers_.begin(), modifiers_.end());
  }
  return recent.list;
}

bool Parser::instruction(Statement* s) {
  Instruction* const i = &s->instruction;
  if (c_.now.kind == TokenKind::kDotName) i->modifiers = modifiers();
  if (c_.take(';')) return true;
  if (!comma_separated(&i->operands, i->opcode == "call", 0, 0)) return false;
  if (subscript_.element_bytes != 0 && !write_out(std::exchange(subscript_, {}), module_.address_bits, s))
    return c_.fail("no element of an array before this");
  return c_.expect(';', "',' or ';' after an operand");
}

// --- operands ----------------------------------------------------------------------------------------------

// Operands up to what is no comma; they and the last n_before of pending_ become the list.
bool Parser::comma_separated(List<Operand>* list, bool is_call, unsigned depth, size_t n_before) {
  const size_t base = pending_.size() - n_before;
  do {
    Operand o;
    if (!operand(&o, is_call, depth)) return false;
    pending_.push_back(std::move(o));
  } while (c_.take(','));
  take_pending(list, base);
  return true;
}

void Parser::take_pending(List<Operand>* list, size_t base) {
  const auto begin = pending_.begin() + static_cast<std::ptrdiff_t>(base);
  list->assign(std::move_iterator(begin), std::move_iterator(pending_.end()));
  pending_.resize(base);
}

bool Parser::operand_list(List<Operand>* list, char close, std::string_view what, unsigned depth) {
  return c_.take(close) || (comma_separated(list, false, depth, 0) && c_.expect(close, what));
}

bool Parser::operand(Operand* o, bool is_call, unsigned depth) {
  if (depth > kMaxOperandDepth) return c_.fail("operands that are nested less deeply");
  if (!single(o, is_call, depth)) return false;
  if (!c_.take('|')) return true;
  Operand second;
  if (!single(&second, is_call, depth)) return false;
  Operand pair;
  pair.kind = Operand::Kind::kPair;
  Operand both[] = {std::move(*o), std::move(second)};
  pair.children.assign(std::move_iterator(std::begin(both)), std::move_iterator(std::end(both)));
  *o = std::move(pair);
  return true;
}

bool Parser::single(Operand* o, bool is_call, unsigned depth) {
  if (c_.now.kind == TokenKind::kIdentifier) return named(o);
  if (c_.take('{')) {
    o->kind = Operand::Kind::kVector;
    return operand_list(&o->children, '}', "',' or '}'", depth + 1);
  }
  if (c_.take('[')) return bracket(o, depth + 1);
  if (is_call && c_.take('(')) {
    o->kind = Operand::Kind::kList;
    return operand_list(&o->children, ')', "',' or ')'", depth + 1);
  }
  if (c_.now.is('!')) {
    const Cursor mark = c_;
    c_.advance();
    if (c_.now.kind != TokenKind::kIdentifier || c_.now.text == "WARP_SZ") {
      c_ = mark;  // a logical negation in a constant
      return constant(o);
    }
    if (!named(o) || o->kind != Operand::Kind::kRegister) return c_.fail("a predicate register before this");
    o->negated = true;
    return true;
  }
  return constant(o);
}

bool Parser::constant(Operand* o) {
  const char* begin = c_.now.begin();
  bool minus = c_.take('-');
  if (minus && c_.now.kind == TokenKind::kIdentifier && c_.now.text != "WARP_SZ") {
    if (!named(o)) return false;
    o->negated = true;
    o->minus = true;
    return true;
  }
  bool is_f64 = false;
  if (c_.now.kind == TokenKind::kFloat) {
    if (!float_value(c_.now.text, &o->bits, &is_f64)) return c_.fail("a floating-point number");
    o->is_f64 = is_f64;
    o->kind = Operand::Kind::kFloat;
    c_.advance();
    if (minus) o->bits ^= o->is_f64 ? uint64_t{1} << 63 : uint64_t{1} << 31;
    o->name = c_.since(begin);
    return true;
  }
  if (c_.now.kind == TokenKind::kDotName && c_.now.text[1] >= '0' && c_.now.text[1] <= '9') {  // .5
    if (!float_value(module_.keep("0" + std::string(c_.now.text)), &o->bits, &is_f64))
      return c_.fail("a floating-point number");
    o->is_f64 = is_f64;
    o->kind = Operand::Kind::kFloat;
    o->bits ^= minus ? uint64_t{1} << 63 : 0;
    c_.advance();
    o->name = c_.since(begin);
    return true;
  }
  Constant value;
  if (c_.now.kind != TokenKind::kInteger && !c_.now.is('(') && !c_.now.is('~') && !c_.now.is('!') &&
      !c_.now.is('-') && !c_.now.is('+'))
    return c_.fail("an operand");
  if (!constant_expression(c_, &value)) return false;
  o->name = c_.since(begin);
  if (!value.known) {
    o->kind = Operand::Kind::kExpression;
    return true;
  }
  o->kind = Operand::Kind::kInteger;
  o->bits = minus ? -value.bits : value.bits;
  if (minus && c_.since(begin).find_first_of("+*/%<>&|^?=", 1) != Name::npos) {
    // "-a + b": the sign was taken off before the operators; evaluate again as a whole.
    Cursor whole(o->name);
    if (!constant_expression(whole, &value)) return c_.fail("a constant before this");
    o->bits = value.bits;
  }
  return true;
}

// A name in operand position: register, special register, sink, symbol (with offset), or a constant by name.
bool Parser::named(Operand* o) {
  const Token token = c_.now;
  c_.advance();
  if (token.text == "_") {
    o->kind = Operand::Kind::kSink;
    return true;
  }
  o->name = token.text;
  if (c_.now.kind == TokenKind::kDotName && c_.now.begin() == token.end()) {
    if (c_.now.text.size() > Suffix::kMaxLength) return c_.fail("a component such as .x");
    o->suffix = c_.now.text;
    c_.advance();
  }
  if (scopes_.is_register(token.text)) {
    o->kind = Operand::Kind::kRegister;
    return true;
  }
  if (token.text[0] == '%' && is_special_register(token.text)) {
    o->kind = Operand::Kind::kSpecial;
    return true;
  }
  if (token.text == "WARP_SZ") {
    o->kind = Operand::Kind::kInteger;
    o->bits = 32;
    return true;
  }
  if (c_.now.is('(')) {  // generic(x)
    if (!parenthesised()) return false;
    o->kind = Operand::Kind::kExpression;
    o->name = c_.since(token.begin());
    return true;
  }
  o->kind = Operand::Kind::kSymbol;
  return c_.take('[') ? subscript(token.text) : offset(o);
}

// Behind '[': [constant], [register] or [register+constant], counted in elements.
bool Parser::subscript(Name array) {
  Scopes::Found found;
  if (!scopes_.find(array, &found) || type_bytes(found.type) == 0 || subscript_.element_bytes != 0)
    return c_.fail("one array that is declared before this");
  subscript_.element_bytes = type_bytes(found.type);
  if (c_.now.kind == TokenKind::kIdentifier && scopes_.find(c_.now.text, &found)) {
    if (found.space != Space::kReg || type_bytes(found.type) == 0 || found.vector != 1)
      return c_.fail("an integer register");
    subscript_.index = c_.now.text;
    subscript_.index_type = found.type;
    c_.advance();
    if (!c_.take('+')) return c_.expect(']', "']'");
  }
  Constant value;
  if (!constant_expression(c_, &value)) return false;
  subscript_.constant = value.bits;
  return value.known ? c_.expect(']', "']'") : c_.fail("a constant before this");
}

bool Parser::offset(Operand* o) {  // +4, -4, +-4 behind a base
  if (!c_.now.is('+') && !c_.now.is('-')) return true;
  c_.take('+');
  Constant value;
  if (!constant_expression(c_, &value)) return false;
  if (!value.known) return c_.fail("a constant offset before this");
  o->bits = value.bits;
  return true;
}

bool Parser::bracket(Operand* o, unsigned depth) {
  Operand first;
  if (c_.now.kind == TokenKind::kIdentifier) {
    first.name = c_.now.text;
    first.base_is_register = scopes_.is_register(first.name);
    c_.advance();
    if (!offset(&first)) return false;
  } else {
    Constant value;
    if (!constant_expression(c_, &value)) return false;
    if (!value.known) return c_.fail("a constant address before this");
    first.bits = value.bits;
  }
  first.kind = Operand::Kind::kAddress;
  if (c_.take(']')) {
    *o = std::move(first);
    return true;
  }
  if (!c_.expect(',', "',' or ']'")) return false;
  if (first.bits == 0 && !first.name.empty()) {  // [tensor, {..}]: the object itself
    first.kind = first.base_is_register ? Operand::Kind::kRegister : Operand::Kind::kSymbol;
    first.base_is_register = false;
  }
  o->kind = Operand::Kind::kBracket;
  pending_.push_back(std::move(first));
  if (c_.take(']')) {
    take_pending(&o->children, pending_.size() - 1);
    return true;
  }
  return comma_separated(&o->children, false, depth, 1) && c_.expect(']', "',' or ']'");
}

}  // namespace

base::Result<Module> parse(std::string_view text) {
  while (!text.empty() && text.back() == '\0') text.remove_suffix(1);
  Module module;
  std::string_view kept = module.keep(std::string(text));
  Parser parser(module, kept);
  if (!parser.run()) return base::error(base::Code::kInvalid, parser.take_error());
  return module;
}

}  // namespace tessera::ptx

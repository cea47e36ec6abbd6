#include "kernels/ptx/printer.h"

namespace tessera::ptx {
namespace {

constexpr Name kSpaceNames[] = {"",       ".reg",   ".sreg",   ".const", ".global",
                                ".local", ".param", ".shared", ".tex"};

class Printer {
 public:
  explicit Printer(std::string& out) : out_(out) {}

  void module(const Module& m);
  void instruction(const Instruction& i);

 private:
  void put(Name text) { out_.append(text); }
  void put(uint64_t value) { out_ += std::to_string(value); }
  void signed_value(uint64_t bits) { out_ += std::to_string(static_cast<int64_t>(bits)); }
  void hex(uint64_t bits, int digits) {
    for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4)
      out_ += "0123456789ABCDEF"[(bits >> shift) & 15];
  }
  void indent(unsigned depth) { out_.append(depth, '\t'); }
  void variable(const Variable& v);
  void list(const std::vector<Variable>& variables);
  void function(const Function& f);
  void statements(const std::vector<Statement>& list, unsigned depth);
  void statement(const Statement& s, unsigned depth);
  void operand(const Operand& o);
  void address(const Operand& o);
  void children(const Operand& o, char open, char close);

  std::string& out_;
};

void Printer::variable(const Variable& v) {
  if (!v.linkage.empty()) {
    put(v.linkage);
    put(" ");
  }
  put(kSpaceNames[static_cast<size_t>(v.space)]);
  bool before = v.attributes.starts_with(".attribute") && v.attributes.find(".ptr") == Name::npos;
  if (before) {
    put(" ");
    put(v.attributes);
  }
  if (v.align) {
    put(" .align ");
    put(uint64_t{v.align});
  }
  if (v.vector > 1) {
    put(" .v");
    put(uint64_t{v.vector});
  }
  put(" ");
  if (v.type == Type::kOther) {
    put(v.other_type);
  } else {
    put(".");
    put(type_name(v.type));
  }
  if (!before && !v.attributes.empty()) {
    put(" ");
    put(v.attributes);
  }
  put(" ");
  put(v.name);
  if (v.count) {
    put("<");
    put(uint64_t{v.count});
    put(">");
  }
  for (uint64_t dim : v.dims) {
    put("[");
    if (dim) put(dim);
    put("]");
  }
  if (!v.initializer.empty()) {
    put(" = ");
    put(v.initializer);
  }
}

void Printer::list(const std::vector<Variable>& variables) {
  put("(");
  for (size_t i = 0; i < variables.size(); ++i) {
    put(i ? ",\n\t" : "\n\t");
    variable(variables[i]);
  }
  put("\n)");
}

void Printer::children(const Operand& o, char open, char close) {
  out_ += open;
  for (size_t i = 0; i < o.children.size(); ++i) {
    if (i) put(", ");
    operand(o.children[i]);
  }
  out_ += close;
}

void Printer::address(const Operand& o) {
  put(o.name);
  if (o.name.empty()) {
    put(o.bits);
  } else if (o.bits) {
    put("+");
    signed_value(o.bits);
  }
}

void Printer::operand(const Operand& o) {
  using Kind = Operand::Kind;
  if (o.negated) put(o.minus ? "-" : "!");
  switch (o.kind) {
    case Kind::kNone:
      break;
    case Kind::kRegister:
    case Kind::kSpecial:
      put(o.name);
      put(o.suffix.view());
      break;
    case Kind::kSymbol:
      put(o.name);
      put(o.suffix.view());
      if (o.bits) {
        put("+");
        signed_value(o.bits);
      }
      break;
    case Kind::kInteger:
      if (!o.name.empty())
        put(o.name);
      else
        signed_value(o.bits);
      break;
    case Kind::kFloat:
      if (!o.name.empty()) {
        put(o.name);
      } else {
        put(o.is_f64 ? "0d" : "0f");
        hex(o.bits, o.is_f64 ? 16 : 8);
      }
      break;
    case Kind::kAddress:
      put("[");
      address(o);
      put("]");
      break;
    case Kind::kVector:
      children(o, '{', '}');
      break;
    case Kind::kList:
      children(o, '(', ')');
      break;
    case Kind::kBracket:
      put("[");
      for (size_t i = 0; i < o.children.size(); ++i) {
        put(i ? ", " : "");
        if (i == 0 && o.children[i].kind == Kind::kAddress)  // [%rd1+64, {..}]
          address(o.children[i]);
        else
          operand(o.children[i]);
      }
      put("]");
      break;
    case Kind::kPair:
      operand(o.children[0]);
      put("|");
      operand(o.children[1]);
      break;
    case Kind::kSink:
      put("_");
      break;
    case Kind::kExpression:
      put(o.name);
      break;
  }
}

void Printer::instruction(const Instruction& i) {
  if (!i.guard.empty()) {
    put(i.guard_negated ? "@!" : "@");
    put(i.guard);
    put(" ");
  }
  put(i.opcode);
  for (Name m : i.modifiers) {
    put(".");
    put(m);
  }
  for (size_t n = 0; n < i.operands.size(); ++n) {
    put(n ? ", " : " ");
    operand(i.operands[n]);
  }
  put(";");
}

void Printer::statement(const Statement& s, unsigned depth) {
  switch (s.kind) {
    case Statement::Kind::kInstruction:
      indent(depth);
      instruction(s.instruction);
      break;
    case Statement::Kind::kLabel:
      put(s.label);
      put(":");
      break;
    case Statement::Kind::kVariable:
      indent(depth);
      variable(s.variable);
      put(";");
      break;
    case Statement::Kind::kScope:
      indent(depth);
      put("{\n");
      statements(s.scope, depth + 1);
      indent(depth);
      put("}");
      break;
    case Statement::Kind::kPrototype:
      put(s.label);
      put(": ");
      put(s.prototype->text);
      break;
    case Statement::Kind::kLoc:
    case Statement::Kind::kPragma:
    case Statement::Kind::kRaw:
      indent(depth);
      put(s.text);
      break;
  }
  put("\n");
}

void Printer::statements(const std::vector<Statement>& list, unsigned depth) {
  for (const Statement& s : list) statement(s, depth);
}

void Printer::function(const Function& f) {
  if (!f.linkage.empty()) {
    put(f.linkage);
    put(" ");
  }
  put(f.is_entry ? ".entry " : ".func ");
  if (!f.attributes.empty()) {
    put(f.attributes);
    put(" ");
  }
  if (!f.returns.empty()) {
    list(f.returns);
    put(" ");
  }
  put(f.name);
  if (!f.params.empty() || f.is_entry)
    list(f.params);
  else
    put("()");
  for (const Directive& d : f.directives) {
    put("\n");
    if (!d.text.empty()) {
      put(d.text);
      continue;
    }
    put(d.name);
    for (size_t i = 0; i < d.values.size(); ++i) {
      put(i ? ", " : " ");
      put(d.values[i]);
    }
  }
  if (!f.has_body) {
    put(";\n");
    return;
  }
  put("\n{\n");
  statements(f.body, 1);
  put("}\n");
}

void Printer::module(const Module& m) {
  put(".version ");
  put(uint64_t{m.version_major});
  put(".");
  put(uint64_t{m.version_minor});
  put("\n.target ");
  for (size_t i = 0; i < m.target.size(); ++i) {
    if (i) put(", ");
    put(m.target[i]);
  }
  put("\n.address_size ");
  put(uint64_t{m.address_bits});
  put("\n");
  for (const Item& item : m.items) {
    put("\n");
    switch (item.kind) {
      case Item::Kind::kFunction:
        function(*item.function);
        break;
      case Item::Kind::kVariable:
        variable(item.variable);
        put(";\n");
        break;
      case Item::Kind::kRaw:
        put(item.text);
        put("\n");
        break;
    }
  }
}

}  // namespace

std::string print(const Module& module) {
  std::string out;
  Printer(out).module(module);
  return out;
}

std::string print(const Instruction& instruction) {
  std::string out;
  Printer(out).instruction(instruction);
  return out;
}

}  // namespace tessera::ptx

#include "kernels/ptx/verifier.h"

#include <string>
#include <unordered_set>
#include <vector>

#include "kernels/ptx/scope.h"

namespace tessera::ptx {
namespace {

class Verifier {
 public:
  explicit Verifier(const Module& module) {
    for (const Item& item : module.items) {
      if (item.kind == Item::Kind::kVariable) {
        scopes_.declare(item.variable);
      } else if (item.kind == Item::Kind::kFunction) {
        functions_.insert(item.function->name);
      } else if (item.text.starts_with(".alias")) {
        Name rest = item.text.substr(6);
        size_t begin = rest.find_first_not_of(" \t");
        size_t end = rest.find_first_of(" \t,", begin);
        if (end != Name::npos) functions_.insert(rest.substr(begin, end - begin));
      }
    }
  }

  bool function(const Function& f) {
    scopes_.push();
    for (const Variable& v : f.returns) scopes_.declare(v);
    for (const Variable& v : f.params) scopes_.declare(v);
    bool good = statements(f.body);
    scopes_.pop();
    return good;
  }

  std::string error;

 private:
  bool fail(Location at, Name what, Name name) {
    if (error.empty()) {
      error = std::to_string(at.line) + ":" + std::to_string(at.column) + ": ";
      error.append(what);
      error += " '";
      error.append(name);
      error += "'";
    }
    return false;
  }

  bool is_label(Name name) const {
    for (const auto& scope : labels_)
      if (scope.contains(name)) return true;
    return false;
  }

  bool statements(const std::vector<Statement>& list) {
    auto& labels = labels_.emplace_back();
    for (const Statement& s : list) {  // labels may be used before they stand
      if (s.kind == Statement::Kind::kLabel || s.kind == Statement::Kind::kPrototype) {
        if (!labels.insert(s.label).second) return fail({}, "label defined twice:", s.label);
      }
    }
    for (const Statement& s : list) {
      bool good = true;
      if (s.kind == Statement::Kind::kVariable) {
        good = scopes_.declare(s.variable) || fail(s.variable->at, "declared twice:", s.variable->name);
      } else if (s.kind == Statement::Kind::kInstruction) {
        good = instruction(s.instruction);
      } else if (s.kind == Statement::Kind::kScope) {
        scopes_.push();
        good = statements(s.scope);
        scopes_.pop();
      }
      if (!good) return false;
    }
    labels_.pop_back();
    return true;
  }

  bool instruction(const Instruction& i) {
    if (!i.guard.empty()) {
      Scopes::Found found;
      if (!scopes_.find(i.guard, &found) || found.space != Space::kReg)
        return fail(i.at, "guard is not a declared register:", i.guard);
      if (found.type != Type::kPred) return fail(i.at, "guard is not a predicate:", i.guard);
    }
    if (i.opcode == "bra") {
      if (i.operands.size() != 1 || i.operands[0].kind != Operand::Kind::kSymbol ||
          !is_label(i.operands[0].name)) {
        return fail(i.at,
                    "branch without a declared label:", i.operands.empty() ? Name() : i.operands[0].name);
      }
      return true;
    }
    for (const Operand& o : i.operands)
      if (!operand(i, o)) return false;
    return true;
  }

  bool operand(const Instruction& i, const Operand& o) {
    Scopes::Found found;
    switch (o.kind) {
      case Operand::Kind::kRegister:
        return scopes_.is_register(o.name) || fail(i.at, "register is not declared:", o.name);
      case Operand::Kind::kAddress:
        if (o.name.empty()) return true;
        [[fallthrough]];
      case Operand::Kind::kSymbol:
        if (scopes_.find(o.name, &found)) return true;
        return functions_.contains(o.name) || is_label(o.name) || fail(i.at, "name is not declared:", o.name);
      default:
        break;
    }
    for (const Operand& child : o.children)
      if (!operand(i, child)) return false;
    return true;
  }

  Scopes scopes_;
  std::unordered_set<Name> functions_;
  std::vector<std::unordered_set<Name>> labels_;
};

base::Status result(const Verifier& v) {
  return v.error.empty() ? base::ok() : base::Status(base::error(base::Code::kInvalid, v.error));
}

}  // namespace

base::Status verify(const Module& module) {
  Verifier v(module);
  std::unordered_set<Name> defined;
  for (const Item& item : module.items) {
    if (item.kind != Item::Kind::kFunction) continue;
    const Function& f = *item.function;
    if (f.has_body && !defined.insert(f.name).second) {
      return base::error(base::Code::kInvalid, std::to_string(f.at.line) + ":" + std::to_string(f.at.column) +
                                                   ": defined twice: '" + std::string(f.name) + "'");
    }
    if (!v.function(f)) break;
  }
  return result(v);
}

base::Status verify(const Module& module, std::span<const Function* const> functions) {
  Verifier v(module);
  for (const Function* f : functions)
    if (!v.function(*f)) break;
  return result(v);
}

}  // namespace tessera::ptx

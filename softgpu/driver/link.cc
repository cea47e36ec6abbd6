#include "softgpu/driver/link.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "kernels/ptx/parser.h"

namespace tessera::softgpu::driver {
namespace {

using ptx::Item;
using ptx::Name;
using ptx::Operand;
using ptx::Statement;

enum class Strength : uint8_t { kPrivate, kDeclared, kCommon, kWeak, kStrong };

// Functions that device code may call without a definition.
constexpr std::string_view kBuiltins[] = {"vprintf", "malloc", "free", "__assertfail"};

struct Symbol {
  Name name;
  Strength strength;
};

bool symbol_of(const Item& item, Symbol* symbol) {
  Name linkage;
  bool defined = true;
  if (item.kind == Item::Kind::kFunction) {
    symbol->name = item.function->name;
    linkage = item.function->linkage;
    defined = item.function->has_body;
  } else if (item.kind == Item::Kind::kVariable) {
    symbol->name = item.variable.name;
    linkage = item.variable.linkage;
  } else {
    return false;
  }
  if (linkage == ".extern" || (!defined && !linkage.empty()))
    symbol->strength = Strength::kDeclared;
  else if (linkage == ".weak")
    symbol->strength = Strength::kWeak;
  else if (linkage == ".common")
    symbol->strength = Strength::kCommon;
  else
    symbol->strength = linkage.empty() ? Strength::kPrivate : Strength::kStrong;
  return true;
}

using Renames = std::unordered_map<Name, Name>;

bool in_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%';
}

// Text with every whole word that has a new name replaced.
Name replace_words(Name text, const Renames& renames, ptx::Module* owner) {
  std::string out;
  bool changed = false;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && in_word(text[end])) ++end;
    if (end == at) {
      out += text[at++];
      continue;
    }
    const auto it = renames.find(text.substr(at, end - at));
    changed = changed || it != renames.end();
    out += it == renames.end() ? text.substr(at, end - at) : it->second;
    at = end;
  }
  return changed ? owner->keep(std::move(out)) : text;
}

class Renamer {
 public:
  Renamer(const Renames& renames, ptx::Module* owner) : renames_(renames), owner_(owner) {}

  void item(Item& item) {
    if (item.kind == Item::Kind::kVariable) {
      variable(item.variable);
    } else if (item.kind == Item::Kind::kRaw) {
      item.text = replace_words(item.text, renames_, owner_);
    } else {
      ptx::Function& f = *item.function;
      name(&f.name);
      // A parameter or local object hides the module's name.
      std::unordered_set<Name> hidden;
      for (const auto& list : {&f.params, &f.returns})
        for (const ptx::Variable& v : *list) hidden.insert(v.name);
      declared(f.body, &hidden);
      Renames visible;
      for (const auto& [from, to] : renames_)
        if (!hidden.count(from)) visible.emplace(from, to);
      Renamer inner(visible, owner_);
      for (Statement& s : f.body) inner.statement(s);
    }
  }

 private:
  static void declared(const std::vector<Statement>& body, std::unordered_set<Name>* names) {
    for (const Statement& s : body) {
      if (s.kind == Statement::Kind::kVariable) names->insert(s.variable->name);
      if (s.kind == Statement::Kind::kLabel) names->insert(s.label);
      if (s.kind == Statement::Kind::kScope) declared(s.scope, names);
    }
  }
  void name(Name* n) {
    if (const auto it = renames_.find(*n); it != renames_.end()) *n = it->second;
  }
  void variable(ptx::Variable& v) {
    name(&v.name);
    v.initializer = replace_words(v.initializer, renames_, owner_);
  }
  void operand(Operand& o) {
    switch (o.kind) {
      case Operand::Kind::kSymbol:
        name(&o.name);
        break;
      case Operand::Kind::kAddress:
        if (!o.base_is_register) name(&o.name);
        break;
      case Operand::Kind::kExpression:
        o.name = replace_words(o.name, renames_, owner_);
        break;
      default:
        break;
    }
    for (Operand& child : o.children) operand(child);
  }
  void statement(Statement& s) {
    for (Operand& o : s.instruction.operands) operand(o);
    if (s.kind == Statement::Kind::kPrototype) {
      ptx::Prototype& p = s.prototype.edit();
      for (Name& target : p.targets) name(&target);
      p.text = replace_words(p.text, renames_, owner_);
    }
    if (!s.variable->initializer.empty())
      s.variable.edit().initializer = replace_words(s.variable->initializer, renames_, owner_);
    if (s.kind == Statement::Kind::kScope)
      for (Statement& inner : s.scope.edit()) statement(inner);
  }

  const Renames& renames_;
  ptx::Module* owner_;
};

// Every name that code or data of the module refers to.
class References {
 public:
  explicit References(const ptx::Module& module) {
    for (const Item& item : module.items) {
      if (item.kind == Item::Kind::kVariable) words(item.variable.initializer);
      if (item.kind == Item::Kind::kFunction) body(item.function->body);
    }
  }
  bool has(Name name) const { return names_.count(name) > 0; }

 private:
  void words(Name text) {
    for (size_t at = 0; at < text.size(); ++at) {
      const size_t begin = at;
      while (at < text.size() && in_word(text[at])) ++at;
      if (at > begin) names_.insert(text.substr(begin, at - begin));
    }
  }
  void operand(const Operand& o) {
    if (o.kind == Operand::Kind::kSymbol || o.kind == Operand::Kind::kAddress) names_.insert(o.name);
    if (o.kind == Operand::Kind::kExpression) words(o.name);
    for (const Operand& child : o.children) operand(child);
  }
  void body(const std::vector<Statement>& statements) {
    for (const Statement& s : statements) {
      for (const Operand& o : s.instruction.operands) operand(o);
      if (s.kind == Statement::Kind::kPrototype) words(s.prototype->text);
      if (s.kind == Statement::Kind::kVariable) words(s.variable->initializer);
      body(s.scope);
    }
  }
  std::unordered_set<Name> names_;
};

unsigned sm_of(const ptx::Module& module) {
  for (Name target : module.target)
    if (target.starts_with("sm_")) return unsigned(std::atoi(std::string(target.substr(3)).c_str()));
  return 0;
}

struct Linked {
  std::vector<LinkInput> inputs;  // own the text that `module` points into
  ptx::Module module;
};

class Linker {
 public:
  explicit Linker(std::vector<LinkInput> inputs) : linked_(std::make_shared<Linked>()) {
    linked_->inputs = std::move(inputs);
  }

  std::shared_ptr<const ptx::Module> run(std::string* problems) {
    for (size_t m = 0; m < linked_->inputs.size(); ++m) collect(m);
    for (size_t m = 0; m < linked_->inputs.size(); ++m) set_apart(m);
    for (size_t m = 0; m < linked_->inputs.size(); ++m) take(m);
    const References references(linked_->module);
    for (const auto& [name, by] : needed_) {
      const bool builtin = std::find(std::begin(kBuiltins), std::end(kBuiltins), name) != std::end(kBuiltins);
      if (!builtin && references.has(name))
        problems_ += "error   : Undefined reference to '" + std::string(name) + "' in '" + by + "'\n";
    }
    *problems = problems_;
    if (!problems_.empty()) return nullptr;
    return {linked_, &linked_->module};
  }

 private:
  ptx::Module& module(size_t m) { return linked_->inputs[m].module; }

  // Finds the definition that counts for each name that modules share.
  void collect(size_t m) {
    for (size_t i = 0; i < module(m).items.size(); ++i) {
      Symbol symbol;
      if (!symbol_of(module(m).items[i], &symbol)) continue;
      if (symbol.strength == Strength::kPrivate) continue;
      shared_.insert(symbol.name);
      if (symbol.strength == Strength::kDeclared) continue;
      const auto [it, first] = winners_.try_emplace(symbol.name, Winner{m, i, symbol.strength});
      if (first) continue;
      if (symbol.strength == Strength::kStrong && it->second.strength == Strength::kStrong)
        problems_ += "error   : Multiple definition of '" + std::string(symbol.name) + "' in '" +
                     linked_->inputs[m].name + "', first defined in '" +
                     linked_->inputs[it->second.module].name + "'\n";
      if (symbol.strength > it->second.strength) it->second = {m, i, symbol.strength};
    }
  }

  // Private names that another module has too get a number.
  void set_apart(size_t m) {
    Renames renames;
    std::set<Name> mine;
    for (const Item& item : module(m).items) {
      Symbol symbol;
      if (!symbol_of(item, &symbol) || symbol.strength != Strength::kPrivate) continue;
      if (!mine.insert(symbol.name).second) continue;  // declared before it is defined
      if (!shared_.count(symbol.name) && privates_.insert(symbol.name).second) continue;
      for (size_t n = m;; ++n) {
        const Name other = module(m).keep(std::string(symbol.name) + "$" + std::to_string(n));
        if (shared_.count(other) || !privates_.insert(other).second) continue;
        renames[symbol.name] = other;
        break;
      }
    }
    if (renames.empty()) return;
    Renamer renamer(renames, &module(m));
    for (Item& item : module(m).items) renamer.item(item);
  }

  void take(size_t m) {
    ptx::Module& out = linked_->module;
    ptx::Module& in = module(m);
    if (m == 0 || in.version_major * 10 + in.version_minor > out.version_major * 10 + out.version_minor)
      out.version_major = in.version_major, out.version_minor = in.version_minor;
    if (m == 0 || sm_of(in) > sm_of(out)) out.target = in.target;
    out.address_bits = in.address_bits;
    for (size_t i = 0; i < in.items.size(); ++i) {
      Symbol symbol;
      if (!symbol_of(in.items[i], &symbol)) {
        // Debug sections and their files speak of one module each.
        if (Name text = in.items[i].text; text.find(".alias") != text.npos)
          out.items.push_back(std::move(in.items[i]));
        continue;
      }
      if (symbol.strength == Strength::kDeclared) {
        const Item& item = in.items[i];
        const bool array = item.kind == Item::Kind::kVariable && item.variable.space == ptx::Space::kShared;
        const bool defined = winners_.count(symbol.name) > 0;
        if (!defined && !array) needed_.emplace(symbol.name, linked_->inputs[m].name);
        if (defined && item.kind == Item::Kind::kVariable) continue;  // a function's may stand above its use
        if (!declared_.insert(symbol.name).second) continue;
      } else if (symbol.strength != Strength::kPrivate) {
        const Winner& winner = winners_.at(symbol.name);
        if (winner.module != m || winner.item != i) continue;
      }
      out.items.push_back(std::move(in.items[i]));
    }
  }

  struct Winner {
    size_t module, item;
    Strength strength;
  };
  std::shared_ptr<Linked> linked_;
  std::map<Name, Winner> winners_;      // shared names that are defined
  std::unordered_set<Name> shared_;     // names that modules share
  std::unordered_set<Name> privates_;   // private names given away
  std::unordered_set<Name> declared_;   // declarations in the result
  std::map<Name, std::string> needed_;  // declared, not defined: by whom
  std::string problems_;
};

// A condition's handle is the address of its value (graph_objects_api.cc).
constexpr char kDeviceRuntime[] = R"(.version 6.4
.target sm_50
.address_size 64
.visible .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value)
{
  .reg .b64 %rd<2>;
  .reg .b32 %r<2>;
  ld.param.b64 %rd1, [handle];
  ld.param.b32 %r1, [value];
  st.volatile.u32 [%rd1], %r1;
  ret;
}
)";

}  // namespace

bool needs_device_runtime(const ptx::Module& module) {
  const ptx::Function* f = module.find("cudaGraphSetConditional");
  return f && !f->has_body;
}

LinkInput device_runtime() {
  auto parsed = ptx::parse(kDeviceRuntime);
  return {std::move(parsed).value(), "device runtime"};
}

std::shared_ptr<const ptx::Module> link_modules(std::vector<LinkInput> inputs, std::string* problems) {
  return Linker(std::move(inputs)).run(problems);
}

}  // namespace tessera::softgpu::driver

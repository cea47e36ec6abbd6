#include "kernels/slice/globals.h"

#include <algorithm>
#include <unordered_set>

#include "kernels/ptx/verifier.h"
#include "kernels/slice/build.h"
#include "kernels/slice/internal.h"

namespace tessera::slice {
namespace {

using ptx::Instruction;
using ptx::Item;
using ptx::Name;
using ptx::Operand;
using ptx::Space;
using ptx::Statement;
using ptx::Type;
using ptx::Variable;
using Names = std::unordered_set<Name>;
using Obstacle = GlobalsObstacle;

constexpr Name kDirect[] = {"ld", "ldu", "st", "atom", "red", "prefetch"};  // may name [variable+offset]
constexpr Name kLinkages[] = {"", ".visible", ".weak"};
constexpr Name kHandedOn = "tessera_globals";  // call parameter with the addresses
constexpr uint32_t kAddressBytes = 8;

template <size_t N>
bool one_of(Name name, const Name (&list)[N]) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

void declared_in(const std::vector<Statement>& body, Names* out) {
  for (const Statement& s : body) {
    if (s.kind == Statement::Kind::kVariable) out->insert(s.variable->name);
    declared_in(s.scope, out);
  }
}
// Names that a function declares itself: they hide the module's. Scopes are not told apart; what that hides
// too much stays behind in the sibling, where has_state() finds it.
Names hidden_in(const ptx::Function& f) {
  Names out;
  for (const auto* list : {&f.params, &f.returns})
    for (const Variable& v : *list) out.insert(v.name);
  declared_in(f.body, &out);
  return out;
}

bool names_symbol(const Operand& o) {
  return o.kind == Operand::Kind::kSymbol ||
         (o.kind == Operand::Kind::kAddress && !o.base_is_register && !o.name.empty());
}

// `ld.global.u32 %r, [v+4]`, `mov.u64 %rd, v+4`, `cvta.global.u64 %rd, v`: all that replace() understands.
bool can_replace(const Instruction& i, const Operand& o) {
  if (o.kind == Operand::Kind::kAddress) {
    const auto offset = static_cast<int64_t>(o.bits);
    return one_of(i.opcode, kDirect) && ptx::space_of(i) == Space::kGlobal && offset == int32_t(offset);
  }
  if (i.operands.size() != 2 || &o != &i.operands[1] || i.operands[0].kind != Operand::Kind::kRegister ||
      !i.operands[0].suffix.empty())
    return false;
  if (i.opcode == "mov")
    return i.modifiers.size() == 1 && ptx::type_bytes(i.type()) == kAddressBytes && i.type() != Type::kF64;
  return i.opcode == "cvta" && o.bits == 0 && i.modifiers == std::vector<Name>{"global", "u64"};
}

// First instruction that makes a generic address of something in constant memory; nullptr if there is none.
const Instruction* constant_escape(const std::vector<Statement>& body) {
  for (const Statement& s : body) {
    const Instruction& i = s.instruction;
    if (i.opcode == "cvta" && !i.modifiers.empty() && i.modifiers[0] == "const") return &i;
    if (const Instruction* inner = constant_escape(s.scope)) return inner;
  }
  return nullptr;
}

}  // namespace

// Facts that all kernels of a module share.
struct ModuleGlobals::Facts {
  explicit Facts(const ptx::Module& m) : module(m) {
    for (const Item& item : module.items) {
      if (item.kind == Item::Kind::kVariable) {
        duplicate |= !variables.emplace(item.variable.name, &item.variable).second;
      } else if (item.kind == Item::Kind::kFunction) {
        functions.insert(item.function->name);
        declared_in(item.function->body, &local);
      }
    }
    find_escape();
  }

  // A generic address of a constant may reach the kernel through memory, and need not mean the same constant
  // in another module: whoever in this module makes one, none of its kernels gets a sibling.
  void find_escape() {
    for (const Item& item : module.items) {
      if (item.kind == Item::Kind::kFunction) {
        if (const Instruction* i = constant_escape(item.function->body)) {
          escape = at(*i);
          return;
        }
      } else if (item.kind == Item::Kind::kVariable && !item.variable.initializer.empty()) {
        for (const auto& [name, v] : variables) {
          if (v->space == Space::kConst && item.variable.initializer.find(name) != Name::npos) {
            escape = "initialiser of '" + std::string(item.variable.name) + "'";
            return;
          }
        }
      }
    }
  }

  const ptx::Module& module;
  std::unordered_map<Name, const Variable*> variables;
  Names functions;
  Names local;             // of all bodies: a second object of that name may be what the driver finds
  bool duplicate = false;  // module variables of one name
  std::string escape;      // where a generic address of constant memory is made; empty: nowhere
};

namespace {

class Scan {
 public:
  Scan(const ModuleGlobals::Facts& facts, PassedGlobals* out) : module_(facts), out_(*out) {
    if (!facts.escape.empty()) found(Obstacle::kConstant, facts.escape);
  }

  void function(const FunctionFacts& facts) {
    hidden_ = hidden_in(*facts.function);
    for (const Node& node : facts.flow.nodes) instruction(node);
  }

  void found(Obstacle obstacle, std::string detail) {
    if (out_.possible()) {
      out_.obstacle = obstacle;
      out_.detail = std::move(detail);
    }
  }

 private:
  void instruction(const Node& node) {
    const Instruction& i = *node.instruction;
    if (!node.opcode) found(Obstacle::kUnknown, at(i));
    // Also without a name: an address in constant memory means something in its module only.
    if (i.has("const")) found(Obstacle::kConstant, at(i));
    Name callee;
    if (i.opcode == "call") {
      callee = callee_of(i);
      if (callee.empty())
        found(Obstacle::kUnknown, at(i));
      else if (is_runtime_function(callee))
        found(Obstacle::kRuntime, at(i));
    }
    for (const Operand& o : i.operands) operand(o, i, callee);
  }

  void operand(const Operand& o, const Instruction& i, Name callee) {
    for (const Operand& c : o.children) operand(c, i, callee);
    if (o.kind == Operand::Kind::kExpression) found(Obstacle::kUnknown, at(i));  // may name anything
    if (!names_symbol(o) || hidden_.contains(o.name)) return;
    if (module_.functions.contains(o.name)) {
      if (o.name != callee) found(Obstacle::kFunctionAddress, at(i));
      return;
    }
    const auto known = module_.variables.find(o.name);
    if (known != module_.variables.end())  // else a label or a prototype
      variable(*known->second, o, i);
  }

  void variable(const Variable& v, const Operand& o, const Instruction& i) {
    if (v.space == Space::kShared) return;  // each block has its own
    const Obstacle obstacle =
        v.type == Type::kOther || v.space == Space::kTex                 ? Obstacle::kTexture
        : v.space == Space::kConst                                       ? Obstacle::kConstant
        : v.space != Space::kGlobal || module_.module.address_bits != 64 ? Obstacle::kUnknown
        : !one_of(v.linkage, kLinkages) || module_.duplicate || module_.local.contains(v.name)
            ? Obstacle::kLinkage
        : !v.attributes.empty() ? Obstacle::kAttribute
        : v.size_bytes() == 0   ? Obstacle::kSize
        : !can_replace(i, o)    ? Obstacle::kForm
                                : Obstacle::kNone;
    if (obstacle != Obstacle::kNone) return found(obstacle, at(i));
    if (std::ranges::any_of(out_.passed, [&](const PassedVariable& p) { return p.name == v.name; })) return;
    out_.passed.push_back({std::string(v.name), v.size_bytes()});
    if (out_.passed.size() > kMaxPassedGlobals) found(Obstacle::kLimit, at(i));
  }

  const ModuleGlobals::Facts& module_;
  PassedGlobals& out_;
  Names hidden_;
};

void names_in(const Operand& operand, Names* out) {
  if (!operand.name.empty()) out->insert(operand.name);
  for (const Operand& child : operand.children) names_in(child, out);
}
void names_in(const std::vector<Statement>& body, Names* out) {
  for (const Statement& s : body) {
    for (const Operand& operand : s.instruction.operands) names_in(operand, out);
    names_in(s.scope, out);
  }
}

// Leaves `root` and what it names, directly or through what that names. Debug information is dropped.
Names needed_by(const ptx::Module& module, Name root) {
  Names wanted{root};
  for (size_t before = 0; before != wanted.size();) {
    before = wanted.size();
    for (const Item& item : module.items)
      if (item.kind == Item::Kind::kFunction && wanted.contains(item.function->name))
        names_in(item.function->body, &wanted);
  }
  return wanted;
}
bool is_needed(const Item& item, const Names& wanted) {
  switch (item.kind) {
    case Item::Kind::kRaw:
      return item.text.starts_with(".file");
    case Item::Kind::kVariable:
      return wanted.contains(item.variable.name);
    case Item::Kind::kFunction:
      return wanted.contains(item.function->name);
  }
  return false;
}
void keep_only(ptx::Module& module, Name root) {
  const Names wanted = needed_by(module, root);
  std::erase_if(module.items, [&](const Item& item) { return !is_needed(item, wanted); });
}

// True if a variable would be a second object in a second module.
bool has_state(const ptx::Module& module) {
  return std::ranges::any_of(module.items, [](const Item& item) {
    return item.kind == Item::Kind::kVariable && item.variable.space != Space::kShared;
  });
}

// Rewrites the functions of a sibling module: addresses from a parameter instead of names.
class Pass {
 public:
  Pass(ptx::Module& module, const PassedGlobals& globals) : module_(module) {
    for (const PassedVariable& v : globals.passed) {
      const std::string nth = std::to_string(registers_.size());
      numbers_.emplace(module.keep(v.name), uint32_t(registers_.size()));
      registers_.push_back(module.keep("%tessera_global_" + nth));
    }
  }

  void run(Name variant) {
    Closure closure(module_);
    std::vector<ptx::Function*> functions;  // callees before callers
    for (const FunctionFacts* f : reached(*closure.facts(variant)))
      functions.push_back(module_.find(f->function->name));
    for (ptx::Function* f : functions) function(*f);
  }

 private:
  void function(ptx::Function& f) {
    const Names hidden = hidden_in(f);
    std::vector<bool> used(registers_.size());
    build::each_instruction(f.body, [&](Instruction& i) { replace(i, hidden, &used); });
    if (thread(f.body))
      used.assign(used.size(), true);
    else if (std::ranges::find(used, true) == used.end())
      return;
    const Name parameter = module_.keep(std::string(f.name) + "_globals");
    f.params.push_back(build::bytes_parameter(parameter, kAddressBytes, bytes()));
    std::vector<Statement> prologue;
    for (uint32_t n = 0; n < used.size(); ++n) {
      if (!used[n]) continue;
      const Operand r = build::reg(registers_[n]);
      prologue.push_back(build::declare(build::variable(Space::kReg, Type::kB64, registers_[n])));
      prologue.push_back(
          build::make("ld", {"param", "u64"}, {r, build::address(parameter, n * kAddressBytes)}));
      if (f.is_entry)  // the driver's addresses are generic
        prologue.push_back(build::make("cvta", {"to", "global", "u64"}, {r, r}));
    }
    f.body.insert(f.body.begin(), std::make_move_iterator(prologue.begin()),
                  std::make_move_iterator(prologue.end()));
    takes_globals_.insert(f.name);
  }

  uint64_t bytes() const { return registers_.size() * kAddressBytes; }

  void replace(Instruction& i, const Names& hidden, std::vector<bool>* used) {
    const Instruction& read_only = i;  // the others go on sharing their operands with the original
    if (std::none_of(read_only.operands.begin(), read_only.operands.end(), names_symbol)) return;
    for (Operand& o : i.operands) {
      const auto known = names_symbol(o) ? numbers_.find(o.name) : numbers_.end();
      if (known == numbers_.end() || hidden.contains(o.name) || !can_replace(i, o)) continue;
      const Name name = registers_[known->second];
      (*used)[known->second] = true;
      if (o.kind == Operand::Kind::kAddress) {
        o.name = name;
        o.base_is_register = true;
        continue;
      }
      const uint64_t offset = o.bits;
      o = build::reg(name);
      if (offset != 0) {  // mov d, v+offset
        i.opcode = "add";
        i.modifiers = {"s64"};
        i.operands.push_back(build::named(Operand::Kind::kInteger, {}, offset));
        return;
      }
    }
  }

  // Calls of functions that take the addresses hand them on. Was there one?
  bool thread(std::vector<Statement>& list) {
    bool any = false;
    for (Statement& s : list) {
      if (s.kind == Statement::Kind::kScope) {
        any |= thread(s.scope.edit());
      } else if (s.kind == Statement::Kind::kInstruction && s.instruction.opcode == "call") {
        const Name callee = callee_of(s.instruction);
        if (!takes_globals_.contains(callee)) continue;
        std::vector<Statement> stores;
        for (uint32_t n = 0; n < registers_.size(); ++n) {
          stores.push_back(
              build::make("st", {"param", "b64"},
                          {build::address(kHandedOn, n * kAddressBytes), build::reg(registers_[n])}));
        }
        s = build::call_with(s.instruction, callee, build::bytes_parameter(kHandedOn, kAddressBytes, bytes()),
                             std::move(stores));
        any = true;
      }
    }
    return any;
  }

  ptx::Module& module_;
  std::unordered_map<Name, uint32_t> numbers_;
  std::vector<Name> registers_;
  Names takes_globals_;
};

}  // namespace

const char* obstacle_name(GlobalsObstacle obstacle) {
  static constexpr const char* kNames[] = {
#define TS_ROW(id, name, text) name,
      TS_GLOBALS_OBSTACLES(TS_ROW)
#undef TS_ROW
  };
  return kNames[size_t(obstacle)];
}
const char* obstacle_text(GlobalsObstacle obstacle) {
  static constexpr const char* kTexts[] = {
#define TS_ROW(id, name, text) text,
      TS_GLOBALS_OBSTACLES(TS_ROW)
#undef TS_ROW
  };
  return kTexts[size_t(obstacle)];
}

ModuleGlobals::ModuleGlobals(const ptx::Module& module) : facts_(std::make_unique<Facts>(module)) {}
ModuleGlobals::~ModuleGlobals() = default;

PassedGlobals ModuleGlobals::passed(Name kernel) const {
  const ptx::Module& module = facts_->module;
  PassedGlobals out;
  Scan scan(*facts_, &out);
  Closure closure(module);
  const FunctionFacts* root = closure.facts(kernel);
  if (!root) {
    scan.found(Obstacle::kUnknown, "not defined in this module");
    return out;
  }
  for (const FunctionFacts* f : reached(*root)) {
    scan.function(*f);
    if (f->own.refusal == Refusal::kIndirectCall) scan.found(Obstacle::kUnknown, f->own.detail);
  }
  if (out.passed.empty()) return out;
  const uint64_t behind = layout_params(*root->function).origin_offset + sizeof(SliceOrigin);
  const uint64_t offset = (behind + kAddressBytes - 1) / kAddressBytes * kAddressBytes;
  if (offset + out.passed.size() * kAddressBytes > param_limit_bytes(module)) {
    scan.found(Obstacle::kLimit, std::to_string(behind) + " bytes of parameters and " +
                                     std::to_string(out.passed.size()) + " variables");
  }
  out.offset = static_cast<uint32_t>(offset);
  return out;
}

ptx::Module part_of(const ptx::Module& module, const std::string& kernel) {
  ptx::Module out;
  out.version_major = module.version_major, out.version_minor = module.version_minor;
  out.target = module.target;
  out.address_bits = module.address_bits;
  const Names wanted = needed_by(module, kernel);
  for (const Item& item : module.items)
    if (is_needed(item, wanted))
      out.items.push_back({item.kind,
                           item.function ? std::make_unique<ptx::Function>(*item.function) : nullptr,
                           item.variable, item.text});
  return out;
}

KernelReport make_sibling(ptx::Module& module, const std::string& kernel, const PassedGlobals& globals,
                          const Options& options) {
  KernelReport report;
  report.kernel = kernel;
  report.verdict = refuse(Refusal::kIndirectCall, "not defined in this module");
  const ptx::Function* original = module.find(kernel);
  if (!original) return report;
  keep_only(module, original->name);
  for (KernelReport& k : add_variants(module, options))
    if (k.kernel == kernel) report = std::move(k);
  const ptx::Function* variant = module.find(kernel + kVariantSuffix);
  if (!report.verdict.may_cut() || !variant) return report;
  const Name root = variant->name;
  keep_only(module, root);
  if (!globals.passed.empty()) {
    Pass(module, globals).run(root);
    keep_only(module, root);
  }
  const base::Status valid = ptx::verify(module);
  if (!valid.ok() || has_state(module)) {
    report.verdict = refuse(Refusal::kTooComplex, valid.ok() ? "more of its module is needed than is passed"
                                                             : "sibling: " + valid.error().text);
  }
  return report;
}

}  // namespace tessera::slice

#include <algorithm>

#include "kernels/slice/internal.h"

namespace tessera::slice {
namespace {

using ptx::Instruction;
using ptx::Name;
using ptx::OpClass;
using ptx::Operand;

constexpr unsigned kMaxCallDepth = 200;  // a chain of hostile length must not exhaust the stack

constexpr Name kRuntime[] = {"vprintf", "malloc", "free", "__assertfail"};

// Calls f with each special register among the operands.
void each_special(const auto& operands, auto&& f) {
  for (const Operand& o : operands) {
    if (o.kind == Operand::Kind::kSpecial) f(o);
    each_special(o.children, f);
  }
}

// S2: the only form that the rewrite understands, `mov.u32 %r, %ctaid.x`.
bool is_plain_coordinate_read(const Instruction& i) {
  if (i.opcode != "mov" || i.modifiers.size() != 1 || i.operands.size() != 2 || !is_coordinate(i.operands[1]))
    return false;
  const Name type = i.modifiers[0], suffix = i.operands[1].suffix.view();
  return (type == "u32" || type == "b32" || type == "s32") &&
         i.operands[0].kind == Operand::Kind::kRegister &&
         (suffix == ".x" || suffix == ".y" || suffix == ".z");
}

// Does the instruction mean something in clusters only? cp.async.bulk names its destination shared::cluster
// also in kernels without clusters.
bool is_cluster_form(const Instruction& i, OpClass op_class) {
  if (op_class == OpClass::kCluster || i.has("multicast::cluster") ||
      (i.opcode == "barrier" && i.has("cluster")) || i.has("cta_group::2"))
    return true;
  return i.has("shared::cluster") && op_class != OpClass::kAsyncCopy;
}

class Scan {
 public:
  explicit Scan(FunctionFacts& facts) : facts_(facts) {}

  void run() {
    for (const ptx::Directive& d : facts_.function->directives) {
      Name n = d.name;
      facts_.clusters |= n == ".explicitcluster" || n == ".reqnctapercluster" || n == ".maxclusterrank" ||
                         n == ".blocksareclusters";
      if (n == ".blocksareclusters") {  // the launch counts clusters, the coordinates count blocks
        found(Refusal::kCluster,
              "line " + std::to_string(facts_.function->at.line) + ": directive " + std::string(n));
      }
    }
    private_state(facts_.function->body);
    OwnAddresses own(facts_.flow);
    for (const Node& node : facts_.flow.nodes) instruction(node, own);
    facts_.order = check_order(facts_.flow, own);
  }

 private:
  void found(Refusal refusal, std::string detail) {
    if (facts_.own.may_cut()) facts_.own = refuse(refusal, std::move(detail));
  }

  // A copy of the body would have its own copy of such a variable.
  void private_state(const std::vector<ptx::Statement>& list) {
    for (const ptx::Statement& s : list) {
      if (s.kind == ptx::Statement::Kind::kScope) {
        private_state(s.scope);
      } else if (s.kind == ptx::Statement::Kind::kVariable &&
                 (s.variable->space == ptx::Space::kGlobal || s.variable->space == ptx::Space::kConst)) {
        found(Refusal::kTooComplex, "line " + std::to_string(s.variable->at.line) + ": '" +
                                        std::string(s.variable->name) +
                                        "' in global memory declared in the body");
      }
    }
  }

  void instruction(const Node& node, const OwnAddresses& own) {
    const Instruction& i = *node.instruction;
    if (!node.opcode) {
      found(Refusal::kUnknownOpcode, at(i));
      return;
    }
    const OpClass op_class = node.opcode->op_class;
    specials(i);
    facts_.clusters |= is_cluster_form(i, op_class);
    // S8: clusters of the grid that have not begun, by the coordinates of the launch.
    if (i.opcode == "clusterlaunchcontrol") found(Refusal::kCluster, at(i));
    if (op_class == OpClass::kMultimem) found(Refusal::kCollective, at(i));
    if (i.opcode == "call") call(i);
    facts_.own_ends_thread |= i.opcode == "exit";
    facts_.own_reads_others |= reads_others(node, own);
    facts_.own_reads_placement |= reads_placement(node);
    const auto reads = facts_.flow.reads(node);  // a call's are those of what it calls
    facts_.own_reads_memory |=
        i.opcode != "call" && std::any_of(reads.begin(), reads.end(), [](Object o) { return is_memory(o); });
  }

  void specials(const Instruction& i) {
    each_special(i.operands, [&](const Operand& o) {
      facts_.clusters |=
          o.name.starts_with("%cluster") || o.name == "%nclusterid" || o.name == "%is_explicit_cluster";
      facts_.own_reads_coordinates |= is_coordinate(o);
      if (o.name.starts_with("%envreg")) found(Refusal::kGridSync, at(i));
      if (o.name == "%gridid" || (is_coordinate(o) && !is_plain_coordinate_read(i)))
        found(Refusal::kCoordinateForm, at(i));
    });
  }

  void call(const Instruction& i) {
    if (callee_of(i).empty()) found(Refusal::kIndirectCall, at(i));
    facts_.own_reads_others |= callee_of(i) == "malloc";  // succeeds when another block frees
  }

  FunctionFacts& facts_;
};

}  // namespace

bool is_coordinate(const Operand& o) {
  constexpr Name kCoordinates[] = {"%ctaid", "%nctaid", "%clusterid", "%nclusterid"};
  return o.kind == Operand::Kind::kSpecial &&
         std::find(std::begin(kCoordinates), std::end(kCoordinates), o.name) != std::end(kCoordinates);
}

bool is_runtime_function(Name name) {
  return std::find(std::begin(kRuntime), std::end(kRuntime), name) != std::end(kRuntime);
}

Name callee_of(const Instruction& call) {
  for (const Operand& o : call.operands) {
    if (o.kind == Operand::Kind::kList) continue;
    return o.kind == Operand::Kind::kSymbol ? o.name : Name();
  }
  return {};
}

Closure::Closure(const ptx::Module& module) : module_(module) {
  for (const ptx::Item& item : module_.items)
    if (item.kind == ptx::Item::Kind::kFunction && item.function->has_body)
      defined_.emplace(item.function->name, item.function.get());
}

FunctionFacts* Closure::facts(Name name) {
  auto known = facts_.find(name);
  if (known != facts_.end()) {
    FunctionFacts* f = known->second.get();
    f->recursive |= f->state == 1;
    return f;
  }
  auto definition = defined_.find(name);
  if (definition == defined_.end()) return nullptr;
  FunctionFacts* f = facts_.emplace(name, std::make_unique<FunctionFacts>()).first->second.get();
  f->state = 1;
  f->function = definition->second;
  if (depth_ >= kMaxCallDepth) {
    f->own = refuse(Refusal::kTooComplex, "calls are nested too deeply");
    f->state = 2;
    return f;
  }
  ++depth_;
  f->flow = build_flow(*f->function);
  Scan(*f).run();
  f->reads_coordinates = f->own_reads_coordinates;
  f->reads_others = f->own_reads_others;
  f->ends_thread = f->own_ends_thread;
  f->reads_placement = f->own_reads_placement;
  f->reads_memory = f->own_reads_memory;
  for (const Node& node : f->flow.nodes) {
    Name callee = node.instruction->opcode == "call" ? callee_of(*node.instruction) : Name();
    if (callee.empty() || is_runtime_function(callee)) continue;
    FunctionFacts* c = facts(callee);
    if (!c) {
      if (f->own.may_cut())
        f->own = refuse(Refusal::kIndirectCall, at(*node.instruction) + " (not defined in this module)");
      continue;
    }
    if (std::find(f->callees.begin(), f->callees.end(), c) != f->callees.end()) continue;
    f->callees.push_back(c);
    f->reads_coordinates |= c->reads_coordinates;
    f->reads_others |= c->reads_others;
    f->ends_thread |= c->ends_thread;
    f->reads_placement |= c->reads_placement;
    f->reads_memory |= c->reads_memory;
  }
  --depth_;
  f->state = 2;
  return f;
}

std::vector<const FunctionFacts*> reached(const FunctionFacts& root) {
  std::vector<const FunctionFacts*> order;
  auto visit = [&](auto&& self, const FunctionFacts& f) -> void {
    if (std::find(order.begin(), order.end(), &f) != order.end() || f.recursive) {
      if (f.recursive && std::find(order.begin(), order.end(), &f) == order.end()) order.push_back(&f);
      return;
    }
    for (const FunctionFacts* c : f.callees) self(self, *c);
    order.push_back(&f);
  };
  visit(visit, root);
  return order;
}

}  // namespace tessera::slice

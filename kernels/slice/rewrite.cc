#include "kernels/slice/rewrite.h"

#include <algorithm>
#include <string>
#include <unordered_set>

#include "kernels/slice/build.h"

namespace tessera::slice {
namespace {

using build::address;
using build::each_instruction;
using build::make;
using build::reg;
using ptx::Instruction;
using ptx::Name;
using ptx::Operand;
using ptx::Space;
using ptx::Statement;
using ptx::Type;
using ptx::Variable;

constexpr unsigned kAxes = 3;
constexpr Name kAxisSuffix[kAxes] = {".x", ".y", ".z"};
// Registers of the prologue; the '%' keeps them apart from names of C++ and of inline assembly.
constexpr Name kBlock[kAxes] = {"%tessera_ctaid_x", "%tessera_ctaid_y", "%tessera_ctaid_z"};
constexpr Name kGrid[kAxes] = {"%tessera_nctaid_x", "%tessera_nctaid_y", "%tessera_nctaid_z"};
constexpr Name kBase[kAxes] = {"%tessera_base_x", "%tessera_base_y", "%tessera_base_z"};
constexpr Name kLaunched[kAxes] = {"%tessera_launched_x", "%tessera_launched_y", "%tessera_launched_z"};
constexpr Name kCluster[kAxes] = {"%tessera_clusterid_x", "%tessera_clusterid_y", "%tessera_clusterid_z"};
constexpr Name kClusters[kAxes] = {"%tessera_nclusterid_x", "%tessera_nclusterid_y", "%tessera_nclusterid_z"};
constexpr Name kShape[kAxes] = {"%tessera_shape_x", "%tessera_shape_y", "%tessera_shape_z"};
constexpr Name kHandedOn = "tessera_handed_on";  // call parameter with the coordinates

Name parameter_name(ptx::Module& module, Name function) {
  return module.keep(std::string(function) + "_origin");
}

Operand special(Name name, Name suffix) {
  Operand o;
  o.kind = Operand::Kind::kSpecial;
  o.name = name;
  o.suffix = suffix;
  return o;
}
Statement declare(Space space, Name name) {
  return build::declare(build::variable(space, Type::kB32, name));
}
// SliceOrigin, and with the same shape what a callee gets: block coordinates, then the original grid.
Variable coordinates_parameter(Name name) {
  return build::bytes_parameter(name, alignof(SliceOrigin), sizeof(SliceOrigin));
}

struct Coordinate {
  Name special;
  const Name* registers;  // by axis
};
constexpr Coordinate kCoordinates[] = {
    {"%ctaid", kBlock}, {"%nctaid", kGrid}, {"%clusterid", kCluster}, {"%nclusterid", kClusters}};
constexpr unsigned used_bit(unsigned coordinate, unsigned axis) {
  return 1u << (coordinate * kAxes + axis);
}
constexpr unsigned kBlockAndGrid = 0x3f;  // all axes of the first two

// Tells the coordinate that an operand reads, as used_bit(); replaces it by its register.
unsigned replace_coordinate(Operand& o) {
  for (unsigned n = 0; is_coordinate(o) && n < std::size(kCoordinates); ++n) {
    for (unsigned axis = 0; axis < kAxes; ++axis) {
      if (o.name == kCoordinates[n].special && o.suffix == kAxisSuffix[axis]) {
        o = reg(kCoordinates[n].registers[axis]);
        return used_bit(n, axis);
      }
    }
  }
  return 0;
}

// Clusters tile the grid, and a launch without them has clusters of one block: the number of a block's
// cluster is its own by the shape, which is that of the launch, whoever fixed it.
void in_clusters(std::vector<Statement>* list, Name number, Name blocks, unsigned axis) {
  list->push_back(declare(Space::kReg, number));
  list->push_back(make("div", {"u32"}, {reg(number), reg(blocks), reg(kShape[axis])}));
}

// Entry: ctaid of the box + origin, grid as it was. Callee: both as handed on.
std::vector<Statement> prologue(Name parameter, bool is_entry, unsigned used) {
  std::vector<Statement> list;
  for (unsigned axis = 0; axis < kAxes; ++axis) {
    const bool cluster = used & used_bit(2, axis), clusters = used & used_bit(3, axis);
    const uint64_t block_offset = axis * sizeof(uint32_t), grid_offset = (kAxes + axis) * sizeof(uint32_t);
    if (cluster || (used & used_bit(0, axis))) {
      list.push_back(declare(Space::kReg, kBlock[axis]));
      if (is_entry) {
        list.push_back(declare(Space::kReg, kBase[axis]));
        list.push_back(declare(Space::kReg, kLaunched[axis]));
        list.push_back(make("ld", {"param", "u32"}, {reg(kBase[axis]), address(parameter, block_offset)}));
        list.push_back(make("mov", {"u32"}, {reg(kLaunched[axis]), special("%ctaid", kAxisSuffix[axis])}));
        list.push_back(make("add", {"s32"}, {reg(kBlock[axis]), reg(kBase[axis]), reg(kLaunched[axis])}));
      } else {
        list.push_back(make("ld", {"param", "u32"}, {reg(kBlock[axis]), address(parameter, block_offset)}));
      }
    }
    if (clusters || (used & used_bit(1, axis))) {
      list.push_back(declare(Space::kReg, kGrid[axis]));
      list.push_back(make("ld", {"param", "u32"}, {reg(kGrid[axis]), address(parameter, grid_offset)}));
    }
    if (cluster || clusters) {
      list.push_back(declare(Space::kReg, kShape[axis]));
      list.push_back(
          make("mov", {"u32"}, {reg(kShape[axis]), special("%cluster_nctaid", kAxisSuffix[axis])}));
    }
    if (cluster) in_clusters(&list, kCluster[axis], kBlock[axis], axis);
    if (clusters) in_clusters(&list, kClusters[axis], kGrid[axis], axis);
  }
  return list;
}

void collect_targets(const std::vector<Statement>& list, std::unordered_set<Name>* names) {
  for (const Statement& s : list) {
    if (s.kind == Statement::Kind::kScope) {
      collect_targets(s.scope, names);
    } else if (s.kind == Statement::Kind::kPrototype) {
      names->insert(s.prototype->targets.begin(), s.prototype->targets.end());
    } else if (s.kind == Statement::Kind::kInstruction) {
      for (const Operand& o : s.instruction.operands)
        if (o.kind == Operand::Kind::kSymbol) names->insert(o.name);
    }
  }
}

void remove_debug(std::vector<Statement>* list, const std::unordered_set<Name>& targets) {
  std::erase_if(*list, [&](const Statement& s) {
    return s.kind == Statement::Kind::kLoc ||
           (s.kind == Statement::Kind::kLabel && !targets.contains(s.label));
  });
  for (Statement& s : *list)
    if (s.kind == Statement::Kind::kScope) remove_debug(&s.scope.edit(), targets);
}

ptx::Function* add_function(ptx::Module& module, ptx::Function&& f) {
  ptx::Item& item = module.items.emplace_back();
  item.kind = ptx::Item::Kind::kFunction;
  item.function = std::make_unique<ptx::Function>(std::move(f));
  return item.function.get();
}

// The call with the coordinates as one more parameter.
Statement threaded_call(const Instruction& original, Name callee) {
  std::vector<Statement> stores;
  for (unsigned axis = 0; axis < kAxes; ++axis) {
    const uint64_t block_offset = axis * sizeof(uint32_t), grid_offset = (kAxes + axis) * sizeof(uint32_t);
    stores.push_back(make("st", {"param", "b32"}, {address(kHandedOn, block_offset), reg(kBlock[axis])}));
    stores.push_back(make("st", {"param", "b32"}, {address(kHandedOn, grid_offset), reg(kGrid[axis])}));
  }
  return build::call_with(original, callee, coordinates_parameter(kHandedOn), std::move(stores));
}

void thread_list(std::vector<Statement>& list, const std::unordered_map<Name, Name>& renamed) {
  for (Statement& s : list) {
    if (s.kind == Statement::Kind::kScope) {
      thread_list(s.scope.edit(), renamed);
    } else if (s.kind == Statement::Kind::kInstruction && s.instruction.opcode == "call") {
      auto it = renamed.find(callee_of(s.instruction));
      if (it != renamed.end()) s = threaded_call(s.instruction, it->second);
    }
  }
}

bool calls_renamed(const FunctionFacts& facts) {
  return std::any_of(facts.callees.begin(), facts.callees.end(),
                     [](const FunctionFacts* c) { return c->reads_coordinates; });
}

}  // namespace

void clone_functions(Rewrite& rw) {
  std::vector<const FunctionFacts*> callees;
  for (Name kernel : rw.kernels) {
    for (const FunctionFacts* f : reached(*rw.closure.facts(kernel))) {
      if (f->function->is_entry || !f->reads_coordinates || rw.renamed_callees.contains(f->function->name))
        continue;
      rw.renamed_callees[f->function->name] = rw.module.keep(std::string(f->function->name) + kVariantSuffix);
      callees.push_back(f);
    }
  }
  auto clone = [&](const FunctionFacts& facts, Name name) {
    ptx::Function copy = *facts.function;
    copy.name = name;
    copy.at = {};
    copy.linkage = copy.is_entry ? Name(".visible") : Name();
    ptx::Function* added = add_function(rw.module, std::move(copy));
    rw.clones.push_back({added, added->is_entry, facts.reads_coordinates, calls_renamed(facts)});
  };
  for (const FunctionFacts* f : callees) clone(*f, rw.renamed_callees[f->function->name]);
  for (Name kernel : rw.kernels)
    clone(*rw.closure.facts(kernel), rw.module.keep(std::string(kernel) + kVariantSuffix));
}

void append_parameter(Rewrite& rw) {
  for (Clone& c : rw.clones)
    c.function->params.push_back(coordinates_parameter(parameter_name(rw.module, c.function->name)));
}

void strip_debug(Rewrite& rw) {
  for (Clone& c : rw.clones) {
    std::unordered_set<Name> targets;
    collect_targets(c.function->body, &targets);
    remove_debug(&c.function->body, targets);
  }
}

void read_coordinates(Rewrite& rw) {
  for (Clone& c : rw.clones) {
    unsigned used = c.threads_callees ? kBlockAndGrid : 0;
    each_instruction(c.function->body, [&](Instruction& i) {
      const Instruction& read_only = i;  // the others go on sharing their operands with the original
      if (std::any_of(read_only.operands.begin(), read_only.operands.end(), is_coordinate))
        for (Operand& o : i.operands) used |= replace_coordinate(o);
    });
    auto added = prologue(c.function->params.back().name, c.is_entry, used);
    c.function->body.insert(c.function->body.begin(), std::make_move_iterator(added.begin()),
                            std::make_move_iterator(added.end()));
  }
}

void thread_calls(Rewrite& rw) {
  for (Clone& c : rw.clones)
    if (c.threads_callees) thread_list(c.function->body, rw.renamed_callees);
}

}  // namespace tessera::slice

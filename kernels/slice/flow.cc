#include "kernels/slice/flow.h"

#include <algorithm>
#include <utility>

#include "kernels/ptx/scope.h"

namespace tessera::slice {
namespace {

using ptx::Name;
using ptx::OpClass;
using ptx::Operand;
using ptx::Space;
using ptx::Statement;

constexpr size_t kMaxLoopWork = 4'000'000;  // blocks visited while the loop forest is built

using Pool = std::vector<std::pair<Object, uint8_t>>;  // object, operand index

// Adds the stand-ins for memory that an access of `space` may touch.
void add_memory(Space space, Pool* out) {
  if (space == Space::kLocal || space == Space::kNone) out->push_back({kLocalMemory, kNoOperand});
  if (space == Space::kShared || space == Space::kNone) out->push_back({kExchange, kNoOperand});
  if (space == Space::kGlobal || space == Space::kNone) out->push_back({kGlobalMemory, kNoOperand});
}

class Builder {
 public:
  explicit Builder(Flow& flow) : flow_(flow) {}

  void run(const ptx::Function& f) {
    for (const ptx::Variable& v : f.returns) {
      scopes_.declare(v);
      flow_.taken.push_back(object(v.name));
    }
    for (const ptx::Variable& v : f.params) {
      scopes_.declare(v);
      flow_.given.push_back(object(v.name));
    }
    flow_.nodes.reserve(f.body.size());
    flow_.objects.reserve(f.body.size() * 4);
    flow_.operand_of.reserve(f.body.size() * 4);
    ids_.reserve(f.body.size());
    statements(f.body, kNoScope);
    make_blocks();
  }

 private:
  static constexpr uint32_t kNoScope = UINT32_MAX;
  struct ScopeRow {
    uint32_t parent;
    std::unordered_map<Name, uint32_t> labels;  // to node index
    std::unordered_map<Name, const Statement*> lists;
  };

  void statements(const std::vector<Statement>& list, uint32_t parent) {
    auto id = static_cast<uint32_t>(rows_.size());
    rows_.push_back({parent, {}, {}});
    scopes_.push();
    for (const Statement& s : list) {
      switch (s.kind) {
        case Statement::Kind::kInstruction:
          instruction(s.instruction, id);
          break;
        case Statement::Kind::kLabel:
          rows_[id].labels[s.label] = static_cast<uint32_t>(flow_.nodes.size());
          break;
        case Statement::Kind::kVariable:
          scopes_.declare(s.variable);
          break;
        case Statement::Kind::kScope:
          statements(s.scope, id);
          break;
        case Statement::Kind::kPrototype:
          rows_[id].lists[s.label] = &s;
          break;
        case Statement::Kind::kLoc:
        case Statement::Kind::kPragma:
        case Statement::Kind::kRaw:
          break;
      }
    }
    scopes_.pop();
  }

  Object object(Name name) {
    ptx::Scopes::Found found;
    if (!scopes_.find(name, &found) || (found.space != Space::kReg && found.space != Space::kParam))
      return kNoObject;
    auto [it, fresh] = ids_.try_emplace(found.key, flow_.n_objects);
    flow_.n_objects += fresh;
    return it->second;
  }

  void collect(const Operand& o, size_t n, Pool* out) {
    switch (o.kind) {
      case Operand::Kind::kRegister:
      case Operand::Kind::kSymbol:
      case Operand::Kind::kAddress:
        if (Object found = object(o.name))
          out->push_back({found, static_cast<uint8_t>(std::min<size_t>(n, kNoOperand - 1))});
        else
          flow_.gave_up |= o.kind == Operand::Kind::kRegister || o.base_is_register;
        break;
      default:
        for (const Operand& child : o.children) collect(child, n, out);
    }
  }

  void instruction(const ptx::Instruction& i, uint32_t scope) {
    Node node;
    node.instruction = &i;
    node.opcode = ptx::find_opcode(i.opcode);
    node.scope = scope;
    reads_.clear();
    writes_.clear();
    if (!i.guard.empty() && (node.guard = object(i.guard))) reads_.push_back({node.guard, kNoOperand});
    flow_.gave_up |= !i.guard.empty() && !node.guard;
    // Not in the table: as if it wrote its first operand and read all of them (the kernel is refused anyway).
    int written = node.opcode ? ptx::written_operand(*node.opcode, i) : 0;
    const OpClass op_class = node.opcode ? node.opcode->op_class : OpClass::kSpecial;
    const Space space = ptx::space_of(i);
    for (size_t n = 0; n < i.operands.size(); ++n) {
      const Operand& o = i.operands[n];
      bool into_param = op_class == OpClass::kStore && space == Space::kParam && n == 0;
      collect(o, n, static_cast<int>(n) == written || into_param ? &writes_ : &reads_);
    }
    memory(i, op_class, space, &reads_, &writes_);
    exchanges(i, op_class, &reads_, &writes_);
    carry(i, &reads_, &writes_);
    node.reads_begin = append(reads_);
    node.writes_begin = append(writes_);
    node.end = static_cast<uint32_t>(flow_.objects.size());
    flow_.nodes.push_back(node);
  }

  uint32_t append(const Pool& pool) {
    auto begin = static_cast<uint32_t>(flow_.objects.size());
    for (const auto& [object, operand] : pool) {
      flow_.objects.push_back(object);
      flow_.operand_of.push_back(operand);
    }
    return begin;
  }

  static void memory(const ptx::Instruction& i, OpClass op_class, Space space, Pool* reads, Pool* writes) {
    switch (op_class) {
      case OpClass::kLoad:
        add_memory(i.opcode == "ldmatrix" ? Space::kShared : space, reads);
        break;
      case OpClass::kStore:
        add_memory(i.opcode == "stmatrix" ? Space::kShared : space, writes);
        break;
      case OpClass::kAtomic:
        add_memory(space, reads);
        add_memory(space, writes);
        break;
      case OpClass::kTexture:
        add_memory(Space::kGlobal, reads);
        break;
      case OpClass::kTensor:  // tcgen05 has a memory of its own, which no stand-in has to itself
        add_memory(Space::kNone, reads);
        if (i.has("store") || i.opcode == "tcgen05") add_memory(Space::kNone, writes);
        break;
      case OpClass::kAsyncCopy:
      case OpClass::kMultimem:
        add_memory(Space::kNone, reads);
        add_memory(Space::kNone, writes);
        break;
      case OpClass::kControl:
        if (i.opcode == "call") {
          add_memory(Space::kNone, reads);
          add_memory(Space::kNone, writes);
        }
        break;
      default:
        break;
    }
  }

  // A thread that arrives at a barrier decides when others go on, which is a message, too. The values that lanes of a
  // warp exchange are another.
  static void exchanges(const ptx::Instruction& i, OpClass op_class, Pool* reads, Pool* writes) {
    const bool both = op_class == OpClass::kBlockBarrier || op_class == OpClass::kWarp || i.opcode == "call";
    if (both) reads->push_back({kExchange, kNoOperand});
    if (both || i.opcode == "tcgen05" || op_class == OpClass::kAsyncCopy || i.has("async"))
      writes->push_back({kExchange, kNoOperand});
  }

  static void carry(const ptx::Instruction& i, Pool* reads, Pool* writes) {
    if (i.opcode == "addc" || i.opcode == "subc" || i.opcode == "madc")
      reads->push_back({kCarry, kNoOperand});
    if (i.has("cc")) writes->push_back({kCarry, kNoOperand});
  }

  // Node index of a label seen from `scope`, or the number of nodes (= the end) if there is none.
  uint32_t label(Name name, uint32_t scope) const {
    for (; scope != kNoScope; scope = rows_[scope].parent) {
      auto it = rows_[scope].labels.find(name);
      if (it != rows_[scope].labels.end()) return it->second;
    }
    return static_cast<uint32_t>(flow_.nodes.size());
  }

  const Statement* target_list(Name name, uint32_t scope) const {
    for (; scope != kNoScope; scope = rows_[scope].parent) {
      auto it = rows_[scope].lists.find(name);
      if (it != rows_[scope].lists.end()) return it->second;
    }
    return nullptr;
  }

  // Collects the targets of jumps from node n. True if control may also go on to the next node.
  bool jumps(uint32_t n, std::vector<uint32_t>* targets) {
    const Node& node = flow_.nodes[n];
    const ptx::Instruction& i = *node.instruction;
    bool guarded = !i.guard.empty();
    if (i.opcode == "bra" && !i.operands.empty()) {
      targets->push_back(label(i.operands[0].name, node.scope));
      return guarded;
    }
    if (i.opcode == "brx" && i.operands.size() >= 2) {
      const Statement* list = target_list(i.operands[1].name, node.scope);
      flow_.gave_up |= !list || list->prototype->targets.empty();
      for (size_t k = 0; list && k < list->prototype->targets.size(); ++k)
        targets->push_back(label(list->prototype->targets[k], node.scope));
      return guarded;
    }
    return guarded || (i.opcode != "ret" && i.opcode != "exit");
  }

  void make_blocks() {
    const auto n = static_cast<uint32_t>(flow_.nodes.size());
    std::vector<uint8_t> leader(n + 1, 0);
    std::vector<uint32_t> targets;
    leader[0] = 1;
    auto is_end = [&](uint32_t k) {
      const Node& node = flow_.nodes[k];
      return node.opcode && node.opcode->op_class == OpClass::kControl &&
             node.instruction->opcode != "call" && node.instruction->opcode != "trap";
    };
    for (uint32_t k = 0; k < n; ++k) {
      if (is_end(k)) {
        targets.clear();
        jumps(k, &targets);
        leader[k + 1] = 1;
        for (uint32_t t : targets) leader[t] = 1;
      }
    }
    std::vector<uint32_t> block_of(n + 1, UINT32_MAX);
    for (uint32_t k = 0; k < n; ++k) {
      if (leader[k]) flow_.blocks.push_back({k, k, {}, false});
      block_of[k] = static_cast<uint32_t>(flow_.blocks.size() - 1);
      flow_.blocks.back().end = k + 1;
    }
    for (Block& block : flow_.blocks) {
      targets.clear();
      if (jumps(block.end - 1, &targets)) targets.push_back(block.end);
      const Name last = flow_.nodes[block.end - 1].instruction->opcode;
      block.leaves = last == "ret" || last == "exit";
      for (uint32_t t : targets)
        if (t < n)
          block.successors.push_back(block_of[t]);
        else  // off the end
          block.leaves = true;
    }
  }

  Flow& flow_;
  ptx::Scopes scopes_;
  std::unordered_map<uint64_t, Object> ids_;
  std::vector<ScopeRow> rows_;
  Pool reads_, writes_;
};

// Nested loops: strongly connected components; then, within each, without the edges to its header, again. A
// component with several entries (irreducible) takes its lowest block as header.
class LoopFinder {
 public:
  explicit LoopFinder(Flow& flow) : flow_(flow), region_(flow.blocks.size(), 0) {}

  void run() {
    std::vector<uint32_t> all(flow_.blocks.size());
    for (uint32_t b = 0; b < all.size(); ++b) all[b] = b;
    work_.push_back({std::move(all), UINT32_MAX, 0});
    for (size_t next = 0; next < work_.size(); ++next) {
      Work item = std::move(work_[next]);
      visited_ += item.blocks.size();
      if (visited_ <= kMaxLoopWork) components(item);
    }
    flow_.gave_up |= visited_ > kMaxLoopWork;
  }

 private:
  struct Work {
    std::vector<uint32_t> blocks;
    uint32_t header;
    unsigned depth;
  };
  struct Frame {
    uint32_t block;
    size_t edge;
  };

  void components(const Work& item) {
    const uint32_t region = ++last_region_;
    for (uint32_t b : item.blocks) region_[b] = region;
    index_.resize(flow_.blocks.size());
    low_.resize(flow_.blocks.size());
    on_stack_.resize(flow_.blocks.size());
    for (uint32_t b : item.blocks) {
      index_[b] = 0;
      on_stack_[b] = 0;
    }
    counter_ = 0;
    for (uint32_t b : item.blocks)
      if (index_[b] == 0) tarjan(b, item, region);
  }

  bool inside(uint32_t to, const Work& item, uint32_t region) const {
    return region_[to] == region && to != item.header;
  }

  void enter(uint32_t b) {
    index_[b] = low_[b] = ++counter_;
    stack_.push_back(b);
    on_stack_[b] = 1;
    frames_.push_back({b, 0});
  }

  void tarjan(uint32_t root, const Work& item, uint32_t region) {
    enter(root);
    while (!frames_.empty()) {
      Frame& frame = frames_.back();
      const uint32_t b = frame.block;
      const auto& successors = flow_.blocks[b].successors;
      if (frame.edge < successors.size()) {
        uint32_t to = successors[frame.edge++];
        if (!inside(to, item, region)) continue;
        if (index_[to] == 0)
          enter(to);
        else if (on_stack_[to])
          low_[b] = std::min(low_[b], index_[to]);
        continue;
      }
      frames_.pop_back();
      if (!frames_.empty()) {
        uint32_t parent = frames_.back().block;
        low_[parent] = std::min(low_[parent], low_[b]);
      }
      if (low_[b] == index_[b]) component(b, item, region);
    }
  }

  void component(uint32_t root, const Work& item, uint32_t region) {
    std::vector<uint32_t> blocks;
    uint32_t b;
    do {
      b = stack_.back();
      stack_.pop_back();
      on_stack_[b] = 0;
      blocks.push_back(b);
    } while (b != root);
    const auto& successors = flow_.blocks[root].successors;
    bool self = std::find(successors.begin(), successors.end(), root) != successors.end() &&
                inside(root, item, region);
    if (blocks.size() == 1 && !self) return;
    std::sort(blocks.begin(), blocks.end());
    uint32_t header = entry_of(blocks, item);
    flow_.loops.push_back({blocks, item.depth, header, false});
    natural_loops(blocks, header, item.depth + 1);
    work_.push_back({std::move(blocks), header, item.depth + 1});
  }

  void natural_loops(const std::vector<uint32_t>& blocks, uint32_t header, unsigned depth) {
    std::vector<std::vector<uint32_t>> predecessors(blocks.size());
    auto position = [&](uint32_t b) {
      auto it = std::lower_bound(blocks.begin(), blocks.end(), b);
      return it != blocks.end() && *it == b ? it - blocks.begin() : -1;
    };
    for (uint32_t b : blocks) {
      for (uint32_t to : flow_.blocks[b].successors)
        if (auto p = position(to); p >= 0) predecessors[static_cast<size_t>(p)].push_back(b);
    }
    visited_ += blocks.size();
    const auto& back = predecessors[static_cast<size_t>(position(header))];
    if (back.size() < 2) return;
    for (uint32_t source : back) {
      std::vector<uint8_t> member(blocks.size(), 0);
      std::vector<uint32_t> open = {source}, loop = {header};
      member[static_cast<size_t>(position(header))] = 1;
      while (!open.empty()) {
        uint32_t b = open.back();
        open.pop_back();
        auto p = static_cast<size_t>(position(b));
        if (member[p]) continue;
        member[p] = 1;
        loop.push_back(b);
        open.insert(open.end(), predecessors[p].begin(), predecessors[p].end());
      }
      visited_ += blocks.size();
      if (loop.size() < blocks.size() && visited_ <= kMaxLoopWork) {
        std::sort(loop.begin(), loop.end());
        flow_.loops.push_back({std::move(loop), depth, header, true});
      }
    }
  }

  uint32_t entry_of(const std::vector<uint32_t>& blocks, const Work& item) const {
    auto member = [&](uint32_t b) { return std::binary_search(blocks.begin(), blocks.end(), b); };
    uint32_t best = blocks.front() == 0 ? 0 : UINT32_MAX;
    for (uint32_t from : item.blocks) {
      if (best == 0 || member(from)) continue;
      for (uint32_t to : flow_.blocks[from].successors)
        if (member(to)) best = std::min(best, to);
    }
    return best == UINT32_MAX ? blocks.front() : best;
  }

  Flow& flow_;
  std::vector<uint32_t> region_, index_, low_, stack_;
  std::vector<uint8_t> on_stack_;
  std::vector<Frame> frames_;
  std::vector<Work> work_;
  uint32_t last_region_ = 0, counter_ = 0;
  size_t visited_ = 0;
};

}  // namespace

uint32_t Flow::block_of(const Node& node) const {
  const auto index = static_cast<uint32_t>(&node - nodes.data());
  auto after = std::upper_bound(blocks.begin(), blocks.end(), index,
                                [](uint32_t n, const Block& b) { return n < b.begin; });
  return static_cast<uint32_t>(after - blocks.begin()) - 1;
}

Object Flow::object_of(const Node& node, size_t n) const {
  Object found = kNoObject;
  each_object(node, n, [&](Object o) { found = found ? found : o; });
  return found;
}

Flow build_flow(const ptx::Function& function) {
  Flow flow;
  flow.function = &function;
  Builder(flow).run(function);
  if (!flow.blocks.empty()) LoopFinder(flow).run();
  return flow;
}

}  // namespace tessera::slice

// Rules S4 and S5: does a loop wait for memory that a block of another slice writes? The theorem that this
// file keeps is in docs/slicing.md, "S4: waiting". For every loop of the nested forest, values are followed
// forward from each read that could see another block's store, through data and through branches, to what
// decides whether the loop is left. Linear in the instructions of the loops, but for kernels that are
// refused.
#include <algorithm>
#include <optional>

#include "kernels/slice/advance.h"
#include "kernels/slice/bisection.h"
#include "kernels/slice/internal.h"
#include "kernels/slice/lookback.h"
#include "kernels/slice/loop_pass.h"

namespace tessera::slice {
namespace {

using ptx::Instruction;
using ptx::Name;
using ptx::OpClass;
using ptx::Operand;
using ptx::Space;
using ptx::Type;

constexpr size_t kMaxWork = 200'000'000;  // objects and blocks visited in one function

// True if the load may see stores of other blocks, wherever and however often it is read.
bool is_strong(const Instruction& load) {
  constexpr Name kStrong[] = {"volatile", "relaxed", "acquire", "mmio", "cv", "cg", "cs", "lu"};
  return std::any_of(std::begin(kStrong), std::end(kStrong), [&](Name m) { return load.has(m); });
}

bool is_branch(const Node& node) {
  return node.opcode && node.opcode->op_class == OpClass::kControl && node.instruction->opcode != "call" &&
         node.instruction->opcode != "trap";
}

// Does the result depend on which lanes of the warp happen to be here?
bool sees_divergence(const Node& node) {
  return node.opcode && node.opcode->op_class == OpClass::kWarp && !node.instruction->has("sync");
}

// One function: what its loops share.
class FunctionCheck {
 public:
  FunctionCheck(const FunctionFacts& facts, Closure& closure)
      : flow_(facts.flow), closure_(closure), own_(facts.flow) {}

  // A wait for lower blocks is told only if the function waits for nothing else.
  Verdict run() {
    find_readers();
    find_fixed();
    innermost_.assign(flow_.blocks.size(), nullptr);
    for (const Loop& loop : flow_.loops)  // outer before inner
      for (uint32_t b : loop.blocks) innermost_[b] = loop.partial ? innermost_[b] : &loop;
    Verdict lower;
    for (size_t n = flow_.loops.size(); n-- > 0;) {  // inner ones first: what they wait for says more
      const Loop& loop = flow_.loops[n];
      // Whoever stays in a part of a loop for ever stays in the loop, and comes to its header.
      Verdict verdict = loop.partial ? Verdict{} : check(loop);
      if (work_ > kMaxWork) return refuse(Refusal::kTooComplex, "loops with many reads of shared state");
      if (verdict.refusal == Refusal::kLowerBlockWait)
        lower = lower.may_cut() ? verdict : lower;
      else if (!verdict.may_cut())
        return verdict;
    }
    return lower;
  }

 private:
  struct Taint {
    std::vector<uint8_t> objects, nodes, blocks;
    std::vector<Object> open;  // objects whose readers are to be looked at
    std::vector<uint32_t> open_blocks;
    const Node* exit = nullptr;  // the first branch found that leaves the loop and depends on it
    bool divergent = false;
  };

  // Nodes that read each object.
  void find_readers() {
    readers_begin_.assign(flow_.n_objects + 1, 0);
    for (const Node& node : flow_.nodes)
      for (Object o : flow_.reads(node)) ++readers_begin_[o + 1];
    for (size_t o = 0; o < flow_.n_objects; ++o) readers_begin_[o + 1] += readers_begin_[o];
    readers_.resize(readers_begin_[flow_.n_objects]);
    std::vector<uint32_t> next(readers_begin_.begin(), readers_begin_.end() - 1);
    block_of_.resize(flow_.nodes.size());
    for (uint32_t b = 0; b < flow_.blocks.size(); ++b) {
      for (uint32_t n = flow_.blocks[b].begin; n < flow_.blocks[b].end; ++n) {
        block_of_[n] = b;
        for (Object o : flow_.reads(flow_.nodes[n])) readers_[next[o]++] = n;
      }
    }
  }

  // A register that only ever gets one parameter has its value wherever it is loaded again: who decides about that
  // decides nothing.
  void find_fixed() {
    std::vector<const Node*> writer(flow_.n_objects, nullptr);
    fixed_.assign(flow_.n_objects, 0);
    for (const Node& node : flow_.nodes) {
      for (Object o : flow_.writes(node)) {
        fixed_[o] = loads_parameter(node) && (!writer[o] || (fixed_[o] && loads_same(node, *writer[o])));
        writer[o] = &node;
      }
    }
  }

  bool loads_parameter(const Node& node) const {
    const Instruction& i = *node.instruction;
    return i.opcode == "ld" && ptx::space_of(i) == Space::kParam && i.operands.size() == 2 &&
           i.operands[0].kind == Operand::Kind::kRegister &&
           std::ranges::count(flow_.given, flow_.object_of(node, 1)) != 0;
  }

  bool loads_same(const Node& a, const Node& b) const {
    const Instruction &i = *a.instruction, &j = *b.instruction;
    return flow_.object_of(a, 1) == flow_.object_of(b, 1) && i.operands[1].bits == j.operands[1].bits &&
           std::ranges::equal(i.modifiers, j.modifiers);
  }

  Verdict check(const Loop& loop) {
    std::vector<const Node*> sources;
    each_node(loop, [&](const Node& node) {
      if (observes(node)) sources.push_back(&node);
    });
    if (sources.empty()) return {};
    LoopPass pass(flow_, loop);
    Advance advance(flow_, loop, pass);
    std::erase_if(sources, [&](const Node* source) {
      return never_twice(*source, advance) ||
             (innermost_[block_of(*source)] == &loop && is_lock_free_retry(*source, loop, pass));
    });
    if (sources.empty() || !follow(sources, pass) || is_bisection(flow_, loop, pass)) return {};
    Verdict lower;
    for (const Node* source : sources) {
      const Node* exit = follow({source}, pass);
      if (!exit) continue;
      Verdict verdict = waiting_for(*source, at(*source->instruction) + " steers " + at(*exit->instruction));
      if (verdict.refusal != Refusal::kLowerBlockWait) return verdict;
      lower = lower.may_cut() ? verdict : lower;
      if (work_ > kMaxWork) return {};
    }
    return lower;
  }

  void each_node(const Loop& loop, auto f) const {
    for (uint32_t b : loop.blocks)
      for (uint32_t n = flow_.blocks[b].begin; n < flow_.blocks[b].end; ++n) f(flow_.nodes[n]);
  }

  uint32_t block_of(const Node& node) const {
    return block_of_[static_cast<size_t>(&node - flow_.nodes.data())];
  }

  const FunctionFacts* called(const Node& node) const {
    return node.instruction->opcode == "call" ? closure_.facts(callee_of(*node.instruction)) : nullptr;
  }

  bool observes(const Node& node) const {
    if (node.instruction->opcode == "call") {
      const FunctionFacts* callee = called(node);
      return callee_of(*node.instruction) == "malloc" || (callee && callee->reads_others);
    }
    return reads_others(node, own_);
  }

  // Whoever reads there in endlessly many passes would leave the memory.
  static bool never_twice(const Node& node, Advance& advance) {
    const Instruction& i = *node.instruction;
    const bool load = (i.opcode == "ld" || i.opcode == "ldu") && !is_strong(i);
    const bool copy = i.opcode == "cp" && !i.has("tensor") && i.operands.size() > 1;
    return (load && advance.advances(node, address_operand(i))) || (copy && advance.advances(node, 1));
  }

  // The branch out of the loop that the values of the sources decide about; nullptr if there is none.
  const Node* follow(const std::vector<const Node*>& sources, const LoopPass& pass) {
    Taint t;
    t.objects.assign(flow_.n_objects, 0);
    t.nodes.assign(flow_.nodes.size(), 0);
    t.blocks.assign(flow_.blocks.size(), 0);
    work_ += flow_.n_objects / 8 + flow_.nodes.size() / 8;
    for (const Node* source : sources) {
      const Instruction& i = *source->instruction;
      const bool by_memory = !source->opcode || i.opcode == "call" || i.opcode == "cp";
      t.nodes[index(*source)] = by_memory;
      for (Object o : flow_.writes(*source))
        if (o >= kFirstRegister || by_memory) mark(o, &t);
      decide(*source, pass, &t);
    }
    while (!t.exit && (!t.open.empty() || !t.open_blocks.empty()) && work_ <= kMaxWork) {
      if (!t.open.empty()) {
        const Object o = t.open.back();
        t.open.pop_back();
        for (uint32_t k = readers_begin_[o]; k < readers_begin_[o + 1]; ++k, ++work_) {
          const uint32_t n = readers_[k];
          if (!t.nodes[n] && pass.contains(block_of_[n])) reach(flow_.nodes[n], pass, &t);
        }
        continue;
      }
      const uint32_t b = t.open_blocks.back();
      t.open_blocks.pop_back();
      for (uint32_t n = flow_.blocks[b].begin; n < flow_.blocks[b].end; ++n, ++work_)
        if (!t.nodes[n]) reach(flow_.nodes[n], pass, &t);
      if (pass.leaves(b) && !t.exit) t.exit = &flow_.nodes[flow_.blocks[b].end - 1];
    }
    return t.exit;
  }

  size_t index(const Node& node) const { return static_cast<size_t>(&node - flow_.nodes.data()); }

  void mark(Object o, Taint* t) const {
    if (!t->objects[o] && !fixed_[o]) {
      t->objects[o] = 1;
      t->open.push_back(o);
    }
  }

  // Marks the node, which depends on the sources.
  void reach(const Node& node, const LoopPass& pass, Taint* t) {
    t->nodes[index(node)] = 1;
    for (Object o : flow_.writes(node)) mark(o, t);
    decide(node, pass, t);
  }

  // Marks the effects of a decision: of a branch, or of a call that may end the thread.
  void decide(const Node& node, const LoopPass& pass, Taint* t) {
    const FunctionFacts* callee = called(node);
    if (callee && callee->ends_thread) t->exit = t->exit ? t->exit : &node;
    if (!is_branch(node) || (node.guard == kNoObject && node.instruction->opcode != "brx")) return;
    const uint32_t b = block_of(node);
    if (pass.leaves(b)) t->exit = t->exit ? t->exit : &node;
    decided_.clear();
    pass.decides_about(b, &decided_);
    work_ += decided_.size() + 1;
    for (uint32_t d : decided_) {
      if (!t->blocks[d]) {
        t->blocks[d] = 1;
        t->open_blocks.push_back(d);
      }
    }
    if (!t->divergent) {  // lanes come apart
      t->divergent = true;
      for (const Node& other : flow_.nodes)
        if (sees_divergence(other) && pass.contains(block_of(other)) && !t->nodes[index(other)])
          reach(other, pass, t);
    }
  }

  Verdict waiting_for(const Node& poll, std::string wait) {
    if (poll.instruction->opcode == "atom" && poll.instruction->has("cas"))
      return refuse(Refusal::kLockLoop, std::move(wait));
    if (!look_back_) look_back_.emplace(flow_, own_);
    if (const Node* word = look_back_->published_above(poll)) {
      return refuse(Refusal::kLowerBlockWait,
                    wait + " and polls below the block's own word, see " + at(*word->instruction));
    }
    return refuse(Refusal::kInterBlockWait, std::move(wait));
  }

  // A compare-and-swap that expects, in each pass but the first, what it returned before, in a loop that is
  // left when it succeeds: it fails only where another one succeeded.
  bool is_lock_free_retry(const Node& cas, const Loop& loop, const LoopPass& pass) const {
    const Instruction& i = *cas.instruction;
    if (i.opcode != "atom" || !i.has("cas") || cas.guard || !carried(cas, loop, pass)) return false;
    const Object result = flow_.object_of(cas, 0), expected = flow_.object_of(cas, 2);
    bool found = false;
    each_node(loop, [&](const Node& test) {
      const Object a = flow_.object_of(test, 1), b = flow_.object_of(test, 2);
      found |= is_equality(test) && ((a == result && b == expected) || (a == expected && b == result)) &&
               pass.before(cas, test) && leaves_if_equal(cas, test, loop, pass);
    });
    return found;
  }

  static bool is_equality(const Node& node) {
    const Instruction& i = *node.instruction;
    const Type t = i.type();
    return i.opcode == "setp" && i.operands.size() == 3 && i.modifiers.size() == 2 && !node.guard &&
           (i.has("eq") || i.has("ne")) && t != Type::kF16 && t != Type::kBf16 && t != Type::kF32 &&
           t != Type::kF64;
  }

  // No pass with the cas comes back to the header but by a branch that leaves the loop if the two are equal.
  bool leaves_if_equal(const Node& cas, const Node& test, const Loop& loop, const LoopPass& pass) const {
    const Object equal = flow_.object_of(test, 0);
    if (flow_.writes(test).size() != 1 || sole_writer(equal, loop) != &test) return false;
    std::vector<uint8_t> by(flow_.blocks.size(), 0);
    for (uint32_t b : loop.blocks) {
      const Block& block = flow_.blocks[b];
      const Node& last = flow_.nodes[block.end - 1];
      if (last.guard != equal || last.instruction->opcode != "bra" || !pass.before(test, last)) continue;
      const bool taken_if_equal = test.instruction->has("eq") != last.instruction->guard_negated;
      const size_t way = taken_if_equal ? 0 : 1;  // where it branches to, then the next
      by[b] = way < block.successors.size() && !pass.contains(block.successors[way]);
    }
    const uint32_t home = block_of(cas);
    return by[home] || pass.comes_back_only_through(home, by);
  }

  // The value that the cas expects is, in each pass but the first, what it returned before: somebody's
  // progress is always somebody's. Made from it by anything but copying, it may be a value to wait for.
  bool carried(const Node& cas, const Loop& loop, const LoopPass& pass) const {
    constexpr int kMaxCopies = 4;
    const Object result = flow_.object_of(cas, 0);
    Object object = flow_.object_of(cas, 2);
    for (int n = 0; n < kMaxCopies && object && object != result; ++n)
      object = copied_from(object, cas, loop, pass);
    return object && object == result && sole_writer(result, loop) == &cas;
  }

  // The source of the copy `to`, made in each pass through the cas; kNoObject if it is no such copy.
  Object copied_from(Object to, const Node& cas, const Loop& loop, const LoopPass& pass) const {
    const Node* copy = sole_writer(to, loop);
    if (!copy || copy->instruction->opcode != "mov" || copy->guard ||
        copy->instruction->operands.size() != 2 ||
        copy->instruction->operands[1].kind != Operand::Kind::kRegister)
      return kNoObject;
    std::vector<uint8_t> by(flow_.blocks.size(), 0);
    by[block_of(*copy)] = 1;
    const uint32_t home = block_of(cas);
    const bool in_each = by[home] || pass.comes_back_only_through(home, by) ||
                         (pass.before(*copy, cas) && pass.comes_back_only_through(LoopPass::kStart, by));
    return in_each ? flow_.object_of(*copy, 1) : kNoObject;
  }

  const Node* sole_writer(Object object, const Loop& loop) const {
    const Node* writer = nullptr;
    bool several = false;
    each_node(loop, [&](const Node& node) {
      auto writes = flow_.writes(node);
      if (std::find(writes.begin(), writes.end(), object) != writes.end()) {
        several |= writer != nullptr;
        writer = &node;
      }
    });
    return several ? nullptr : writer;
  }

  const Flow& flow_;
  Closure& closure_;
  const OwnAddresses own_;
  std::vector<uint32_t> readers_begin_, readers_;  // by object: nodes that read it
  std::vector<uint32_t> block_of_;                 // by node
  std::vector<uint8_t> fixed_;                     // by object
  std::vector<const Loop*> innermost_;             // by block
  std::vector<uint32_t> decided_;
  std::optional<LookBack> look_back_;  // made when a loop is found to wait
  size_t work_ = 0;
};

}  // namespace

size_t address_operand(const Instruction& access) {
  size_t n = 0;
  while (n < access.operands.size() && access.operands[n].kind != Operand::Kind::kAddress &&
         access.operands[n].kind != Operand::Kind::kBracket)
    ++n;
  return n;
}

bool reads_others(const Node& node, const OwnAddresses& own) {
  if (!node.opcode) return true;
  const Instruction& i = *node.instruction;
  switch (node.opcode->op_class) {
    case OpClass::kLoad:  // .nc: the program says that nobody writes there while the kernel runs
      return i.opcode != "ldmatrix" && !i.has("nc") && !own.only_own(node);
    case OpClass::kAtomic:
      return i.opcode == "atom" && !own.only_own(node);
    case OpClass::kMultimem:
      return true;
    case OpClass::kTensor:  // the others work on registers, shared memory and the tensor memory of the block
      return i.opcode == "wmma" && i.has("load") && !own.only_own(node);
    case OpClass::kTexture:
      return i.opcode != "txq" && i.opcode != "suq";
    case OpClass::kAsyncCopy:
      return ptx::space_of(i) == Space::kShared && i.has("global");
    default:
      return false;
  }
}

Verdict check_waiting(const FunctionFacts& facts, Closure& closure) {
  if (facts.flow.gave_up) {
    return refuse(Refusal::kTooComplex,
                  "what '" + std::string(facts.function->name) + "' does is not followed to its end");
  }
  return facts.flow.loops.empty() ? Verdict{} : FunctionCheck(facts, closure).run();
}

}  // namespace tessera::slice

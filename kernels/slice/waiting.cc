// Rules S4 and S5: does a loop wait for memory that another block writes? For every loop of the nested
// forest, values are followed forward from each read that could see another block's store to the predicates
// that steer the loop.
#include <algorithm>
#include <optional>

#include "kernels/slice/internal.h"
#include "kernels/slice/lookback.h"

namespace tessera::slice {
namespace {

using ptx::Instruction;
using ptx::Name;
using ptx::OpClass;
using ptx::Operand;
using ptx::Space;

constexpr size_t kMaxWork = 200'000'000;  // object visits in one function

class LoopCheck {
 public:
  LoopCheck(const Flow& flow, const Loop& loop, const SharedAddresses& shared, Closure& closure, size_t* work,
            std::optional<LookBack>* look_back)
      : flow_(flow), loop_(loop), shared_(shared), closure_(closure), work_(work), look_back_(look_back) {
    for (uint32_t b : loop.blocks) {
      for (uint32_t n = flow.blocks[b].begin; n < flow.blocks[b].end; ++n) {
        nodes_.push_back(&flow.nodes[n]);
      }
    }
  }

  // A wait for lower blocks is told only if the loop waits for nothing else.
  Verdict run() {
    find_reads();
    Verdict lower;
    for (const Node* node : reads_) {
      Verdict verdict = check(*node);
      if (verdict.refusal == Refusal::kLowerBlockWait) {
        lower = lower.may_cut() ? verdict : lower;
      } else if (!verdict.may_cut()) {
        return verdict;
      }
      if (*work_ > kMaxWork) {
        return refuse(Refusal::kTooComplex, "loops with many reads of shared state");
      }
    }
    return lower;
  }

 private:
  // Reads in the loop that could observe another block. Cheap first, since most loops have none.
  void find_reads() {
    bool candidate = false;
    for (const Node* node : nodes_) {
      candidate |= may_observe(*node);
      pause_ |= pauses(*node);
    }
    if (!candidate) {
      return;
    }
    find_invariant();
    for (const Node* node : nodes_) {
      if (may_observe(*node) && observes(*node)) {
        reads_.push_back(node);
      }
    }
  }

  const FunctionFacts* called(const Node& node) const {
    if (node.instruction->opcode != "call") {
      return nullptr;
    }
    return closure_.facts(callee_of(*node.instruction));
  }

  bool pauses(const Node& node) const {
    if (!node.opcode) {
      return true;
    }
    OpClass c = node.opcode->op_class;
    const FunctionFacts* callee = called(node);
    return c == OpClass::kBlockBarrier || c == OpClass::kFence || c == OpClass::kSleep ||
           (callee && callee->pause) || (c == OpClass::kAtomic && !shared_.only_shared(node));
  }

  bool may_observe(const Node& node) const {
    if (!node.opcode) {
      return true;
    }
    switch (node.opcode->op_class) {
      case OpClass::kLoad:
        return node.instruction->opcode != "ldmatrix" && !shared_.only_shared(node);
      case OpClass::kAtomic:
        return node.instruction->opcode == "atom" && !shared_.only_shared(node);
      case OpClass::kTensor:
      case OpClass::kTexture:
      case OpClass::kAsyncCopy:
        return address_operand(*node.instruction) < node.instruction->operands.size();
      case OpClass::kControl:
        if (node.instruction->opcode == "call") {
          const FunctionFacts* callee = called(node);
          Name name = callee_of(*node.instruction);
          return name == "malloc" || (callee && (callee->strong_read || callee->weak_read));
        }
        return false;
      default:
        return false;
    }
  }

  bool observes(const Node& node) const {
    const Instruction& i = *node.instruction;
    const bool same_place = !varies(node);
    switch (node.opcode ? node.opcode->op_class : OpClass::kSpecial) {
      case OpClass::kLoad:
        return is_strong(i) || (same_place && (pause_ || i.has("cg") || i.has("cs") || i.has("lu")));
      case OpClass::kAtomic:
        return true;
      case OpClass::kAsyncCopy: {  // [to], [from], ...: where it goes may vary
        bool same_source = true;
        flow_.each_object(node, 1, [&](Object o) { same_source &= !varies_[o]; });
        return same_source && ptx::space_of(i) == Space::kShared;
      }
      case OpClass::kTensor:
      case OpClass::kTexture:
        return same_place && pause_;
      case OpClass::kControl: {
        const FunctionFacts* callee = called(node);
        return !callee || callee->strong_read || (same_place && pause_);
      }
      default:
        return true;
    }
  }

  // An operand of the instruction may differ between two passes through the loop.
  bool varies(const Node& node) const {
    auto reads = flow_.reads(node);
    return std::any_of(reads.begin(), reads.end(),
                       [&](Object o) { return o >= kFirstRegister && varies_[o]; });
  }

  // Objects whose value is the same in every pass: not written in the loop, or written once, unconditionally,
  // from such objects. Loads from an invariant address count as invariant, which errs towards refusing.
  void find_invariant() {
    std::vector<uint16_t> writes(flow_.n_objects, 0);
    varies_.assign(flow_.n_objects, 0);
    for (const Node* node : nodes_) {
      for (Object o : flow_.writes(*node)) {
        writes[o] = static_cast<uint16_t>(std::min(writes[o] + 1, 2));
        varies_[o] = 1;
      }
    }
    for (bool changed = true; changed && *work_ <= kMaxWork;) {
      changed = false;
      for (const Node* node : nodes_) {
        *work_ += node->end - node->reads_begin;
        if (node->guard || !node->opcode ||
            (node->opcode->op_class != OpClass::kAlu && node->opcode->op_class != OpClass::kLoad) ||
            reads_clock(*node->instruction) || varies(*node)) {
          continue;
        }
        for (Object o : flow_.writes(*node)) {
          if (o >= kFirstRegister && varies_[o] && writes[o] == 1) {
            varies_[o] = 0;
            changed = true;
          }
        }
      }
    }
  }

  static bool reads_clock(const Instruction& i) {
    return std::any_of(i.operands.begin(), i.operands.end(), [](const Operand& o) {
      return o.kind == Operand::Kind::kSpecial &&
             (o.name.starts_with("%clock") || o.name.starts_with("%globaltimer"));
    });
  }

  // Follows the value of `source` through the loop; refuses if it reaches what steers the loop.
  Verdict check(const Node& source) {
    tainted_.assign(flow_.n_objects, 0);
    const bool is_cas =
        source.opcode && source.instruction->opcode == "atom" && source.instruction->has("cas");
    const bool by_memory = !source.opcode || source.opcode->op_class == OpClass::kAsyncCopy ||
                           source.opcode->op_class == OpClass::kControl;
    for (Object o : flow_.writes(source)) {
      tainted_[o] = o >= kFirstRegister || by_memory;
    }
    for (bool changed = true; changed && *work_ <= kMaxWork;) {
      changed = false;
      for (const Node* node : nodes_) {
        *work_ += node->end - node->reads_begin;
        changed |= spread(*node, is_cas ? &source : nullptr);
      }
    }
    if (is_cas && !carried(source)) {
      return refuse(Refusal::kLockLoop,
                    at(*source.instruction) + " (compares with a value that the loop does not update)");
    }
    for (const Node* node : nodes_) {
      if (steers(*node)) {
        std::string wait = at(*source.instruction) + " steers " + at(*node->instruction);
        return is_cas ? refuse(Refusal::kLockLoop, std::move(wait)) : waiting_for(source, std::move(wait));
      }
    }
    return {};
  }

  Verdict waiting_for(const Node& poll, std::string wait) {
    if (!*look_back_) {
      look_back_->emplace(flow_, shared_);
    }
    if (const Node* own = (*look_back_)->published_above(poll)) {
      return refuse(Refusal::kLowerBlockWait,
                    wait + " and polls below the block's own word, see " + at(*own->instruction));
    }
    return refuse(Refusal::kInterBlockWait, std::move(wait));
  }

  bool spread(const Node& node, const Node* cas) {
    auto reads = flow_.reads(node);
    if (!std::any_of(reads.begin(), reads.end(), [&](Object o) { return tainted_[o]; }) ||
        (cas && is_retry_test(node, *cas))) {
      return false;
    }
    bool changed = false;
    for (Object o : flow_.writes(node)) {
      changed |= !tainted_[o];
      tainted_[o] = 1;
    }
    return changed;
  }

  // The one comparison that ends a lock-free retry: what the cas returned against what it expected. It
  // decides nothing else, and the loop around the cas ends when, and only when, they are equal.
  bool is_retry_test(const Node& node, const Node& cas) const {
    const Instruction& i = *node.instruction;
    if (i.opcode != "setp" || i.operands.size() != 3 || (!i.has("eq") && !i.has("ne"))) {
      return false;
    }
    Object result = flow_.object_of(cas, 0), expected = flow_.object_of(cas, 2);
    Object a = flow_.object_of(node, 1), b = flow_.object_of(node, 2);
    return result && expected && result != expected &&
           ((a == result && b == expected) || (a == expected && b == result)) && ends(node, around(cas));
  }

  // Is the test the only way out of the loop, taken on equality, and looked at nowhere else?
  bool ends(const Node& test, const Loop& loop) const {
    const Object equal = flow_.object_of(test, 0);
    if (test.guard || flow_.writes(test).size() != 1 || !contains(loop, flow_.block_of(test))) {
      return false;
    }
    for (const Node* node : nodes_) {
      const bool decides =
          node->instruction->opcode == "bra" && node->guard == equal && contains(loop, flow_.block_of(*node));
      if ((has(flow_.reads(*node), equal) && !decides) ||
          (has(flow_.writes(*node), equal) && node != &test)) {
        return false;
      }
    }
    bool leaves = false;
    for (uint32_t b : loop.blocks) {
      const Block& block = flow_.blocks[b];
      const Node& last = flow_.nodes[block.end - 1];
      const bool taken_if_equal = test.instruction->has("eq") != last.instruction->guard_negated;
      for (size_t way = 0; way < block.successors.size(); ++way) {  // where it branches to, then the next
        if (!contains(loop, block.successors[way])) {
          if (last.guard != equal || taken_if_equal != (way == 0)) {
            return false;
          }
          leaves = true;
        }
      }
      if (block.leaves) {
        return false;
      }
    }
    return leaves;
  }

  // The value that the cas expects is, in each pass but the first, what it returned before: somebody's
  // progress is always somebody's. Made from it by anything but copying, it may be a value to wait for.
  bool carried(const Node& cas) const {
    constexpr int kMaxCopies = 4;
    const Loop& loop = around(cas);
    const Object result = flow_.object_of(cas, 0);
    Object at = flow_.object_of(cas, 2);
    for (int n = 0; n < kMaxCopies && at && at != result; ++n) {
      at = copied_from(at, cas, loop);
    }
    return at && at == result && !cas.guard && sole_writer(result, loop) == &cas;
  }

  // Of what `to` is a copy, made in each pass through the cas; kNoObject if it is not that.
  Object copied_from(Object to, const Node& cas, const Loop& loop) const {
    const Node* copy = sole_writer(to, loop);
    if (!copy || copy->instruction->opcode != "mov" || copy->guard ||
        copy->instruction->operands.size() != 2 ||
        copy->instruction->operands[1].kind != Operand::Kind::kRegister) {
      return kNoObject;
    }
    const uint32_t avoided = flow_.block_of(*copy), home = flow_.block_of(cas);
    std::vector<uint32_t> open{home};
    std::vector<uint8_t> seen(flow_.blocks.size(), 0);
    while (!open.empty() && avoided != home) {
      const uint32_t b = open.back();
      open.pop_back();
      for (uint32_t s : flow_.blocks[b].successors) {
        if (s == home) {
          return kNoObject;  // a pass without it
        }
        if (s != avoided && !seen[s] && contains(loop, s)) {
          seen[s] = 1;
          open.push_back(s);
        }
      }
    }
    return flow_.object_of(*copy, 1);
  }

  const Node* sole_writer(Object object, const Loop& loop) const {
    const Node* writer = nullptr;
    for (uint32_t b : loop.blocks) {
      for (uint32_t n = flow_.blocks[b].begin; n < flow_.blocks[b].end; ++n) {
        if (has(flow_.writes(flow_.nodes[n]), object)) {
          if (writer) {
            return nullptr;
          }
          writer = &flow_.nodes[n];
        }
      }
    }
    return writer;
  }

  // The innermost loop with this node, which is in one.
  const Loop& around(const Node& node) const {
    const uint32_t block = flow_.block_of(node);
    const Loop* found = &loop_;
    for (const Loop& loop : flow_.loops) {
      if (loop.blocks.size() < found->blocks.size() && contains(loop, block)) {
        found = &loop;
      }
    }
    return *found;
  }

  static bool contains(const Loop& loop, uint32_t block) {
    return std::binary_search(loop.blocks.begin(), loop.blocks.end(), block);
  }
  static bool has(std::span<const Object> objects, Object object) {
    return std::find(objects.begin(), objects.end(), object) != objects.end();
  }

  bool steers(const Node& node) const {
    if (!node.opcode || node.opcode->op_class != OpClass::kControl) {
      return false;
    }
    if (node.guard && tainted_[node.guard]) {
      return true;
    }
    Object index = node.instruction->opcode == "brx" ? flow_.object_of(node, 0) : kNoObject;
    return index && tainted_[index];
  }

  const Flow& flow_;
  const Loop& loop_;
  const SharedAddresses& shared_;
  Closure& closure_;
  size_t* work_;
  std::optional<LookBack>* look_back_;  // of the function; made when a loop of it is found to wait
  std::vector<const Node*> nodes_;
  std::vector<const Node*> reads_;
  std::vector<uint8_t> varies_, tainted_;
  bool pause_ = false;
};

}  // namespace

bool is_strong(const Instruction& load) {
  constexpr Name kStrong[] = {"volatile", "relaxed", "acquire", "mmio", "cv"};
  return std::any_of(std::begin(kStrong), std::end(kStrong), [&](Name m) { return load.has(m); });
}

size_t address_operand(const Instruction& access) {
  size_t n = 0;
  while (n < access.operands.size() && access.operands[n].kind != Operand::Kind::kAddress &&
         access.operands[n].kind != Operand::Kind::kBracket) {
    ++n;
  }
  return n;
}

Verdict check_waiting(const FunctionFacts& facts, Closure& closure) {
  const Flow& flow = facts.flow;
  if (flow.gave_up) {
    return refuse(Refusal::kTooComplex,
                  "the control flow of '" + std::string(facts.function->name) + "' is not followed");
  }
  SharedAddresses shared(flow);
  size_t work = 0;
  std::optional<LookBack> look_back;
  Verdict lower;
  for (const Loop& loop : flow.loops) {
    Verdict verdict = LoopCheck(flow, loop, shared, closure, &work, &look_back).run();
    if (verdict.refusal == Refusal::kLowerBlockWait) {
      lower = lower.may_cut() ? verdict : lower;
    } else if (!verdict.may_cut()) {
      return verdict;
    }
  }
  return lower;
}

}  // namespace tessera::slice

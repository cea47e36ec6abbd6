#include "kernels/slice/uniformity.h"

#include <algorithm>

#include "kernels/slice/internal.h"

namespace tessera::slice {
namespace {

using ptx::Instruction;
using ptx::Name;
using ptx::OpClass;
using ptx::Operand;
using ptx::Space;

constexpr size_t kMaxBlocks = 2048;  // the sets of post-dominators are quadratic

// Special registers by how far their value is the same; what is not here may differ from thread to thread.
constexpr struct {
  Name name;
  Same same;
} kSpecials[] = {
    {"%ntid", Same::kGrid},       {"%nctaid", Same::kGrid},
    {"%nclusterid", Same::kGrid}, {"%cluster_nctaid", Same::kGrid},
    {"%gridid", Same::kGrid},     {"%cluster_nctarank", Same::kGrid},
    {"%nsmid", Same::kGrid},      {"%is_explicit_cluster", Same::kGrid},
    {"%nwarpid", Same::kGrid},    {"%total_smem_size", Same::kGrid},
    {"%ctaid", Same::kBlock},     {"%dynamic_smem_size", Same::kGrid},
    {"%clusterid", Same::kBlock}, {"%cluster_ctaid", Same::kBlock},
};

Same meet(Same a, Same b) {
  return std::max(a, b);
}

// A set of small numbers.
class Bits {
 public:
  explicit Bits(size_t n = 0, bool all = false) : words_((n + 63) / 64, all ? ~uint64_t(0) : 0) {}
  void set(size_t i) { words_[i / 64] |= uint64_t(1) << (i % 64); }
  void clear(size_t i) { words_[i / 64] &= ~(uint64_t(1) << (i % 64)); }
  bool has(size_t i) const { return words_[i / 64] >> (i % 64) & 1; }
  bool add(const Bits& o) {  // true: it grew
    bool grew = false;
    for (size_t w = 0; w < words_.size(); ++w) {
      grew |= (o.words_[w] & ~words_[w]) != 0;
      words_[w] |= o.words_[w];
    }
    return grew;
  }
  void keep(const Bits& o) {
    for (size_t w = 0; w < words_.size(); ++w) {
      words_[w] &= o.words_[w];
    }
  }
  bool operator==(const Bits&) const = default;

 private:
  std::vector<uint64_t> words_;
};

class Builder {
 public:
  explicit Builder(const Flow& flow) : flow_(flow), n_(flow.blocks.size()) {}

  Uniformity run() {
    out_.objects.assign(flow_.n_objects, Same::kThread);
    out_.branches.assign(n_, Same::kThread);
    out_.control.assign(n_, Same::kThread);
    out_.gave_up = flow_.gave_up || !flow_.function->is_entry || n_ > kMaxBlocks;
    if (out_.gave_up || n_ == 0 || (out_.gave_up = !find_dependences())) {
      return std::move(out_);
    }
    std::fill(out_.objects.begin() + kFirstRegister, out_.objects.end(), Same::kGrid);
    std::fill(out_.branches.begin(), out_.branches.end(), Same::kGrid);
    std::fill(out_.control.begin(), out_.control.end(), Same::kGrid);
    find_writes();
    while (pass()) {
    }
    for (size_t b = 0; b < n_; ++b) {
      out_.control[b] = decided_by(depends_[b]);
    }
    return std::move(out_);
  }

 private:
  struct Edge {
    uint32_t from;
    size_t to;  // n_: the end of the kernel
  };
  struct Write {
    const Node* node;
    uint32_t block;
  };

  std::vector<size_t> ways(uint32_t b) const {
    const Block& block = flow_.blocks[b];
    std::vector<size_t> out(block.successors.begin(), block.successors.end());
    if (block.leaves) {
      out.push_back(n_);
    }
    std::ranges::sort(out);
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }

  // Which edges decide about which blocks, those that decide about deciding blocks included. False: there are
  // blocks from which the end cannot be reached.
  bool find_dependences() {
    std::vector<std::vector<size_t>> to(n_);
    for (uint32_t b = 0; b < n_; ++b) {
      to[b] = ways(b);
    }
    std::vector<Bits> after(n_ + 1, Bits(n_ + 1, true));  // post-dominators, and the block itself
    std::vector<uint8_t> ends(n_ + 1, 0);
    after[n_] = Bits(n_ + 1);
    after[n_].set(n_);
    ends[n_] = 1;
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t b = n_; b-- > 0;) {
        Bits all(n_ + 1, true);
        for (const size_t s : to[b]) {
          all.keep(after[s]);
          changed |= ends[s] && !ends[b];
          ends[b] |= ends[s];
        }
        all.set(b);
        if (!(all == after[b])) {
          after[b] = all;
          changed = true;
        }
      }
    }
    if (std::ranges::find(ends, 0) != ends.end()) {
      return false;
    }
    for (uint32_t b = 0; b < n_; ++b) {
      if (to[b].size() > 1) {
        for (const size_t s : to[b]) {
          edges_.push_back({b, s});
        }
      }
    }
    depends_.assign(n_, Bits(edges_.size()));
    for (size_t e = 0; e < edges_.size(); ++e) {
      const auto [from, s] = edges_[e];
      for (size_t x = 0; x < n_; ++x) {
        if (after[s].has(x) && (x == from || !after[from].has(x))) {
          depends_[x].set(e);
        }
      }
    }
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t x = 0; x < n_; ++x) {
        for (size_t e = 0; e < edges_.size(); ++e) {
          changed |= depends_[x].has(e) && depends_[x].add(depends_[edges_[e].from]);
        }
      }
    }
    reach_.assign(n_, Bits(n_ + 1));
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t b = n_; b-- > 0;) {
        for (const size_t s : to[b]) {
          changed |= !reach_[b].has(s);
          reach_[b].set(s);
          changed |= s != n_ && reach_[b].add(reach_[s]);
        }
      }
    }
    in_loop_.assign(n_, 0);
    for (const Loop& loop : flow_.loops) {
      for (const uint32_t b : loop.blocks) {
        in_loop_[b] = 1;
      }
    }
    return true;
  }

  Same decided_by(const Bits& edges) const {
    Same same = Same::kGrid;
    for (size_t e = 0; e < edges_.size(); ++e) {
      if (edges.has(e)) {
        same = meet(same, out_.branches[edges_[e].from]);
      }
    }
    return same;
  }

  void find_writes() {
    writes_.resize(flow_.n_objects);
    for (uint32_t b = 0; b < n_; ++b) {
      for (uint32_t k = flow_.blocks[b].begin; k < flow_.blocks[b].end; ++k) {
        for (const Object o : flow_.writes(flow_.nodes[k])) {
          writes_[o].push_back({&flow_.nodes[k], b});
        }
      }
    }
    // An object that is written once, outside of loops, has one value. Otherwise the last write counts, and
    // whatever chose among them parts the threads, but for what all of them are behind: threads that went
    // another way come to none of them. (To depend on the edge is not enough: tests that jump into each
    // other, as `a ? b : !b`, depend on both ways of a.)
    chosen_by_.assign(flow_.n_objects, Bits(edges_.size()));
    for (Object o = kFirstRegister; o < flow_.n_objects; ++o) {
      if (!several(o)) {
        continue;
      }
      Bits common(edges_.size(), true);
      for (const Write& w : writes_[o]) {
        common.keep(depends_[w.block]);
        chosen_by_[o].add(depends_[w.block]);
      }
      for (size_t e = 0; e < edges_.size(); ++e) {
        if (common.has(e) && !in_loop_[edges_[e].from] && !written_beside(o, edges_[e])) {
          chosen_by_[o].clear(e);
        }
      }
    }
  }
  // Some write of the object can be reached by another way on from where the edge starts.
  bool written_beside(Object o, const Edge& edge) const {
    return std::ranges::any_of(edges_, [&](const Edge& e) {
      return e.from == edge.from && e.to != edge.to && e.to != n_ &&
             std::ranges::any_of(
                 writes_[o], [&](const Write& w) { return w.block == e.to || reach_[e.to].has(w.block); });
    });
  }
  bool several(Object o) const {
    return writes_[o].size() > 1 ||
           std::ranges::any_of(writes_[o], [&](const Write& w) { return in_loop_[w.block] != 0; });
  }

  bool pass() {
    bool changed = false;
    auto lower = [&](Same& at, Same to) {
      changed |= at < to;
      at = meet(at, to);
    };
    for (Object o = kFirstRegister; o < flow_.n_objects; ++o) {
      for (const Write& w : writes_[o]) {
        lower(out_.objects[o], value(*w.node));  // guards are among what a node reads
      }
      lower(out_.objects[o], decided_by(chosen_by_[o]));
    }
    for (const Edge& e : edges_) {
      lower(out_.branches[e.from], inputs(flow_.nodes[flow_.blocks[e.from].end - 1]));
    }
    return changed;
  }

  Same inputs(const Node& node) const {
    Same same = Same::kGrid;
    for (const Object o : flow_.reads(node)) {
      same = meet(same, out_.objects[o]);
    }
    for (const Operand& o : node.instruction->operands) {
      same = meet(same, constant(o));
    }
    return same;
  }
  static Same constant(const Operand& o) {
    Same same = Same::kGrid;
    if (o.kind == Operand::Kind::kSpecial) {
      const auto* row = std::ranges::find_if(kSpecials, [&](const auto& s) { return s.name == o.name; });
      same = row == std::end(kSpecials) ? Same::kThread : row->same;
    } else if (o.kind == Operand::Kind::kExpression) {
      same = Same::kThread;
    }
    for (const Operand& child : o.children) {
      same = meet(same, constant(child));
    }
    return same;
  }

  // What the node writes, to any of its objects.
  Same value(const Node& node) const {
    const Instruction& i = *node.instruction;
    if (!node.opcode) {
      return Same::kThread;
    }
    const Space space = ptx::space_of(i);
    switch (node.opcode->op_class) {
      case OpClass::kAlu:
        // A generic address of local memory is each thread's own; the carry flag is followed by nobody.
        if ((i.opcode == "cvta" && i.has("local")) || i.opcode == "addc" || i.opcode == "subc" ||
            i.opcode == "madc") {
          return Same::kThread;
        }
        return inputs(node);
      case OpClass::kLoad:
        return space == Space::kParam || space == Space::kConst ? inputs(node) : Same::kThread;
      case OpClass::kStore:
        return space == Space::kParam ? inputs(node) : Same::kThread;
      case OpClass::kWarp: {
        const Operand& mask = i.operands.back();
        const bool whole = mask.kind == Operand::Kind::kInteger && uint32_t(mask.bits) == ~uint32_t(0);
        return whole && (i.opcode == "vote" || i.opcode == "redux") ? Same::kWarp : Same::kThread;
      }
      default:
        return Same::kThread;
    }
  }

  const Flow& flow_;
  const size_t n_;
  Uniformity out_;
  std::vector<Edge> edges_;  // of blocks with more than one way on
  std::vector<Bits> depends_;
  std::vector<Bits> reach_;  // by block: what may follow
  std::vector<uint8_t> in_loop_;
  std::vector<std::vector<Write>> writes_;  // by object
  std::vector<Bits> chosen_by_;             // by object: edges
};

}  // namespace

Uniformity uniformity(const Flow& flow) {
  return Builder(flow).run();
}

}  // namespace tessera::slice

// Register allocation for decoded code. Virtual registers of PTX are single-assignment and thousands; a
// warp's window should fit the first-level cache. Liveness per thread over the control flow, then linear
// scan. Lanes never share storage, so per-thread liveness is enough even where lanes diverge: every write is
// masked.
#include <algorithm>
#include <bit>

#include "softgpu/exec/decode.h"

namespace tessera::softgpu::exec {
namespace {

struct Interval {
  uint32_t index, start, end;
};

}  // namespace

bool Decoder::allocate() {
  std::vector<Op>& ops = code_.ops;
  const uint32_t n = static_cast<uint32_t>(ops.size());
  const uint32_t v = static_cast<uint32_t>(widths_.size());

  // Resolve targets to op indices.
  std::vector<uint32_t> target(n, ~0u);
  for (auto [op, label] : branches_) {
    if (labels_[label].op == ~0u) {
      error_ = "a branch in " + code_.name + " goes to a label that does not exist";
      return false;
    }
    target[op] = labels_[label].op;
  }
  // Basic blocks.
  std::vector<uint8_t> leader(n + 1, 0);
  leader[0] = 1;
  for (uint32_t i = 0; i < n; ++i) {
    const Handler f = ops[i].fn;
    if (f == op_label) leader[i] = 1;
    if (f == op_branch || f == op_branch_if || f == op_branch_index || f == op_exit || f == op_return)
      leader[i + 1] = 1;
  }
  std::vector<uint32_t> begin, block_of(n);
  for (uint32_t i = 0; i < n; ++i) {
    if (leader[i]) begin.push_back(i);
    block_of[i] = static_cast<uint32_t>(begin.size() - 1);
  }
  const uint32_t blocks = static_cast<uint32_t>(begin.size());
  begin.push_back(n);
  std::vector<std::vector<uint32_t>> next(blocks);
  for (uint32_t b = 0; b < blocks; ++b) {
    const uint32_t last = begin[b + 1] - 1;
    const Handler f = ops[last].fn;
    if (f == op_exit || f == op_return) continue;
    if (f == op_branch_index) {
      for (uint32_t label : table_labels_[static_cast<size_t>(ops[last].imm)]) {
        if (labels_[label].op == ~0u) {
          error_ = "brx.idx in " + code_.name + " names a label that does not exist";
          return false;
        }
        next[b].push_back(block_of[labels_[label].op]);
      }
      continue;
    }
    if (f == op_branch || f == op_branch_if) next[b].push_back(block_of[target[last]]);
    if (f != op_branch && b + 1 < blocks) next[b].push_back(b + 1);
  }
  // Liveness.
  const uint32_t words = (v + 63) / 64;
  std::vector<uint64_t> used(size_t{blocks} * words), killed(size_t{blocks} * words),
      in(size_t{blocks} * words), out(size_t{blocks} * words);
  const auto set = [&](std::vector<uint64_t>& bits, uint32_t b, uint32_t r) {
    bits[size_t{b} * words + r / 64] |= 1ull << (r % 64);
  };
  const auto test = [&](const std::vector<uint64_t>& bits, uint32_t b, uint32_t r) {
    return bits[size_t{b} * words + r / 64] >> (r % 64) & 1;
  };
  for (uint32_t i = 0; i < n; ++i) {
    const Refs& refs = refs_[i];
    const uint32_t b = block_of[i];
    const uint32_t* list = ref_list_.data() + refs.begin;
    for (unsigned k = 0; k < refs.uses; ++k)
      if (!test(killed, b, list[refs.defs + k])) set(used, b, list[refs.defs + k]);
    for (unsigned k = 0; k < refs.defs; ++k) {
      if (refs.partial) {
        if (!test(killed, b, list[k])) set(used, b, list[k]);
      } else {
        set(killed, b, list[k]);
      }
    }
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (uint32_t b = blocks; b-- > 0;) {
      uint64_t* o = out.data() + size_t{b} * words;
      for (uint32_t s : next[b])
        for (uint32_t w = 0; w < words; ++w) o[w] |= in[size_t{s} * words + w];
      for (uint32_t w = 0; w < words; ++w) {
        const size_t at_word = size_t{b} * words + w;
        const uint64_t fresh = used[at_word] | (o[w] & ~killed[at_word]);
        if (fresh != in[at_word]) in[at_word] = fresh, changed = true;
      }
    }
  }
  // Intervals. Positions: op i reads at 2i and writes at 2i+1, so a source's storage may be taken by the
  // result. Ops with several results write some before they have read all sources: those write at 2i too.
  std::vector<bool> is_indexed(n, false);
  for (uint32_t i : indexed_) is_indexed[i] = true;
  std::vector<uint32_t> start(v, ~0u), end(v, 0);
  const auto touch = [&](uint32_t r, uint32_t at_position) {
    start[r] = std::min(start[r], at_position);
    end[r] = std::max(end[r], at_position);
  };
  for (uint32_t b = 0; b < blocks; ++b)
    for (uint32_t w = 0; w < words; ++w) {
      for (uint64_t bits = in [size_t{b} * words + w]; bits; bits &= bits - 1)
        touch(w * 64 + static_cast<uint32_t>(std::countr_zero(bits)), 2 * begin[b]);
      for (uint64_t bits = out[size_t{b} * words + w]; bits; bits &= bits - 1)
        touch(w * 64 + static_cast<uint32_t>(std::countr_zero(bits)), 2 * begin[b + 1]);
    }
  for (uint32_t i = 0; i < n; ++i) {
    const Refs& refs = refs_[i];
    const uint32_t* list = ref_list_.data() + refs.begin;
    for (unsigned k = 0; k < refs.uses; ++k) touch(list[refs.defs + k], 2 * i);
    const bool several = refs.defs > 1 || is_indexed[i];
    for (unsigned k = 0; k < refs.defs; ++k) {
      touch(list[k], several || refs.partial ? 2 * i : 2 * i + 1);
      touch(list[k], 2 * i + 1);
    }
  }
  std::vector<Interval> intervals;
  for (uint32_t r = 0; r < v; ++r)
    if (start[r] != ~0u) intervals.push_back({r, start[r], end[r]});
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& x, const Interval& y) { return x.start < y.start; });
  // Linear scan with one pool per storage width.
  std::vector<uint32_t> slot(v, 0);
  std::vector<uint32_t> free_slots[9];
  uint32_t n_slots[9] = {};
  std::vector<Interval> active;  // heap by end
  const auto later = [](const Interval& x, const Interval& y) { return x.end > y.end; };
  uint32_t live = 0, most = 0;
  for (const Interval& i : intervals) {
    while (!active.empty() && active.front().end < i.start) {
      const Interval done = active.front();
      std::pop_heap(active.begin(), active.end(), later);
      active.pop_back();
      free_slots[widths_[done.index]].push_back(slot[done.index]);
      live -= widths_[done.index] / 4u;
    }
    const uint8_t width = widths_[i.index];
    if (free_slots[width].empty()) {
      slot[i.index] = n_slots[width]++;
    } else {
      slot[i.index] = free_slots[width].back();
      free_slots[width].pop_back();
    }
    live += width / 4u;
    most = std::max(most, live);
    active.push_back(i);
    std::push_heap(active.begin(), active.end(), later);
  }
  code_.live_registers = most;
  // Window: 64-bit registers, 32-bit registers, predicates.
  const uint32_t base8 = 0, base4 = base8 + n_slots[8] * 256, base0 = base4 + n_slots[4] * 128;
  code_.reg_bytes = (base0 + n_slots[0] * 4 + 127) & ~127u;
  std::vector<uint32_t> offset(v);
  for (uint32_t r = 0; r < v; ++r) {
    const uint32_t s = slot[r];
    offset[r] = widths_[r] == 8 ? base8 + s * 256 : widths_[r] == 4 ? base4 + s * 128 : base0 + s * 4;
  }
  // Patch.
  const auto patch = [&](uint32_t& operand) {
    if ((operand & 3) == 0) operand = offset[operand >> 2];
  };
  for (Op& op : ops) {
    patch(op.d);
    patch(op.d2);
    patch(op.a);
    patch(op.b);
    patch(op.c);
  }
  for (uint32_t i : indexed_) patch(ops[i].extra);
  for (uint32_t& operand : code_.extra) patch(operand);
  for (CallSite& call : code_.calls) patch(call.pointer);
  for (uint32_t i = 0; i < n; ++i)
    if (target[i] != ~0u) ops[i].target = &ops[target[i]];
  for (auto [op, to] : skips_) ops[op].target = &ops[to];
  for (const auto& labels : table_labels_) {
    auto& table = code_.tables.emplace_back();
    for (uint32_t label : labels) table.push_back(&ops[labels_[label].op]);
  }
  code_.constants.reserve(constant_bytes_.size() + 128);
  std::memcpy(code_.constants.data(), constant_bytes_.data(), constant_bytes_.size());
  return true;
}

}  // namespace tessera::softgpu::exec

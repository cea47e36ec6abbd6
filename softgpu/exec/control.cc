// Branches, calls, barriers, special values: handlers that touch scheduling state.
#include <time.h>

#include <bit>

#include "softgpu/exec/core.h"
#include "softgpu/exec/scalar.h"

namespace tessera::softgpu::exec {

using lane::get;
using lane::put;

const Op* op_branch(Warp& w, const Op* op) {
  return go(w, op, op->target);
}

const Op* op_branch_if(Warp& w, const Op* op) {
  Mask p = *at<Mask>(w, op->a);
  if (op->flags & kNegate) p = ~p;
  const Mask taken = w.mask & p;
  if (taken == w.mask) return go(w, op, op->target);
  if (!taken) return op + 1 < w.next ? op + 1 : go(w, op, op + 1);
  return split(w, op, op->target, taken);
}

const Op* op_branch_index(Warp& w, const Op* op) {
  const std::vector<const Op*>& table = w.frame->code->tables[static_cast<size_t>(op->imm)];
  const Mask all = w.mask;
  Frame* frame = w.frame;
  for (Mask left = all; left;) {
    const unsigned first = std::countr_zero(left);
    const uint32_t index = get<uint32_t>(w, op->a, first);
    if (index >= table.size())
      return raise(w, op, FaultKind::kInvalidPc, first, index, "brx.idx index is beyond the target list");
    Mask same = 0;
    for (Mask m = left; m; m &= m - 1) {
      const unsigned i = std::countr_zero(m);
      if (get<uint32_t>(w, op->a, i) == index) same |= 1u << i;
    }
    if (same == all) return go(w, op, table[index]);
    put_away(w, table[index], frame, same, GroupState::kReady);
    left &= ~same;
  }
  count_issue(w, op);
  if (w.issued >= w.limit) {
    w.rotate = true;
    w.stop = Stop::kYield;
    return nullptr;
  }
  return start_ready(w);
}

const Op* op_exit(Warp& w, const Op* op) {
  return finish_lanes(w, op);
}
const Op* op_return(Warp& w, const Op* op) {
  return leave_function(w, op);
}

const Op* op_call(Warp& w, const Op* op) {
  const CallSite& site = w.frame->code->calls[static_cast<size_t>(op->imm)];
  if (site.builtin != Builtin::kNone) return call_builtin(w, op, site);
  if (site.callee) return enter_function(w, op, site.callee, site, w.mask);
  // Indirect: one group per distinct target; the others come back to this op.
  const unsigned first = std::countr_zero(w.mask);
  const uint64_t target = get<uint64_t>(w, site.pointer, first);
  Mask same = 0;
  for (Mask m = w.mask; m; m &= m - 1)
    if (get<uint64_t>(w, site.pointer, std::countr_zero(m)) == target) same |= 1u << std::countr_zero(m);
  const auto& known = w.block->grid->kernel->by_address;
  const auto it = known.find(target);
  if (it == known.end())
    return raise(w, op, FaultKind::kInvalidPc, first, target,
                 "indirect call to something that is no function");
  if (same != w.mask) put_away(w, op, w.frame, w.mask & ~same, GroupState::kReady);
  return enter_function(w, op, it->second, site, same);
}

const Op* op_guard(Warp& w, const Op* op) {
  Mask p = *at<Mask>(w, op->a);
  if (op->flags & kNegate) p = ~p;
  if (!(w.mask & p)) return op->target;  // behind the unguard
  w.guard_saved = w.mask;
  w.mask &= p;
  return op + 1;
}
const Op* op_unguard(Warp& w, const Op* op) {
  w.mask = w.guard_saved;
  return op + 1;
}

const Op* op_trap(Warp& w, const Op* op) {
  return raise(w, op, FaultKind::kTrap, std::countr_zero(w.mask), 0, "trap executed");
}
const Op* op_nothing(Warp&, const Op* op) {
  return op + 1;
}
const Op* op_fence(Warp&, const Op* op) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  return op + 1;
}
const Op* op_yield(Warp& w, const Op* op) {
  count_issue(w, op);
  put_away(w, op + 1, w.frame, w.mask, GroupState::kReady);
  w.rotate = w.n_groups > 1;
  w.stop = Stop::kYield;
  return nullptr;
}

// --- block barriers
// --------------------------------------------------------------------------------------------- Arrival
// counts threads; a warp of which all live lanes have arrived counts 32, as on hardware.
namespace {

uint32_t weight(const Warp& w, Mask arrived) {
  if (!arrived) return 0;
  return (arrived & w.live) == w.live ? 32 : static_cast<uint32_t>(std::popcount(arrived));
}

// Groups released to the same pc run together again.
void merge_groups(Block& block) {
  for (Warp& w : block.warps)
    for (uint32_t i = 0; i < w.n_groups; ++i)
      for (uint32_t k = i + 1; k < w.n_groups;) {
        Group &x = w.groups[i], &y = w.groups[k];
        if (x.pc == y.pc && x.frame == y.frame && x.state == y.state && x.state == GroupState::kReady) {
          x.mask |= y.mask;
          w.groups[k] = w.groups[--w.n_groups];
        } else {
          ++k;
        }
      }
}

void release(Block& block, unsigned id) {
  Barrier& b = block.barriers[id];
  for (Warp& w : block.warps)
    for (uint32_t i = 0; i < w.n_groups; ++i) {
      Group& g = w.groups[i];
      if (g.state != GroupState::kBarrier || g.barrier != id) continue;
      const Op* op = g.pc - 1;  // the barrier itself
      if (op->sub >= 2 && op->d != kNoOperand) {
        char* window = w.registers + g.frame->reg_base;
        if (op->sub == 2) {
          uint32_t* d = reinterpret_cast<uint32_t*>(window + op->d);
          for (Mask m = g.mask; m; m &= m - 1) d[std::countr_zero(m)] = b.red_count;
        } else {
          const bool yes = op->sub == 3 ? b.red_count == b.red_total : b.red_count != 0;
          Mask* d = reinterpret_cast<Mask*>(window + op->d);
          *d = yes ? *d | g.mask : *d & ~g.mask;
        }
      }
      g.state = GroupState::kReady;
      g.stamp = 0;
      block.ready |= 1u << w.index;
    }
  merge_groups(block);
  b = Barrier{};
}

void check(Block& block, unsigned id) {
  Barrier& b = block.barriers[id];
  if (!b.arrived) return;
  const uint32_t expected = b.expected ? b.expected : 32 * block.live_warps;
  if (b.arrived >= expected) release(block, id);
}

// The cluster's barrier is complete when all live lanes of all its blocks are at it.
void check_cluster(Cluster& cluster) {
  if (!cluster.arrivals) return;
  for (auto& block : cluster.blocks)
    for (Warp& w : block->warps)
      if (w.live & ~block->cluster_arrived[w.index]) return;
  cluster.arrivals = false;
  for (auto& block : cluster.blocks) {
    for (Warp& w : block->warps) {
      block->cluster_arrived[w.index] = 0;
      for (uint32_t i = 0; i < w.n_groups; ++i) {
        Group& g = w.groups[i];
        if (g.state != GroupState::kBarrier || g.barrier != kClusterBarrier) continue;
        g.state = GroupState::kReady;
        g.stamp = 0;
        block->ready |= 1u << w.index;
      }
    }
    merge_groups(*block);
  }
}

}  // namespace

// Arriving and waiting are apart: a lane whose arrival has been cleared waits for nothing.
const Op* op_cluster_barrier(Warp& w, const Op* op) {
  Block& block = *w.block;
  Mask& arrived = block.cluster_arrived[w.index];
  if (op->sub == 0) {
    if (const Mask twice = arrived & w.mask)
      return raise(w, op, FaultKind::kIllegalInstruction, static_cast<unsigned>(std::countr_zero(twice)), 0,
                   "barrier.cluster.arrive again before barrier.cluster.wait");
    arrived |= w.mask;
    block.cluster->arrivals = true;
    count_issue(w, op);
    put_away(w, op + 1, w.frame, w.mask, GroupState::kReady);
    check_cluster(*block.cluster);
    return start_ready(w);
  }
  const Mask wait = w.mask & arrived, pass = w.mask & ~arrived;
  if (!wait) return op + 1 < w.next ? op + 1 : go(w, op, op + 1);
  count_issue(w, op);
  put_away(w, op + 1, w.frame, wait, GroupState::kBarrier, kClusterBarrier);
  if (pass) put_away(w, op + 1, w.frame, pass, GroupState::kReady);
  return start_ready(w);
}

void check_barriers(Block& block) {
  check_cluster(*block.cluster);
  for (uint32_t used = block.barriers_used; used; used &= used - 1) {
    const unsigned id = static_cast<unsigned>(std::countr_zero(used));
    Barrier& b = block.barriers[id];
    if (!b.arrived) continue;
    b.arrived = 0;
    for (Warp& w : block.warps) b.arrived += weight(w, b.lanes[w.index]);  // a warp may arrive and leave
    check(block, id);
  }
}

const Op* op_bar(Warp& w, const Op* op) {
  const unsigned first = std::countr_zero(w.mask);
  const uint32_t id = op->a == kNoOperand ? 0 : get<uint32_t>(w, op->a, first);
  const uint32_t count = op->b == kNoOperand ? 0 : get<uint32_t>(w, op->b, first);
  if (id >= 16) return raise(w, op, FaultKind::kIllegalInstruction, first, id, "barrier number above 15");
  const bool varies = op->a != kNoOperand && (op->a & 3) != 1;  // usually a constant
  for (Mask m = varies ? w.mask : 0; m; m &= m - 1) {
    const unsigned i = std::countr_zero(m);
    if (get<uint32_t>(w, op->a, i) != id) {
      // Lanes name different barriers: one at a time.
      Mask other = 0;
      for (Mask n = w.mask; n; n &= n - 1)
        if (get<uint32_t>(w, op->a, std::countr_zero(n)) != id) other |= 1u << std::countr_zero(n);
      put_away(w, op, w.frame, other, GroupState::kReady);
      w.mask &= ~other;
      break;
    }
  }
  Block& block = *w.block;
  Barrier& b = block.barriers[id];
  block.barriers_used |= 1u << id;
  if (count % 32)
    return raise(w, op, FaultKind::kIllegalInstruction, first, count,
                 "barrier thread count is no multiple of 32");
  b.expected = count;
  const uint32_t before = weight(w, b.lanes[w.index]);
  b.lanes[w.index] |= w.mask;
  b.arrived += weight(w, b.lanes[w.index]) - before;
  if (op->sub >= 2) {
    Mask p = *at<Mask>(w, op->c);
    if (op->flags & kNegate) p = ~p;
    b.red_count += static_cast<uint32_t>(std::popcount(p & w.mask));
    b.red_total += static_cast<uint32_t>(std::popcount(w.mask));
  }
  count_issue(w, op);
  if (op->sub == 1) {
    put_away(w, op + 1, w.frame, w.mask, GroupState::kReady);
  } else {
    put_away(w, op + 1, w.frame, w.mask, GroupState::kBarrier, static_cast<uint8_t>(id));
  }
  check(block, id);
  return start_ready(w);
}

// --- values that are no lane vectors -----------------------------------------------------------------------

const Op* op_local_address(Warp& w, const Op* op) {
  const uint64_t value = w.frame->local_base + static_cast<uint64_t>(op->imm);
  return lane::each(w, op, [&](unsigned i) { put<uint64_t>(w, op->d, i, value); });
}
const Op* op_param_address(Warp& w, const Op* op) {
  const uint64_t value = reinterpret_cast<uint64_t>(w.block->grid->params) + static_cast<uint64_t>(op->imm);
  return lane::each(w, op, [&](unsigned i) { put<uint64_t>(w, op->d, i, value); });
}

const Op* op_clock(Warp& w, const Op* op) {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  const uint64_t ns = static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
  switch (op->sub) {
    case 0:
    case 4:
      return lane::each(w, op, [&](unsigned i) { put<uint32_t>(w, op->d, i, static_cast<uint32_t>(ns)); });
    case 1:
    case 5:
      return lane::each(w, op,
                        [&](unsigned i) { put<uint32_t>(w, op->d, i, static_cast<uint32_t>(ns >> 32)); });
    default:
      return lane::each(w, op, [&](unsigned i) { put<uint64_t>(w, op->d, i, ns); });
  }
}

}  // namespace tessera::softgpu::exec

// Operations that exchange values between lanes. A .sync operation runs when all live lanes of its member
// mask are at it; until then the group waits, and is looked at again whenever lanes arrive at the same place
// or exit.
#include <algorithm>
#include <bit>

#include "softgpu/exec/core.h"
#include "softgpu/exec/scalar.h"

namespace tessera::softgpu::exec {

using lane::get;
using lane::put;

bool gather_members(Warp& w, const Op* op, uint32_t member_operand, const Op** next) {
  const unsigned first = std::countr_zero(w.mask);
  const Mask members = get<uint32_t>(w, member_operand, first);
  Mask same = 0;  // lanes that name the same members
  for (Mask m = w.mask; m; m &= m - 1) {
    const unsigned i = std::countr_zero(m);
    if (get<uint32_t>(w, member_operand, i) == members) same |= 1u << i;
  }
  const Mask needed = members & w.live;
  if ((needed & ~same) == 0 && same == w.mask) return true;
  break_segment(w, op);
  if (needed & ~same) {
    // Others at this op may wait already: join them.
    for (uint32_t i = 0; i < w.n_groups; ++i) {
      Group& g = w.groups[i];
      if (g.pc != op || g.frame != w.frame || g.state == GroupState::kBarrier) continue;
      Mask more = 0;
      for (Mask m = g.mask; m; m &= m - 1) {
        const unsigned k = std::countr_zero(m);
        if (get<uint32_t>(w, member_operand, k) == members) more |= 1u << k;
      }
      same |= more;
      w.mask |= more;
      g.mask &= ~more;
      if (!g.mask) {
        w.groups[i] = w.groups[--w.n_groups];
        --i;
      }
    }
  }
  if (needed & ~same) {
    // Lanes with another mask stay runnable, these wait.
    const Mask rest = w.mask & ~same;
    put_away(w, op, w.frame, same, GroupState::kSync);
    if (rest) put_away(w, op, w.frame, rest, GroupState::kReady);
    *next = start_ready(w);
    return false;
  }
  // Complete: run with these lanes only; the rest of the group comes back to this op.
  const Mask rest = w.mask & ~same;
  if (rest) {
    put_away(w, op, w.frame, rest, GroupState::kReady);
    w.next = std::min(w.next, op);
    w.mask = same;
  }
  return true;
}

namespace {

// After an exchange: lanes left behind at this op (or below) run first.
const Op* onward(Warp& w, const Op* op) {
  if (op + 1 < w.next) return op + 1;
  return go(w, op, op + 1);
}

void write_predicate(Warp& w, uint32_t operand, Mask r) {
  Mask& d = *at<Mask>(w, operand);
  d = (d & ~w.mask) | (r & w.mask);
}

}  // namespace

const Op* op_shfl(Warp& w, const Op* op) {
  const uint32_t* lists = w.frame->code->extra.data() + op->extra;
  const Op* next;
  if (!gather_members(w, op, lists[1], &next)) return next;
  const uint32_t *value = at<uint32_t>(w, op->a), *by = at<uint32_t>(w, op->b),
                 *clamp = at<uint32_t>(w, lists[0]);
  uint32_t result[kLanes];
  Mask inside = 0;
  for (unsigned i = 0; i < kLanes; ++i) {
    const uint32_t b = by[i] & 31, c = clamp[i];
    const uint32_t cval = c & 31, segment = c >> 8 & 31;
    const uint32_t top = (i & segment) | (cval & ~segment), bottom = i & segment;
    uint32_t j;
    bool ok;
    switch (op->sub) {
      case 0:
        j = i - b;
        ok = static_cast<int32_t>(j) >= static_cast<int32_t>(top);
        break;  // up
      case 1:
        j = i + b;
        ok = j <= top;
        break;  // down
      case 2:
        j = i ^ b;
        ok = j <= top;
        break;  // bfly
      default:
        j = bottom | (b & ~segment);
        ok = j <= top;
        break;  // idx
    }
    if (!ok) j = i;
    result[i] = value[j & 31];
    inside |= static_cast<Mask>(ok) << i;
  }
  uint32_t* d = at<uint32_t>(w, op->d);
  if (w.mask == ~0u)
    std::memcpy(d, result, sizeof result);
  else
    lane::each(w, op, [&](unsigned i) { d[i] = result[i]; });
  if (op->flags & kSecond) write_predicate(w, op->d2, inside);
  return onward(w, op);
}

const Op* op_vote(Warp& w, const Op* op) {
  const Op* next;
  if (!gather_members(w, op, op->b, &next)) return next;
  Mask p = *at<Mask>(w, op->a);
  if (op->flags & kNegate) p = ~p;
  p &= w.mask;
  if (op->sub == 3) {
    lane::each(w, op, [&](unsigned i) { put<uint32_t>(w, op->d, i, p); });
  } else {
    const bool yes = op->sub == 0 ? p == w.mask : op->sub == 1 ? p != 0 : p == 0 || p == w.mask;
    write_predicate(w, op->d, yes ? ~0u : 0);
  }
  return onward(w, op);
}

const Op* op_match(Warp& w, const Op* op) {
  const Op* next;
  if (!gather_members(w, op, op->b, &next)) return next;
  const bool wide = op->type == Ty::kU64;
  const auto value = [&](unsigned i) {
    return wide ? get<uint64_t>(w, op->a, i) : get<uint32_t>(w, op->a, i);
  };
  uint32_t result[kLanes] = {};
  bool all_same = true;
  const unsigned first = std::countr_zero(w.mask);
  lane::each(w, op, [&](unsigned i) {
    Mask same = 0;
    for (Mask m = w.mask; m; m &= m - 1)
      if (value(std::countr_zero(m)) == value(i)) same |= 1u << std::countr_zero(m);
    result[i] = same;
    all_same = all_same && value(i) == value(first);
  });
  lane::each(w, op, [&](unsigned i) {
    put<uint32_t>(w, op->d, i, op->sub == 0 ? result[i] : all_same ? w.mask : 0);
  });
  if (op->flags & kSecond) write_predicate(w, op->d2, all_same ? ~0u : 0);
  return onward(w, op);
}

const Op* op_redux(Warp& w, const Op* op) {
  const Op* next;
  if (!gather_members(w, op, op->b, &next)) return next;
  bool have = false;
  uint32_t r = 0;
  lane::each(w, op, [&](unsigned i) {
    const uint32_t x = get<uint32_t>(w, op->a, i);
    if (!have) {
      r = x;
      have = true;
      return;
    }
    const bool is_signed = op->type == Ty::kS32;
    const auto less = [&](uint32_t p, uint32_t q) {
      return is_signed ? static_cast<int32_t>(p) < static_cast<int32_t>(q) : p < q;
    };
    switch (op->sub) {
      case 0:
        r += x;
        break;
      case 1:
        r = less(x, r) ? x : r;
        break;
      case 2:
        r = less(r, x) ? x : r;
        break;
      case 3:
        r &= x;
        break;
      case 4:
        r |= x;
        break;
      default:
        r ^= x;
        break;
    }
  });
  lane::each(w, op, [&](unsigned i) { put<uint32_t>(w, op->d, i, r); });
  return onward(w, op);
}

const Op* op_warp_barrier(Warp& w, const Op* op) {
  const Op* next;
  if (!gather_members(w, op, op->a, &next)) return next;
  return onward(w, op);
}

const Op* op_activemask(Warp& w, const Op* op) {
  const Mask m = w.mask;
  return lane::each(w, op, [&](unsigned i) { put<uint32_t>(w, op->d, i, m); });
}

const Op* op_elect(Warp& w, const Op* op) {
  const Op* next;
  if (!gather_members(w, op, op->a, &next)) return next;
  const unsigned leader = std::countr_zero(w.mask);
  if (op->d != kNoOperand) lane::each(w, op, [&](unsigned i) { put<uint32_t>(w, op->d, i, leader); });
  if (op->flags & kSecond) write_predicate(w, op->d2, 1u << leader);
  return onward(w, op);
}

}  // namespace tessera::softgpu::exec

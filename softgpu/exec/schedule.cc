// Chooses the lanes of a warp that run next. The deepest call frame, then the lowest pc runs; equal pcs merge, so
// divergent lanes meet again as early as the code's order allows. A warp that uses up its quantum gives way
// to its least recently run group, so lanes that spin on each other make progress.
#include <algorithm>
#include <bit>

#include "softgpu/exec/core.h"

namespace tessera::softgpu::exec {
namespace {

// Lowest pc of the ready groups in the running frame.
void refresh_next(Warp& w) {
  const Op* next = no_op();
  for (uint32_t i = 0; i < w.n_groups; ++i)
    if (w.groups[i].state == GroupState::kReady && w.groups[i].frame == w.frame)
      next = std::min(next, w.groups[i].pc);
  w.next = next;
}

void remove_group(Warp& w, uint32_t i) {
  if (i != --w.n_groups) w.groups[i] = w.groups[w.n_groups];
}

void use_frame(Warp& w, Frame* frame) {
  w.frame = frame;
  w.base[0] = w.registers + frame->reg_base;
  w.base[1] = frame->code->constants.data() - 1;
}

Frame* new_frame(Block& block) {
  if (block.free_frames.empty()) {
    block.frames.push_back(std::make_unique<Frame>());
    return block.frames.back().get();
  }
  Frame* f = block.free_frames.back();
  block.free_frames.pop_back();
  return f;
}

void leave_frames(Warp& w, Frame* frame, Mask lanes, bool all) {
  while (frame) {
    frame->lanes &= ~lanes;
    Frame* parent = frame->parent;
    if (!frame->lanes && parent) w.block->free_frames.push_back(frame);
    if (!all) break;
    frame = parent;
  }
}

const Op* begin_group(Warp& w, const Op* pc, Frame* frame) {
  use_frame(w, frame);
  ++w.clock;
  begin_segment(w, pc);
  if (pc == frame->code->ops.data()) w.issue_start = 0;  // some slots have no op
  return pc;
}

// Lanes do not change within a segment but by guards: arithmetic under a guard counts for the whole group.
void count_operations(Warp& w, uint32_t end) {
  const FloatOperations* sums = w.frame->code->operations.data();
  const FloatOperations &from = sums[w.issue_start], &to = sums[end];
  const uint64_t lanes = w.mask == ~0u ? kLanes : static_cast<uint64_t>(std::popcount(w.mask));
  MemoryView& v = view(w);
  v.fp32_operations += (to.fp32 - from.fp32) * lanes;
  v.fp64_operations += (to.fp64 - from.fp64) * lanes;
  v.fp16_operations += (to.fp16 - from.fp16) * lanes;
}

}  // namespace

void count_issue(Warp& w, const Op* op) {
  count_operations(w, op->issue + 1);
  w.issued += op->issue + 1 - w.issue_start;
}
void begin_segment(Warp& w, const Op* op) {
  w.issue_start = op->issue;
}

void break_segment(Warp& w, const Op* op) {
  count_operations(w, op->issue);
  w.issued += op->issue - w.issue_start;
  begin_segment(w, op);
}

void put_away(Warp& w, const Op* pc, Frame* frame, Mask mask, GroupState state, uint8_t barrier) {
  if (state != GroupState::kBarrier)
    for (uint32_t i = 0; i < w.n_groups; ++i) {
      Group& g = w.groups[i];
      if (g.pc == pc && g.frame == frame && g.state == state) {
        g.mask |= mask;
        return;
      }
    }
  w.groups[w.n_groups++] = Group{pc, frame, mask, state, barrier, w.clock};
}

const Op* start_ready(Warp& w) {
  // Most warps have one group: nothing to compare.
  if (w.n_groups == 1 && w.groups[0].state == GroupState::kReady) {
    w.n_groups = 0;
    w.next = no_op();
    w.rotate = false;
    w.mask = w.groups[0].mask;
    return begin_group(w, w.groups[0].pc, w.groups[0].frame);
  }
  uint32_t best = w.n_groups;
  for (uint32_t i = 0; i < w.n_groups; ++i) {
    const Group& g = w.groups[i];
    if (g.state != GroupState::kReady) continue;
    if (best == w.n_groups) {
      best = i;
      continue;
    }
    const Group& b = w.groups[best];
    const bool better = w.rotate                           ? g.stamp < b.stamp
                        : g.frame->depth != b.frame->depth ? g.frame->depth > b.frame->depth
                                                           : g.pc < b.pc;
    if (better) best = i;
  }
  if (best == w.n_groups) {
    w.stop = w.live ? Stop::kBlocked : Stop::kDone;
    w.mask = 0;
    return nullptr;
  }
  // Field by field: a copy in vectors would wait for the narrow stores that made the group.
  const Op* pc = w.groups[best].pc;
  Frame* frame = w.groups[best].frame;
  w.mask = w.groups[best].mask;
  remove_group(w, best);
  w.frame = frame;
  if (w.rotate) {
    w.next = no_op();  // free of merging for one quantum
    w.rotate = false;
  } else {
    refresh_next(w);
  }
  return begin_group(w, pc, frame);
}

const Op* go(Warp& w, const Op* from, const Op* target) {
  count_issue(w, from);
  if (w.issued >= w.limit) {
    put_away(w, target, w.frame, w.mask, GroupState::kReady);
    w.rotate = w.n_groups > 1;
    w.stop = Stop::kYield;
    return nullptr;
  }
  if (target < w.next) {
    begin_segment(w, target);
    return target->fn == op_label ? target + 1 : target;  // a waiting group is never between the two
  }
  put_away(w, target, w.frame, w.mask, GroupState::kReady);
  return start_ready(w);
}

const Op* split(Warp& w, const Op* from, const Op* target, Mask taken) {
  const Op* through = from + 1;
  const Mask stay = w.mask & ~taken;
  count_issue(w, from);
  if (w.issued >= w.limit) {
    put_away(w, target, w.frame, taken, GroupState::kReady);
    put_away(w, through, w.frame, stay, GroupState::kReady);
    w.rotate = true;
    w.stop = Stop::kYield;
    return nullptr;
  }
  const Op* low = target < through ? target : through;
  const Op* high = target < through ? through : target;
  if (low < w.next) {
    put_away(w, high, w.frame, target < through ? stay : taken, GroupState::kReady);
    w.next = std::min(w.next, high);
    w.mask = target < through ? taken : stay;
    begin_segment(w, low);
    return low;
  }
  put_away(w, target, w.frame, taken, GroupState::kReady);
  put_away(w, through, w.frame, stay, GroupState::kReady);
  return start_ready(w);
}

const Op* op_label(Warp& w, const Op* op) {
  if (op < w.next) return op + 1;
  if (op == w.next) {
    for (uint32_t i = 0; i < w.n_groups; ++i) {
      Group& g = w.groups[i];
      if (g.state == GroupState::kReady && g.pc == op && g.frame == w.frame) {
        break_segment(w, op);
        w.mask |= g.mask;
        remove_group(w, i);
        break;
      }
    }
    refresh_next(w);
    return op + 1;
  }
  // A lower group became ready meanwhile (released from a barrier): let it catch up.
  break_segment(w, op);
  put_away(w, op, w.frame, w.mask, GroupState::kReady);
  return start_ready(w);
}

void wake_sync(Warp& w) {
  for (uint32_t i = 0; i < w.n_groups; ++i)
    if (w.groups[i].state == GroupState::kSync) w.groups[i].state = GroupState::kReady;
}

const Op* finish_lanes(Warp& w, const Op* op) {
  count_issue(w, op);
  w.live &= ~w.mask;
  w.block->live_warps -= w.live == 0;
  leave_frames(w, w.frame, w.mask, true);
  if (w.n_groups == 0 && !w.block->barriers_used && !w.block->cluster->arrivals) {  // nobody waits for these
    w.stop = Stop::kDone;
    w.mask = 0;
    return nullptr;
  }
  wake_sync(w);
  check_barriers(*w.block);
  return start_ready(w);
}

const Op* enter_function(Warp& w, const Op* op, const Code* callee, const CallSite& site, Mask mask) {
  Frame* caller = w.frame;
  Frame* f = new_frame(*w.block);
  *f = Frame{callee,
             caller,
             op + 1,
             mask,
             caller->depth + 1,
             caller->reg_base + caller->code->reg_bytes,
             caller->local_base + caller->code->frame_bytes};
  const size_t need = f->reg_base + callee->reg_bytes;
  if (f->local_base + callee->frame_bytes > w.local_bytes || need > (size_t{64} << 20)) {
    w.block->free_frames.push_back(f);
    return raise(w, op, FaultKind::kStackOverflow, std::countr_zero(mask), 0,
                 "call depth exceeds the local memory of a thread");
  }
  if (need > w.register_bytes) {
    // The block's register memory is one piece: grow it and move every warp's window.
    Block& b = *w.block;
    const size_t stride = (std::max(need, b.register_stride * 2) + 127) & ~size_t{127};
    Buffer bigger;
    bigger.reserve(stride * b.warps.size());
    for (Warp& each : b.warps) {
      std::memcpy(bigger.data() + stride * each.index, each.registers, b.register_stride);
      each.registers = bigger.data() + stride * each.index;
      each.register_bytes = stride;
      if (each.frame) each.base[0] = each.registers + each.frame->reg_base;
    }
    b.registers = std::move(bigger);
    b.register_stride = stride;
  }
  const size_t n = std::min(site.in.size(), callee->params.size());
  for (Mask left = mask; left; left &= left - 1) {
    char* memory = w.local + static_cast<size_t>(std::countr_zero(left)) * w.local_bytes;
    for (size_t i = 0; i < n; ++i)
      std::memcpy(memory + f->local_base + callee->params[i].local_offset,
                  memory + caller->local_base + site.in[i].local_offset,
                  std::min(site.in[i].bytes, callee->params[i].bytes));
  }
  count_issue(w, op);
  w.mask = mask;
  use_frame(w, f);
  w.next = no_op();
  const Op* start = callee->ops.data();
  w.issue_start = 0;
  if (w.issued >= w.limit) {
    put_away(w, start, f, mask, GroupState::kReady);
    w.stop = Stop::kYield;
    return nullptr;
  }
  return start;
}

const Op* leave_function(Warp& w, const Op* op) {
  Frame* f = w.frame;
  if (!f->parent) return finish_lanes(w, op);
  Frame* caller = f->parent;
  const Op* resume = f->resume;
  const Op* call = resume - 1;
  const CallSite& site = caller->code->calls[static_cast<size_t>(call->imm)];
  const size_t n = std::min(site.out.size(), f->code->returns.size());
  for (Mask left = w.mask; left; left &= left - 1) {
    char* memory = w.local + static_cast<size_t>(std::countr_zero(left)) * w.local_bytes;
    for (size_t i = 0; i < n; ++i)
      std::memcpy(memory + caller->local_base + site.out[i].local_offset,
                  memory + f->local_base + f->code->returns[i].local_offset,
                  std::min(site.out[i].bytes, f->code->returns[i].bytes));
  }
  count_issue(w, op);
  const Mask mask = w.mask;
  leave_frames(w, f, mask, false);
  put_away(w, resume, caller, mask, GroupState::kReady);
  return start_ready(w);
}

}  // namespace tessera::softgpu::exec

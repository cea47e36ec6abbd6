// Run-time state of the interpreter: warps, blocks, workers, and the few services handlers need.
// Private to softgpu/exec. A Block and everything below belongs to one Worker (one host thread) at a time;
// Grid is shared by the workers of one run. Plain data where the per-instruction-set files see it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "softgpu/exec/op.h"

namespace tessera::softgpu::exec {

struct Block;
struct Worker;
struct Code;

// One activation of a function. Divergent groups of a warp may be in different frames; a lane's windows nest,
// and lanes are disjoint between groups, so frames of equal depth share storage.
struct Frame {
  const Code* code;
  Frame* parent;     // null for the entry
  const Op* resume;  // where the caller goes on
  Mask lanes;        // lanes still inside; 0 = free
  uint32_t depth;
  uint32_t reg_base;    // bytes into the warp's register stack
  uint32_t local_base;  // bytes into each lane's local memory
};

enum class GroupState : uint8_t { kReady, kBarrier, kSync };

// Lanes of a warp that wait at the same instruction. The running group is held in Warp, not in its list.
struct Group {
  const Op* pc;
  Frame* frame;
  Mask mask;
  GroupState state;
  uint8_t barrier;  // kBarrier: which
  uint64_t stamp;   // when it last ran, for fairness
};

enum class Stop : uint8_t { kNone, kBlocked, kYield, kDone, kFault };

struct Warp {
  // touched by every handler
  char* base[4];         // by operand tag, each less its tag so that base[tag] + operand is the address
  Mask mask;             // lanes of the running group
  Mask live;             // lanes that have not exited
  const Op* next;        // lowest waiting pc of the running frame: reaching it merges; ~0 if none
  uint32_t issue_start;  // Op::issue where the current straight-line segment began
  uint64_t issued;       // issue slots so far
  uint64_t limit;        // yield when issued passes it
  Worker* worker;
  Block* block;
  char* shared;  // this block's shared memory
  uint32_t shared_bytes;
  char* local;  // lane 0; lane i at i * local_bytes
  uint32_t local_bytes;
  Frame* frame;
  Mask guard_saved;  // mask to restore after a guarded instruction
  Mask carry;        // condition code CC.CF per lane
  Stop stop;
  bool rotate;     // next choice: least recently run group instead of lowest pc
  uint32_t index;  // in the block
  uint32_t n_groups;
  char* registers;        // register stack
  size_t register_bytes;  // its size
  char* specials;         // special registers, kSpecialBytes
  uint64_t clock;         // runs of this warp, for Group::stamp
  uint32_t async_pending;
  Group groups[kLanes];  // last: what a warp that does not diverge needs lies together
};

template <class T>
inline __attribute__((always_inline)) T* at(Warp& w, uint32_t operand) {
  return reinterpret_cast<T*>(w.base[operand & 3] + operand);
}

inline const Op* no_op() {
  return reinterpret_cast<const Op*>(~uintptr_t{0});
}

// Special registers, columns of 128 bytes: those that differ between the warps of a block (Warp::specials,
// operand tag 2), then those that do not (Block::uniforms, tag 3), where the parameters follow. Clocks are
// operations.
enum class Special : uint8_t {
  kTidX,
  kTidY,
  kTidZ,
  kLaneid,
  kWarpid,
  kLanemaskEq,
  kLanemaskLe,
  kLanemaskLt,
  kLanemaskGe,
  kLanemaskGt,
  kNtidX,  // the first of the uniform ones
  kNtidY,
  kNtidZ,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNctaidX,
  kNctaidY,
  kNctaidZ,
  kNwarpid,
  kSmid,
  kNsmid,
  kGridid,
  kDynamicSmem,
  kTotalSmem,
  kReservedBegin,
  kReservedEnd,
  kReservedCap,
  kReserved1,
  kEnvreg1,
  kEnvreg2,
  kZero,
  kDynamicBase,
  kGridid64,
  kGridid64High,
  kDynamicBase64,
  kDynamicBase64High,  // 64-bit: two columns each
  kClusterCtaidX,
  kClusterCtaidY,
  kClusterCtaidZ,
  kClusterNctaidX,
  kClusterNctaidY,
  kClusterNctaidZ,
  kClusteridX,
  kClusteridY,
  kClusteridZ,
  kNclusteridX,
  kNclusteridY,
  kNclusteridZ,
  kClusterCtarank,
  kClusterNctarank,
  kExplicitCluster,
  kCount
};
inline constexpr uint32_t kFirstUniform = static_cast<uint32_t>(Special::kNtidX);
inline constexpr uint32_t kSpecialBytes = kFirstUniform * 128;
// The first column of the uniform ones stays free: operand 3 is "no operand".
inline constexpr uint32_t uniform_offset(Special s) {
  return (static_cast<uint32_t>(s) - kFirstUniform + 1) * 128;
}
inline constexpr uint32_t kUniformBytes = uniform_offset(Special::kCount);
inline constexpr uint32_t special_operand(Special s) {
  const uint32_t which = static_cast<uint32_t>(s);
  return which < kFirstUniform ? which * 128 | 2 : uniform_offset(s) | 3;
}

// The memory handlers of every instruction set need these; implemented in access.cc.
struct CachedRange {
  uint64_t begin, end;  // [begin, end)
  bool writable;
};
inline constexpr unsigned kCachedRanges = 16;
struct MemoryView {  // first member of Worker
  CachedRange ranges[kCachedRanges];
  const uint64_t* generation_now;  // of the allocation map; read relaxed
  uint64_t generation;             // that `ranges` belong to
  uint64_t global_bytes;           // sectors x 32 so far
  uint64_t tensor_operations;
  uint64_t fp64_operations, fp32_operations, fp16_operations;  // of lanes
};
inline MemoryView& view(Warp& w) {
  return *reinterpret_cast<MemoryView*>(w.worker);
}

// Looks [begin, end) up and fills the cache entry; false if no live allocation holds it all (or is writable).
bool find_range(Warp& w, uint64_t begin, uint64_t end, bool write, unsigned entry);
inline __attribute__((always_inline)) bool check_range(Warp& w, uint64_t begin, uint64_t end, bool write,
                                                       unsigned entry) {
  MemoryView& v = view(w);
  const CachedRange& r = v.ranges[entry];
  if (begin >= r.begin && end <= r.end && begin < end && (!write || r.writable) &&
      v.generation == __atomic_load_n(v.generation_now, __ATOMIC_RELAXED))
    return true;
  return find_range(w, begin, end, write, entry);
}
inline uint64_t sectors(uint64_t begin, uint64_t end) {
  return (((end - 1) >> 5) - (begin >> 5) + 1) * 32;
}

// Slow versions that handle every pattern, space, mask and fault; addresses from operand a plus imm.
const Op* load_any(Warp& w, const Op* op);
const Op* store_any(Warp& w, const Op* op);

}  // namespace tessera::softgpu::exec

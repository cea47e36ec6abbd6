// The common part of the memory handlers: addresses of lanes, sizes, reports. Private to softgpu/exec.
#pragma once

#include <string>

#include "softgpu/exec/core.h"
#include "softgpu/exec/scalar.h"

namespace tessera::softgpu::exec {

std::string hex(uint64_t x);
// Raises the fault of an access that no memory answers to, with the nearest allocation.
void raise_access(Warp& w, const Op* op, Space space, unsigned lane, uint64_t address, unsigned bytes,
                  bool write);

inline unsigned element_bytes(Ty t) {
  switch (t) {
    case Ty::kU8:
    case Ty::kS8:
      return 1;
    case Ty::kU16:
    case Ty::kS16:
    case Ty::kF16:
    case Ty::kBf16:
      return 2;
    case Ty::kU64:
    case Ty::kS64:
    case Ty::kF64:
      return 8;
    default:
      return 4;
  }
}

// The size of a register that holds the type.
inline unsigned storage_bytes(Ty t) {
  return element_bytes(t) == 8 ? 8 : 4;
}

// The access at a base: 32-bit registers hold addresses of 32-bit spaces, where base and offset wrap.
inline uint64_t with_offset(const Op* op, uint64_t base) {
  const uint64_t address = base + static_cast<uint64_t>(op->imm);
  return op->flags & kAddress32 ? static_cast<uint32_t>(address) : address;
}

// The address of a lane: operand a plus imm, or the frame's local memory.
inline uint64_t address_of(Warp& w, const Op* op, unsigned i) {
  using lane::get;
  uint64_t base = 0;
  if (op->a == kNoOperand)
    base = op->space == static_cast<uint8_t>(Space::kLocal) ? w.frame->local_base : 0;
  else if (op->flags & kAddress32)
    base = get<uint32_t>(w, op->a, i);
  else
    base = get<uint64_t>(w, op->a, i);
  return with_offset(op, base);
}

inline bool is_global(Space space, uint64_t address) {
  if (space == Space::kShared || space == Space::kLocal) return false;
  return address - shared_window() >= kWindowsBytes;
}

// Bytes have arrived: the barrier at `address` hears of it. False after a fault.
bool complete_transactions(Warp& w, const Op* op, unsigned lane, uint64_t address, Space space,
                           int64_t bytes);
// The same place in the shared memory of the cluster's block of that rank.
inline uint64_t in_block(Space space, uint64_t address, unsigned rank) {
  const uint64_t window = (rank + uint64_t{1}) * kWindowBytes,
                 base = space == Space::kGeneric ? shared_window() : 0;
  return base + window + (address - base) % kWindowBytes;
}

// The handler of an atomic operation on single elements of that space and type.
Handler atomic_handler(Space space, Ty type, Atomic how);
// One element in memory: old value <- operation(old, b, c), atomically; returns the old one.
uint64_t atomic_element(Ty type, Atomic how, char* p, uint64_t b, uint64_t c, bool global);

}  // namespace tessera::softgpu::exec

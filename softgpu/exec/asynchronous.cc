// Asynchronous copies and the barriers that count them. A copy is made at once, which is a legal time for it;
// its barrier hears of it then. One worker runs a cluster, so a barrier's word needs no host atomics.
#include <cstring>

#include "softgpu/exec/access.h"

namespace tessera::softgpu::exec {

using lane::get;
using lane::put;

namespace {

// The 64 bits of an mbarrier object: phase 1, expected arrivals 20, pending arrivals 20, transactions 21 with
// sign, and one bit that says there is a barrier. Programs must not look inside.
struct Barrier64 {
  static constexpr int64_t kMostArrivals = (1 << 20) - 1, kMostTransactions = (1 << 20) - 1;
  uint64_t phase;
  int64_t expected, pending, transactions;

  static bool valid(uint64_t word) { return word >> 63; }
  static Barrier64 from(uint64_t word) {
    return {word & 1, static_cast<int64_t>(word >> 1 & kMostArrivals),
            static_cast<int64_t>(word >> 21 & kMostArrivals),
            static_cast<int64_t>(word >> 41 & 0x1fffff) - (1 << 20)};
  }
  uint64_t word() const {
    return uint64_t{1} << 63 | static_cast<uint64_t>(transactions + (1 << 20)) << 41 |
           static_cast<uint64_t>(pending) << 21 | static_cast<uint64_t>(expected) << 1 | phase;
  }
  bool in_range() const {
    return expected >= 0 && pending >= 0 && expected <= kMostArrivals && pending <= kMostArrivals &&
           transactions >= -kMostTransactions && transactions <= kMostTransactions;
  }
  bool complete() const { return pending == 0 && transactions == 0; }
  void advance() {
    phase ^= 1;
    pending = expected;
  }
};

uint64_t load(const char* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return word;
}
void store(char* p, uint64_t word) {
  std::memcpy(p, &word, 8);
}

const Op* bad(Warp& w, const Op* op, unsigned lane, uint64_t address, const char* what) {
  return raise(w, op, FaultKind::kIllegalInstruction, lane, address,
               "mbarrier at " + hex(address) + ": " + what);
}

// The barrier object of a lane; null and a fault if there is none.
char* object_at(Warp& w, const Op* op, unsigned lane, uint64_t address, Space space) {
  if (space != Space::kShared && is_global(space, address)) {
    raise_access(w, op, Space::kShared, lane, address, 8, true);
    return nullptr;
  }
  return reach(w, op, space, lane, address, 8, true, 8);
}

}  // namespace

bool complete_transactions(Warp& w, const Op* op, unsigned lane, uint64_t address, Space space,
                           int64_t bytes) {
  char* p = object_at(w, op, lane, address, space);
  if (!p) return false;
  if (!Barrier64::valid(load(p))) return bad(w, op, lane, address, "it is not initialised") != nullptr;
  Barrier64 b = Barrier64::from(load(p));
  b.transactions -= bytes;
  if (!b.in_range()) return bad(w, op, lane, address, "too many bytes outstanding") != nullptr;
  if (b.complete()) b.advance();
  store(p, b.word());
  return true;
}

namespace {

uint64_t operand64(Warp& w, uint32_t operand, unsigned i) {
  return get<uint64_t>(w, operand, i);
}

}  // namespace

const Op* op_mbarrier(Warp& w, const Op* op) {
  const Signal signal = static_cast<Signal>(op->sub);
  const Space space = static_cast<Space>(op->space);
  const bool no_complete = op->count == 2, patient = op->count == 3;
  Mask waits = 0, passed = 0;
  for (Mask left = w.mask; left; left &= left - 1) {
    const unsigned i = static_cast<unsigned>(std::countr_zero(left));
    if (signal == Signal::kPendingCount) {
      put<uint32_t>(w, op->d, i, static_cast<uint32_t>(Barrier64::from(get<uint64_t>(w, op->a, i)).pending));
      continue;
    }
    const uint64_t address = address_of(w, op, i);
    char* p = object_at(w, op, i, address, space);
    if (!p) return nullptr;
    const uint64_t before = load(p);
    if (signal != Signal::kInit && !Barrier64::valid(before))
      return bad(w, op, i, address, "it is not initialised");
    Barrier64 b = Barrier64::from(before);
    const int64_t count = op->b == kNoOperand || signal == Signal::kTest ? 1 : get<uint32_t>(w, op->b, i);
    switch (signal) {
      case Signal::kInit:
        if (count < 1 || count > Barrier64::kMostArrivals)
          return bad(w, op, i, address, "the count must be between 1 and 1048575");
        store(p, Barrier64{0, count, count, 0}.word());
        continue;
      case Signal::kInvalidate:
        store(p, 0);
        continue;
      case Signal::kExpect:
        b.transactions += count;
        break;
      case Signal::kComplete:
        b.transactions -= count;
        break;
      case Signal::kArriveDrop:
        b.expected -= count;
        [[fallthrough]];
      case Signal::kArrive:
        if (op->c != kNoOperand) b.transactions += get<uint32_t>(w, op->c, i);
        b.pending -= count;
        break;
      case Signal::kTest:
        (b.phase != (get<uint64_t>(w, op->b, i) & 1) ? passed : waits) |= 1u << i;
        continue;
      case Signal::kTestParity:
        (b.phase != static_cast<uint64_t>(count & 1) ? passed : waits) |= 1u << i;
        continue;
      case Signal::kPendingCount:
        continue;
    }
    if (!b.in_range()) return bad(w, op, i, address, "more arrivals or bytes than the barrier can count");
    if (b.complete()) {
      if (no_complete) return bad(w, op, i, address, "an arrival with .noComplete completes the phase");
      b.advance();
    }
    store(p, b.word());
    if (op->d != kNoOperand) put<uint64_t>(w, op->d, i, before);
  }
  if (signal == Signal::kTest || signal == Signal::kTestParity) {
    Mask& d = *at<Mask>(w, op->d);
    d = (d & ~w.mask) | passed;
    if (waits && patient)
      return op_yield(w, op);  // others of the block get their turn, then it may try again
  }
  return op + 1;
}

const Op* op_bulk(Warp& w, const Op* op) {
  const uint32_t* operands = w.frame->code->extra.data() + op->extra;
  const Space to_space = static_cast<Space>(op->space), from_space = static_cast<Space>(op->count);
  for (Mask left = w.mask; left; left &= left - 1) {
    const unsigned i = static_cast<unsigned>(std::countr_zero(left));
    const uint64_t to = operand64(w, operands[0], i), from = operand64(w, operands[1], i);
    const uint32_t bytes = get<uint32_t>(w, operands[2], i);
    if (bytes % 16)
      return raise(w, op, FaultKind::kMisalignedAddress, i, from,
                   "bulk copy of " + std::to_string(bytes) + " bytes: the size must be a multiple of 16");
    const bool multicast = operands[4] != kNoOperand;
    const uint32_t ranks = multicast ? get<uint32_t>(w, operands[4], i) & 0xffff : 1;
    for (uint32_t left_ranks = ranks; left_ranks; left_ranks &= left_ranks - 1) {
      // Multicast: the same offset in each block named.
      const auto placed = [&](uint64_t address) {
        return multicast ? in_block(to_space, address, static_cast<unsigned>(std::countr_zero(left_ranks)))
                         : address;
      };
      if (bytes) {
        const char* source = reach(w, op, from_space, i, from, bytes, false, 16);
        char* target = source ? reach(w, op, to_space, i, placed(to), bytes, true, 16) : nullptr;
        if (!target) return nullptr;
        if (op->sub == 0) {
          std::memmove(target, source, bytes);
        } else {
          const unsigned each = element_bytes(op->type);
          for (uint32_t k = 0; k < bytes; k += each) {
            uint64_t value = 0;
            std::memcpy(&value, source + k, each);
            atomic_element(op->type, static_cast<Atomic>(op->sub - 1), target + k, value, 0,
                           is_global(to_space, to));
          }
        }
        if (is_global(to_space, to)) w.worker->memory.global_bytes += sectors(to, to + bytes);
      }
      if (operands[3] != kNoOperand &&
          !complete_transactions(w, op, i, placed(operand64(w, operands[3], i)), to_space, bytes))
        return nullptr;
    }
    if (bytes && is_global(from_space, from)) w.worker->memory.global_bytes += sectors(from, from + bytes);
  }
  return op + 1;
}

const Op* op_store_async(Warp& w, const Op* op) {
  const uint32_t* operands = w.frame->code->extra.data() + op->extra;
  const Space space = static_cast<Space>(op->space);
  const unsigned each = element_bytes(op->type), bytes = each * op->count;
  for (Mask left = w.mask; left; left &= left - 1) {
    const unsigned i = static_cast<unsigned>(std::countr_zero(left));
    char* p = reach(w, op, space, i, operand64(w, operands[0], i), bytes, true, bytes);
    if (!p) return nullptr;
    for (unsigned k = 0; k < op->count; ++k) {
      const uint32_t operand = operands[2 + k];
      const uint64_t value = each == 8 ? get<uint64_t>(w, operand, i) : get<uint32_t>(w, operand, i);
      if (op->sub == 0)
        std::memcpy(p + k * each, &value, each);
      else
        atomic_element(op->type, static_cast<Atomic>(op->sub - 1), p + k * each, value, 0, false);
    }
    if (!complete_transactions(w, op, i, operand64(w, operands[1], i), space, bytes)) return nullptr;
  }
  return op + 1;
}

// cp.async: the copy is made at once (a legal time for it); waits have nothing to wait for.
// b: shared address, a: global address, imm: bytes | 32-bit flags of c: source size register.
const Op* op_cp_async(Warp& w, const Op* op) {
  const unsigned bytes = op->count;
  uint64_t last = ~uint64_t{0};
  for (Mask left = w.mask; left; left &= left - 1) {
    const unsigned i = static_cast<unsigned>(std::countr_zero(left));
    const uint64_t offset = static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(op->extra)));
    const uint64_t to = op->flags & kAddress32 ? static_cast<uint32_t>(get<uint32_t>(w, op->b, i) + offset)
                                               : get<uint64_t>(w, op->b, i) + offset;
    const uint64_t from = get<uint64_t>(w, op->a, i) + static_cast<uint64_t>(op->imm);
    uint32_t size = bytes;
    if (op->c != kNoOperand) size = std::min(get<uint32_t>(w, op->c, i), bytes);
    if (op->flags & kSecond) {  // ignore-src predicate
      const Mask skip = *at<Mask>(w, op->d2);
      if (skip >> i & 1) size = 0;
    }
    char* target = reach(w, op, Space::kShared, i, to, bytes, true, bytes);
    if (!target) return nullptr;
    if (size) {
      const char* source = reach(w, op, Space::kGlobal, i, from, size, false, 1);
      if (!source) return nullptr;
      if (from & (bytes - 1)) {
        raise(w, op, FaultKind::kMisalignedAddress, i, from,
              "cp.async source " + hex(from) + " needs an alignment of " + std::to_string(bytes));
        return nullptr;
      }
      std::memcpy(target, source, size);
      if (from >> 5 != last) w.worker->memory.global_bytes += 32;
      last = from >> 5;
    }
    if (size < bytes) std::memset(target + size, 0, bytes - size);
  }
  return op + 1;
}

}  // namespace tessera::softgpu::exec

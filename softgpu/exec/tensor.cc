// Copies of boxes between tensors in global memory and shared memory. Like all asynchronous copies they are
// made at once. A box is walked row by row (dimension 0); each row is 16-byte pieces in shared memory, whose
// place within the swizzle's width follows from the address: its bits 4.. are combined with its bits 7.. .
#include "softgpu/exec/tensor.h"

#include <algorithm>
#include <cstring>

#include "softgpu/exec/access.h"
#include "softgpu/exec/tensor_map.h"

namespace tessera::softgpu::exec {

using lane::get;

namespace {

const Op* bad(Warp& w, const Op* op, unsigned lane, uint64_t address, const std::string& what) {
  return raise(w, op, FaultKind::kIllegalInstruction, lane, address,
               "tensor map at " + hex(address) + ": " + what);
}

// The elements of a box that exist: a row at a time.
struct Box {
  const TensorMap& map;
  int64_t at[5];        // its first coordinates
  uint32_t n[5];        // elements taken along each dimension
  unsigned bytes, row;  // of an element; of a row in shared memory

  Box(const TensorMap& m, const int64_t* coordinates) : map(m) {
    for (unsigned d = 0; d < 5; ++d) {
      const bool inside = d <= m.last_dimension;
      const unsigned step = d && inside ? m.element_stride[d] : 1;
      at[d] = inside ? coordinates[d] : 0;
      n[d] = inside ? (m.box[d] + step - 1) / step : 1;
    }
    bytes = tensor_element_bytes(m.element);
    row = n[0] * bytes;
  }
  uint32_t size() const { return row * n[1] * n[2] * n[3] * n[4]; }

  // f(offset in shared memory of a row, first byte of it that exists, behind the last, address of the first)
  template <class F>
  bool each_row(F f) const {
    const int64_t first = std::clamp<int64_t>(-at[0], 0, n[0]),
                  last = std::clamp<int64_t>(int64_t{map.most[0]} + 1 - at[0], first, n[0]);
    uint32_t offset = 0, i[5] = {};
    for (i[4] = 0; i[4] < n[4]; ++i[4])
      for (i[3] = 0; i[3] < n[3]; ++i[3])
        for (i[2] = 0; i[2] < n[2]; ++i[2])
          for (i[1] = 0; i[1] < n[1]; ++i[1], offset += row) {
            bool exists = first < last;
            uint64_t address = map.address + static_cast<uint64_t>(at[0] + first) * bytes;
            for (unsigned d = 1; d <= map.last_dimension; ++d) {
              const int64_t x = at[d] + int64_t{i[d]} * map.element_stride[d];
              exists = exists && x >= 0 && x <= int64_t{map.most[d]};
              address += static_cast<uint64_t>(x) * map.stride_bytes[d - 1];
            }
            const unsigned begin = exists ? static_cast<unsigned>(first) * bytes : 0,
                           end = exists ? static_cast<unsigned>(last) * bytes : 0;
            if (!f(offset, begin, end, address)) return false;
          }
    return true;
  }
};

// Fills elements outside: zeros, or a NaN of the type.
void fill(const TensorMap& map, char* row, unsigned bytes) {
  std::memset(row, 0, bytes);
  if (!map.fill_nan) return;
  const unsigned each = tensor_element_bytes(map.element);
  const uint64_t nan = map.element == TensorElement::kF64 ? 0x7fffffffffffffffu
                       : each == 4                        ? 0x7fffffffu
                                                          : 0x7fffu;
  for (unsigned k = 0; k < bytes; k += each) std::memcpy(row + k, &nan, each);
}

// Calls f(piece of the row, its place) for the 16-byte pieces of a row at `offset` behind `base`.
template <class F>
void each_piece(const TensorMap& map, uint64_t base, uint32_t offset, unsigned row, F f) {
  const unsigned width = tensor_swizzle_bytes(map);
  const uint64_t mask = width ? width / 16 - 1 : 0;
  for (unsigned k = 0; k < row; k += 16) {
    const uint64_t address = base + offset + k;
    f(k, (address ^ ((address >> 7 & mask) << 4)) - base);
  }
}

Ty reduced_type(TensorElement e) {
  constexpr Ty kTypes_[] = {Ty::kU8,  Ty::kU16, Ty::kU32, Ty::kS32, Ty::kU64, Ty::kS64,
                            Ty::kF16, Ty::kF32, Ty::kF32, Ty::kF64, Ty::kBf16};
  return kTypes_[static_cast<unsigned>(e)];
}
// True for the reductions that the PTX ISA allows: bits as they are, integers of 32 and 64 bits, sums of floats,
// extremes of the small ones.
bool reducible(Atomic how, TensorElement e) {
  const bool small = e == TensorElement::kF16 || e == TensorElement::kBf16,
             integer = e >= TensorElement::kU32 && e <= TensorElement::kS64;
  switch (how) {
    case Atomic::kAdd:
      return small || integer || e == TensorElement::kF32 || e == TensorElement::kF64;
    case Atomic::kMin:
    case Atomic::kMax:
      return small || integer;
    case Atomic::kInc:
    case Atomic::kDec:
      return e == TensorElement::kU32;
    case Atomic::kAnd:
    case Atomic::kOr:
    case Atomic::kXor:
      return integer;
    default:
      return false;
  }
}

bool load_box(Warp& w, const Op* op, unsigned lane, const Box& box, uint64_t shared, char* to) {
  char row[256 * 8];
  return box.each_row([&](uint32_t offset, unsigned begin, unsigned end, uint64_t address) {
    fill(box.map, row, box.row);
    if (begin < end) {
      const char* from = reach(w, op, Space::kGlobal, lane, address, end - begin, false, 1);
      if (!from) return false;
      std::memcpy(row + begin, from, end - begin);
      w.worker->memory.global_bytes += sectors(address, address + end - begin);
    }
    each_piece(box.map, shared, offset, box.row,
               [&](unsigned piece, uint64_t place) { std::memcpy(to + place, row + piece, 16); });
    return true;
  });
}

bool store_box(Warp& w, const Op* op, unsigned lane, const Box& box, uint64_t shared, const char* from) {
  const bool reduces = op->sub >= static_cast<uint8_t>(TensorCopy::kReduce);
  const Atomic how = static_cast<Atomic>(reduces ? op->sub - static_cast<uint8_t>(TensorCopy::kReduce) : 0);
  char row[256 * 8];
  return box.each_row([&](uint32_t offset, unsigned begin, unsigned end, uint64_t address) {
    if (begin == end) return true;
    each_piece(box.map, shared, offset, box.row,
               [&](unsigned piece, uint64_t place) { std::memcpy(row + piece, from + place, 16); });
    char* to = reach(w, op, Space::kGlobal, lane, address, end - begin, true, 1);
    if (!to) return false;
    w.worker->memory.global_bytes += sectors(address, address + end - begin);
    if (!reduces) {
      std::memcpy(to, row + begin, end - begin);
      return true;
    }
    for (unsigned k = begin; k < end; k += box.bytes, to += box.bytes) {
      uint64_t value = 0;
      std::memcpy(&value, row + k, box.bytes);
      atomic_element(reduced_type(box.map.element), how, to, value, 0, true);
    }
    return true;
  });
}

bool copy(Warp& w, const Op* op, unsigned i) {
  const uint32_t* operands = w.frame->code->extra.data() + op->extra;
  const uint64_t at = get<uint64_t>(w, operands[0], i);
  const char* p = reach(w, op, Space::kGeneric, i, at, sizeof(TensorMap), false, 64);
  if (!p) return false;
  TensorMap map;
  std::memcpy(&map, p, sizeof map);
  bool unsupported;
  if (const char* error = tensor_map_error(map, &unsupported))
    return bad(w, op, i, at, std::string(error) + (unsupported ? " (software GPU)" : "")) != nullptr;
  if (map.last_dimension + 1u != op->count)
    return bad(w, op, i, at,
               "it has rank " + std::to_string(map.last_dimension + 1) + ", the instruction " +
                   std::to_string(op->count)) != nullptr;
  const TensorCopy how = static_cast<TensorCopy>(op->sub);
  if (how == TensorCopy::kPrefetch) return true;
  if (how >= TensorCopy::kReduce &&
      !reducible(static_cast<Atomic>(op->sub - static_cast<uint8_t>(TensorCopy::kReduce)), map.element))
    return bad(w, op, i, at, "there is no such reduction of its element type") != nullptr;
  int64_t coordinates[5] = {};
  for (unsigned d = 0; d < op->count; ++d) coordinates[d] = get<int32_t>(w, operands[4 + d], i);
  const Box box(map, coordinates);
  const Space space = static_cast<Space>(op->space);
  const uint64_t shared = get<uint64_t>(w, operands[1], i);
  if (how != TensorCopy::kLoad) {
    const char* from = reach(w, op, space, i, shared, box.size(), false, 128);
    return from && store_box(w, op, i, box, shared, from);
  }
  const bool multicast = operands[3] != kNoOperand;
  for (uint32_t ranks = multicast ? get<uint32_t>(w, operands[3], i) & 0xffff : 1; ranks;
       ranks &= ranks - 1) {
    const auto placed = [&](uint64_t address) {
      return multicast ? in_block(space, address, static_cast<unsigned>(std::countr_zero(ranks))) : address;
    };
    char* to = reach(w, op, space, i, placed(shared), box.size(), true, 128);
    if (!to || !load_box(w, op, i, box, shared, to) ||
        !complete_transactions(w, op, i, placed(get<uint64_t>(w, operands[2], i)), space, box.size()))
      return false;
  }
  return true;
}

}  // namespace

const Op* op_tensor_copy(Warp& w, const Op* op) {
  for (Mask left = w.mask; left; left &= left - 1)
    if (!copy(w, op, static_cast<unsigned>(std::countr_zero(left)))) return nullptr;
  return op + 1;
}

const Op* op_tensor_replace(Warp& w, const Op* op) {
  for (Mask left = w.mask; left; left &= left - 1) {
    const unsigned i = static_cast<unsigned>(std::countr_zero(left)), d = op->count;
    const uint64_t at = address_of(w, op, i);
    char* p = reach(w, op, static_cast<Space>(op->space), i, at, sizeof(TensorMap), true, 64);
    if (!p) return nullptr;
    TensorMap map;
    std::memcpy(&map, p, sizeof map);
    if (map.magic && map.magic != kTensorMapMagic) return bad(w, op, i, at, "these bytes are no tensor map");
    map.magic = kTensorMapMagic;
    const uint64_t value = op->type == Ty::kU64 ? get<uint64_t>(w, op->b, i) : get<uint32_t>(w, op->b, i);
    // A value that does not fit its field is kept as one that no map may have.
    const uint8_t small = static_cast<uint8_t>(std::min<uint64_t>(value, 255));
    switch (static_cast<TensorField>(op->sub)) {
      case TensorField::kAddress:
        map.address = value;
        break;
      case TensorField::kRank:
        map.last_dimension = small;
        break;
      case TensorField::kBox:
        map.box[d] = static_cast<uint32_t>(value);
        break;
      case TensorField::kSize:
        map.most[d] = static_cast<uint32_t>(value) - 1;
        break;
      case TensorField::kStride:
        map.stride_bytes[d] = value;
        break;
      case TensorField::kElementStride:
        map.element_stride[d] = small;
        break;
      case TensorField::kElement:
        map.element = static_cast<TensorElement>(small);
        break;
      case TensorField::kInterleave:
        map.interleave = small;
        break;
      case TensorField::kSwizzle:
        map.swizzle = small;
        break;
      case TensorField::kFill:
        map.fill_nan = small;
        break;
      case TensorField::kAtomicity:
        map.atomicity = small;
        break;
    }
    std::memcpy(p, &map, sizeof map);
  }
  return op + 1;
}

const Op* op_tensor_map_copy(Warp& w, const Op* op) {
  const uint32_t* operands = w.frame->code->extra.data() + op->extra;
  const unsigned i = static_cast<unsigned>(std::countr_zero(w.mask));
  const uint64_t to = get<uint64_t>(w, operands[0], i), from = get<uint64_t>(w, operands[1], i);
  const char* source = reach(w, op, static_cast<Space>(op->space), i, from, sizeof(TensorMap), false, 128);
  char* target = source ? reach(w, op, Space::kGlobal, i, to, sizeof(TensorMap), true, 128) : nullptr;
  if (!target) return nullptr;
  std::memcpy(target, source, sizeof(TensorMap));
  __atomic_thread_fence(__ATOMIC_RELEASE);  // with the acquiring fence of whoever uses the map
  return op + 1;
}

}  // namespace tessera::softgpu::exec

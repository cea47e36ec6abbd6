// Describes a copy or a fill: how much it moves, which way, and what its return proves. One function per entry
// point, made from the columns of actions.def:
//   Transfer t = transfer::of_cuMemcpyDtoH_v2(dst, src, bytes);
// Called by the hooks of interpose with the program's own arguments, before the driver has checked them; any
// thread. Reads lists and structures that the program passes, keeps nothing, knows no speeds.
#pragma once

#include <cstdint>

#include "driver_api/cuda.h"

namespace tessera::driver_api {

enum class Direction : uint8_t { kHostToDevice, kDeviceToHost, kWithinDevice, kPeer, kFill, kUnknown };

struct Transfer {
  uint64_t bytes;  // saturated: the arguments may be garbage
  Direction direction;
  bool ended_on_return;  // so have its predecessors in the stream, if the call succeeds
};

namespace transfer {  // the columns of actions.def, and what they amount to

constexpr uint64_t times(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}
constexpr uint64_t plus(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

// Amounts, in elements.
constexpr uint64_t count(uint64_t n) {
  return n;
}
constexpr uint64_t area(uint64_t width, uint64_t height) {
  return times(width, height);
}
constexpr uint64_t sum(const size_t* sizes, size_t n) {
  uint64_t all = 0;
  for (size_t i = 0; sizes && i < n; i++) all = plus(all, sizes[i]);
  return all;
}
template <class Box>
constexpr uint64_t box(const Box* b) {
  if (!b) return 0;
  if constexpr (requires { b->Depth; })
    return times(times(b->WidthInBytes, b->Height), b->Depth);
  else
    return times(b->WidthInBytes, b->Height);
}
// Extents count elements where an array takes part. How large those are only the driver knows: the largest.
inline constexpr uint64_t kMostArrayElementBytes = 16;
constexpr uint64_t boxes(const CUDA_MEMCPY3D_BATCH_OP* list, size_t n) {
  uint64_t all = 0;
  for (size_t i = 0; list && i < n; i++) {
    const bool array =
        list[i].src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY || list[i].dst.type == CU_MEMCPY_OPERAND_TYPE_ARRAY;
    const CUextent3D& e = list[i].extent;
    all = plus(all, times(times(times(e.width, e.height), e.depth), array ? kMostArrayElementBytes : 1));
  }
  return all;
}

template <class Operation>
constexpr uint64_t listed(const Operation* list, size_t n) {
  uint64_t all = 0;
  for (size_t i = 0; list && i < n; i++) all = plus(all, list[i].size);
  return all;
}

inline constexpr Direction h2d = Direction::kHostToDevice, d2h = Direction::kDeviceToHost,
                           d2d = Direction::kWithinDevice, peer = Direction::kPeer, fill = Direction::kFill,
                           unknown = Direction::kUnknown;
template <class Box>
constexpr Direction told(const Box* b) {
  if (!b || b->srcMemoryType == CU_MEMORYTYPE_UNIFIED || b->dstMemoryType == CU_MEMORYTYPE_UNIFIED)
    return unknown;
  if (b->dstMemoryType == CU_MEMORYTYPE_HOST) return d2h;
  return b->srcMemoryType == CU_MEMORYTYPE_HOST ? h2d : d2d;
}

enum class Waits : uint8_t { never, maybe, always, told };
constexpr bool ended_on_return(Waits waits, Direction direction) {
  return waits == Waits::always || (waits == Waits::told && direction == Direction::kDeviceToHost);
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define TS_TRANSFER(symbol, params, waits, direction, amount, element)        \
  inline Transfer of_##symbol params {                                        \
    const Direction way = direction;                                          \
    return {times(amount, element), way, ended_on_return(Waits::waits, way)}; \
  }
#include "driver_api/transfers.def"
#pragma GCC diagnostic pop

}  // namespace transfer

}  // namespace tessera::driver_api

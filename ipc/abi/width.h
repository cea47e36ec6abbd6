// How wide a gate makes the slices of kernels with long blocks (LeaseLine::long_width_percent): what a policy
// may count on, so gate and simulator share it. Pure; blocks in, blocks out.
#pragma once

#include <cstdint>

#include "ipc/abi/region.h"

namespace tessera::ipc::abi {

// Of a wave, for blocks that last `block_ns`, longer than `long_block_ns`: the longer, the fewer at once;
// unless all are to fill waves. May be 0 where a wave is small.
constexpr uint64_t long_width_blocks(uint64_t wave, uint64_t long_percent, uint64_t long_block_ns,
                                     uint64_t block_ns) {
  const uint64_t most = wave * long_percent / 100, least = wave / kLeastLongPart;
  const uint64_t narrows_ns = kLongNarrowsAt * long_block_ns;
  if (long_percent == 100 || block_ns <= narrows_ns) return most;
  const uint64_t n = most * narrows_ns / block_ns;
  return n < least ? least : n;
}

// The next of even parts of `left` blocks in parts of at most `per` >= 1; `nearest`: few of them the number
// that comes nearest to it, at most a third more.
constexpr uint64_t even_part(uint64_t left, uint64_t per, bool nearest) {
  if (left <= per) return left;
  uint64_t parts = (left + per - 1) / per;
  const uint64_t fewer = parts - 1;
  if (nearest && fewer <= 4 && left * left <= fewer * parts * per * per && left * 3 <= fewer * per * 4)
    parts = fewer;
  return (left + parts - 1) / parts;
}

}  // namespace tessera::ipc::abi

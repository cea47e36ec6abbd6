#include <algorithm>

#include "kernels/slice/slice.h"

namespace tessera::slice {

std::vector<Box> boxes(const uint32_t grid[3], uint64_t first_block, uint64_t n_blocks) {
  const uint64_t row = grid[0], plane = row * grid[1];
  // 2^31 * 65535 * 65535 < 2^64: the grids that a driver accepts do not overflow; others saturate and are
  // clipped.
  uint64_t total = 0;
  if (__builtin_mul_overflow(plane, uint64_t{grid[2]}, &total)) {
    total = UINT64_MAX;
  }
  std::vector<Box> list;
  if (first_block >= total) {
    return list;
  }
  uint64_t at = first_block;
  const uint64_t end = at + std::min(n_blocks, total - at);
  auto add = [&](uint64_t x, uint64_t y, uint64_t z) {
    list.push_back({{static_cast<uint32_t>(at % row), static_cast<uint32_t>(at % plane / row),
                     static_cast<uint32_t>(at / plane)},
                    {static_cast<uint32_t>(x), static_cast<uint32_t>(y), static_cast<uint32_t>(z)}});
    at += x * y * z;
  };
  if (at < end && at % row != 0) {  // the rest of a row
    add(std::min(end - at, row - at % row), 1, 1);
  }
  if (at % plane != 0 && end - at >= row) {  // whole rows up to the end of the plane
    add(row, std::min((end - at) / row, (plane - at % plane) / row), 1);
  }
  if (end - at >= plane) {
    add(row, grid[1], (end - at) / plane);
  }
  if (end - at >= row) {
    add(row, (end - at) / row, 1);
  }
  if (at < end) {
    add(end - at, 1, 1);
  }
  return list;
}

}  // namespace tessera::slice

#include "operations/split.h"

#include <algorithm>

namespace tessera::operations {
namespace {

// Of op(X)'s element (row, column) of the first product.
uint64_t element(const Matrix& x, int64_t row, int64_t column) {
  const auto fast = static_cast<uint64_t>(x.transposed ? column : row);
  const auto slow = static_cast<uint64_t>(x.transposed ? row : column);
  return x.address + (fast + slow * static_cast<uint64_t>(x.leading)) * (x.bits / 8);
}

uint64_t product_of_batch(const Matrix& x, int64_t index) {
  return x.address + static_cast<uint64_t>(index) * static_cast<uint64_t>(x.stride) * (x.bits / 8);
}

// Its columns are at least so long.
bool holds(const Matrix& x, int64_t rows, int64_t columns) {
  return x.leading >= std::max<int64_t>(1, x.transposed ? columns : rows);
}

}  // namespace

std::optional<Split> split_of(const GemmShape& shape, int64_t pieces) {
  pieces = std::min(pieces, kMostPieces);
  if (pieces < 2 || shape.m <= 0 || shape.n <= 0 || shape.k <= 0 || shape.count <= 0) return std::nullopt;
  Split split{SplitAxis::kBatch, shape.count, 1};
  if (shape.count == 1) {
    split.axis = shape.n >= shape.m ? SplitAxis::kColumns : SplitAxis::kRows;
    split.extent = std::max(shape.n, shape.m);
  }
  const int64_t unit = split.axis == SplitAxis::kBatch ? 1 : kSlab;
  const int64_t units = split.extent / unit + (split.extent % unit != 0);
  split.step = (units / pieces + (units % pieces != 0)) * unit;
  if (split.step >= split.extent) return std::nullopt;
  return split;
}

int64_t pieces_of(uint64_t expected_ns, uint64_t slice_ns) {
  if (slice_ns == 0) return 1;
  const uint64_t slices = expected_ns / slice_ns;
  int64_t pieces = 1;
  while (pieces < kMostPieces && static_cast<uint64_t>(pieces) < slices) pieces *= 2;
  return pieces;
}

Piece piece_of(const Split& split, const GemmShape& shape, const Matrix& a, const Matrix& b, const Matrix& c,
               int64_t index) {
  const int64_t first = index * split.step, size = std::min(split.step, split.extent - first);
  Piece piece{shape.m, shape.n, shape.count, a.address, b.address, c.address};
  switch (split.axis) {
    case SplitAxis::kBatch:
      piece.count = size;
      piece.a = product_of_batch(a, first);
      piece.b = product_of_batch(b, first);
      piece.c = product_of_batch(c, first);
      break;
    case SplitAxis::kColumns:
      piece.n = size;
      piece.b = element(b, 0, first);
      piece.c = element(c, 0, first);
      break;
    case SplitAxis::kRows:
      piece.m = size;
      piece.a = element(a, first, 0);
      piece.c = element(c, first, 0);
      break;
  }
  return piece;
}

bool leads(const GemmShape& shape, const Matrix& a, const Matrix& b, const Matrix& c) {
  return holds(a, shape.m, shape.k) && holds(b, shape.k, shape.n) && holds(c, shape.m, shape.n);
}

std::optional<uint64_t> extent_of(const GemmShape& shape, const Matrix& c) {
  if (shape.m <= 0 || shape.n <= 0 || shape.count <= 0 || c.leading < shape.m) return std::nullopt;
  uint64_t one = 0, all = 0, bytes = 0;
  if (__builtin_mul_overflow(static_cast<uint64_t>(shape.n - 1), static_cast<uint64_t>(c.leading), &one) ||
      __builtin_add_overflow(one, static_cast<uint64_t>(shape.m), &one))
    return std::nullopt;
  if (shape.count > 1 && (c.stride < 0 || static_cast<uint64_t>(c.stride) < one)) return std::nullopt;
  if (__builtin_mul_overflow(static_cast<uint64_t>(shape.count - 1), static_cast<uint64_t>(c.stride), &all) ||
      __builtin_add_overflow(all, one, &all) || __builtin_mul_overflow(all, c.bits / 8, &bytes))
    return std::nullopt;
  return bytes;
}

}  // namespace tessera::operations

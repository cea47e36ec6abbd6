#include "operations/split.h"

#include <algorithm>

namespace tessera::operations {
namespace {

// Of op(X)'s element (row, column) of a product.
uint64_t element(const Matrix& x, int64_t product, int64_t row, int64_t column) {
  const auto fast = static_cast<uint64_t>(x.transposed ? column : row);
  const auto slow = static_cast<uint64_t>(x.transposed ? row : column);
  const uint64_t elements = fast + slow * static_cast<uint64_t>(x.leading) +
                            static_cast<uint64_t>(product) * static_cast<uint64_t>(x.stride);
  return x.address + elements * (x.bits / 8);
}

// Its columns, or rows, are at least so long.
bool holds(const Matrix& x, int64_t rows, int64_t columns) {
  return x.leading >= std::max<int64_t>(1, x.transposed ? columns : rows);
}

}  // namespace

std::optional<Split> split_of(const GemmShape& shape, int64_t pieces, const SplitAxes& axes) {
  pieces = std::min(pieces, kMostPieces);
  if (pieces < 2 || shape.m <= 0 || shape.n <= 0 || shape.k <= 0 || shape.count <= 0) return std::nullopt;
  Split split{SplitAxis::kBatch, axes.batch ? shape.count : 1, 1};
  if (shape.count == 1) {
    const int64_t columns = axes.columns ? shape.n : 1, rows = axes.rows ? shape.m : 1;
    split.axis = columns >= rows ? SplitAxis::kColumns : SplitAxis::kRows;
    split.extent = std::max(columns, rows);
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

Piece piece_of(const Split& split, const GemmShape& shape, int64_t index) {
  const int64_t first = index * split.step, size = std::min(split.step, split.extent - first);
  Piece piece{0, 0, 0, shape.m, shape.n, shape.count};
  switch (split.axis) {
    case SplitAxis::kBatch:
      piece.product = first;
      piece.count = size;
      break;
    case SplitAxis::kColumns:
      piece.column = first;
      piece.n = size;
      break;
    case SplitAxis::kRows:
      piece.row = first;
      piece.m = size;
      break;
  }
  return piece;
}

uint64_t part_of_a(const Matrix& a, const Piece& piece) {
  return element(a, piece.product, piece.row, 0);
}
uint64_t part_of_b(const Matrix& b, const Piece& piece) {
  return element(b, piece.product, 0, piece.column);
}
uint64_t part_of_c(const Matrix& c, const Piece& piece) {
  return element(c, piece.product, piece.row, piece.column);
}

bool leads(const GemmShape& shape, const Matrix& a, const Matrix& b, const Matrix& c) {
  return holds(a, shape.m, shape.k) && holds(b, shape.k, shape.n) && holds(c, shape.m, shape.n);
}

std::optional<Region> region_of(const GemmShape& shape, const Matrix& c) {
  const int64_t fast = c.transposed ? shape.n : shape.m, slow = c.transposed ? shape.m : shape.n;
  if (fast <= 0 || slow <= 0 || shape.count <= 0 || c.leading < fast) return std::nullopt;
  // In elements: of one product, and of all.
  uint64_t one = 0, all = 0, bytes = 0;
  if (__builtin_mul_overflow(static_cast<uint64_t>(slow - 1), static_cast<uint64_t>(c.leading), &one) ||
      __builtin_add_overflow(one, static_cast<uint64_t>(fast), &one))
    return std::nullopt;
  if (shape.count > 1 && (c.stride < 0 || static_cast<uint64_t>(c.stride) < one)) return std::nullopt;
  if (__builtin_mul_overflow(static_cast<uint64_t>(shape.count - 1), static_cast<uint64_t>(c.stride), &all) ||
      __builtin_add_overflow(all, one, &all) || __builtin_mul_overflow(all, c.bits / 8, &bytes))
    return std::nullopt;
  const uint64_t size = c.bits / 8, stretch = static_cast<uint64_t>(fast) * size;
  const auto outer = static_cast<uint64_t>(shape.count), lines = static_cast<uint64_t>(slow);
  const uint64_t outer_step = outer == 1 ? 0 : static_cast<uint64_t>(c.stride) * size;
  if (c.leading == fast || lines == 1) return Region{c.address, stretch * lines, 1, 0, outer, outer_step};
  return Region{c.address, stretch, lines, static_cast<uint64_t>(c.leading) * size, outer, outer_step};
}

}  // namespace tessera::operations

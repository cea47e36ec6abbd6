#include "operations/split.h"

#include <algorithm>

namespace tessera::operations {
namespace {

using enum SplitFamily;
using enum SplitAxis;

// clang-format off
constexpr SplitRow kSplitRows[] = {
    // family       along     A                 B                 C                 bias
    {kProduct,      kColumns, Moves::kNot,      Moves::kByColumn, Moves::kByColumn, Moves::kNot},
    {kProduct,      kRows,    Moves::kByRow,    Moves::kNot,      Moves::kByRow,    Moves::kByRow},
    {kStridedBatch, kBatch,   Moves::kByStride, Moves::kByStride, Moves::kByStride, Moves::kByStride},
    {kStridedBatch, kColumns, Moves::kNot,      Moves::kByColumn, Moves::kByColumn, Moves::kNot},      // of one
    {kStridedBatch, kRows,    Moves::kByRow,    Moves::kNot,      Moves::kByRow,    Moves::kByRow},    // of one
    // Slabs would begin within a matrix, and where that is stands in device memory.
    {kPointerBatch, kBatch,   Moves::kInArray,  Moves::kInArray,  Moves::kInArray,  Moves::kNot},
    {kGroups,       kBatch,   Moves::kInArray,  Moves::kInArray,  Moves::kInArray,  Moves::kNot},
    {kLayouts,      kBatch,   Moves::kByStride, Moves::kByStride, Moves::kByStride, Moves::kByStride},
    {kLayouts,      kColumns, Moves::kNot,      Moves::kByColumn, Moves::kByColumn, Moves::kNot},
    {kLayouts,      kRows,    Moves::kByRow,    Moves::kNot,      Moves::kByRow,    Moves::kByRow},
    {kConvolution,  kBatch,   Moves::kByStride, Moves::kNot,      Moves::kByStride, Moves::kNot},
};
// clang-format on

// The least length of its columns, or rows.
bool holds(const Matrix& x, int64_t rows, int64_t columns) {
  return x.leading >= std::max<int64_t>(1, x.transposed ? columns : rows);
}

}  // namespace

const SplitRow* split_row(SplitFamily family, SplitAxis axis) {
  for (const SplitRow& row : kSplitRows)
    if (row.family == family && row.axis == axis) return &row;
  return nullptr;
}

std::optional<Split> split_of(SplitFamily family, const GemmShape& shape, int64_t pieces,
                              const Matrix* bias) {
  pieces = std::min(pieces, kMostPieces);
  if (pieces < 2 || shape.m <= 0 || shape.n <= 0 || shape.k <= 0 || shape.count <= 0) return std::nullopt;
  const auto extent_of = [&](SplitAxis axis, int64_t extent) {
    constexpr Piece kFurther{.row = 1, .column = 1, .product = 1};
    const SplitRow* row = split_row(family, axis);
    const bool stays = row && (!bias || moved(*bias, row->bias, kFurther) == bias->address);
    return stays ? extent : 1;
  };
  Split split{kBatch, extent_of(kBatch, shape.count), 1};
  if (shape.count == 1) {
    const int64_t columns = extent_of(kColumns, shape.n), rows = extent_of(kRows, shape.m);
    split.axis = columns >= rows ? kColumns : kRows;
    split.extent = std::max(columns, rows);
  }
  const int64_t unit = split.axis == kBatch ? 1 : kSlab;
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
    case kBatch:
      piece.product = first;
      piece.count = size;
      break;
    case kColumns:
      piece.column = first;
      piece.n = size;
      break;
    case kRows:
      piece.row = first;
      piece.m = size;
      break;
  }
  return piece;
}

uint64_t moved(const Matrix& x, Moves how, const Piece& piece) {
  const auto by = [&](int64_t n, int64_t elements) {
    return x.address + static_cast<uint64_t>(n) * static_cast<uint64_t>(elements) * (x.bits / 8);
  };
  switch (how) {
    case Moves::kNot:
      break;
    case Moves::kByStride:
      return by(piece.product, x.stride);
    case Moves::kInArray:
      return x.address + static_cast<uint64_t>(piece.product) * sizeof(void*);
    case Moves::kByColumn:
      return by(piece.column, x.transposed ? 1 : x.leading);
    case Moves::kByRow:
      return by(piece.row, x.transposed ? x.leading : 1);
  }
  return x.address;
}

bool leading_dimensions_fit(const GemmShape& shape, const Matrix& a, const Matrix& b, const Matrix& c) {
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

Region region_of(const Result& result, const Split& split, int64_t first, int64_t pieces) {
  Piece piece = piece_of(split, result.shape, first);
  const Piece last = piece_of(split, result.shape, first + pieces - 1);
  piece.m = last.row - piece.row + last.m;
  piece.n = last.column - piece.column + last.n;
  piece.count = last.product - piece.product + last.count;
  Matrix c = result.c;
  c.address = moved(c, split_row(result.family, split.axis)->c, piece);
  return *region_of({piece.m, piece.n, result.shape.k, piece.count}, c);
}

}  // namespace tessera::operations

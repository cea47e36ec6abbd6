// How one matrix product is cut into products that together compute the same: by its batch, or C into slabs of columns or
// rows. The sum over k is never cut, so each element of C is computed from the same operands; whether a library adds them
// in the same order is another question (interpose/operations/split.h). A convolution is cut as a batch whose products are
// images. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "operations/gemm.h"

namespace tessera::operations {

enum class SplitAxis : uint8_t { kBatch, kColumns, kRows };

struct Split {
  SplitAxis axis;
  int64_t extent;  // of that axis: products, columns or rows
  int64_t step;    // of each piece but the last, which may be smaller

  int64_t pieces() const { return extent / step + (extent % step != 0); }
  bool operator==(const Split&) const = default;
};

// Slabs are multiples of so many columns or rows, the widest tile of a product kernel: a narrower slab would leave parts of
// its blocks without work.
inline constexpr int64_t kSlab = 128;
inline constexpr int64_t kMostPieces = 64;  // each costs a call of the library and a launch

// Along which axes a call may be cut.
struct SplitAxes {
  bool batch = true, columns = true, rows = true;
};
// In at most `pieces`, by the batch if there is one, else along the longer side of C that `axes` has. Nothing if that leaves
// one piece.
std::optional<Split> split_of(const GemmShape& shape, int64_t pieces, const SplitAxes& axes = {});

// A power of two, so that a little more or less time does not make another split: as many as a call of `expected_ns` has
// slices, 1 if it has no two.
int64_t pieces_of(uint64_t expected_ns, uint64_t slice_ns);

// A matrix as a call names it: `rows` x `columns` of op(X) are asked for.
struct Matrix {
  uint64_t address;
  int64_t leading;  // elements between columns of op(X), or, `transposed`, between rows
  int64_t stride;   // elements between products of a batch; 0: the same one again
  uint32_t bits;    // of an element, a multiple of 8
  bool transposed;  // rows of op(X) lie one behind the other, not columns

  bool operator==(const Matrix&) const = default;
};

// One piece: m x n of C, from (row, column) on, of `count` products from `product` on.
struct Piece {
  int64_t row, column, product;
  int64_t m, n, count;
};
Piece piece_of(const Split& split, const GemmShape& shape, int64_t index);  // index < split.pieces()

// Where what a piece reads of A and B begins, and what it reads or writes of C. Exact modulo 2^64, like pointers.
uint64_t part_of_a(const Matrix& a, const Piece& piece);
uint64_t part_of_b(const Matrix& b, const Piece& piece);
uint64_t part_of_c(const Matrix& c, const Piece& piece);

// Are the leading dimensions those that the whole call needs? A piece needs less, so that a library would not refuse it
// where it refuses the whole.
bool leads(const GemmShape& shape, const Matrix& a, const Matrix& b, const Matrix& c);

// Memory that a call writes: stretches of `bytes`, `inner` of them, one each `inner_step` bytes, in each of `outer` products, one
// each `outer_step` bytes. They do not overlap.
struct Region {
  uint64_t address, bytes;
  uint64_t inner, inner_step, outer, outer_step;

  // From the first byte to behind the last. Does not overflow.
  uint64_t extent() const { return (outer - 1) * outer_step + (inner - 1) * inner_step + bytes; }
};
// All products' C; nothing if that is no usable number of bytes, or products overlap.
std::optional<Region> region_of(const GemmShape& shape, const Matrix& c);

}  // namespace tessera::operations

// How one matrix product is cut into products that together compute the same: by its batch, or C into slabs of columns or
// rows. The sum over k is never cut, so each element of C is computed from the same operands; whether a library adds them
// in the same order is another question (interpose/operations/split.h). Pure; any thread.
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

// In at most `pieces`, by the batch if there is one, else along the longer side of C. Nothing if that leaves one piece.
std::optional<Split> split_of(const GemmShape& shape, int64_t pieces);

// A power of two, so that a little more or less time does not make another split: as many as a call of `expected_ns` has
// slices, 1 if it has no two.
int64_t pieces_of(uint64_t expected_ns, uint64_t slice_ns);

// A matrix as a call names it: `rows` x `columns` of op(X) are asked for. Column-major, as cuBLAS has it.
struct Matrix {
  uint64_t address;
  int64_t leading;  // elements between columns of X
  int64_t stride;   // elements between products of a batch; 0: the same one again
  uint32_t bits;    // of an element, a multiple of 8
  bool transposed;  // op(X) is not X: rows of op(X) are columns of X
};

// What one piece reads or writes.
struct Piece {
  int64_t m, n, count;
  uint64_t a, b, c;  // addresses
};
// `index` < split.pieces(). Exact modulo 2^64, like pointers.
Piece piece_of(const Split& split, const GemmShape& shape, const Matrix& a, const Matrix& b, const Matrix& c,
               int64_t index);

// Are the leading dimensions those that the whole call needs? A piece needs less, so that a library would not refuse it
// where it refuses the whole.
bool leads(const GemmShape& shape, const Matrix& a, const Matrix& b, const Matrix& c);

// Bytes from the first to the last element of all products' C; nothing if that is no usable number, or products overlap.
std::optional<uint64_t> extent_of(const GemmShape& shape, const Matrix& c);

}  // namespace tessera::operations

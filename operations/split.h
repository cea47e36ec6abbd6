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

// Calls whose arguments move in the same way.
enum class SplitFamily : uint8_t {
  kProduct,       // one product
  kStridedBatch,  // a batch, whose matrices lie a stride apart
  kPointerBatch,  // a batch, whose matrices are named by arrays of pointers
  kGroups,        // groups of such (split_groups.h); their pieces are of the kind of kBatch
  kLayouts,       // cublasLtMatmul: A, B, C and D by layouts
  kConvolution,   // A is what is read, B the filter, C the result; a product is an image
};

struct Split {
  SplitAxis axis;
  int64_t extent;  // of that axis: products, columns or rows
  int64_t step;    // of each piece but the last, which may be smaller

  int64_t pieces() const { return extent / step + (extent % step != 0); }
  bool operator==(const Split&) const = default;
};

// Slabs are multiples of this number of columns or rows, the widest tile of a product kernel: a narrower slab would leave parts of
// its blocks without work.
inline constexpr int64_t kSlab = 128;
inline constexpr int64_t kMostPieces = 64;  // each costs a call of the library and a launch

// A power of two, so that a little more or less time does not make another split: as many as a call of `expected_ns` has
// slices, 1 if it has no two.
int64_t pieces_of(uint64_t expected_ns, uint64_t slice_ns);

// A matrix as a call names it: `rows` x `columns` of op(X) are asked for.
struct Matrix {
  uint64_t address = 0;
  int64_t leading = 0;      // elements between columns of op(X), or, `transposed`, between rows
  int64_t stride = 0;       // elements between products of a batch; 0: the same one again
  uint32_t bits = 0;        // of an element, a multiple of 8
  bool transposed = false;  // rows of op(X) lie one behind the other, not columns

  bool operator==(const Matrix&) const = default;
};

// One piece: m x n of C, from (row, column) on, of `count` products from `product` on.
struct Piece {
  int64_t row = 0, column = 0, product = 0;
  int64_t m = 1, n = 1, count = 1;
};
Piece piece_of(const Split& split, const GemmShape& shape, int64_t index);  // index < split.pieces()

// How the argument that names a matrix goes on from the call to a piece of it.
enum class Moves : uint8_t {
  kNot,       // every piece has the call's
  kByStride,  // to the matrix of the piece's first product
  kInArray,   // it is an array of pointers: to the pointer of the piece's first product
  kByColumn,  // to the piece's first column of op(X)
  kByRow,     // to its first row
};
// Exact modulo 2^64, like pointers.
uint64_t moved(const Matrix& x, Moves how, const Piece& piece);

// A way of cutting, and how each argument moves. What has no row is not cut: split.cc has the table.
struct SplitRow {
  SplitFamily family;
  SplitAxis axis;
  Moves a, b, c;  // D as C
  Moves bias;
};
// Null: there is none.
const SplitRow* split_row(SplitFamily family, SplitAxis axis);

// In at most `pieces`: by the batch if there is one, else along the longer side of C that a row allows. Nothing if that leaves
// one piece. A `bias` is one that pieces cannot be given another address of: it has to stay.
std::optional<Split> split_of(SplitFamily family, const GemmShape& shape, int64_t pieces,
                              const Matrix* bias = nullptr);

// Are the leading dimensions those that the whole call needs? A piece needs less, so that a library would not refuse it
// where it refuses the whole.
bool leading_dimensions_fit(const GemmShape& shape, const Matrix& a, const Matrix& b, const Matrix& c);

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

// The memory that a call writes, if anybody knows where that is.
struct Result {
  SplitFamily family;
  GemmShape shape;
  Matrix c;
};
// The region that this number of pieces writes, from `first` on. The call's whole result has a region.
Region region_of(const Result& result, const Split& split, int64_t first, int64_t pieces);

}  // namespace tessera::operations

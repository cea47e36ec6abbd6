// Computes the cost of a matrix product of cuBLASLt from its descriptors: FLOP and bytes of the product (families.def:
// kProduct), of its epilogue (epilogues.def), and of factors by which blocks of elements are scaled. Pure; any thread.
// Does not repeat cuBLASLt's checks: a call that it refuses launches nothing, and its cost means nothing.
#pragma once

#include <cstdint>
#include <optional>

#include "operations/cost.h"
#include "operations/gemm.h"
#include "operations/type.h"

namespace tessera::operations {

// How the elements of a matrix are scaled, by the numbers of cublasLtMatmulMatrixScale_t.
enum class ScaleMode : int32_t {
  kScalar = 0,
  kBlocksOf16 = 1,    // along the dimension in which elements are neighbours; a byte for each block
  kBlocksOf32 = 2,    // the same
  kVector = 3,        // a float for each row of A or column of B
  kBlocksOf128 = 4,   // as the first two; a float for each block
  kSquaresOf128 = 5,  // a float for each square
};

struct MatmulOperand {
  Type type = Type::kF32;
  ScaleMode scale = ScaleMode::kScalar;
};

struct Matmul {
  GemmShape shape;
  MatmulOperand a, b, c, d;
  uint32_t epilogue = 1;                       // cublasLtEpilogue_t
  Type vector_type = Type::kFromArguments;     // of a bias or its gradient; not stated: as D
  Type auxiliary_type = Type::kFromArguments;  // of what an activation keeps; not stated: as D
};

// C counts as read: whether beta is zero may stand in device memory. Factors count once each, without the padding of their
// layout. Nothing for a negative size, or a type, epilogue or mode that is not known.
std::optional<Cost> matmul_cost(const Matmul& matmul);

// A conversion between layouts, C = alpha A + beta B, all of rows x columns. Without B: C = alpha A.
struct Transform {
  int64_t rows = 0, columns = 0, count = 1;
  Types types{Type::kF32, Type::kF32, Type::kF32};
  bool has_b = false;
};
std::optional<Cost> transform_cost(const Transform& transform);

// The type that decides how fast a product is computed, by its compute type (cublasComputeType_t). Single precision may
// be computed in half precision, if the caller allows that. `a`: type of A, for all other compute types.
constexpr Type computed_as(int32_t compute_type, Type a) {
  enum ComputeType : int32_t { kFast16F = 74, kFast16BF = 75, kFastTF32 = 77 };
  if (a != Type::kF32 && a != Type::kComplexF32) return a;
  if (compute_type == kFast16F) return Type::kF16;
  if (compute_type == kFast16BF) return Type::kBF16;
  return compute_type == kFastTF32 ? Type::kTF32 : a;
}

}  // namespace tessera::operations

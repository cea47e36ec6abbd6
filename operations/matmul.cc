#include "operations/matmul.h"

#include <algorithm>
#include <array>

#include "operations/count.h"
#include "operations/family.h"

namespace tessera::operations {
namespace {

enum class Vector : uint8_t { kNoVector, kAdded, kSumOfD, kSumOfA, kSumOfB };
enum class Auxiliary : uint8_t { kNothing, kMask, kMatrix };
struct EpilogueRow {
  uint32_t number;
  Vector vector;
  Auxiliary auxiliary;
};
constexpr auto kEpilogues = std::to_array<EpilogueRow>({
#define TS_EPILOGUE(name, number, vector, auxiliary) {number, Vector::vector, Auxiliary::auxiliary},
#include "operations/epilogues.def"
});
static_assert(std::ranges::is_sorted(kEpilogues, {}, &EpilogueRow::number));

const EpilogueRow* find_epilogue(uint32_t number) {
  const auto* row = std::ranges::lower_bound(kEpilogues, number, {}, &EpilogueRow::number);
  return row != kEpilogues.end() && row->number == number ? row : nullptr;
}

Count count_of(int64_t n) {
  return {static_cast<uint64_t>(n)};
}
Count blocks(Count n, uint64_t of) {
  return n / of + (n.value % of != 0 ? 1 : 0);
}

// Elements per product that a vector has, and FLOP that it takes.
struct Work {
  Count elements, flop;
};
Work work_of(Vector vector, Count m, Count n, Count k) {
  switch (vector) {
    case Vector::kNoVector:
      return {};
    case Vector::kAdded:
    case Vector::kSumOfD:
      return {m, m * n};
    case Vector::kSumOfA:
      return {m, m * k};
    case Vector::kSumOfB:
      return {n, k * n};
  }
  return {};
}

// Bits of what an activation keeps per element of D; 0: nothing.
uint32_t auxiliary_bits(Auxiliary auxiliary, Type type) {
  switch (auxiliary) {
    case Auxiliary::kNothing:
      return 0;
    case Auxiliary::kMask:
      return 1;
    case Auxiliary::kMatrix:
      return bits_of(type);
  }
  return 0;
}

// Bytes of the factors of a matrix with `lines` of `length` neighbours.
std::optional<Count> factor_bytes(ScaleMode mode, Count lines, Count length) {
  constexpr uint64_t kFloatBytes = 4;
  switch (mode) {
    case ScaleMode::kScalar:
      return Count{};
    case ScaleMode::kBlocksOf16:
      return lines * blocks(length, 16);
    case ScaleMode::kBlocksOf32:
      return lines * blocks(length, 32);
    case ScaleMode::kVector:
      return kFloatBytes * lines;
    case ScaleMode::kBlocksOf128:
      return kFloatBytes * lines * blocks(length, 128);
    case ScaleMode::kSquaresOf128:
      return kFloatBytes * blocks(lines, 128) * blocks(length, 128);
  }
  return std::nullopt;
}

Type stated_or(Type stated, Type otherwise) {
  return stated == Type::kFromArguments ? otherwise : stated;
}

}  // namespace

std::optional<Cost> matmul_cost(const Matmul& matmul) {
  const EpilogueRow* epilogue = find_epilogue(matmul.epilogue);
  const Type d = matmul.d.type, c = matmul.c.type;
  const auto product = gemm_cost(matmul.shape, {matmul.a.type, matmul.b.type, d}, false);
  if (!product || !epilogue || bits_of(c) == 0) return std::nullopt;
  const Count m = count_of(matmul.shape.m), n = count_of(matmul.shape.n), k = count_of(matmul.shape.k),
              times = count_of(matmul.shape.count);
  if (m.value == 0 || n.value == 0) return Cost{};
  // Blocks of elements that share a factor are neighbours along k in A and B, along m in C and D.
  const auto a_factors = factor_bytes(matmul.a.scale, m, k), b_factors = factor_bytes(matmul.b.scale, n, k),
             c_factors = factor_bytes(matmul.c.scale, n, m), d_factors = factor_bytes(matmul.d.scale, n, m);
  if (!a_factors || !b_factors || !c_factors || !d_factors) return std::nullopt;
  const Work work = work_of(epilogue->vector, m, n, k);
  const uint32_t vector_bits = bits_of(stated_or(matmul.vector_type, d));
  const uint32_t kept_bits = auxiliary_bits(epilogue->auxiliary, stated_or(matmul.auxiliary_type, d));
  if (vector_bits == 0 || (epilogue->auxiliary != Auxiliary::kNothing && kept_bits == 0)) return std::nullopt;
  const uint64_t values = is_complex(d) ? 2 : 1;  // a complex addition is two
  const Count bytes = bytes_of(m * n, bits_of(c)) + bytes_of(work.elements, vector_bits) +
                      bytes_of(m * n, kept_bits) + *a_factors + *b_factors + *c_factors + *d_factors;
  return *product + Cost{(values * work.flop * times).value, (bytes * times).value};
}

std::optional<Cost> transform_cost(const Transform& transform) {
  const Types types =
      transform.has_b ? transform.types : Types{transform.types.a, transform.types.a, transform.types.c};
  const int64_t sizes[] = {transform.rows, transform.columns};
  return family_cost(transform.has_b ? Family::kMatrixSum : Family::kMatrixScaled, sizes, transform.count,
                     types);
}

}  // namespace tessera::operations

// Matrix instructions of warpgroups (four warps in a row). The product is made when the last of the four
// warps arrives, which is a legal time for it; the others wait until then, so that a warp that never comes is
// a deadlock with a report. Waiting for groups is free.
//
// A descriptor of a matrix in shared memory names 16-byte pieces of it. K-major (rows of 32 bytes along K,
// two pieces): row r and piece j are at
//   start + r % 8 * S + r / 8 * stride + j * (S == 16 ? leading : 16)
// M- or N-major (transposed; pieces are eight 16-bit elements along M or N): piece c of row k is at
//   start + c % (S / 16) * 16 + c / (S / 16) * leading + k % 8 * S + k / 8 * stride
// where S is the swizzle's width in bytes, 16 without one; without one, leading and stride change places in
// the second form. Then the bits 4.. of the address are combined with its bits 7.., as many as S has pieces,
// counted from the base offset.
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "softgpu/exec/access.h"
#include "softgpu/exec/core.h"
#include "softgpu/exec/half.h"
#include "softgpu/exec/scalar.h"

namespace tessera::softgpu::exec {
namespace {

using lane::get;

constexpr unsigned kWarps = 4, kRows = 64, kMostColumns = 256, kMostDepth = 32;

struct Descriptor {
  uint32_t start, leading, stride;  // bytes
  uint32_t base;                    // where the swizzle's pattern begins, in 128 bytes
  uint32_t width;                   // S

  explicit Descriptor(uint64_t bits) {
    const auto field = [bits](unsigned at) { return static_cast<uint32_t>(bits >> at & 0x3fff) << 4; };
    constexpr uint32_t kWidths[] = {16, 128, 64, 32};
    start = field(0), leading = field(16), stride = field(32);
    base = bits >> 49 & 7;
    width = kWidths[bits >> 62];
  }
  uint32_t swizzled(uint32_t address) const {
    return address ^ ((((address >> 7) - base) & (width / 16 - 1)) << 4);
  }
  uint32_t along_k(unsigned row, unsigned piece) const {
    return swizzled(start + row % 8 * width + row / 8 * stride + piece * (width == 16 ? leading : 16));
  }
  uint32_t across_k(unsigned k, unsigned piece) const {
    const unsigned per = width / 16;
    const uint32_t outer = width == 16 ? stride : leading, eight = width == 16 ? leading : stride;
    return swizzled(start + piece % per * 16 + piece / per * outer + k % 8 * width + k / 8 * eight);
  }
};

// Elements of 16 bytes.
template <class Stored, class Put, class Value>
inline void unpack_as(const char* p, Put put, Value value) {
  Stored bits[16 / sizeof(Stored)];
  std::memcpy(bits, p, 16);
  for (unsigned j = 0; j < 16 / sizeof(Stored); ++j) put(j, static_cast<double>(value(bits[j])));
}
const std::array<double, 256>& small_floats(Element type) {
  static const auto tables = [] {
    std::array<std::array<double, 256>, 2> t;
    for (unsigned i = 0; i < 256; ++i)
      t[0][i] = value_of(Element::kE4m3, i), t[1][i] = value_of(Element::kE5m2, i);
    return t;
  }();
  return tables[type == Element::kE5m2];
}
template <class Put>
void unpack(const char* p, Element type, Put put) {
  switch (type) {
    case Element::kF16:
      return unpack_as<uint16_t>(p, put, half_to_float);
    case Element::kBf16:
      return unpack_as<uint16_t>(p, put, brain_to_float);
    case Element::kTf32:
      return unpack_as<uint32_t>(p, put, [](uint32_t x) { return value_of(Element::kTf32, x); });
    case Element::kS8:
      return unpack_as<int8_t>(p, put, [](int8_t x) { return x; });
    case Element::kU8:
      return unpack_as<uint8_t>(p, put, [](uint8_t x) { return x; });
    default: {
      const std::array<double, 256>& values = small_floats(type);
      return unpack_as<uint8_t>(p, put, [&](uint8_t x) { return values[x]; });
    }
  }
}

// A matrix of `size` rows along M or N from shared memory; put(row, k, value). False after a fault.
template <class Put>
bool load(Warp& w, const Op* op, uint64_t bits, bool transposed, Element type, unsigned size, Put put) {
  const Descriptor d(bits);
  const unsigned rows = transposed ? 256 / bits_of(type) : size, pieces = transposed ? size / 8 : 2,
                 per = 128 / bits_of(type);
  for (unsigned row = 0; row < rows; ++row)
    for (unsigned piece = 0; piece < pieces; ++piece) {
      const uint32_t address = transposed ? d.across_k(row, piece) : d.along_k(row, piece);
      const char* p = reach(w, op, Space::kShared, 0, address, 16, false, 16);
      if (!p) return false;
      unpack(p, type, [&](unsigned j, double x) {
        if (transposed)
          put(piece * 8 + j, row, x);
        else
          put(row, piece * per + j, x);
      });
    }
  return true;
}

// A tile of the sums, 16 rows and 8 columns, for one warp: sums += a[16][k] * b[k][8]. Products are exact in
// double, so fusing them with the addition changes nothing. As many rows at a time as stay in registers.
using Multiply = void (*)(const double* a, const double* b, double* sums, unsigned k);
#ifdef __x86_64__
__attribute__((target("avx512f"))) void multiply512(const double* a, const double* b, double* sums,
                                                    unsigned k) {
  __m512d s[16];
#pragma GCC unroll 16
  for (unsigned i = 0; i < 16; ++i) s[i] = _mm512_load_pd(sums + i * 8);
  for (unsigned t = 0; t < k; ++t) {
    const __m512d y = _mm512_load_pd(b + t * 8);
#pragma GCC unroll 16
    for (unsigned i = 0; i < 16; ++i) s[i] = _mm512_fmadd_pd(_mm512_set1_pd(a[i * kMostDepth + t]), y, s[i]);
  }
#pragma GCC unroll 16
  for (unsigned i = 0; i < 16; ++i) _mm512_store_pd(sums + i * 8, s[i]);
}
__attribute__((target("avx2,fma"))) void multiply256(const double* a, const double* b, double* sums,
                                                     unsigned k) {
  for (unsigned first = 0; first < 16; first += 4) {
    __m256d s[8];
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; ++i) s[i] = _mm256_load_pd(sums + first * 8 + i * 4);
    for (unsigned t = 0; t < k; ++t) {
      const __m256d low = _mm256_load_pd(b + t * 8), high = _mm256_load_pd(b + t * 8 + 4);
#pragma GCC unroll 4
      for (unsigned i = 0; i < 4; ++i) {
        const __m256d x = _mm256_set1_pd(a[(first + i) * kMostDepth + t]);
        s[2 * i] = _mm256_fmadd_pd(x, low, s[2 * i]);
        s[2 * i + 1] = _mm256_fmadd_pd(x, high, s[2 * i + 1]);
      }
    }
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; ++i) _mm256_store_pd(sums + first * 8 + i * 4, s[i]);
  }
}
#endif
void multiply128(const double* a, const double* b, double* sums, unsigned k) {
  for (unsigned t = 0; t < k; ++t)
    for (unsigned i = 0; i < 16; ++i)
      for (unsigned j = 0; j < 8; ++j) sums[i * 8 + j] += a[i * kMostDepth + t] * b[t * 8 + j];
}
Multiply multiply_of_this_machine() {
#ifdef __x86_64__
  const unsigned bits = vector_bits();
  return bits == 512 ? multiply512 : bits == 256 ? multiply256 : multiply128;
#else
  return multiply128;
#endif
}

const Op* misuse(Warp& w, const Op* op, const char* what) {
  return raise(w, op, FaultKind::kIllegalInstruction,
               w.mask ? static_cast<unsigned>(std::countr_zero(w.mask)) : 0, 0,
               std::string("warpgroup instruction: ") + what);
}

// Operands that all lanes of a warpgroup must agree on.
struct WarpgroupOperands {
  uint64_t a, b;
  bool accumulate;
  bool operator==(const WarpgroupOperands&) const = default;
};
bool agreed_operands(Warp& w, const Op* op, WarpgroupOperands* operands) {
  const auto same = [&](uint32_t operand, uint64_t* value) {
    *value = operand == kNoOperand ? 0 : get<uint64_t>(w, operand, 0);
    for (unsigned l = 1; operand != kNoOperand && l < kLanes; ++l)
      if (get<uint64_t>(w, operand, l) != *value) return false;
    return true;
  };
  Mask accumulate = *at<Mask>(w, op->d2);
  if (op->flags & kNegate) accumulate = ~accumulate;
  operands->accumulate = accumulate != 0;
  return same(op->a, &operands->a) && same(op->b, &operands->b) && (accumulate == 0 || accumulate == ~0u);
}

bool waits(const Warp& w) {
  return w.n_groups == 1 && w.groups[0].state == GroupState::kBarrier &&
         w.groups[0].barrier == kWarpgroupBarrier;
}

// Sums between a warp's registers and a tile of 16 rows and 8 columns: element i of a lane, four of them to a
// tile, is in row l / 4 + i / 2 * 8 and column l % 4 * 2 + i % 2. So half a row is four lanes of two
// registers in turn.
void load_sums(Warp& w, const uint32_t* registers, Element type, unsigned tile, double* sums) {
  registers += tile * 4;
#ifdef __x86_64__
  if (type == Element::kF32) {
    for (unsigned row = 0; row < 16; ++row, sums += 8) {
      const __m128 even = _mm_load_ps(at<float>(w, registers[row / 8 * 2]) + row % 8 * 4),
                   odd = _mm_load_ps(at<float>(w, registers[row / 8 * 2 + 1]) + row % 8 * 4),
                   low = _mm_unpacklo_ps(even, odd), high = _mm_unpackhi_ps(even, odd);
      _mm_store_pd(sums, _mm_cvtps_pd(low));
      _mm_store_pd(sums + 2, _mm_cvtps_pd(_mm_movehl_ps(low, low)));
      _mm_store_pd(sums + 4, _mm_cvtps_pd(high));
      _mm_store_pd(sums + 6, _mm_cvtps_pd(_mm_movehl_ps(high, high)));
    }
    return;
  }
#endif
  if (type == Element::kF16) registers -= tile * 2;
  for (unsigned i = 0; i < 4; ++i)
    for (unsigned l = 0; l < kLanes; ++l)
      sums[(l / 4 + i / 2 * 8) * 8 + l % 4 * 2 + i % 2] = read_element(w, registers, type, l, i);
}
void store_sums(Warp& w, const uint32_t* registers, const MatrixInfo& info, unsigned tile,
                const double* sums) {
  registers += tile * 4;
#ifdef __x86_64__
  if (info.d_type == Element::kF32) {
    const __m128 nan = _mm_castsi128_ps(_mm_set1_epi32(0x7fffffff));
    const auto rounded = [&](const double* p) {
      const __m128 x = _mm_movelh_ps(_mm_cvtpd_ps(_mm_load_pd(p)), _mm_cvtpd_ps(_mm_load_pd(p + 2))),
                   bad = _mm_cmpunord_ps(x, x);
      return _mm_or_ps(_mm_andnot_ps(bad, x), _mm_and_ps(bad, nan));
    };
    for (unsigned row = 0; row < 16; ++row, sums += 8) {
      const __m128 low = rounded(sums), high = rounded(sums + 4);
      _mm_store_ps(at<float>(w, registers[row / 8 * 2]) + row % 8 * 4, _mm_shuffle_ps(low, high, 0x88));
      _mm_store_ps(at<float>(w, registers[row / 8 * 2 + 1]) + row % 8 * 4, _mm_shuffle_ps(low, high, 0xdd));
    }
    return;
  }
#endif
  if (info.d_type == Element::kF16) registers -= tile * 2;
  for (unsigned i = 0; i < 4; ++i)
    for (unsigned l = 0; l < kLanes; ++l)
      write_element(w, registers, info.d_type, l, i, sums[(l / 4 + i / 2 * 8) * 8 + l % 4 * 2 + i % 2],
                    info.saturate);
}

// The whole product; warps: the four of the group.
bool execute(Warp* warps, Warp& w, const Op* op, const MatrixInfo& info, const WarpgroupOperands& operands) {
  static const Multiply multiply_tile = multiply_of_this_machine();
  alignas(64) double a[kRows * kMostDepth], b[kMostDepth * kMostColumns], sums[16 * 8];
  const uint32_t* lists = w.frame->code->extra.data();
  const unsigned n = info.n, k = info.k;
  const double sign_a = info.negate_a ? -1 : 1, sign_b = info.negate_b ? -1 : 1;
  if (!load(w, op, operands.b, info.transpose_b, info.b_type, n, [&](unsigned column, unsigned t, double x) {
        b[(column / 8 * k + t) * 8 + column % 8] = x * sign_b;
      }))
    return false;
  if (info.a_in_memory) {
    if (!load(w, op, operands.a, info.transpose_a, info.a_type, kRows,
              [&](unsigned row, unsigned t, double x) { a[row * kMostDepth + t] = x * sign_a; }))
      return false;
  } else {
    const unsigned per = 32 / bits_of(info.a_type);
    for (unsigned q = 0; q < kWarps; ++q)
      for (unsigned l = 0; l < kLanes; ++l)
        for (unsigned i = 0; i < 4 * per; ++i) {
          const unsigned r = i / per, row = q * 16 + l / 4 + r % 2 * 8,
                         column = r / 2 * 4 * per + l % 4 * per + i % per;
          a[row * kMostDepth + column] = sign_a * read_element(warps[q], lists + info.a, info.a_type, l, i);
        }
  }
  for (unsigned q = 0; q < kWarps; ++q)
    for (unsigned tile = 0; tile < n / 8; ++tile) {
      if (operands.accumulate)
        load_sums(warps[q], lists + info.c, info.c_type, tile, sums);
      else
        std::fill_n(sums, 16 * 8, 0.0);
      multiply_tile(a + q * 16 * kMostDepth, b + tile * k * 8, sums, k);
      store_sums(warps[q], lists + info.d, info, tile, sums);
    }
  w.worker->memory.tensor_operations += uint64_t{2} * kRows * n * k;
  return true;
}

}  // namespace

const Op* op_warpgroup_point(Warp& w, const Op* op) {
  const Op* next;
  if (!gather_members(w, op, op->c, &next)) return next;
  if (w.mask != ~0u) return misuse(w, op, "executed by a part of a warp");
  return op + 1;
}

const Op* op_warpgroup_mma(Warp& w, const Op* op) {
  const Op* next;
  if (!gather_members(w, op, op->c, &next)) return next;
  if (w.mask != ~0u) return misuse(w, op, "executed by a part of a warp");
  Block& block = *w.block;
  const uint32_t first = w.index / kWarps * kWarps;
  if (first + kWarps > block.warps.size())
    return misuse(w, op, "the block's last warps are fewer than the four of a warpgroup");
  Warp* warps = &block.warps[first];
  WarpgroupOperands operands;
  if (!agreed_operands(w, op, &operands))
    return misuse(w, op, "lanes give different descriptors or different scale-d");
  bool all = true;
  for (unsigned q = 0; q < kWarps; ++q) {
    Warp& other = warps[q];
    if (&other == &w) continue;
    if (!other.live) return misuse(w, op, "a warp of the warpgroup has exited");
    if (!waits(other)) {
      all = false;
      continue;
    }
    WarpgroupOperands theirs;
    if (other.groups[0].pc != op + 1) return misuse(w, op, "warps of a warpgroup execute different ones");
    agreed_operands(other, op, &theirs);
    if (!(theirs == operands)) return misuse(w, op, "warps give different descriptors or different scale-d");
  }
  if (!all) {
    count_issue(w, op);
    put_away(w, op + 1, w.frame, w.mask, GroupState::kBarrier, kWarpgroupBarrier);
    return start_ready(w);
  }
  if (!execute(warps, w, op, w.frame->code->matrices[static_cast<size_t>(op->imm)], operands)) return nullptr;
  for (unsigned q = 0; q < kWarps; ++q) {
    if (&warps[q] == &w) continue;
    warps[q].groups[0].state = GroupState::kReady;
    warps[q].groups[0].stamp = 0;
    block.ready |= 1u << warps[q].index;
  }
  return op + 1;
}

}  // namespace tessera::softgpu::exec

// Matrix instructions. Fragments of mma.sync have the layouts of PTX ISA 9.7.14.5: with e elements per 32-bit
// register, group g = lane / 4 and t = lane % 4, register r of A holds rows g + 8 (r % 2) and columns 4 e (r
// / 2) + t e + j; register r of B holds rows 4 e r + t e + j of column g; C and D hold columns 2 t + i of
// rows g and g + 8. wmma fragments are opaque in PTX: element i of lane l is element l * n + i of the matrix,
// row by row. Products are exact, sums are made in double and rounded once (integers: modulo 2^32 or
// saturated).
#include "softgpu/exec/matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "softgpu/exec/access.h"
#include "softgpu/exec/core.h"
#include "softgpu/exec/half.h"
#include "softgpu/exec/scalar.h"

namespace tessera::softgpu::exec {
namespace {

using lane::get;
using lane::put;

constexpr unsigned kMost = 32;  // rows, columns or depth

}  // namespace

unsigned bits_of(Element e) {
  switch (e) {
    case Element::kF16:
    case Element::kBf16:
      return 16;
    case Element::kS8:
    case Element::kU8:
    case Element::kE4m3:
    case Element::kE5m2:
      return 8;
    case Element::kF64:
      return 64;
    default:
      return 32;
  }
}
double value_of(Element e, uint32_t bits) {
  switch (e) {
    case Element::kF16:
      return half_to_float(static_cast<uint16_t>(bits));
    case Element::kBf16:
      return brain_to_float(static_cast<uint16_t>(bits));
    case Element::kTf32:
      return std::bit_cast<float>(bits & 0xffffe000u);
    case Element::kS8:
      return static_cast<int8_t>(bits);
    case Element::kU8:
      return static_cast<uint8_t>(bits);
    case Element::kE4m3:
      return unpack_float(bits & 0xff, kE4m3Format);
    case Element::kE5m2:
      return unpack_float(bits & 0xff, kE5m2Format);
    case Element::kS32:
      return static_cast<int32_t>(bits);
    default:
      return std::bit_cast<float>(bits);
  }
}

double read_element(Warp& w, const uint32_t* registers, Element type, unsigned l, unsigned index) {
  const unsigned bits = bits_of(type);
  if (bits == 64) return get<double>(w, registers[index], l);
  const unsigned per = 32 / bits;
  const uint32_t word = get<uint32_t>(w, registers[index / per], l);
  return value_of(type, word >> (bits * (index % per)));
}
void write_element(Warp& w, const uint32_t* registers, Element type, unsigned l, unsigned index, double x,
                   bool saturate) {
  switch (type) {
    case Element::kF64:
      return put<double>(w, registers[index], l, x);
    case Element::kF16: {
      uint32_t word = get<uint32_t>(w, registers[index / 2], l);
      const unsigned shift = 16 * (index % 2);
      word = (word & ~(0xffffu << shift)) | static_cast<uint32_t>(float_to_half(x)) << shift;
      return put<uint32_t>(w, registers[index / 2], l, word);
    }
    case Element::kS32: {
      int64_t sum = static_cast<int64_t>(x);  // exact: far below 2^53
      if (saturate) sum = std::clamp<int64_t>(sum, INT32_MIN, INT32_MAX);
      return put<uint32_t>(w, registers[index], l, static_cast<uint32_t>(sum));
    }
    default: {
      const float r = static_cast<float>(x);
      return put<uint32_t>(w, registers[index], l, r == r ? std::bit_cast<uint32_t>(r) : 0x7fffffffu);
    }
  }
}

namespace {

struct Place {
  unsigned row, column;
};
Place place_a(const MatrixInfo& info, unsigned l, unsigned i) {
  const unsigned e = info.a_type == Element::kF64 ? 1 : 32 / bits_of(info.a_type);
  const unsigned r = i / e, j = i % e, g = l / 4, t = l % 4;
  if (info.m == 8) return {g, r * 4 * e + t * e + j};
  return {g + 8 * (r % 2), r / 2 * 4 * e + t * e + j};
}
Place place_b(const MatrixInfo& info, unsigned l, unsigned i) {
  const unsigned e = info.b_type == Element::kF64 ? 1 : 32 / bits_of(info.b_type);
  return {i / e * 4 * e + l % 4 * e + i % e, l / 4};
}
Place place_c(unsigned l, unsigned i) {
  return {l / 4 + 8 * (i / 2), l % 4 * 2 + i % 2};
}
Place place_wmma(unsigned rows, unsigned columns, unsigned per_lane, unsigned l, unsigned i) {
  const unsigned linear = (l * per_lane + i) % (rows * columns);
  return {linear / columns, linear % columns};
}
unsigned elements(Element e, unsigned registers) {
  const unsigned bits = bits_of(e);
  return bits >= 32 ? registers : registers * (32 / bits);
}

}  // namespace

const Op* op_mma(Warp& w, const Op* op) {
  const MatrixInfo& info = w.frame->code->matrices[static_cast<size_t>(op->imm)];
  const uint32_t* lists = w.frame->code->extra.data();
  const Op* next;
  if (!gather_members(w, op, op->c, &next)) return next;
  if (w.mask != ~0u)
    return raise(w, op, FaultKind::kIllegalInstruction, static_cast<unsigned>(std::countr_zero(w.mask)), 0,
                 "matrix instruction executed by a part of a warp");
  alignas(64) double a[kMost][kMost], b[kMost][kMost], c[kMost][kMost];
  const unsigned na = elements(info.a_type, info.n_a), nb = elements(info.b_type, info.n_b),
                 nc = elements(info.c_type, info.n_c), nd = elements(info.d_type, info.n_d);
  for (unsigned l = 0; l < kLanes; ++l) {
    for (unsigned i = 0; i < na; ++i) {
      const Place p = info.wmma ? place_wmma(info.m, info.k, na, l, i) : place_a(info, l, i);
      a[p.row][p.column] = read_element(w, lists + info.a, info.a_type, l, i);
    }
    for (unsigned i = 0; i < nb; ++i) {
      const Place p = info.wmma ? place_wmma(info.k, info.n, nb, l, i) : place_b(info, l, i);
      b[p.row][p.column] = read_element(w, lists + info.b, info.b_type, l, i);
    }
    for (unsigned i = 0; i < nc; ++i) {
      const Place p = info.wmma ? place_wmma(info.m, info.n, nc, l, i) : place_c(l, i);
      c[p.row][p.column] = read_element(w, lists + info.c, info.c_type, l, i);
    }
  }
  if (info.a_type == Element::kF64) {
    for (unsigned i = 0; i < info.m; ++i)
      for (unsigned j = 0; j < info.n; ++j)
        for (unsigned k = 0; k < info.k; ++k) c[i][j] = std::fma(a[i][k], b[k][j], c[i][j]);
  } else {
    for (unsigned i = 0; i < info.m; ++i)
      for (unsigned k = 0; k < info.k; ++k) {
        const double x = a[i][k];
        for (unsigned j = 0; j < info.n; ++j) c[i][j] += x * b[k][j];
      }
  }
  for (unsigned l = 0; l < kLanes; ++l)
    for (unsigned i = 0; i < nd; ++i) {
      const Place p = info.wmma ? place_wmma(info.m, info.n, nd, l, i) : place_c(l, i);
      write_element(w, lists + info.d, info.d_type, l, i, c[p.row][p.column], info.saturate);
    }
  w.worker->memory.tensor_operations += uint64_t{2} * info.m * info.n * info.k;
  return op + 1;
}

// Row addresses come from lanes 0-7 (first matrix), 8-15, ...; lane l gets row l / 4, columns 2 (l % 4) and
// the next.
const Op* op_ldmatrix(Warp& w, const Op* op) {
  const uint32_t* d = w.frame->code->extra.data() + op->extra;
  const Space space = static_cast<Space>(op->space);
  uint16_t tile[4][8][8];
  for (unsigned m = 0; m < op->count; ++m)
    for (unsigned row = 0; row < 8; ++row) {
      const unsigned l = m * 8 + row;
      const char* p = reach(w, op, space, l, address_of(w, op, l), 16, false, 16);
      if (!p) return nullptr;
      std::memcpy(tile[m][row], p, 16);
    }
  for (unsigned m = 0; m < op->count; ++m)
    lane::each(w, op, [&](unsigned l) {
      const unsigned x = l / 4, y = l % 4 * 2;
      const uint32_t low = op->sub ? tile[m][y][x] : tile[m][x][y],
                     high = op->sub ? tile[m][y + 1][x] : tile[m][x][y + 1];
      put<uint32_t>(w, d[m], l, low | high << 16);
    });
  return op + 1;
}
const Op* op_stmatrix(Warp& w, const Op* op) {
  const uint32_t* s = w.frame->code->extra.data() + op->extra;
  const Space space = static_cast<Space>(op->space);
  uint16_t tile[4][8][8];
  for (unsigned m = 0; m < op->count; ++m)
    for (unsigned l = 0; l < kLanes; ++l) {
      const unsigned x = l / 4, y = l % 4 * 2;
      const uint32_t word = get<uint32_t>(w, s[m], l);
      (op->sub ? tile[m][y][x] : tile[m][x][y]) = static_cast<uint16_t>(word);
      (op->sub ? tile[m][y + 1][x] : tile[m][x][y + 1]) = static_cast<uint16_t>(word >> 16);
    }
  for (unsigned m = 0; m < op->count; ++m)
    for (unsigned row = 0; row < 8; ++row) {
      const unsigned l = m * 8 + row;
      char* p = reach(w, op, space, l, address_of(w, op, l), 16, true, 16);
      if (!p) return nullptr;
      std::memcpy(p, tile[m][row], 16);
    }
  return op + 1;
}
const Op* op_movmatrix(Warp& w, const Op* op) {
  uint16_t tile[8][8];
  for (unsigned l = 0; l < kLanes; ++l) {
    const uint32_t word = get<uint32_t>(w, op->a, l);
    tile[l / 4][l % 4 * 2] = static_cast<uint16_t>(word);
    tile[l / 4][l % 4 * 2 + 1] = static_cast<uint16_t>(word >> 16);
  }
  return lane::each(w, op, [&](unsigned l) {
    put<uint32_t>(w, op->d, l,
                  tile[l % 4 * 2][l / 4] | static_cast<uint32_t>(tile[l % 4 * 2 + 1][l / 4]) << 16);
  });
}

// Fragment <-> memory: a address, b stride in elements (or the natural one).
namespace {
template <bool kStore>
const Op* wmma_memory(Warp& w, const Op* op) {
  const MatrixInfo& info = w.frame->code->matrices[op->extra];
  const uint32_t* registers = w.frame->code->extra.data() + info.d;
  const Space space = static_cast<Space>(op->space);
  const unsigned bits = bits_of(info.type), bytes = bits / 8, n = elements(info.type, info.n_d);
  for (unsigned l = 0; l < kLanes; ++l) {
    const uint64_t base = address_of(w, op, l);
    const uint64_t stride =
        op->b == kNoOperand ? (info.column_major ? info.rows : info.columns) : get<uint32_t>(w, op->b, l);
    for (unsigned i = 0; i < n; ++i) {
      const Place p = place_wmma(info.rows, info.columns, n, l, i);
      const uint64_t index = info.column_major ? p.column * stride + p.row : p.row * stride + p.column;
      char* memory = reach(w, op, space, l, base + index * bytes, bytes, kStore, bytes);
      if (!memory) return nullptr;
      if (bytes == 8) {
        uint64_t* word = &at<uint64_t>(w, registers[i])[l];
        if (kStore)
          std::memcpy(memory, word, 8);
        else
          std::memcpy(word, memory, 8);
        continue;
      }
      const unsigned per = 32 / bits, shift = bits * (i % per);
      uint32_t* word = &at<uint32_t>(w, registers[i / per])[l];
      if (kStore) {
        const uint32_t value = *word >> shift;
        std::memcpy(memory, &value, bytes);
      } else {
        uint32_t value = 0;
        std::memcpy(&value, memory, bytes);
        const uint32_t mask = bits == 32 ? ~0u : ((1u << bits) - 1) << shift;
        *word = (*word & ~mask) | (value << shift & mask);
      }
    }
  }
  if (space != Space::kShared) w.worker->memory.global_bytes += uint64_t{info.rows} * info.columns * bytes;
  return op + 1;
}
}  // namespace
const Op* op_wmma_load(Warp& w, const Op* op) {
  return wmma_memory<false>(w, op);
}
const Op* op_wmma_store(Warp& w, const Op* op) {
  return wmma_memory<true>(w, op);
}

}  // namespace tessera::softgpu::exec

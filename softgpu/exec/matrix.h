// The additional data of a decoded matrix instruction, beside its Op. Private to softgpu/exec.
#pragma once

#include <cstdint>

#include "softgpu/exec/op.h"

namespace tessera::softgpu::exec {

enum class Element : uint8_t { kNone, kF16, kBf16, kTf32, kF64, kS8, kU8, kE4m3, kE5m2, kF32, kS32 };

struct MatrixInfo {
  uint16_t m = 0, n = 0, k = 0;
  Element a_type = Element::kNone, b_type = Element::kNone, c_type = Element::kNone, d_type = Element::kNone;
  uint32_t d = 0, a = 0, b = 0, c = 0;         // first entries in Code::extra
  uint8_t n_d = 0, n_a = 0, n_b = 0, n_c = 0;  // registers
  bool column_major = false;                   // wmma.load/store: of the matrix in memory
  bool wmma = false;                           // fragments in wmma's own layout
  bool saturate = false;
  uint16_t rows = 0, columns = 0;  // wmma.load/store: of the fragment
  Element type = Element::kNone;   // wmma.load/store
  // wgmma: A in shared memory; an operand there whose rows run along M or N; an operand that counts negated
  bool a_in_memory = false, transpose_a = false, transpose_b = false, negate_a = false, negate_b = false;
};

unsigned bits_of(Element e);
double value_of(Element e, uint32_t bits);
// Element `index` of a lane's fragment registers.
double read_element(Warp& w, const uint32_t* registers, Element type, unsigned lane, unsigned index);
void write_element(Warp& w, const uint32_t* registers, Element type, unsigned lane, unsigned index, double x,
                   bool saturate);

}  // namespace tessera::softgpu::exec

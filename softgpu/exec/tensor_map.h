// The 128 bytes of a CUtensorMap as this software GPU writes them (cuTensorMapEncodeTiled, tensormap.replace)
// and its interpreter reads them. Opaque to programs, which may copy them. A map may be made on the device by
// replacing every field of zeros, so nothing in it is trusted: tensor_map_error() says what is wrong with
// one.
#pragma once

#include <cstdint>
#include <type_traits>

namespace tessera::softgpu::exec {

// Numbers of tensormap.replace.tile.elemtype (PTX ISA, "Tensormap new_val validity").
enum class TensorElement : uint8_t {
  kU8,
  kU16,
  kU32,
  kS32,
  kU64,
  kS64,
  kF16,
  kF32,
  kF32Ftz,
  kF64,
  kBf16,
  kTf32,
  kTf32Ftz,
  kCount  // packed types of later architectures follow
};

struct alignas(64) TensorMap {
  uint64_t address;           // of element 0
  uint64_t stride_bytes[4];   // between neighbours along dimensions 1 to 4
  uint32_t most[5];           // the last coordinate of each dimension: its size less 1, since 2^32 is allowed
  uint32_t box[5];            // elements walked over
  uint8_t element_stride[5];  // every how many-th is taken; of dimension 0 it counts for nothing
  uint8_t last_dimension;     // rank less 1
  TensorElement element;
  uint8_t interleave, swizzle;  // 0 none; swizzle: 1 32, 2 64, 3 128 bytes
  uint8_t fill_nan;             // outside: 0 zeros, 1 NaN
  uint8_t atomicity;            // of the swizzle; 0: 16 bytes
  uint8_t reserved[33];         // zero
  uint32_t magic;               // kTensorMapMagic once something wrote a field
};
inline constexpr uint32_t kTensorMapMagic = 0x50414d54;
static_assert(sizeof(TensorMap) == 128 && std::is_trivially_copyable_v<TensorMap>);

inline constexpr unsigned tensor_element_bytes(TensorElement e) {
  constexpr uint8_t kBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4};
  return kBytes[static_cast<unsigned>(e)];
}
inline constexpr bool tensor_element_is_float(TensorElement e) {
  return e >= TensorElement::kF16;
}
inline constexpr unsigned tensor_swizzle_bytes(const TensorMap& m) {
  return m.swizzle ? 16u << m.swizzle : 0;
}

// Null if a map can be used; else why not. `unsupported` tells what exists on devices from what does not.
inline const char* tensor_map_error(const TensorMap& m, bool* unsupported) {
  *unsupported = true;
  if (m.interleave == 1 || m.interleave == 2) return "interleaved layouts are not supported";
  if (m.atomicity) return "swizzles of pieces wider than 16 bytes are not supported";
  if (m.element == TensorElement::kF32Ftz || m.element == TensorElement::kTf32 ||
      m.element == TensorElement::kTf32Ftz)
    return "types that round on the way (f32.ftz, tf32) are not supported: use f32";
  if (m.element >= TensorElement::kCount) return "packed element types are not supported";
  *unsupported = false;
  if (m.magic != kTensorMapMagic) return "these bytes are no tensor map";
  if (m.interleave || m.swizzle > 3 || m.fill_nan > 1)
    return "interleave, swizzle or fill mode does not exist";
  if (m.last_dimension > 4) return "the rank must be 1 to 5";
  if (m.fill_nan && !tensor_element_is_float(m.element)) return "only floats can be filled with NaN";
  if (m.address == 0 || m.address % 16) return "the tensor's address must be a multiple of 16";
  for (unsigned d = 0; d <= m.last_dimension; ++d) {
    if (m.box[d] == 0 || m.box[d] > 256) return "the box must have 1 to 256 elements along each dimension";
    if (d && (m.element_stride[d] == 0 || m.element_stride[d] > 8)) return "element strides must be 1 to 8";
    if (d && (m.stride_bytes[d - 1] % 16 || m.stride_bytes[d - 1] >> 40))
      return "strides must be multiples of 16 below 2^40";
  }
  const unsigned row = m.box[0] * tensor_element_bytes(m.element);
  if (row % 16) return "a row of the box must be a multiple of 16 bytes";
  if (m.swizzle && row > tensor_swizzle_bytes(m)) return "a row of the box is wider than the swizzle";
  if (m.swizzle && row < tensor_swizzle_bytes(m)) {
    *unsupported = true;
    return "rows of the box narrower than the swizzle are not supported";
  }
  return nullptr;
}

}  // namespace tessera::softgpu::exec

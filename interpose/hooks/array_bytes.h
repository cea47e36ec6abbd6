// The least memory that an array takes, by its descriptor: format x extent. Drivers add padding and tell nobody. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "driver_api/cuda.h"

namespace tessera::hooks {

// Returns the bits of one element, all channels; 0: an unknown format.
inline uint64_t element_bits(unsigned format, unsigned channels) {
  constexpr struct {
    unsigned first, last, bits;
    bool each;  // of each channel; else of all of them
  } kFormats[] = {
      {CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_UNSIGNED_INT8, 8, true},
      {CU_AD_FORMAT_UNSIGNED_INT16, CU_AD_FORMAT_UNSIGNED_INT16, 16, true},
      {CU_AD_FORMAT_UNSIGNED_INT32, CU_AD_FORMAT_UNSIGNED_INT32, 32, true},
      {CU_AD_FORMAT_SIGNED_INT8, CU_AD_FORMAT_SIGNED_INT8, 8, true},
      {CU_AD_FORMAT_SIGNED_INT16, CU_AD_FORMAT_SIGNED_INT16, 16, true},
      {CU_AD_FORMAT_SIGNED_INT32, CU_AD_FORMAT_SIGNED_INT32, 32, true},
      {CU_AD_FORMAT_HALF, CU_AD_FORMAT_HALF, 16, true},
      {CU_AD_FORMAT_FLOAT, CU_AD_FORMAT_FLOAT, 32, true},
      {CU_AD_FORMAT_NV12, CU_AD_FORMAT_NV12, 12, false},
      {CU_AD_FORMAT_UNORM_INT8X1, CU_AD_FORMAT_UNORM_INT8X1, 8, false},
      {CU_AD_FORMAT_UNORM_INT8X2, CU_AD_FORMAT_UNORM_INT8X2, 16, false},
      {CU_AD_FORMAT_UNORM_INT8X4, CU_AD_FORMAT_UNORM_INT8X4, 32, false},
      {CU_AD_FORMAT_UNORM_INT16X1, CU_AD_FORMAT_UNORM_INT16X1, 16, false},
      {CU_AD_FORMAT_UNORM_INT16X2, CU_AD_FORMAT_UNORM_INT16X2, 32, false},
      {CU_AD_FORMAT_UNORM_INT16X4, CU_AD_FORMAT_UNORM_INT16X4, 64, false},
      {CU_AD_FORMAT_BC1_UNORM, CU_AD_FORMAT_BC1_UNORM_SRGB, 4, false},
      {CU_AD_FORMAT_BC2_UNORM, CU_AD_FORMAT_BC3_UNORM_SRGB, 8, false},
      {CU_AD_FORMAT_BC4_UNORM, CU_AD_FORMAT_BC4_SNORM, 4, false},
      {CU_AD_FORMAT_BC5_UNORM, CU_AD_FORMAT_BC7_UNORM_SRGB, 8, false},
  };
  for (const auto& f : kFormats)
    if (format >= f.first && format <= f.last) return uint64_t(f.bits) * (f.each ? channels : 1);
  return 0;
}

inline uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& d, unsigned levels) {
  // These take nothing by themselves: memory is mapped into them.
  if ((d.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0) return 0;
  const bool layers = (d.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
  uint64_t width = d.Width, height = d.Height, depth = d.Depth, elements = 0;
  for (unsigned level = 0; level < std::min(levels, 32u); ++level) {
    elements += width * std::max<uint64_t>(height, 1) * std::max<uint64_t>(depth, 1);
    width = std::max<uint64_t>(width / 2, 1);
    height /= 2;
    if (!layers) depth /= 2;
  }
  return elements * element_bits(unsigned(d.Format), d.NumChannels) / 8;
}

}  // namespace tessera::hooks

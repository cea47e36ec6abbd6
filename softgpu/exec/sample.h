// Samples a texture object at a place: addressing, filtering, levels, faces of cubes. Pure functions over its page
// (texture.h), any thread. Private to softgpu/exec. Filter weights have eight bits, as the programming guide says; sums
// are in f32.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "softgpu/exec/texture.h"

namespace tessera::softgpu::exec {

struct Texel {
  uint32_t bits[4];
};

inline bool integer_result(const TextureView& v) {
  switch (v.element) {
    case TextureElement::kF16:
    case TextureElement::kF32:
      return false;
    case TextureElement::kU32:
    case TextureElement::kS32:
      return true;
    default:
      return v.read_as_integer;
  }
}

template <class T>
T stored(const char* p) {
  T x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

uint32_t last_channel(const TextureView& v);
// Reads an element at indices from placed(), so that a negative number is the border. Channels that the format lacks
// are 0, the last is 1.
Texel texel_at(const TextureView& v, const TextureLevel& level, int64_t x, int64_t y, int64_t z);
// The index of element i of n by the address mode; -1: the border.
inline int64_t placed(int64_t i, int64_t n, TextureAddress mode) {
  if (static_cast<uint64_t>(i) < static_cast<uint64_t>(n)) return i;  // no division for most
  switch (mode) {
    case TextureAddress::kWrap:
      return ((i % n) + n) % n;
    case TextureAddress::kMirror: {
      const int64_t j = ((i % (2 * n)) + 2 * n) % (2 * n);
      return j < n ? j : 2 * n - 1 - j;
    }
    case TextureAddress::kBorder:
      return i < 0 || i >= n ? -1 : i;
    default:
      return std::clamp<int64_t>(i, 0, n - 1);
  }
}

// std::floor is a call where the instruction set need not have it.
inline float floor_of(float x) {
  constexpr float kWhole = 1 << 23;  // from here on all are whole numbers
  if (!(std::fabs(x) < kWhole)) return x;
  const float towards_zero = static_cast<float>(static_cast<int32_t>(x));
  return towards_zero - (towards_zero > x ? 1.0f : 0.0f);
}

// In elements, a little beyond the ends at most; mode: what holds there.
inline float coordinate(const TextureView& v, unsigned axis, float x, uint32_t n, TextureAddress* mode_out) {
  TextureAddress& mode = *mode_out = v.address[axis];
  float u = std::isnan(x) ? 0 : x;
  if (v.normalized_coordinates) {
    // Reduced first, so that large coordinates keep their fraction.
    if (mode == TextureAddress::kWrap) u -= floor_of(u);
    if (mode == TextureAddress::kMirror) {
      const float whole = floor_of(u), fraction = u - whole;
      u = std::fmod(whole, 2.0f) == 0 ? fraction : 1 - fraction;
    }
    u *= static_cast<float>(n);
  } else if (mode == TextureAddress::kWrap || mode == TextureAddress::kMirror) {
    mode = TextureAddress::kClamp;
  }
  return std::clamp(u, -4.0f, static_cast<float>(n) + 4.0f);
}

// `axes` coordinates; `layer` is z of images that have layers. Without `lod` the first level.
Texel sample(const TextureView& v, unsigned axes, const float* at, int64_t layer, const float* lod);
// Channel `channel` of the four texels that a filter would take, counter-clockwise from the lower left.
Texel gather(const TextureView& v, const float* at, int64_t layer, unsigned channel);
// The face that a direction hits, and where.
unsigned face_of(const float* direction, float* where);

}  // namespace tessera::softgpu::exec

#include "softgpu/exec/sample.h"

#include "softgpu/exec/half.h"

namespace tessera::softgpu::exec {
namespace {

uint32_t from_float(float x) {
  return std::bit_cast<uint32_t>(x);
}

float linear_of_srgb(float x) {
  return x <= 0.04045f ? x / 12.92f : std::pow((x + 0.055f) / 1.055f, 2.4f);
}

uint32_t channel(const TextureView& v, const char* p, unsigned k) {
  const bool raw = v.read_as_integer;
  switch (v.element) {
    case TextureElement::kU8: {
      const uint8_t x = stored<uint8_t>(p + k);
      if (raw) return x;
      const float y = static_cast<float>(x) / 255.0f;
      return from_float(v.srgb && k < 3 ? linear_of_srgb(y) : y);
    }
    case TextureElement::kS8: {
      const int8_t x = stored<int8_t>(p + k);
      return raw ? static_cast<uint32_t>(x) : from_float(std::max(static_cast<float>(x) / 127.0f, -1.0f));
    }
    case TextureElement::kU16: {
      const uint16_t x = stored<uint16_t>(p + 2 * k);
      return raw ? x : from_float(static_cast<float>(x) / 65535.0f);
    }
    case TextureElement::kS16: {
      const int16_t x = stored<int16_t>(p + 2 * k);
      return raw ? static_cast<uint32_t>(x) : from_float(std::max(static_cast<float>(x) / 32767.0f, -1.0f));
    }
    case TextureElement::kF16:
      return from_float(half_to_float(stored<uint16_t>(p + 2 * k)));
    default:
      return stored<uint32_t>(p + 4 * k);
  }
}

}  // namespace

uint32_t last_channel(const TextureView& v) {
  return integer_result(v) ? 1 : from_float(1.0f);
}

Texel texel_at(const TextureView& v, const TextureLevel& level, int64_t x, int64_t y, int64_t z) {
  const bool whole = integer_result(v);
  Texel t{{0, 0, 0, last_channel(v)}};
  if (x < 0 || y < 0 || z < 0) {  // the border
    for (unsigned k = 0; k < 4; ++k)
      t.bits[k] = whole ? static_cast<uint32_t>(static_cast<int32_t>(v.border[k])) : from_float(v.border[k]);
    return t;
  }
  const char* p = reinterpret_cast<const char*>(level.base) + static_cast<uint64_t>(z) * level.slice_pitch +
                  static_cast<uint64_t>(y) * level.row_pitch + static_cast<uint64_t>(x) * v.element_bytes;
  if (v.element == TextureElement::kF32 || whole) {
    if (v.element_bytes == 4 * v.channels) {  // as stored
      for (unsigned k = 0; k < v.channels; ++k) t.bits[k] = stored<uint32_t>(p + 4 * k);
      return t;
    }
  }
  for (unsigned k = 0; k < v.channels; ++k) t.bits[k] = channel(v, p, k);
  return t;
}

namespace {

// Two neighbours along an axis and the weight of the second.
struct Taps {
  int64_t first, second;
  float weight;
};

float eighths(float fraction) {  // of 256
  return std::floor(fraction * 256 + 0.5f) / 256;
}

Taps taps(const TextureView& v, unsigned axis, float x, uint32_t n, bool filter) {
  TextureAddress mode;
  const float u = coordinate(v, axis, x, n, &mode);
  const float place = filter ? u - 0.5f : u;
  int64_t i = static_cast<int64_t>(place);
  i -= static_cast<float>(i) > place;  // rounded down
  const float low = static_cast<float>(i);
  if (!filter) return {placed(i, n, mode), 0, 0};
  return {placed(i, n, mode), placed(i + 1, n, mode), eighths(u - 0.5f - low)};
}

float blend(float a, float b, float weight) {
  return weight == 0 ? a : weight == 1 ? b : a + (b - a) * weight;
}
Texel blend(const Texel& a, const Texel& b, float weight) {
  Texel t;
  for (unsigned k = 0; k < 4; ++k)
    t.bits[k] = from_float(blend(std::bit_cast<float>(a.bits[k]), std::bit_cast<float>(b.bits[k]), weight));
  return t;
}

// `axes` coordinates; z is the layer of images that have layers.
Texel sample_level(const TextureView& v, const TextureLevel& level, unsigned axes, const float* at,
                   int64_t layer) {
  const bool filter = v.linear_filter && !integer_result(v);
  const Taps x = taps(v, 0, at[0], level.width, filter);
  const Taps y = axes > 1 ? taps(v, 1, at[1], level.height, filter) : Taps{0, 0, 0};
  const Taps z = axes > 2 ? taps(v, 2, at[2], level.depth, filter) : Taps{layer, layer, 0};
  if (!filter) return texel_at(v, level, x.first, y.first, z.first);
  const auto row = [&](int64_t j, int64_t k) {
    const Texel first = texel_at(v, level, x.first, j, k);
    return filter && x.weight != 0 ? blend(first, texel_at(v, level, x.second, j, k), x.weight) : first;
  };
  const auto plane = [&](int64_t k) {
    const Texel first = row(y.first, k);
    return filter && y.weight != 0 ? blend(first, row(y.second, k), y.weight) : first;
  };
  const Texel first = plane(z.first);
  return filter && z.weight != 0 ? blend(first, plane(z.second), z.weight) : first;
}

}  // namespace

Texel sample(const TextureView& v, unsigned axes, const float* at, int64_t layer, const float* lod) {
  if (!lod || v.n_levels < 2) return sample_level(v, v.levels[0], axes, at, layer);
  const float top = static_cast<float>(v.n_levels - 1);
  float where = std::isnan(*lod) ? 0 : *lod + v.level_bias;
  where = std::clamp(std::clamp(where, v.min_level, std::max(v.min_level, v.max_level)), 0.0f, top);
  if (!v.linear_mip_filter || integer_result(v))
    return sample_level(v, v.levels[static_cast<uint32_t>(std::floor(where + 0.5f))], axes, at, layer);
  const float low = std::floor(where), weight = eighths(where - low);
  const uint32_t first = static_cast<uint32_t>(low);
  const Texel a = sample_level(v, v.levels[first], axes, at, layer);
  if (weight == 0) return a;
  return blend(a, sample_level(v, v.levels[std::min(first + 1, v.n_levels - 1)], axes, at, layer), weight);
}

Texel gather(const TextureView& v, const float* at, int64_t layer, unsigned channel) {
  const TextureLevel& l = v.levels[0];
  const Taps x = taps(v, 0, at[0], l.width, true), y = taps(v, 1, at[1], l.height, true);
  const auto bits = [&](int64_t i, int64_t j) { return texel_at(v, l, i, j, layer).bits[channel]; };
  return {
      {bits(x.first, y.second), bits(x.second, y.second), bits(x.second, y.first), bits(x.first, y.first)}};
}

unsigned face_of(const float* d, float* u) {
  const float x = std::fabs(d[0]), y = std::fabs(d[1]), z = std::fabs(d[2]);
  unsigned face;
  float s, t, m;
  if (x >= y && x >= z) {
    face = std::signbit(d[0]) ? 1 : 0, m = x, s = face ? d[2] : -d[2], t = -d[1];
  } else if (y >= z) {
    face = std::signbit(d[1]) ? 3 : 2, m = y, s = d[0], t = face == 3 ? -d[2] : d[2];
  } else {
    face = std::signbit(d[2]) ? 5 : 4, m = z, s = face == 5 ? -d[0] : d[0], t = -d[1];
  }
  u[0] = (s / m + 1) / 2, u[1] = (t / m + 1) / 2;
  return face;
}

}  // namespace tessera::softgpu::exec

// Textures and surfaces. The driver writes a page for each object (softgpu/exec/texture.h); a handle is its
// address. Filter weights have eight bits, as the programming guide says; sums are in f32.
#include "softgpu/exec/texture.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "softgpu/exec/access.h"
#include "softgpu/exec/half.h"
#include "softgpu/exec/image.h"

namespace tessera::softgpu::exec {

using lane::get;
using lane::put;

namespace {

struct Texel {
  uint32_t bits[4];
};

bool integer_result(const TextureView& v) {
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

uint32_t from_float(float x) {
  return std::bit_cast<uint32_t>(x);
}

template <class T>
T stored(const char* p) {
  T x;
  std::memcpy(&x, p, sizeof x);
  return x;
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

uint32_t last_channel(const TextureView& v) {
  return integer_result(v) ? 1 : from_float(1.0f);
}

// Channels that the format lacks are 0, the last is 1.
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

// Where element i of n is; -1: the border.
int64_t placed(int64_t i, int64_t n, TextureAddress mode) {
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

// Two neighbours along an axis and the weight of the second.
struct Taps {
  int64_t first, second;
  float weight;
};

// std::floor is a call where the instruction set need not have it.
float floor_of(float x) {
  constexpr float kWhole = 1 << 23;  // from here on all are whole numbers
  if (!(std::fabs(x) < kWhole)) return x;
  const float towards_zero = static_cast<float>(static_cast<int32_t>(x));
  return towards_zero - (towards_zero > x ? 1.0f : 0.0f);
}

float eighths(float fraction) {  // of 256
  return std::floor(fraction * 256 + 0.5f) / 256;
}

// In elements, a little beyond the ends at most; mode: what holds there.
float coordinate(const TextureView& v, unsigned axis, float x, uint32_t n, TextureAddress* mode_out) {
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

// The face that a direction hits, and where.
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

struct Geometry {
  TextureShape shapes[2];
  unsigned axes;  // coordinates along the image
  bool layered;   // a layer stands before them
};
constexpr Geometry kGeometries[] = {{{TextureShape::k1D, TextureShape::kLinear}, 1, false},
                                    {{TextureShape::k2D, TextureShape::kPitch2D}, 2, false},
                                    {{TextureShape::k3D, TextureShape::k3D}, 3, false},
                                    {{TextureShape::k1DLayered, TextureShape::k1DLayered}, 1, true},
                                    {{TextureShape::k2DLayered, TextureShape::k2DLayered}, 2, true},
                                    {{TextureShape::kCube, TextureShape::kCube}, 3, false},
                                    {{TextureShape::kCubeLayered, TextureShape::kCubeLayered}, 3, true}};

// The object of a lane; null and a fault if the handle names none, or one of another shape.
const TextureView* view_of(Warp& w, const Op* op, unsigned i, uint64_t handle, uint32_t magic) {
  const char* what = magic == kTextureMagic ? "texture" : "surface";
  const auto bad = [&](FaultKind kind, const char* why) {
    raise(w, op, kind, i, handle, std::string(what) + " handle " + hex(handle) + " " + why);
    return nullptr;
  };
  if (handle % 8 || !check_range(w, handle, handle + sizeof(TextureView), false, op->cache))
    return bad(FaultKind::kIllegalAddress, "belongs to no live object");
  const TextureView* v = reinterpret_cast<const TextureView*>(handle);
  if (v->magic != magic) return bad(FaultKind::kIllegalAddress, "belongs to no live object");
  const Geometry& g = kGeometries[op->sub & kGeometryMask];
  // A row is a line: some programs give one-dimensional arrays a height of one.
  const bool row =
      g.shapes[0] == TextureShape::k1D && v->shape == TextureShape::k2D && v->levels[0].height == 1;
  if (v->shape != g.shapes[0] && v->shape != g.shapes[1] && !row)
    return bad(FaultKind::kIllegalInstruction, "is of an object of another shape");
  if (v->shape == TextureShape::kLinear || v->shape == TextureShape::kPitch2D) {  // memory that may be freed
    const TextureLevel& l = v->levels[0];
    const uint64_t end = l.base + (l.height - 1) * l.row_pitch + uint64_t{l.width} * v->element_bytes;
    if (!check_range(w, l.base, end, false, (op->cache + 1u) % kCachedRanges))
      return bad(FaultKind::kIllegalAddress, "is of memory that is not allocated any more");
  }
  return v;
}

// Whether lanes read single stored words of one image: no filter, levels, layers, faces or conversions.
bool reads_words(const TextureView& v, const Op* op, const uint32_t* operands) {
  const unsigned geometry = op->sub & kGeometryMask;
  return geometry < 2 && !(op->sub & kGather) && op->type2 != Ty::kS32 && operands[5] == kNoOperand &&
         (!v.linear_filter || integer_result(v)) &&
         (v.element == TextureElement::kF32 || integer_result(v)) && v.channels == 1 && v.element_bytes == 4;
}

// All lanes of the mask use `v`.
void read_words(Warp& w, const TextureView& v, unsigned axes, const uint32_t* operands) {
  const TextureLevel& level = v.levels[0];
  const Texel border = texel_at(v, level, -1, 0, 0), none = Texel{{0, 0, 0, last_channel(v)}};
  uint64_t last_sector = ~uint64_t{0}, bytes = 0;
  for (Mask left = w.mask; left; left &= left - 1) {
    const unsigned i = static_cast<unsigned>(std::countr_zero(left));
    int64_t at[2] = {};
    for (unsigned k = 0; k < axes; ++k) {
      TextureAddress mode;
      const uint32_t n = k ? level.height : level.width;
      const float u = coordinate(v, k, get<float>(w, operands[1 + k], i), n, &mode);
      const int64_t whole = static_cast<int64_t>(u);
      at[k] = placed(whole - (static_cast<float>(whole) > u), n, mode);
    }
    const bool outside = at[0] < 0 || at[1] < 0;
    const char* p =
        reinterpret_cast<const char*>(level.base) + at[1] * static_cast<int64_t>(level.row_pitch) + at[0] * 4;
    const Texel& others = outside ? border : none;
    const uint64_t sector = reinterpret_cast<uint64_t>(p) >> 5;
    if (!outside && sector != std::exchange(last_sector, sector)) bytes += 32;
    if (operands[6] != kNoOperand)
      put<uint32_t>(w, operands[6], i, outside ? border.bits[0] : stored<uint32_t>(p));
    for (unsigned k = 1; k < 4; ++k)
      if (operands[6 + k] != kNoOperand) put<uint32_t>(w, operands[6 + k], i, others.bits[k]);
  }
  w.worker->memory.global_bytes += bytes;
}

}  // namespace

const Op* op_texture(Warp& w, const Op* op) {
  const uint32_t* operands = w.frame->code->extra.data() + op->extra;
  const Geometry& g = kGeometries[op->sub & kGeometryMask];
  const bool gather = op->sub & kGather, whole = op->type2 == Ty::kS32;
  const bool cube = g.shapes[0] == TextureShape::kCube || g.shapes[0] == TextureShape::kCubeLayered;
  const TextureView* v = nullptr;  // most lanes read the same one
  uint64_t handle = 0;
  if (w.mask) {
    const unsigned first = static_cast<unsigned>(std::countr_zero(w.mask));
    handle = get<uint64_t>(w, operands[0], first);
    bool same = true;
    lane::each(w, op, [&](unsigned i) { same &= get<uint64_t>(w, operands[0], i) == handle; });
    if (same) {
      v = view_of(w, op, first, handle, kTextureMagic);
      if (!v) return nullptr;
      if (reads_words(*v, op, operands)) {
        read_words(w, *v, g.axes, operands);
        return op + 1;
      }
    }
  }
  for (Mask left = w.mask; left; left &= left - 1) {
    const unsigned i = static_cast<unsigned>(std::countr_zero(left));
    const uint64_t named = get<uint64_t>(w, operands[0], i);
    if (!v || named != handle) v = view_of(w, op, i, named, kTextureMagic);
    if (!v) return nullptr;
    handle = named;
    const uint32_t* coordinates = operands + 1;
    const uint32_t layers = cube ? v->levels[0].depth / 6 : v->levels[0].depth;
    int64_t layer = 0;
    if (g.layered) layer = std::min(get<uint32_t>(w, *coordinates++, i), std::max(layers, 1u) - 1);
    Texel t{};
    if (whole) {  // elements by number
      int64_t at[3] = {};
      const TextureLevel& l = v->levels[0];
      const uint32_t sizes[3] = {l.width, l.height, l.depth};
      bool outside = false;
      for (unsigned k = 0; k < g.axes; ++k) {
        const int64_t x = get<int32_t>(w, coordinates[k], i);
        outside |= x < 0 || x >= sizes[k];
        at[k] = placed(
            x, sizes[k],
            v->address[k] == TextureAddress::kBorder ? TextureAddress::kBorder : TextureAddress::kClamp);
      }
      if (!(outside && v->shape == TextureShape::kLinear))
        t = texel_at(*v, l, at[0], at[1], g.axes > 2 ? at[2] : layer);
    } else {
      float at[3] = {};
      for (unsigned k = 0; k < g.axes; ++k) at[k] = get<float>(w, coordinates[k], i);
      unsigned axes = g.axes;
      if (cube) {
        float face[3] = {};
        layer = layer * 6 + face_of(at, face);
        axes = 2;
        std::copy(face, face + 3, at);
      }
      if (gather) {
        const TextureLevel& l = v->levels[0];
        const Taps x = taps(*v, 0, at[0], l.width, true), y = taps(*v, 1, at[1], l.height, true);
        const unsigned c = op->count;
        t = {{texel_at(*v, l, x.first, y.second, layer).bits[c],
              texel_at(*v, l, x.second, y.second, layer).bits[c],
              texel_at(*v, l, x.second, y.first, layer).bits[c],
              texel_at(*v, l, x.first, y.first, layer).bits[c]}};
      } else {
        float lod = 0;
        const bool has_lod = operands[5] != kNoOperand;
        if (has_lod) lod = get<float>(w, operands[5], i);
        t = sample(*v, axes, at, layer, has_lod ? &lod : nullptr);
      }
    }
    for (unsigned k = 0; k < 4; ++k)
      if (operands[6 + k] != kNoOperand) put<uint32_t>(w, operands[6 + k], i, t.bits[k]);
    w.worker->memory.global_bytes += 32;
  }
  return op + 1;
}

const Op* op_surface(Warp& w, const Op* op) {
  const uint32_t* operands = w.frame->code->extra.data() + op->extra;
  const Geometry& g = kGeometries[op->sub & kGeometryMask];
  const bool store = op->sub & kSurfaceStore;
  const SurfaceBound bound = static_cast<SurfaceBound>(op->space);
  const unsigned each = element_bytes(op->type), bytes = each * op->count;
  for (Mask left = w.mask; left; left &= left - 1) {
    const unsigned i = static_cast<unsigned>(std::countr_zero(left));
    const TextureView* v = view_of(w, op, i, get<uint64_t>(w, operands[0], i), kSurfaceMagic);
    if (!v) return nullptr;
    const TextureLevel& l = v->levels[0];
    const uint32_t* coordinates = operands + 1;
    // x in bytes, then rows, then slices or layers; the layer comes first.
    const int64_t layer = g.layered ? get<int32_t>(w, *coordinates++, i) : 0;
    int64_t at[3] = {0, 0, layer};
    for (unsigned k = 0; k < g.axes; ++k) at[k] = get<int32_t>(w, coordinates[k], i);
    const int64_t most[3] = {int64_t{l.width} * v->element_bytes - bytes, l.height - 1, l.depth - 1};
    bool outside = false;
    for (unsigned k = 0; k < 3; ++k) {
      outside |= at[k] < 0 || at[k] > most[k];
      at[k] = std::clamp<int64_t>(at[k], 0, std::max<int64_t>(most[k], 0));
    }
    if (outside && bound == SurfaceBound::kTrap)
      return raise(w, op, FaultKind::kIllegalAddress, i, static_cast<uint64_t>(at[0]),
                   std::string(store ? "store" : "load") + " outside a surface of " +
                       std::to_string(l.width) + " x " + std::to_string(l.height) + " x " +
                       std::to_string(l.depth) + " elements");
    if (at[0] % bytes)
      return raise(w, op, FaultKind::kMisalignedAddress, i, static_cast<uint64_t>(at[0]),
                   "surface access of " + std::to_string(bytes) + " bytes at byte " + std::to_string(at[0]) +
                       " of a row");
    char* p = reinterpret_cast<char*>(l.base) + static_cast<uint64_t>(at[2]) * l.slice_pitch +
              static_cast<uint64_t>(at[1]) * l.row_pitch + at[0];
    const bool nothing = outside && bound == SurfaceBound::kZero;
    for (unsigned k = 0; k < op->count; ++k) {
      const uint32_t operand = operands[5 + k];
      uint64_t value = 0;
      if (store) {
        value = each == 8 ? get<uint64_t>(w, operand, i) : get<uint32_t>(w, operand, i);
        if (!nothing) std::memcpy(p + k * each, &value, each);
      } else if (operand != kNoOperand) {
        if (!nothing) std::memcpy(&value, p + k * each, each);
        if (each == 8)
          put<uint64_t>(w, operand, i, value);
        else
          put<uint32_t>(w, operand, i, static_cast<uint32_t>(value));
      }
    }
    w.worker->memory.global_bytes += 32;
  }
  return op + 1;
}

}  // namespace tessera::softgpu::exec

// Textures and surfaces. The driver writes a page for each object (softgpu/exec/texture.h); a handle is its
// address.
#include "softgpu/exec/image.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "softgpu/exec/access.h"
#include "softgpu/exec/sample.h"

namespace tessera::softgpu::exec {

using lane::get;
using lane::put;

namespace {

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

// Elements by number.
Texel numbered(Warp& w, const TextureView& v, unsigned axes, const uint32_t* coordinates, unsigned lane,
               int64_t layer) {
  const TextureLevel& l = v.levels[0];
  const uint32_t sizes[3] = {l.width, l.height, l.depth};
  int64_t at[3] = {};
  bool outside = false;
  for (unsigned k = 0; k < axes; ++k) {
    const int64_t x = get<int32_t>(w, coordinates[k], lane);
    outside |= x < 0 || x >= sizes[k];
    at[k] =
        placed(x, sizes[k],
               v.address[k] == TextureAddress::kBorder ? TextureAddress::kBorder : TextureAddress::kClamp);
  }
  if (outside && v.shape == TextureShape::kLinear) return {};
  return texel_at(v, l, at[0], at[1], axes > 2 ? at[2] : layer);
}

Texel texel_of_lane(Warp& w, const Op* op, const TextureView& v, unsigned i) {
  const uint32_t* operands = w.frame->code->extra.data() + op->extra;
  const uint32_t* coordinates = operands + 1;
  const Geometry& g = kGeometries[op->sub & kGeometryMask];
  const bool cube = g.shapes[0] == TextureShape::kCube || g.shapes[0] == TextureShape::kCubeLayered;
  const uint32_t layers = cube ? v.levels[0].depth / 6 : v.levels[0].depth;
  int64_t layer = 0;
  if (g.layered) layer = std::min(get<uint32_t>(w, *coordinates++, i), std::max(layers, 1u) - 1);
  if (op->type2 == Ty::kS32) return numbered(w, v, g.axes, coordinates, i, layer);
  float at[3] = {};
  for (unsigned k = 0; k < g.axes; ++k) at[k] = get<float>(w, coordinates[k], i);
  unsigned axes = g.axes;
  if (cube) {
    float face[3] = {};
    layer = layer * 6 + face_of(at, face);
    axes = 2;
    std::copy(face, face + 3, at);
  }
  if (op->sub & kGather) return gather(v, at, layer, op->count);
  if (operands[5] == kNoOperand) return sample(v, axes, at, layer, nullptr);
  const float lod = get<float>(w, operands[5], i);
  return sample(v, axes, at, layer, &lod);
}

}  // namespace

const Op* op_texture(Warp& w, const Op* op) {
  const uint32_t* operands = w.frame->code->extra.data() + op->extra;
  const Geometry& g = kGeometries[op->sub & kGeometryMask];
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
    const Texel t = texel_of_lane(w, op, *v, i);
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

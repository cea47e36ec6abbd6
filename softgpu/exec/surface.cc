// Surfaces. The driver writes a page for each object (softgpu/exec/surface_view.h); a handle is its address.
#include "softgpu/exec/surface.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "softgpu/exec/access.h"
#include "softgpu/exec/surface_view.h"

namespace tessera::softgpu::exec {

using lane::get;
using lane::put;

namespace {

struct Geometry {
  SurfaceShape shape;
  unsigned axes;  // coordinates along the image
  bool layered;   // a layer stands before them
};
constexpr Geometry kGeometries[] = {{SurfaceShape::k1D, 1, false},
                                    {SurfaceShape::k2D, 2, false},
                                    {SurfaceShape::k3D, 3, false},
                                    {SurfaceShape::k1DLayered, 1, true},
                                    {SurfaceShape::k2DLayered, 2, true}};

// The object of a lane; null and a fault if the handle names none, or one of another shape.
const SurfaceView* view_of(Warp& w, const Op* op, unsigned i, uint64_t handle) {
  const auto bad = [&](FaultKind kind, const char* why) {
    raise(w, op, kind, i, handle, "surface handle " + hex(handle) + " " + why);
    return nullptr;
  };
  if (handle % 8 || !check_range(w, handle, handle + sizeof(SurfaceView), false, op->cache))
    return bad(FaultKind::kIllegalAddress, "belongs to no live object");
  const SurfaceView* v = reinterpret_cast<const SurfaceView*>(handle);
  if (v->magic != kSurfaceMagic) return bad(FaultKind::kIllegalAddress, "belongs to no live object");
  const SurfaceShape shape = kGeometries[op->sub & kGeometryMask].shape;
  // A row is a line: some programs give one-dimensional arrays a height of one.
  const bool row = shape == SurfaceShape::k1D && v->shape == SurfaceShape::k2D && v->height == 1;
  if (v->shape != shape && !row)
    return bad(FaultKind::kIllegalInstruction, "is of an object of another shape");
  return v;
}

}  // namespace

const Op* op_surface(Warp& w, const Op* op) {
  const uint32_t* operands = w.frame->code->extra.data() + op->extra;
  const Geometry& g = kGeometries[op->sub & kGeometryMask];
  const bool store = op->sub & kSurfaceStore;
  const SurfaceBound bound = static_cast<SurfaceBound>(op->space);
  const unsigned each = element_bytes(op->type), bytes = each * op->count;
  for (Mask left = w.mask; left; left &= left - 1) {
    const unsigned i = static_cast<unsigned>(std::countr_zero(left));
    const SurfaceView* v = view_of(w, op, i, get<uint64_t>(w, operands[0], i));
    if (!v) return nullptr;
    const uint32_t* coordinates = operands + 1;
    // x in bytes, then rows, then slices or layers; the layer comes first.
    const int64_t layer = g.layered ? get<int32_t>(w, *coordinates++, i) : 0;
    int64_t at[3] = {0, 0, layer};
    for (unsigned k = 0; k < g.axes; ++k) at[k] = get<int32_t>(w, coordinates[k], i);
    const int64_t most[3] = {int64_t{v->width} * v->element_bytes - bytes, v->height - 1, v->depth - 1};
    bool outside = false;
    for (unsigned k = 0; k < 3; ++k) {
      outside |= at[k] < 0 || at[k] > most[k];
      at[k] = std::clamp<int64_t>(at[k], 0, std::max<int64_t>(most[k], 0));
    }
    if (outside && bound == SurfaceBound::kTrap)
      return raise(w, op, FaultKind::kIllegalAddress, i, static_cast<uint64_t>(at[0]),
                   std::string(store ? "store" : "load") + " outside a surface of " +
                       std::to_string(v->width) + " x " + std::to_string(v->height) + " x " +
                       std::to_string(v->depth) + " elements");
    if (at[0] % bytes)
      return raise(w, op, FaultKind::kMisalignedAddress, i, static_cast<uint64_t>(at[0]),
                   "surface access of " + std::to_string(bytes) + " bytes at byte " + std::to_string(at[0]) +
                       " of a row");
    char* p = reinterpret_cast<char*>(v->base) + static_cast<uint64_t>(at[2]) * v->slice_pitch +
              static_cast<uint64_t>(at[1]) * v->row_pitch + at[0];
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

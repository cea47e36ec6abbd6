// Operations on textures and surfaces. Private to softgpu/exec.
#pragma once

#include "softgpu/exec/core.h"

namespace tessera::softgpu::exec {

// Op::sub: 1d 2d 3d a1d a2d cube acube, and flags.
inline constexpr uint8_t kGeometryMask = 7, kGather = 8, kSurfaceStore = 16;
enum class SurfaceBound : uint8_t { kTrap, kClamp, kZero };

// extra: handle, 4 coordinates, level or none, 4 results (or none); type2: kS32 or kF32 coordinates; count:
// which channel is gathered
const Op* op_texture(Warp&, const Op*);
// extra: handle, 4 coordinates, up to 4 values; count values of Op::type; space: SurfaceBound
const Op* op_surface(Warp&, const Op*);

}  // namespace tessera::softgpu::exec

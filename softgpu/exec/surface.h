// Operations on surfaces. Private to softgpu/exec.
#pragma once

#include "softgpu/exec/core.h"

namespace tessera::softgpu::exec {

// Op::sub: 1d 2d 3d a1d a2d, and a flag.
inline constexpr uint8_t kGeometryMask = 7, kSurfaceStore = 16;
enum class SurfaceBound : uint8_t { kTrap, kClamp, kZero };

// extra: handle, 4 coordinates, up to 4 values; count values of Op::type; space: SurfaceBound
const Op* op_surface(Warp&, const Op*);

}  // namespace tessera::softgpu::exec

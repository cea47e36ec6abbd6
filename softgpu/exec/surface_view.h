// The target of a surface handle, as device code sees it: the 64-bit handle is the address of a SurfaceView.
// The driver writes it when the object is made, and it is constant until it is destroyed. The range is in the device's
// AllocationMap (read-only), so that a lookup and `magic` tell a wild handle from a live one. Plain data without driver
// types.
//
// Elements lie row by row: element (x, y, z) is at
//   base + z * slice_pitch + y * row_pitch + x * element_bytes
// where z is the layer of a layered image, and face (or 6 * layer + face) of a cubemap.
#pragma once

#include <cstdint>
#include <type_traits>

namespace tessera::softgpu::exec {

inline constexpr uint32_t kSurfaceMagic = 0x53475354;  // "TSGS"

enum class SurfaceShape : uint8_t { k1D, k2D, k3D, k1DLayered, k2DLayered, kCube };  // kCube: layered or not

struct SurfaceView {
  uint32_t magic;                 // kSurfaceMagic
  uint32_t width, height, depth;  // elements; height and depth at least 1; depth counts layers and faces
  uint64_t base, row_pitch, slice_pitch;  // address of element (0, 0, 0); bytes
  SurfaceShape shape;
  uint8_t element_bytes;  // of all channels
  uint8_t zero[6];
};
static_assert(std::is_trivially_copyable_v<SurfaceView> && sizeof(SurfaceView) == 48);

}  // namespace tessera::softgpu::exec

// The target of a texture or surface handle, as device code sees it: the 64-bit handle is the address of a TextureView.
// The driver writes it when the object is made, and it is constant until it is destroyed. The range is in the device's
// AllocationMap (read-only), so that a lookup and `magic` tell a wild handle from a live one. Plain data without driver
// types.
//
// Elements lie row by row without gaps: element (x, y, z) of a level is at
//   base + z * slice_pitch + y * row_pitch + x * element_bytes
// where z is the layer of a layered image, and face (or 6 * layer + face) of a cubemap.
#pragma once

#include <cstdint>
#include <type_traits>

namespace tessera::softgpu::exec {

inline constexpr uint32_t kTextureMagic = 0x54475354, kSurfaceMagic = 0x53475354;  // "TSGT", "TSGS"
inline constexpr uint32_t kMaxLevels = 18;                                         // 2^17 is the widest image

enum class TextureShape : uint8_t {
  kLinear,  // 1D in device memory; unfiltered, by integer coordinate
  kPitch2D,
  k1D,
  k2D,
  k3D,
  k1DLayered,
  k2DLayered,
  kCube,
  kCubeLayered,
};
enum class TextureElement : uint8_t { kU8, kU16, kU32, kS8, kS16, kS32, kF16, kF32 };
enum class TextureAddress : uint8_t { kWrap, kClamp, kMirror, kBorder };  // as CUaddress_mode

struct TextureLevel {
  uint64_t base;                    // address of element (0, 0, 0)
  uint64_t row_pitch, slice_pitch;  // bytes
  uint32_t width, height, depth;    // elements; height and depth at least 1; depth counts layers and faces
  uint32_t zero;
};

struct TextureView {
  uint32_t magic;  // kTextureMagic or kSurfaceMagic
  TextureShape shape;
  TextureElement element;
  uint8_t channels;       // 1, 2, 4
  uint8_t element_bytes;  // of all channels
  uint32_t n_levels;      // levels[0 .. n_levels)
  TextureAddress address[3];
  uint8_t linear_filter, linear_mip_filter;  // 0: nearest
  uint8_t normalized_coordinates;            // 1: 0..1 over the image
  uint8_t read_as_integer;                   // 1: elements as they are; 0: 8 and 16 bit to 0..1 or -1..1
  uint8_t srgb;
  uint32_t max_anisotropy;
  float level_bias, min_level, max_level;
  float border[4];
  TextureLevel levels[kMaxLevels];
};
static_assert(std::is_trivially_copyable_v<TextureView> && sizeof(TextureLevel) == 40);

}  // namespace tessera::softgpu::exec

// CUDA arrays: images in device memory that kernels reach through surfaces only, and mipmapped ones. Copies treat them as boxes of bytes (copy_api.cc). Any thread; an array is constant once made.
#pragma once

#include <memory>
#include <vector>

#include "softgpu/driver/objects.h"
#include "softgpu/exec/surface_view.h"

namespace tessera::softgpu::driver {

struct Array {
  Context* context = nullptr;
  CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
  uint8_t element_bytes = 0;                  // of all channels
  uint64_t begin = 0;                         // of the memory
  uint64_t row_pitch = 0, slice_pitch = 0;    // bytes
  uint32_t width = 0, height = 1, depth = 1;  // elements, layers and faces
  std::shared_ptr<void> memory;               // freed with the last array that lies in it (levels share)
  bool is_level = false;                      // of a mipmapped array: goes with that

  exec::SurfaceView surface_view() const;
  uint64_t bytes() const { return slice_pitch * depth; }
};
struct MipmappedArray {
  Context* context = nullptr;
  std::vector<std::shared_ptr<Array>> levels;
};

std::shared_ptr<Array> find_array(CUarray handle);
std::shared_ptr<MipmappedArray> find_mipmapped(CUmipmappedArray handle);
// These drop the objects of a context that ends.
void forget_arrays(Context* context);
void forget_surfaces(Context* context);

}  // namespace tessera::softgpu::driver

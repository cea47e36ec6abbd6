// Checks a launch as the driver does and packs its parameters. Used by launches and by kernel nodes of
// graphs.
#pragma once

#include "softgpu/driver/objects.h"

namespace tessera::softgpu::driver {

struct LaunchShape {
  std::array<uint32_t, 3> grid, block;
  uint32_t shared_bytes = 0;
  bool cooperative = false;
  std::array<uint32_t, 3> cluster{};  // blocks of a cluster; zeros: what the kernel says
};

// The cluster of a launch of this shape; zeros: none.
CUresult choose_cluster(const Function& function, const LaunchShape& shape, std::array<uint32_t, 3>* cluster);

CUresult prepare_launch(const std::shared_ptr<Context>& context, CUfunction handle, const LaunchShape& shape,
                        void** params, void** extra, KernelCommand* command);

}  // namespace tessera::softgpu::driver

// Checks shared by copy calls and by memcpy and memset nodes of graphs.
#pragma once

#include "softgpu/driver/objects.h"

namespace tessera::softgpu::driver {

CUresult box_of(const CUDA_MEMCPY3D& p, CopyCommand* copy);  // checked
CUresult check_memset(const MemsetCommand& set);

}  // namespace tessera::softgpu::driver

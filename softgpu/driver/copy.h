// Checks shared by copy calls and by memcpy and memset nodes of graphs.
#pragma once

#include "softgpu/driver/objects.h"

namespace tessera::softgpu::driver {

CUresult box_of(const CUDA_MEMCPY3D& p, CopyCommand* copy);  // checked
// Enqueues it; `source_now`: its source is read before this returns.
CUresult copy_async(const CUDA_MEMCPY3D& p, bool source_now, CUstream stream, NullStream null_stream);
CUresult check_memset(const MemsetCommand& set);

}  // namespace tessera::softgpu::driver

// The runtime's description of a copy, as the driver's. Called by copy.cc and graph_nodes.cc; no state.
// Positions and extents count elements where arrays take part, bytes elsewhere.
#pragma once

#include "softgpu/runtime/runtime.h"

namespace tessera::softgpu::runtime {

CUmemorytype source_type(cudaMemcpyKind kind);
CUmemorytype target_type(cudaMemcpyKind kind);
size_t element_bytes(CUarray array);  // 0: no array
cudaError_t to_driver(const cudaMemcpy3DParms& from, CUDA_MEMCPY3D* to);
void to_runtime(const CUDA_MEMCPY3D& from, cudaMemcpy3DParms* to);
cudaMemcpy3DParms linear_copy(void* dst, const void* src, size_t count, cudaMemcpyKind kind);

}  // namespace tessera::softgpu::runtime

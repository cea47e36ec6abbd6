// Tensor maps (softgpu/exec/tensor_map.h): copies of boxes, changes of fields. Private to softgpu/exec.
#pragma once

#include "softgpu/exec/core.h"

namespace tessera::softgpu::exec {

enum class TensorCopy : uint8_t { kLoad, kStore, kPrefetch, kReduce };  // kReduce + Atomic

// extra: map, shared address or none, barrier or none, mask of ranks or none, five coordinates; sub:
// TensorCopy; count: rank; space: of the shared address and the barrier
const Op* op_tensor_copy(Warp&, const Op*);

enum class TensorField : uint8_t {
  kAddress,
  kRank,
  kBox,
  kSize,
  kStride,
  kElementStride,
  kElement,
  kInterleave,
  kSwizzle,
  kFill,
  kAtomicity
};
// a: the map; b: the value; sub: TensorField; count: which dimension
const Op* op_tensor_replace(Warp&, const Op*);
// extra: to, from: the whole warp copies one map
const Op* op_tensor_map_copy(Warp&, const Op*);

}  // namespace tessera::softgpu::exec

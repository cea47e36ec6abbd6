// Tensor maps: values of 128 bytes that the caller keeps; the driver only encodes them (exec/tensor_map.h). The
// memory that one describes is checked when a kernel uses it, as on hardware.
#include "softgpu/exec/tensor_map.h"

#include <cstring>

#include "softgpu/driver/state.h"

namespace tessera::softgpu::driver {
namespace {

using exec::kTensorMapMagic, exec::TensorElement, exec::TensorMap;

static_assert(sizeof(CUtensorMap) == sizeof(TensorMap) && alignof(CUtensorMap) >= alignof(TensorMap));

// CUtensorMapDataType -> TensorElement; the two number the floats differently.
constexpr TensorElement kElements[] = {TensorElement::kU8,     TensorElement::kU16,    TensorElement::kU32,
                                       TensorElement::kS32,    TensorElement::kU64,    TensorElement::kS64,
                                       TensorElement::kF16,    TensorElement::kF32,    TensorElement::kF64,
                                       TensorElement::kBf16,   TensorElement::kF32Ftz, TensorElement::kTf32,
                                       TensorElement::kTf32Ftz};

CUresult checked(const TensorMap& map, CUtensorMap* out) {
  bool unsupported = false;
  const char* error = tensor_map_error(map, &unsupported);
  if (error) {
    report("tensor map: %s%s", error, unsupported ? " (software GPU)" : "");
    return unsupported ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
  }
  std::memcpy(static_cast<void*>(out), &map, sizeof map);
  return CUDA_SUCCESS;
}

bool aligned(const CUtensorMap* map) {
  return map && reinterpret_cast<uintptr_t>(map) % 64 == 0;
}

}  // namespace
}  // namespace tessera::softgpu::driver

using namespace tessera::softgpu::driver;  // entry points are global by nature

CUresult cuTensorMapEncodeTiled(CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType,
                                cuuint32_t tensorRank, void* globalAddress, const cuuint64_t* globalDim,
                                const cuuint64_t* globalStrides, const cuuint32_t* boxDim,
                                const cuuint32_t* elementStrides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
                                CUtensorMapFloatOOBfill oobFill) {
  TS_CONTEXT(cuTensorMapEncodeTiled, context);
  if (device_of(*context).gpu.cc_major < 9) return CUDA_ERROR_NOT_SUPPORTED;
  if (!aligned(tensorMap) || !globalDim || !boxDim || !elementStrides || tensorRank < 1 || tensorRank > 5 ||
      (tensorRank > 1 && !globalStrides) || tensorDataType > CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B ||
      interleave > CU_TENSOR_MAP_INTERLEAVE_32B || swizzle > CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B ||
      l2Promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B ||
      oobFill > CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA)
    return CUDA_ERROR_INVALID_VALUE;
  TensorMap map = {};
  map.magic = kTensorMapMagic;
  map.address = reinterpret_cast<uint64_t>(globalAddress);
  map.last_dimension = uint8_t(tensorRank - 1);
  map.element = tensorDataType <= CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ ? kElements[tensorDataType]
                                                                       : TensorElement::kCount;
  map.interleave = uint8_t(interleave);
  map.atomicity = swizzle > CU_TENSOR_MAP_SWIZZLE_128B ? uint8_t(swizzle - CU_TENSOR_MAP_SWIZZLE_128B) : 0;
  map.swizzle = uint8_t(swizzle > CU_TENSOR_MAP_SWIZZLE_128B ? CU_TENSOR_MAP_SWIZZLE_128B : swizzle);
  map.fill_nan = uint8_t(oobFill);
  for (unsigned d = 0; d < tensorRank; ++d) {
    if (globalDim[d] == 0 || globalDim[d] > uint64_t{1} << 32) return CUDA_ERROR_INVALID_VALUE;
    if (elementStrides[d] == 0 || elementStrides[d] > 8) return CUDA_ERROR_INVALID_VALUE;
    map.most[d] = uint32_t(globalDim[d] - 1);
    map.box[d] = boxDim[d];
    map.element_stride[d] = uint8_t(elementStrides[d]);
    if (d) map.stride_bytes[d - 1] = globalStrides[d - 1];
  }
  return checked(map, tensorMap);
}

CUresult cuTensorMapReplaceAddress(CUtensorMap* tensorMap, void* globalAddress) {
  TS_CONTEXT(cuTensorMapReplaceAddress, context);
  if (!aligned(tensorMap)) return CUDA_ERROR_INVALID_VALUE;
  TensorMap map;
  std::memcpy(&map, tensorMap, sizeof map);
  map.address = reinterpret_cast<uint64_t>(globalAddress);
  return checked(map, tensorMap);
}

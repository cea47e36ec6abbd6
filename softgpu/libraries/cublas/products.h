// Matrix products as both libraries launch them: which kernel serves which types, and one launch for all products of a call.
// Any thread.
#pragma once

#include <optional>

#include "softgpu/libraries/cublas/context.h"

namespace tessera::softgpu::cublas {

// The computation of a product: the kernel, and the types that alpha and beta point to.
struct Types {
  Kernel kernel;
  ScalarType scalar;
};
inline constexpr Types kSingle{Kernel::gemm_f32, ScalarType::kF32};
inline constexpr Types kDouble{Kernel::gemm_f64, ScalarType::kF64};
inline constexpr Types kComplex{Kernel::gemm_c32, ScalarType::kComplexF32};
inline constexpr Types kDoubleComplex{Kernel::gemm_c64, ScalarType::kComplexF64};
// Summed in single precision, more precise than asked.
inline constexpr Types kHalf{Kernel::gemm_f16, ScalarType::kF16};

// Null: not computed.
std::optional<Types> types_of(cudaDataType a, cudaDataType b, cudaDataType c, cublasComputeType_t compute);

struct Extent {
  int64_t m, n, k, products;  // none negative
};

// Fills the fields of `call` that follow from the extent. Nothing to do is a success, more than a grid has is not supported.
cublasStatus_t launch_products(const Context& context, CUstream stream, Kernel kernel, const Extent& extent,
                               GemmCall call);

}  // namespace tessera::softgpu::cublas

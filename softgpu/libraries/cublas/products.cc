#include "softgpu/libraries/cublas/products.h"

#include <algorithm>
#include <limits>

namespace tessera::softgpu::cublas {
namespace {

// A row: types of A and B, of C, the kind of computation, and what does it.
struct ExtendedTypes {
  cudaDataType ab, c;
  cublasComputeType_t compute;
  Types types;
};
constexpr ExtendedTypes kExtended[] = {
    {CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_16F, kHalf},
    {CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_32F, {Kernel::gemm_f16, ScalarType::kF32}},
    {CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F, {Kernel::gemm_f16_f32, ScalarType::kF32}},
    {CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F, {Kernel::gemm_bf16, ScalarType::kF32}},
    {CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F, {Kernel::gemm_bf16_f32, ScalarType::kF32}},
    {CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, kSingle},
    {CUDA_C_32F, CUDA_C_32F, CUBLAS_COMPUTE_32F, kComplex},
    {CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F, kDouble},
    {CUDA_C_64F, CUDA_C_64F, CUBLAS_COMPUTE_64F, kDoubleComplex},
};

// Pedantic, fast and emulated kinds are computed as the default of their precision; the fast and emulated ones take single
// precision alone. False: no kind of cuBLAS.
bool precision_of(cublasComputeType_t compute, cublasComputeType_t* precision, bool* only_single) {
  *only_single = false;
  switch (compute) {
    case CUBLAS_COMPUTE_16F:
    case CUBLAS_COMPUTE_16F_PEDANTIC:
      *precision = CUBLAS_COMPUTE_16F;
      return true;
    case CUBLAS_COMPUTE_32F_FAST_16F:
    case CUBLAS_COMPUTE_32F_FAST_16BF:
    case CUBLAS_COMPUTE_32F_FAST_TF32:
    case CUBLAS_COMPUTE_32F_EMULATED_16BFX9:
      *only_single = true;
      [[fallthrough]];
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
      *precision = CUBLAS_COMPUTE_32F;
      return true;
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC:
    case CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT:
      *precision = CUBLAS_COMPUTE_64F;
      return true;
    case CUBLAS_COMPUTE_32I:
    case CUBLAS_COMPUTE_32I_PEDANTIC:
      *precision = CUBLAS_COMPUTE_32I;
      return true;
  }
  return false;
}

constexpr int64_t kMostTiles = std::numeric_limits<int32_t>::max();  // of a grid's x
constexpr uint32_t kMostProducts = 65535;                            // of a grid's y: products of one launch

int64_t tiles(int64_t n) {
  return (n + kTile - 1) / kTile;
}

}  // namespace

std::optional<Types> types_of(cudaDataType a, cudaDataType b, cudaDataType c, cublasComputeType_t compute) {
  cublasComputeType_t precision;
  bool only_single;
  if (a != b || !precision_of(compute, &precision, &only_single)) return std::nullopt;
  if (only_single && a != CUDA_R_32F && a != CUDA_C_32F) return std::nullopt;
  for (const ExtendedTypes& row : kExtended)
    if (row.ab == a && row.c == c && row.compute == precision) return row.types;
  return std::nullopt;
}

cublasStatus_t launch_products(const Context& context, CUstream stream, Kernel kernel, const Extent& x,
                               GemmCall call) {
  if (x.m == 0 || x.n == 0 || x.products == 0) return CUBLAS_STATUS_SUCCESS;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (std::max({x.m, x.n, x.k, x.products}) > kMost || tiles(x.m) * tiles(x.n) > kMostTiles)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  call.m = uint32_t(x.m), call.n = uint32_t(x.n), call.k = uint32_t(x.k);
  call.tiles_down = uint32_t(tiles(x.m));
  const uint32_t blocks = uint32_t(tiles(x.m) * tiles(x.n)), products = uint32_t(x.products);
  while (call.first_product < products) {
    const uint32_t some = std::min(kMostProducts, products - call.first_product);
    if (const cublasStatus_t status = launch(context, stream, kernel, {blocks, some, kGemmThreads}, call);
        status != CUBLAS_STATUS_SUCCESS)
      return status;
    call.first_product += some;
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace tessera::softgpu::cublas

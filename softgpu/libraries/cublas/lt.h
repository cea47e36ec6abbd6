// Descriptors of the stand-in cuBLASLt, as they lie in the caller's storage or in ours, and their attributes: one table per kind
// (lt_descriptors.cc). A descriptor is plain data; as in cuBLASLt, threads take turns with one.
#pragma once

#include <cublasLt.h>

#include <cstdint>

#include "softgpu/libraries/cublas/context.h"

struct cublasLtContext : tessera::softgpu::cublas::Context {};

namespace tessera::softgpu::cublas {

// A matrix: element (i, j) of product p lies at p * stride + (order COL ? i + j * leading : j + i * leading).
struct Layout {
  uint32_t type = 0;  // cudaDataType
  int32_t order = CUBLASLT_ORDER_COL;
  uint64_t rows = 0, columns = 0;
  int64_t leading = 0;  // elements
  int32_t products = 1;
  uint32_t batch_mode = CUBLASLT_BATCH_MODE_STRIDED;
  int64_t stride = 0;        // elements
  int64_t plane_offset = 0;  // bytes; planes are not computed
};

// Pointers and modes of scaling (8-bit types) and of auxiliary outputs are kept; a product that uses them is not computed.
struct Operation {
  int32_t compute = 0, scale = 0;  // cublasComputeType_t, cudaDataType of alpha and beta
  int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  int32_t op_a = CUBLAS_OP_N, op_b = CUBLAS_OP_N, op_c = CUBLAS_OP_N;
  int32_t fill_mode = CUBLAS_FILL_MODE_FULL;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int64_t bias_stride = 0;  // elements from one product to the next
  int32_t bias_type = -1;   // -1: D's
  int32_t sm_count_target = 0;
  void* auxiliary = nullptr;
  int64_t auxiliary_leading = 0, auxiliary_stride = 0, alpha_vector_stride = 0;
  int32_t auxiliary_type = -1;
  int8_t fast_accumulation = 0;
  int32_t scale_modes[6] = {};  // A, B, C, D, auxiliary output, D's scale as an output
  void* scale_pointers[8] =
      {};  // A, B, C, D, largest of D, auxiliary scale, its largest, D's scale as an output
  void* emulation = nullptr;
};

struct Preference {
  uint32_t search_mode = CUBLASLT_SEARCH_BEST_FIT;
  uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint64_t workspace_bytes = 0;
  uint32_t alignment_a = 256, alignment_b = 256, alignment_c = 256, alignment_d = 256;  // bytes
  float most_waves = 0;
  uint64_t implementations = UINT64_MAX;
};

// Null stays null.
inline const Layout* layout_of(cublasLtMatrixLayout_t opaque) {
  return reinterpret_cast<const Layout*>(opaque);
}
inline const Operation* operation_of(cublasLtMatmulDesc_t opaque) {
  return reinterpret_cast<const Operation*>(opaque);
}

}  // namespace tessera::softgpu::cublas

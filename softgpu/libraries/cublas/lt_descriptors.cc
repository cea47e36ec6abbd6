// Descriptors of cuBLASLt: made, given back, and their attributes by table.
#include <cstddef>
#include <cstring>
#include <new>
#include <span>
#include <type_traits>

#include "softgpu/libraries/cublas/lt.h"

namespace tessera::softgpu::cublas {
namespace {

struct Attribute {
  int number;  // as the caller names it
  size_t offset, bytes;
};
#define TS_FIELD(number, Type, field) \
  { number, offsetof(Type, field), sizeof(Type::field) }
#define TS_ENTRY(number, Type, field, i) \
  { number, offsetof(Type, field) + (i) * sizeof(Type::field[0]), sizeof(Type::field[0]) }

constexpr Attribute kLayoutAttributes[] = {
    TS_FIELD(CUBLASLT_MATRIX_LAYOUT_TYPE, Layout, type),
    TS_FIELD(CUBLASLT_MATRIX_LAYOUT_ORDER, Layout, order),
    TS_FIELD(CUBLASLT_MATRIX_LAYOUT_ROWS, Layout, rows),
    TS_FIELD(CUBLASLT_MATRIX_LAYOUT_COLS, Layout, columns),
    TS_FIELD(CUBLASLT_MATRIX_LAYOUT_LD, Layout, leading),
    TS_FIELD(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, Layout, products),
    TS_FIELD(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, Layout, stride),
    TS_FIELD(CUBLASLT_MATRIX_LAYOUT_PLANE_OFFSET, Layout, plane_offset),
    TS_FIELD(CUBLASLT_MATRIX_LAYOUT_BATCH_MODE, Layout, batch_mode),
};

constexpr Attribute kOperationAttributes[] = {
    TS_FIELD(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, Operation, compute),
    TS_FIELD(CUBLASLT_MATMUL_DESC_SCALE_TYPE, Operation, scale),
    TS_FIELD(CUBLASLT_MATMUL_DESC_POINTER_MODE, Operation, pointer_mode),
    TS_FIELD(CUBLASLT_MATMUL_DESC_TRANSA, Operation, op_a),
    TS_FIELD(CUBLASLT_MATMUL_DESC_TRANSB, Operation, op_b),
    TS_FIELD(CUBLASLT_MATMUL_DESC_TRANSC, Operation, op_c),
    TS_FIELD(CUBLASLT_MATMUL_DESC_FILL_MODE, Operation, fill_mode),
    TS_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE, Operation, epilogue),
    TS_FIELD(CUBLASLT_MATMUL_DESC_BIAS_POINTER, Operation, bias),
    TS_FIELD(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, Operation, bias_stride),
    TS_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, Operation, auxiliary),
    TS_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, Operation, auxiliary_leading),
    TS_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, Operation, auxiliary_stride),
    TS_FIELD(CUBLASLT_MATMUL_DESC_ALPHA_VECTOR_BATCH_STRIDE, Operation, alpha_vector_stride),
    TS_FIELD(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, Operation, sm_count_target),
    TS_ENTRY(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, Operation, scale_pointers, 0),
    TS_ENTRY(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, Operation, scale_pointers, 1),
    TS_ENTRY(CUBLASLT_MATMUL_DESC_C_SCALE_POINTER, Operation, scale_pointers, 2),
    TS_ENTRY(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, Operation, scale_pointers, 3),
    TS_ENTRY(CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, Operation, scale_pointers, 4),
    TS_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, Operation, auxiliary_type),
    TS_ENTRY(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_POINTER, Operation, scale_pointers, 5),
    TS_ENTRY(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER, Operation, scale_pointers, 6),
    TS_FIELD(CUBLASLT_MATMUL_DESC_FAST_ACCUM, Operation, fast_accumulation),
    TS_FIELD(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, Operation, bias_type),
    TS_ENTRY(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, Operation, scale_modes, 0),
    TS_ENTRY(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, Operation, scale_modes, 1),
    TS_ENTRY(CUBLASLT_MATMUL_DESC_C_SCALE_MODE, Operation, scale_modes, 2),
    TS_ENTRY(CUBLASLT_MATMUL_DESC_D_SCALE_MODE, Operation, scale_modes, 3),
    TS_ENTRY(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_MODE, Operation, scale_modes, 4),
    TS_ENTRY(CUBLASLT_MATMUL_DESC_D_OUT_SCALE_POINTER, Operation, scale_pointers, 7),
    TS_ENTRY(CUBLASLT_MATMUL_DESC_D_OUT_SCALE_MODE, Operation, scale_modes, 5),
    TS_FIELD(CUBLASLT_MATMUL_DESC_EMULATION_DESCRIPTOR, Operation, emulation),
};

constexpr Attribute kPreferenceAttributes[] = {
    TS_FIELD(CUBLASLT_MATMUL_PREF_SEARCH_MODE, Preference, search_mode),
    TS_FIELD(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, Preference, workspace_bytes),
    TS_FIELD(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, Preference, reduction_schemes),
    TS_FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, Preference, alignment_a),
    TS_FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, Preference, alignment_b),
    TS_FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, Preference, alignment_c),
    TS_FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, Preference, alignment_d),
    TS_FIELD(CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT, Preference, most_waves),
    TS_FIELD(CUBLASLT_MATMUL_PREF_IMPL_MASK, Preference, implementations),
};

const Attribute* find(std::span<const Attribute> table, int number) {
  for (const Attribute& row : table)
    if (row.number == number) return &row;
  return nullptr;
}

cublasStatus_t set(std::span<const Attribute> table, void* descriptor, int number, const void* value,
                   size_t bytes) {
  const Attribute* row = find(table, number);
  if (!row || !descriptor || !value || bytes != row->bytes) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(static_cast<char*>(descriptor) + row->offset, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

// Without room for a value: how many bytes it has.
cublasStatus_t get(std::span<const Attribute> table, const void* descriptor, int number, void* value,
                   size_t bytes, size_t* written) {
  const Attribute* row = find(table, number);
  const bool only_size = bytes == 0;
  if (!row || !descriptor || (only_size ? !written : !value || bytes != row->bytes))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!only_size) std::memcpy(value, static_cast<const char*>(descriptor) + row->offset, bytes);
  if (written) *written = row->bytes;
  return CUBLAS_STATUS_SUCCESS;
}

// In storage of `bytes`, the caller's or new.
template <class T, class Opaque>
cublasStatus_t place(Opaque* opaque, size_t bytes, const T& content) {
  static_assert(sizeof(T) <= sizeof(Opaque) && alignof(T) <= alignof(Opaque) &&
                std::is_trivially_copyable_v<T>);
  if (!opaque) return CUBLAS_STATUS_INVALID_VALUE;
  if (bytes < sizeof(T)) return CUBLAS_STATUS_ALLOC_FAILED;
  new (opaque) T(content);
  return CUBLAS_STATUS_SUCCESS;
}
template <class T, class Opaque>
cublasStatus_t make(Opaque** opaque, const T& content) {
  if (!opaque) return CUBLAS_STATUS_INVALID_VALUE;
  *opaque = new Opaque;
  return place(*opaque, sizeof(Opaque), content);
}
template <class Opaque>
cublasStatus_t destroy(Opaque* opaque) {
  delete opaque;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace
}  // namespace tessera::softgpu::cublas

using namespace tessera::softgpu::cublas;

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
  return make(layout, Layout{.type = type, .rows = rows, .columns = columns, .leading = leading});
}
cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t bytes,
                                                 cudaDataType type, uint64_t rows, uint64_t columns,
                                                 int64_t leading) {
  return place(layout, bytes, Layout{.type = type, .rows = rows, .columns = columns, .leading = leading});
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return make(operation, Operation{.compute = compute, .scale = scale});
}
cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t operation, size_t bytes,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
  return place(operation, bytes, Operation{.compute = compute, .scale = scale});
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return make(preference, Preference{});
}
cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference, size_t bytes) {
  return place(preference, bytes, Preference{});
}

#define TS_DESCRIPTOR(name, Opaque, Number, table)                                             \
  cublasStatus_t cublasLt##name##Destroy(Opaque opaque) {                                      \
    return destroy(opaque);                                                                    \
  }                                                                                            \
  cublasStatus_t cublasLt##name##SetAttribute(Opaque opaque, Number number, const void* value, \
                                              size_t bytes) {                                  \
    return set(table, opaque, number, value, bytes);                                           \
  }
TS_DESCRIPTOR(MatrixLayout, cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, kLayoutAttributes)
TS_DESCRIPTOR(MatmulDesc, cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, kOperationAttributes)
TS_DESCRIPTOR(MatmulPreference, cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
              kPreferenceAttributes)

cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t number, void* value,
                                                size_t bytes, size_t* written) {
  return get(kLayoutAttributes, layout, number, value, bytes, written);
}
cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t number, void* value,
                                              size_t bytes, size_t* written) {
  return get(kOperationAttributes, operation, number, value, bytes, written);
}
cublasStatus_t cublasLtMatmulPreferenceGetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t number, void* value,
                                                    size_t bytes, size_t* written) {
  return get(kPreferenceAttributes, preference, number, value, bytes, written);
}

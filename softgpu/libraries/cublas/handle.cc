// Handles, their settings, the logger, and copies of vectors and matrices.
#include "softgpu/libraries/cublas/handle.h"

#include <cstdio>

namespace tessera::softgpu::cublas {

namespace {

constexpr size_t kHostResultBytes = 16;      // the widest result
constexpr size_t kWorkspaceAlignment = 256;  // bytes, as cuBLAS asks

cublasLogCallback g_logger = nullptr;  // kept for the getter; nothing is logged

template <class T>
cublasStatus_t set(cublasHandle_t handle, T cublasContext::*what, T value, bool valid = true) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!valid) return CUBLAS_STATUS_INVALID_VALUE;
  handle->*what = value;
  return CUBLAS_STATUS_SUCCESS;
}
template <class T, class U>
cublasStatus_t get(cublasHandle_t handle, T cublasContext::*what, U* value) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!value) return CUBLAS_STATUS_INVALID_VALUE;
  *value = handle->*what;
  return CUBLAS_STATUS_SUCCESS;
}

// `rows` elements of each of `columns` columns, `from_step` and `to_step` elements apart. Addresses of either side may be of host
// or device memory. With a stream the copy is asynchronous.
struct MatrixCopy {
  int64_t rows, columns, element_bytes;
  const void* from;
  int64_t from_step;
  void* to;
  int64_t to_step;
};

cublasStatus_t copy(const MatrixCopy& m, const CUstream* stream) {
  if (m.rows < 0 || m.columns < 0 || m.element_bytes <= 0 || m.from_step <= 0 || m.to_step <= 0 ||
      m.from_step < m.rows || m.to_step < m.rows)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (m.rows == 0 || m.columns == 0) return CUBLAS_STATUS_SUCCESS;
  if (!load_driver()) return CUBLAS_STATUS_NOT_INITIALIZED;
  CUDA_MEMCPY2D c{};
  c.srcMemoryType = c.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  c.srcDevice = CUdeviceptr(m.from), c.dstDevice = CUdeviceptr(m.to);
  c.srcPitch = size_t(m.from_step * m.element_bytes), c.dstPitch = size_t(m.to_step * m.element_bytes);
  c.WidthInBytes = size_t(m.rows * m.element_bytes), c.Height = size_t(m.columns);
  const CUresult result = stream ? driver().Memcpy2DAsync(&c, *stream) : driver().Memcpy2DUnaligned(&c);
  return result == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_MAPPING_ERROR;
}

}  // namespace
}  // namespace tessera::softgpu::cublas

using namespace tessera::softgpu::cublas;

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
  auto made = std::make_unique<cublasContext>();
  if (const cublasStatus_t status = open(made.get()); status != CUBLAS_STATUS_SUCCESS) return status;
  if (driver().MemHostAlloc(&made->host_result, kHostResultBytes, CU_MEMHOSTALLOC_PORTABLE) != CUDA_SUCCESS)
    return CUBLAS_STATUS_ALLOC_FAILED;
  *handle = made.release();
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  const CurrentContext current(handle->context);
  driver().MemFreeHost(handle->host_result);
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* version) {
  if (!version) return CUBLAS_STATUS_INVALID_VALUE;
  *version = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetProperty(libraryPropertyType type, int* value) {
  return library_property(type, value);
}
const char* cublasGetStatusName(cublasStatus_t status) {
  return status_name(status);
}
const char* cublasGetStatusString(cublasStatus_t status) {
  return status_text(status);
}
size_t cublasGetCudartVersion() {
  return CUDA_VERSION;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  return set(handle, &cublasContext::stream, CUstream(stream));
}
cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t* stream) {
  return get(handle, &cublasContext::stream, stream);
}
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
  return set(handle, &cublasContext::pointer_mode, mode,
             mode == CUBLAS_POINTER_MODE_HOST || mode == CUBLAS_POINTER_MODE_DEVICE);
}
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t* mode) {
  return get(handle, &cublasContext::pointer_mode, mode);
}
cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t mode) {
  return set(handle, &cublasContext::atomics_mode, mode,
             mode == CUBLAS_ATOMICS_NOT_ALLOWED || mode == CUBLAS_ATOMICS_ALLOWED);
}
cublasStatus_t cublasGetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t* mode) {
  return get(handle, &cublasContext::atomics_mode, mode);
}
// Kept, and without effect: everything is computed as CUBLAS_PEDANTIC_MATH would.
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  constexpr int kEveryMode = 15 | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
  return set(handle, &cublasContext::math_mode, mode, (int(mode) & ~kEveryMode) == 0);
}
cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  return get(handle, &cublasContext::math_mode, mode);
}
cublasStatus_t cublasSetSmCountTarget(cublasHandle_t handle, int target) {
  return set(handle, &cublasContext::sm_count_target, target, target >= 0);
}
cublasStatus_t cublasGetSmCountTarget(cublasHandle_t handle, int* target) {
  return get(handle, &cublasContext::sm_count_target, target);
}
cublasStatus_t cublasSetEmulationStrategy(cublasHandle_t handle, cublasEmulationStrategy_t strategy) {
  return set(handle, &cublasContext::emulation_strategy, strategy);
}
cublasStatus_t cublasGetEmulationStrategy(cublasHandle_t handle, cublasEmulationStrategy_t* strategy) {
  return get(handle, &cublasContext::emulation_strategy, strategy);
}
// No kernel here needs one.
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, size_t) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  return reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment == 0 ? CUBLAS_STATUS_SUCCESS
                                                                           : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLoggerConfigure(int, int, int, const char*) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetLoggerCallback(cublasLogCallback callback) {
  g_logger = callback;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetLoggerCallback(cublasLogCallback* callback) {
  if (!callback) return CUBLAS_STATUS_INVALID_VALUE;
  *callback = g_logger;
  return CUBLAS_STATUS_SUCCESS;
}
void cublasXerbla(const char* name, int info) {
  std::fprintf(stderr, " ** On entry to %s parameter number %d had an illegal value\n", name, info);
}

// A vector is a matrix of one row.
#define TS_COPIES(way, suffix, Int)                                                                         \
  cublasStatus_t cublas##way##Vector##suffix(Int n, Int bytes, const void* x, Int x_step, void* y,          \
                                             Int y_step) {                                                  \
    return copy({1, n, bytes, x, x_step, y, y_step}, nullptr);                                              \
  }                                                                                                         \
  cublasStatus_t cublas##way##VectorAsync##suffix(Int n, Int bytes, const void* x, Int x_step, void* y,     \
                                                  Int y_step, cudaStream_t stream) {                        \
    return copy({1, n, bytes, x, x_step, y, y_step}, &stream);                                              \
  }                                                                                                         \
  cublasStatus_t cublas##way##Matrix##suffix(Int rows, Int columns, Int bytes, const void* a, Int lda,      \
                                             void* b, Int ldb) {                                            \
    return copy({rows, columns, bytes, a, lda, b, ldb}, nullptr);                                           \
  }                                                                                                         \
  cublasStatus_t cublas##way##MatrixAsync##suffix(Int rows, Int columns, Int bytes, const void* a, Int lda, \
                                                  void* b, Int ldb, cudaStream_t stream) {                  \
    return copy({rows, columns, bytes, a, lda, b, ldb}, &stream);                                           \
  }
TS_COPIES(Set, , int)
TS_COPIES(Set, _64, int64_t)
TS_COPIES(Get, , int)
TS_COPIES(Get, _64, int64_t)

#include "softgpu/libraries/cublas/context.h"

#include <cuda_fp16.h>

namespace tessera::softgpu {

namespace {
constexpr const char* kNames[] = {
#define TS_KERNEL(name) #name,
    TS_CUBLAS_KERNELS(TS_KERNEL)
#undef TS_KERNEL
};
}  // namespace

const std::span<const char* const> libraries::kKernelNames = kNames;
const libraries::Identity libraries::kIdentity = {"cuBLAS", CUBLAS_STATUS_NOT_SUPPORTED};

namespace cublas {

cublasStatus_t open(Context* context) {
  return libraries::open_context(context) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

Scalar scalar(const void* value, ScalarType type, bool on_device) {
  Scalar out{.type = type};
  if (on_device) {
    out.device = value;
    return out;
  }
  switch (type) {
    case ScalarType::kF16:
      out.real = __half2float(*static_cast<const __half*>(value));
      break;
    case ScalarType::kF32:
      out.real = *static_cast<const float*>(value);
      break;
    case ScalarType::kF64:
      out.real = *static_cast<const double*>(value);
      break;
    case ScalarType::kComplexF32:
      out.real = static_cast<const cuComplex*>(value)->x;
      out.imaginary = static_cast<const cuComplex*>(value)->y;
      break;
    case ScalarType::kComplexF64:
      out.real = static_cast<const cuDoubleComplex*>(value)->x;
      out.imaginary = static_cast<const cuDoubleComplex*>(value)->y;
      break;
  }
  return out;
}

// clang-format off
#define TS_STATUSES(X)                                                             \
  X(SUCCESS, "success")                                                            \
  X(NOT_INITIALIZED, "the library was not initialized")                            \
  X(ALLOC_FAILED, "the resource allocation failed")                                \
  X(INVALID_VALUE, "an unsupported value or parameter was passed to the function") \
  X(ARCH_MISMATCH, "the function needs a feature that the device lacks")           \
  X(MAPPING_ERROR, "a copy of memory failed")                                      \
  X(EXECUTION_FAILED, "the function failed to launch on the GPU")                  \
  X(INTERNAL_ERROR, "an internal operation failed")                                \
  X(NOT_SUPPORTED, "the functionality is not supported")                           \
  X(LICENSE_ERROR, "the functionality needs another licence")
// clang-format on

const char* status_name(cublasStatus_t status) {
  switch (status) {
#define TS_STATUS(name, text) \
  case CUBLAS_STATUS_##name:  \
    return "CUBLAS_STATUS_" #name;
    TS_STATUSES(TS_STATUS)
#undef TS_STATUS
  }
  return "UNKNOWN";
}
const char* status_text(cublasStatus_t status) {
  switch (status) {
#define TS_STATUS(name, text) \
  case CUBLAS_STATUS_##name:  \
    return text;
    TS_STATUSES(TS_STATUS)
#undef TS_STATUS
  }
  return "unknown status";
}

cublasStatus_t library_property(libraryPropertyType type, int* value) {
  constexpr int kParts[] = {CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, CUBLAS_VER_PATCH};
  if (!value || type < MAJOR_VERSION || type > PATCH_LEVEL) return CUBLAS_STATUS_INVALID_VALUE;
  *value = kParts[type];
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace cublas
}  // namespace tessera::softgpu

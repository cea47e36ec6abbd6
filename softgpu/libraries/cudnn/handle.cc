// Handles, statuses and versions of cuDNN; what the files of its computations share.
#include "softgpu/libraries/cudnn/handle.h"

#include <algorithm>
#include <cstdio>
#include <memory>

namespace tessera::softgpu {

namespace {
constexpr const char* kNames[] = {
#define TS_KERNEL(name) #name "_f32", #name "_f16",
    TS_CUDNN_KERNELS(TS_KERNEL)
#undef TS_KERNEL
};
}  // namespace

constinit const std::span<const char* const> libraries::kKernelNames = kNames;
constinit const libraries::Identity libraries::kIdentity = {"cuDNN", CUDNN_STATUS_NOT_SUPPORTED};

namespace cudnn {
namespace {

bool computed(cudnnDataType_t type) {
  return type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_HALF;
}

// Tensors of fewer dimensions have ones between the channel and their space.
std::optional<View> view_of(cudnnDataType_t type, int n, const int* dims, const int64_t* strides) {
  if (!computed(type) || n < 2 || n > kDimensions) return std::nullopt;
  View view{};
  std::fill(view.dims, view.dims + kDimensions, 1);
  const int shift = kDimensions - n;
  for (int d = 0; d < n; ++d) {
    const int to = d < 2 ? d : d + shift;
    view.dims[to] = dims[d];
    view.strides[to] = strides[d];
  }
  return count_of(view) > 0x7fffffff ? std::nullopt : std::optional(view);
}

}  // namespace

std::optional<View> view_of(const cudnnTensorStruct& tensor) {
  int64_t strides[CUDNN_DIM_MAX];
  std::copy_n(tensor.strides, CUDNN_DIM_MAX, strides);
  return view_of(tensor.type, tensor.n, tensor.dims, strides);
}
std::optional<View> view_of(const cudnnFilterStruct& filter) {
  int64_t strides[CUDNN_DIM_MAX];
  if (filter.n < 2) return std::nullopt;
  pack(filter.format, filter.n, filter.dims, strides);
  return view_of(filter.type, filter.n, filter.dims, strides);
}
uint64_t count_of(const View& view, Dimensions dimensions) {
  uint64_t count = 1;
  for (int d = 0; d < kDimensions; ++d)
    if (dimensions >> d & 1) count *= uint64_t(view.dims[d]);
  return count;
}
bool same_shape(const View& a, const View& b) {
  return std::equal(a.dims, a.dims + kDimensions, b.dims);
}

ActivationCall activation_of(const cudnnActivationStruct& activation) {
  static constexpr Activation kModes[] = {Activation::kSigmoid,     Activation::kRelu, Activation::kTanh,
                                          Activation::kClippedRelu, Activation::kElu,  Activation::kIdentity,
                                          Activation::kSwish};
  const bool swish = activation.mode == CUDNN_ACTIVATION_SWISH;
  return {kModes[activation.mode], activation.nan == CUDNN_PROPAGATE_NAN,
          swish ? activation.swish_beta : activation.coefficient};
}

cudnnStatus_t not_computed(const char* function) {
  static constinit std::atomic<bool> said = false;
  return cudnnStatus_t(libraries::not_supported(function, " with these descriptors", &said));
}

}  // namespace cudnn
}  // namespace tessera::softgpu

using namespace tessera::softgpu;
using namespace tessera::softgpu::cudnn;

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  if (!handle) return CUDNN_STATUS_BAD_PARAM;
  auto made = std::make_unique<cudnnContext>();
  if (!libraries::open_context(made.get())) return CUDNN_STATUS_NOT_INITIALIZED;
  *handle = made.release();
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  if (!handle) return CUDNN_STATUS_SUCCESS;
  const libraries::CurrentContext current(handle->context);
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  if (!handle) return CUDNN_STATUS_BAD_PARAM;
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  if (!handle || !stream) return CUDNN_STATUS_BAD_PARAM;
  *stream = handle->stream;
  return CUDNN_STATUS_SUCCESS;
}

size_t cudnnGetVersion() {
  return CUDNN_VERSION;
}
size_t cudnnGetMaxDeviceVersion() {
  return CUDNN_MAX_DEVICE_VERSION;
}
size_t cudnnGetCudartVersion() {
  return CUDA_VERSION;
}
cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int* value) {
  constexpr int kParts[] = {CUDNN_MAJOR, CUDNN_MINOR, CUDNN_PATCHLEVEL};
  if (!value || int(type) < MAJOR_VERSION || int(type) > PATCH_LEVEL) return CUDNN_STATUS_BAD_PARAM;
  *value = kParts[type];
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGraphVersionCheck() {
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnOpsVersionCheck() {
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCnnVersionCheck() {
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnAdvVersionCheck() {
  return CUDNN_STATUS_SUCCESS;
}

const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (int(status)) {
    case CUDNN_STATUS_SUCCESS:
      return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_INITIALIZED:
      return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_STATUS_BAD_PARAM:
      return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_NOT_SUPPORTED:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED:
      return "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED";
    case CUDNN_STATUS_EXECUTION_FAILED:
      return "CUDNN_STATUS_EXECUTION_FAILED";
  }
  return "CUDNN_UNKNOWN_STATUS";
}
void cudnnGetLastErrorString(char* message, size_t size) {
  if (message && size > 0) *message = '\0';
}
// Nothing is logged.
cudnnStatus_t cudnnSetCallback(unsigned, void*, cudnnCallback_t) {
  return CUDNN_STATUS_SUCCESS;
}

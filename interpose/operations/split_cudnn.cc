#include "interpose/operations/split_cudnn.h"

#include <algorithm>

#include "interpose/operations/loaded_library.h"
#include "interpose/operations/split_key.h"
#include "interpose/operations/split_libraries.h"

namespace tessera::library {
namespace {

// ---- the library

constexpr int kMostSpace = 6;  // dimensions of a convolution: CUDNN_DIM_MAX - 2

//   TS_FUNCTION(name, (params)): exported as cudnn##name
#define TS_FUNCTIONS(TS_FUNCTION)                                                                          \
  TS_FUNCTION(CreateTensorDescriptor, (void** tensor))                                                     \
  TS_FUNCTION(DestroyTensorDescriptor, (void* tensor))                                                     \
  TS_FUNCTION(SetTensorNdDescriptor, (void* tensor, int type, int n, const int* dims, const int* strides)) \
  TS_FUNCTION(GetTensorNdDescriptor, (const void*, int asked, int* type, int* n, int* dims, int* strides)) \
  TS_FUNCTION(GetFilterNdDescriptor, (const void*, int asked, int* type, int* format, int* n, int* dims))  \
  TS_FUNCTION(GetConvolutionNdDescriptor, (const void*, int asked, int* n, int* pad, int* stride,          \
                                           int* dilation, int* mode, int* compute_type))                   \
  TS_FUNCTION(GetConvolutionGroupCount, (const void*, int* groups))                                        \
  TS_FUNCTION(GetConvolutionMathType, (const void*, int* math_type))                                       \
  TS_FUNCTION(GetConvolutionReorderType, (const void*, int* reorder_type))                                 \
  TS_FUNCTION(GetActivationDescriptor, (const void*, int* mode, int* nan, double* coefficient))            \
  TS_FUNCTION(GetActivationDescriptorSwishBeta, (const void*, double* beta))                               \
  TS_FUNCTION(GetConvolutionForwardWorkspaceSize,                                                          \
              (const void* handle, const void* x, const void* filter, const void* convolution,             \
               const void* y, int algorithm, size_t* bytes))                                               \
  TS_FUNCTION(GetConvolutionBackwardDataWorkspaceSize,                                                     \
              (const void* handle, const void* filter, const void* dy, const void* convolution,            \
               const void* dx, int algorithm, size_t* bytes))                                              \
  TS_FUNCTION(GetStream, (const void* handle, void** stream))

struct Cudnn {
#define TS_FUNCTION(name, params) int(*name) params;
  TS_FUNCTIONS(TS_FUNCTION)
#undef TS_FUNCTION
  size_t (*GetVersion)();
};
constinit Cudnn g_cudnn{};  // constant once it is found
constinit OnceFound g_found;

bool find_cudnn(Cudnn* out) {
  void* const library = cudnn_library();
  bool all = find_function(library, "cudnnGetVersion", out->GetVersion);
#define TS_FUNCTION(name, params) all = find_function(library, "cudnn" #name, out->name) && all;
  TS_FUNCTIONS(TS_FUNCTION)
#undef TS_FUNCTION
  return all;
}

// Asks the copy of the library whose function is called.
bool is_split_function(const void* function) {
  return g_found.have([] { return find_cudnn(&g_cudnn); }) &&
         of_one_library(function, reinterpret_cast<const void*>(g_cudnn.GetVersion));
}

// ---- what can be cut

// cudnnDataType_t; all but vectors of several channels, whose descriptors say less than they hold.
enum DataType : int { kFloat = 0, kDouble = 1, kHalf = 2, kBFloat16 = 9 };
uint32_t bits_of(int type) {
  switch (type) {
    case kDouble:
      return 64;
    case kFloat:
      return 32;
    case kHalf:
    case kBFloat16:
      return 16;
    default:
      return 0;
  }
}

constexpr int kInternalError = 4000;  // cudnnStatus_t: CUDNN_STATUS_INTERNAL_ERROR
constexpr auto kFamily = operations::SplitFamily::kConvolution;

}  // namespace

ConvolutionCall::~ConvolutionCall() {
  for (const Tensor& tensor : tensors_)
    if (tensor.of_piece) g_cudnn.DestroyTensorDescriptor(tensor.of_piece);
}

// An image of the result must be one stretch of memory: what lies between its elements is not the call's to compare.
bool ConvolutionCall::read(Operand i) {
  Tensor& t = tensors_[i];
  const Images& images = asked(i);
  if (!images.descriptor || !images.address ||
      g_cudnn.GetTensorNdDescriptor(images.descriptor, kMostDims, &t.type, &t.n, t.dims, t.strides) != 0 ||
      t.n < 3 || t.n > kMostDims || bits_of(t.type) == 0)
    return false;
  int64_t elements = 1, extent = 1;
  for (int d = 0; d < t.n; d++) {
    if (t.dims[d] <= 0 || t.strides[d] <= 0) return false;
    if (d == 0) continue;
    extent += int64_t(t.dims[d] - 1) * t.strides[d];
    if (__builtin_mul_overflow(elements, int64_t(t.dims[d]), &elements)) return false;
  }
  const uint32_t bits = bits_of(t.type);
  t.images = {images.address, elements, t.strides[0], bits, false};
  t.end = images.address + uint64_t(int64_t(t.dims[0] - 1) * t.strides[0] + extent) * (bits / 8);
  return i != kY || extent == elements;
}

// The same number of images, and nothing of the result is read but, of z, its own elements.
bool ConvolutionCall::fits(Operand i) const {
  const Tensor &t = tensors_[i], &y = tensors_[kY];
  if (t.dims[0] != y.dims[0]) return false;
  if (t.end <= y.images.address || y.end <= t.images.address) return true;
  return i == kZ && t.images == y.images && std::equal(y.strides, y.strides + y.n, t.strides);
}

std::optional<operations::Split> ConvolutionCall::cut(int64_t pieces) {
  if (!is_split_function(function) || !arguments_.filter || !arguments_.convolution || !arguments_.alpha ||
      !arguments_.beta)
    return std::nullopt;
  for (const Operand i : {kX, kZ, kY})
    if (has(i) && !read(i)) return std::nullopt;
  const Tensor& y = tensors_[kY];
  if (!fits(kX) || (has(kZ) && !fits(kZ))) return std::nullopt;
  shape_ = {y.images.leading, 1, 1, y.dims[0]};
  if (!operations::region_of(shape_, y.images)) return std::nullopt;
  const auto cut = operations::split_of(kFamily, shape_, pieces);
  return cut && make_tensors(cut->step) ? cut : std::nullopt;
}

uint64_t ConvolutionCall::settings() {
  int type = 0, format = 0, n = 0, dims[kMostDims] = {};
  int space = 0, pad[kMostSpace] = {}, stride[kMostSpace] = {}, dilation[kMostSpace] = {};
  int mode = 0, compute_type = 0, groups = 0, math_type = 0, reorder_type = 0;
  const void* const convolution = arguments_.convolution;
  if (g_cudnn.GetFilterNdDescriptor(arguments_.filter, kMostDims, &type, &format, &n, dims) != 0 ||
      g_cudnn.GetConvolutionNdDescriptor(convolution, kMostSpace, &space, pad, stride, dilation, &mode,
                                         &compute_type) != 0 ||
      g_cudnn.GetConvolutionGroupCount(convolution, &groups) != 0 ||
      g_cudnn.GetConvolutionMathType(convolution, &math_type) != 0 ||
      g_cudnn.GetConvolutionReorderType(convolution, &reorder_type) != 0)
    return 0;
  ClassKey key;
  key.add(g_cudnn.GetVersion(), type, format, n, space, mode, compute_type, groups, math_type, reorder_type,
          arguments_.algorithm, arguments_.workspace_bytes);
  for (const int dim : dims) key.add(dim);
  for (int d = 0; d < kMostSpace; d++) key.add(pad[d], stride[d], dilation[d]);
  key.add_alignment(arguments_.workspace);
  for (const Operand i : {kX, kZ, kY}) {
    if (!has(i)) continue;
    const Tensor& t = tensors_[i];
    key.add(t.type, t.n).add_alignment(asked(i).address);
    for (int d = 0; d < t.n; d++) key.add(t.dims[d], t.strides[d]);
  }
  if (arguments_.activation) {
    int activation = 0, nan = 0;
    double numbers[2] = {};
    if (g_cudnn.GetActivationDescriptor(arguments_.activation, &activation, &nan, &numbers[0]) != 0 ||
        g_cudnn.GetActivationDescriptorSwishBeta(arguments_.activation, &numbers[1]) != 0)
      return 0;
    key.add(activation, nan, arguments_.z.address == arguments_.y.address).add_bytes(numbers, sizeof numbers);
  }
  // In host memory: doubles for tensors of doubles, else floats.
  for (const void* factor : {arguments_.alpha, arguments_.beta})
    key.add_bytes(factor, tensors_[kY].type == kDouble ? 8 : 4);
  return key.value();
}

// The program's tensors with fewer images.
bool ConvolutionCall::make_tensors(int64_t images) {
  for (const Operand i : {kX, kZ, kY}) {
    Tensor& t = tensors_[i];
    if (!has(i)) continue;
    if (!t.of_piece && g_cudnn.CreateTensorDescriptor(&t.of_piece) != 0) return false;
    t.dims[0] = int(images);
    const bool set = g_cudnn.SetTensorNdDescriptor(t.of_piece, t.type, t.n, t.dims, t.strides) == 0;
    t.dims[0] = int(shape_.count);
    if (!set) return false;
  }
  return true;
}

// The workspace that the caller gave must do for the first piece and for the last; the others are as the first.
bool ConvolutionCall::takes(const operations::Split& cut) {
  for (const int64_t index : {int64_t{0}, cut.pieces() - 1}) {
    if (!make_tensors(operations::piece_of(cut, shape_, index).count)) return false;
    const void *const x = tensors_[kX].of_piece, *const y = tensors_[kY].of_piece;
    const void *const filter = arguments_.filter, *const convolution = arguments_.convolution;
    size_t bytes = 0;
    const int status = arguments_.of_gradient
                           ? g_cudnn.GetConvolutionBackwardDataWorkspaceSize(
                                 arguments_.handle, filter, x, convolution, y, arguments_.algorithm, &bytes)
                           : g_cudnn.GetConvolutionForwardWorkspaceSize(
                                 arguments_.handle, x, filter, convolution, y, arguments_.algorithm, &bytes);
    if (status != 0 || bytes > arguments_.workspace_bytes) return false;
  }
  return true;
}

std::optional<operations::Result> ConvolutionCall::result() const {
  return operations::Result{kFamily, shape_, tensors_[kY].images};
}

bool ConvolutionCall::stream(void** out) const {
  return g_cudnn.GetStream(arguments_.handle, out) == 0;
}

int ConvolutionCall::issue(const operations::Split& cut, int64_t index, uint64_t result) {
  const operations::Piece piece = operations::piece_of(cut, shape_, index);
  const operations::SplitRow& row = *operations::split_row(kFamily, cut.axis);
  if (!make_tensors(piece.count)) return kInternalError;
  uint64_t values[2 * kOperands];
  uint64_t* to = values;
  for (const Operand i : {kX, kZ, kY}) {
    if (!has(i)) continue;
    operations::Matrix images = tensors_[i].images;
    if (images.address == tensors_[kY].images.address) images.address = result;
    *to++ = reinterpret_cast<uint64_t>(tensors_[i].of_piece);
    *to++ = operations::moved(images, i == kX ? row.a : row.c, piece);
  }
  return repeater.issue(repeater.context, values);
}

}  // namespace tessera::library

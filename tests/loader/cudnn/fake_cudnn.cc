// A libcudnn.so.9 that computes nothing: each function answers with a digest of all its arguments, so that one that was lost on the
// way shows. All descriptors say the same.
#include "tests/loader/cudnn/cudnn_types.h"

#define TS_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

template <class T>
uint64_t bits(T value) {
  return static_cast<uint64_t>(value);
}
template <class T>
uint64_t bits(T* value) {
  return reinterpret_cast<uint64_t>(value);
}
template <class... T>
int digest(T... arguments) {
  uint64_t hash = 0;
  ((hash = (hash ^ bits(arguments)) * 0x9e3779b97f4a7c15u), ...);
  return static_cast<int>(hash >> 33);
}

// 2 x 3 x 4 x 5 single-precision numbers.
int write_dims(int* n, int* dims) {
  *n = 4;
  for (int i = 0; i < 4; i++) dims[i] = 2 + i;
  return 0;
}

}  // namespace

#define TS_CALL(symbol, base, params, args, what)  \
  TS_EXPORT int symbol params {                    \
    static const char kName[] = #symbol;           \
    return digest args ^ (int(sizeof kName) << 8); \
  }
#include "interpose/operations/cudnn_calls.def"

TS_EXPORT int cudnnGetTensorNdDescriptor(const void*, int, int* type, int* n, int* dims, int*) {
  *type = 0;
  return write_dims(n, dims);
}
TS_EXPORT int cudnnGetFilterNdDescriptor(const void*, int, int* type, int*, int* n, int* dims) {
  *type = 0;
  return write_dims(n, dims);
}
TS_EXPORT int cudnnGetConvolutionMathType(const void*, int* math_type) {
  *math_type = 0;
  return 0;
}
TS_EXPORT int cudnnGetPoolingNdDescriptor(const void*, int, int* mode, int*, int* n, int* window, int*,
                                          int*) {
  *mode = 1;
  *n = 2;
  window[0] = window[1] = 2;
  return 0;
}
TS_EXPORT int cudnnGetOpTensorDescriptor(const void*, int* operation, int*, int*) {
  *operation = 0;
  return 0;
}
TS_EXPORT int cudnnGetReduceTensorDescriptor(const void*, int* operation, int*, int*, int*, int*) {
  *operation = 0;
  return 0;
}
TS_EXPORT int cudnnGetLRNDescriptor(const void*, unsigned* window, double*, double*, double*) {
  *window = 5;
  return 0;
}
TS_EXPORT int cudnnGetRNNDescriptor_v8(const void*, int*, int* cell, int*, int* direction, int* input_mode,
                                       int* type, int*, int* math_type, int32_t* input, int32_t* hidden,
                                       int32_t* projection, int32_t* layers, void**, uint32_t*) {
  *cell = *direction = *input_mode = *type = *math_type = 0;
  *input = *hidden = *projection = 3;
  *layers = 1;
  return 0;
}
TS_EXPORT int cudnnGetRNNDataDescriptor(const void*, int* type, int*, int* steps, int* batch, int* width,
                                        int asked, int* lengths, void*) {
  *type = 0;
  *steps = *batch = 2;
  *width = 3;
  for (int i = 0; i < asked; i++) lengths[i] = 2;
  return 0;
}

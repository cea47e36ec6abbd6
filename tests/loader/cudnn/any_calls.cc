// Linked with a cuDNN, whichever is found at run time: random calls of its descriptors' functions and of all functions that launch,
// with arguments that are often invalid; prints each status.   any_calls NUMBER
//
// NVIDIA's library has no handle without a GPU: then each function that launches is called without one. On the software GPU much of
// it is computed.
#include <cudnn.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string_view>
#include <tuple>

namespace {

std::mt19937_64 g_random(14);

int below(int n) {
  return int(g_random() % unsigned(n));
}
bool one_in(int n) {
  return below(n) == 0;
}
// Small, so that much fits together and no result is larger than the memory.
int size() {
  return one_in(40) ? -1 : one_in(3) ? 1 : 2 + below(3);
}

// Memory that host and device reach by the same address: alpha and beta are on the host, tensors on the device.
constexpr size_t kBytes = 1 << 16;
void* make_memory() {
  void* found = nullptr;
  if (void* runtime = dlopen("libcudart.so.13", RTLD_NOW)) {
    const auto allocate = reinterpret_cast<int (*)(void**, size_t)>(dlsym(runtime, "cudaMallocHost"));
    if (allocate && allocate(&found, kBytes) != 0) found = nullptr;
  }
  if (!found) found = malloc(kBytes);
  for (size_t i = 0; found && i < kBytes / sizeof(float); i++) static_cast<float*>(found)[i] = 1;
  return found;
}
void* g_memory[3];

cudnnHandle_t g_handle = nullptr;
constexpr int kEach = 4;

template <class T>
struct Pool {
  T of[kEach] = {};
};
template <class T>
Pool<T> g_pool;
template <class T>
T any_descriptor() {
  return one_in(25) ? nullptr : g_pool<T>.of[below(kEach)];
}

template <class T>
T any() {
  if constexpr (std::is_same_v<T, cudnnHandle_t>)
    return g_handle;
  else if constexpr (std::is_same_v<T, const void*> || std::is_same_v<T, void*>)
    return one_in(20) ? nullptr : g_memory[below(3)];
  else if constexpr (std::is_same_v<T, const int*>)
    return nullptr;
  else if constexpr (std::is_pointer_v<T>)
    return any_descriptor<T>();
  else if constexpr (std::is_same_v<T, size_t>)
    return one_in(2) ? 0 : kBytes;
  else if constexpr (std::is_same_v<T, double>)
    return 1.0 / (1 + below(4));
  else
    return T(below(3));
}

template <class... T>
int call(cudnnStatus_t (*function)(T...)) {
  return std::apply(function, std::tuple<T...>{any<T>()...});  // in order
}

using Test = int (*)();
struct Launch {
  std::string_view name;
  Test test;
};
const Launch kLaunches[] = {
#define TS_CALL(symbol, base, params, args, what) {#symbol, [] { return call(&symbol); }},
#include "interpose/operations/cudnn_calls.def"
};
// Here NVIDIA's library reads the handle before it looks whether there is one.
bool needs_handle(std::string_view name) {
  return name.starts_with("cudnnBatchNormalization") || name.starts_with("cudnnNormalization") ||
         name.starts_with("cudnnLRN") || name == "cudnnTransformFilter";
}
int launch(const Launch& which) {
  return !g_handle && needs_handle(which.name) ? 0 : which.test();
}

const Test kSettings[] = {
    [] {
      const auto type = one_in(4) ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT;
      return int(cudnnSetTensor4dDescriptor(any_descriptor<cudnnTensorDescriptor_t>(), CUDNN_TENSOR_NCHW,
                                            type, size(), size(), size(), size()));
    },
    [] {
      return int(cudnnSetFilter4dDescriptor(any_descriptor<cudnnFilterDescriptor_t>(), CUDNN_DATA_FLOAT,
                                            CUDNN_TENSOR_NCHW, size(), size(), size(), size()));
    },
    [] {
      return int(cudnnSetConvolution2dDescriptor(any_descriptor<cudnnConvolutionDescriptor_t>(), below(2),
                                                 below(2), size(), size(), 1, 1, CUDNN_CROSS_CORRELATION,
                                                 CUDNN_DATA_FLOAT));
    },
    [] {
      return int(cudnnSetPooling2dDescriptor(any_descriptor<cudnnPoolingDescriptor_t>(),
                                             cudnnPoolingMode_t(below(5)), CUDNN_NOT_PROPAGATE_NAN, size(),
                                             size(), 0, 0, size(), size()));
    },
    [] {
      return int(cudnnSetActivationDescriptor(any_descriptor<cudnnActivationDescriptor_t>(),
                                              cudnnActivationMode_t(below(8)), CUDNN_NOT_PROPAGATE_NAN, 1));
    },
    [] {
      return int(cudnnSetOpTensorDescriptor(any_descriptor<cudnnOpTensorDescriptor_t>(),
                                            cudnnOpTensorOp_t(below(7)), CUDNN_DATA_FLOAT,
                                            CUDNN_NOT_PROPAGATE_NAN));
    },
    [] {
      return int(cudnnSetReduceTensorDescriptor(
          any_descriptor<cudnnReduceTensorDescriptor_t>(), cudnnReduceTensorOp_t(below(10)), CUDNN_DATA_FLOAT,
          CUDNN_NOT_PROPAGATE_NAN, CUDNN_REDUCE_TENSOR_NO_INDICES, CUDNN_32BIT_INDICES));
    },
};

// ---- graphs: tensors, and descriptors of other types, given anything. A descriptor that is given is a tensor, whole or not: NVIDIA's
// library does not look, and does not survive others.

constexpr int kTensors = 12, kOthers = 12;
void* g_tensors[kTensors] = {};
void* g_others[kOthers] = {};
void*& any_tensor() {
  return g_tensors[below(kTensors)];
}
void*& any_backend() {
  return one_in(2) ? any_tensor() : g_others[below(kOthers)];
}
// Attributes of tensors, convolutions, products, reductions, operations.
constexpr int kAttributes[] = {0,   1,   100, 101, 106,  703,  704,  705,  706,  709,  710,  711,  715,
                               716, 717, 751, 752, 753,  756,  757,  772,  773,  900,  901,  902,  903,
                               904, 906, 907, 908, 1500, 1520, 1521, 1522, 1600, 1610, 1611, 1700, 9999};
constexpr int kTypes[] = {CUDNN_TYPE_DATA_TYPE,
                          CUDNN_TYPE_INT64,
                          CUDNN_TYPE_BOOLEAN,
                          CUDNN_TYPE_POINTWISE_MODE,
                          CUDNN_TYPE_BACKEND_DESCRIPTOR,
                          CUDNN_TYPE_BACKEND_DESCRIPTOR};
int64_t g_numbers[8];
void* g_given[4];

const void* any_elements(int type) {
  for (int64_t& number : g_numbers) number = below(5);
  for (void*& given : g_given) given = one_in(8) ? nullptr : any_tensor();
  return one_in(20)                              ? nullptr
         : type == CUDNN_TYPE_BACKEND_DESCRIPTOR ? static_cast<const void*>(g_given)
                                                 : g_numbers;
}

int make_again(void*& descriptor, int type) {
  if (descriptor) cudnnBackendDestroyDescriptor(descriptor);
  descriptor = nullptr;
  return int(cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t(type), &descriptor));
}

const Test kGraphCalls[] = {
    [] { return make_again(any_tensor(), CUDNN_BACKEND_TENSOR_DESCRIPTOR); },
    [] {
      constexpr int kMade[] = {0, 1, 10, 11, 12, 13, 14, 18, 19, 21, 22, 99};
      return make_again(g_others[below(kOthers)], kMade[below(std::size(kMade))]);
    },
    [] { return int(cudnnBackendFinalize(any_backend())); },
    [] {
      const int type = kTypes[below(std::size(kTypes))];
      return int(cudnnBackendSetAttribute(
          any_backend(), cudnnBackendAttributeName_t(kAttributes[below(std::size(kAttributes))]),
          cudnnBackendAttributeType_t(type), one_in(2) ? 1 : below(5), any_elements(type)));
    },
    // A whole tensor: few are made by chance.
    [] {
      void* const tensor = any_tensor();
      const int64_t dims[] = {1 + below(4), 1 + below(4), 1 + below(4), 1 + below(4)},
                    strides[] = {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1}, id = below(9),
                    alignment = 16;
      const cudnnDataType_t type = CUDNN_DATA_HALF;
      int all = cudnnBackendSetAttribute(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
      all += cudnnBackendSetAttribute(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims);
      all += cudnnBackendSetAttribute(tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
      all += cudnnBackendSetAttribute(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
      all +=
          cudnnBackendSetAttribute(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
      return all + int(cudnnBackendFinalize(tensor));
    },
    [] {
      int64_t n = 0;
      const int type = kTypes[below(std::size(kTypes))];
      return int(cudnnBackendGetAttribute(
          any_backend(), cudnnBackendAttributeName_t(kAttributes[below(std::size(kAttributes))]),
          cudnnBackendAttributeType_t(type), one_in(2) ? 1 : below(5), &n,
          const_cast<void*>(any_elements(type))));
    },
};

template <class T>
void make(cudnnStatus_t (*create)(T*)) {
  for (T& one : g_pool<T>.of)
    if (create(&one) != CUDNN_STATUS_SUCCESS) one = nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  const int n = argc == 2 ? atoi(argv[1]) : 0;
  if (cudnnCreate(&g_handle) != CUDNN_STATUS_SUCCESS) g_handle = nullptr;
  for (void*& memory : g_memory) memory = make_memory();
  make(&cudnnCreateTensorDescriptor);
  make(&cudnnCreateFilterDescriptor);
  make(&cudnnCreateConvolutionDescriptor);
  make(&cudnnCreatePoolingDescriptor);
  make(&cudnnCreateActivationDescriptor);
  make(&cudnnCreateOpTensorDescriptor);
  make(&cudnnCreateReduceTensorDescriptor);
  make(&cudnnCreateLRNDescriptor);
  make(&cudnnCreateDropoutDescriptor);
  make(&cudnnCreateRNNDescriptor);
  make(&cudnnCreateRNNDataDescriptor);
  for (int i = 0; i < n; i++) {
    if (one_in(2)) {
      const int which = below(std::size(kGraphCalls));
      printf("graph %d %d\n", which, kGraphCalls[which]());
      continue;
    }
    const bool sets = one_in(3);
    const int which = sets ? below(std::size(kSettings)) : below(std::size(kLaunches));
    printf("%s %d %d\n", sets ? "set" : "launch", which,
           sets ? kSettings[which]() : launch(kLaunches[which]));
  }
  return 0;
}

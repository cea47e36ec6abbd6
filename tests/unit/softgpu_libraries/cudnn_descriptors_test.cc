// Descriptors of the software GPU's cuDNN against those of NVIDIA's library, which need no driver: the same calls in the same
// order, with arguments that are often invalid, have the same statuses and read back the same values.
#include <cudnn.h>
#include <dlfcn.h>

#include <functional>
#include <map>
#include <set>
#include <string>

#include "tests/unit/softgpu_libraries/support.h"

namespace tessera::test {
namespace {

// clang-format off
#define TS_DESCRIPTOR_CALLS(X)                                                                                              \
  X(CreateTensorDescriptor) X(CreateFilterDescriptor) X(CreateConvolutionDescriptor) X(CreatePoolingDescriptor)             \
  X(CreateActivationDescriptor) X(CreateOpTensorDescriptor) X(CreateReduceTensorDescriptor)                                 \
  X(SetTensor4dDescriptor) X(SetTensor4dDescriptorEx) X(SetTensorNdDescriptor) X(SetTensorNdDescriptorEx)                   \
  X(GetTensor4dDescriptor) X(GetTensorNdDescriptor) X(GetTensorSizeInBytes) X(SetFilter4dDescriptor)                        \
  X(SetFilterNdDescriptor) X(GetFilter4dDescriptor) X(GetFilterNdDescriptor) X(GetFilterSizeInBytes)                        \
  X(SetConvolution2dDescriptor) X(SetConvolutionNdDescriptor) X(GetConvolution2dDescriptor)                                 \
  X(GetConvolutionNdDescriptor) X(SetConvolutionMathType) X(GetConvolutionMathType) X(SetConvolutionGroupCount)             \
  X(GetConvolutionGroupCount) X(GetConvolution2dForwardOutputDim) X(GetConvolutionNdForwardOutputDim)                       \
  X(SetPooling2dDescriptor) X(SetPoolingNdDescriptor) X(GetPooling2dDescriptor) X(GetPoolingNdDescriptor)                   \
  X(GetPooling2dForwardOutputDim) X(GetPoolingNdForwardOutputDim) X(SetActivationDescriptor) X(GetActivationDescriptor)     \
  X(SetOpTensorDescriptor) X(GetOpTensorDescriptor) X(SetReduceTensorDescriptor) X(GetReduceTensorDescriptor)               \
  X(DeriveBNTensorDescriptor)
// clang-format on

struct Library {
#define TS_CALL(name) decltype(&cudnn##name) name;
  TS_DESCRIPTOR_CALLS(TS_CALL)
#undef TS_CALL
};

const Library kStandIn = {
#define TS_CALL(name) &cudnn##name,
    TS_DESCRIPTOR_CALLS(TS_CALL)
#undef TS_CALL
};

bool load_real(Library* library) {
  void* handle = dlopen(TESSERA_REAL_CUDNN, RTLD_NOW | RTLD_LOCAL);
  if (!handle) return false;
#define TS_CALL(name)                                                                     \
  library->name = reinterpret_cast<decltype(&cudnn##name)>(dlsym(handle, "cudnn" #name)); \
  if (!library->name) return false;
  TS_DESCRIPTOR_CALLS(TS_CALL)
#undef TS_CALL
  return true;
}

struct Objects {
  cudnnTensorDescriptor_t tensor, other;
  cudnnFilterDescriptor_t filter;
  cudnnConvolutionDescriptor_t convolution;
  cudnnPoolingDescriptor_t pooling;
  cudnnActivationDescriptor_t activation;
  cudnnOpTensorDescriptor_t operation;
  cudnnReduceTensorDescriptor_t reduction;
};

Objects create(const Library& library) {
  Objects o;
  EXPECT_EQ(library.CreateTensorDescriptor(&o.tensor), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(library.CreateTensorDescriptor(&o.other), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(library.CreateFilterDescriptor(&o.filter), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(library.CreateConvolutionDescriptor(&o.convolution), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(library.CreatePoolingDescriptor(&o.pooling), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(library.CreateActivationDescriptor(&o.activation), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(library.CreateOpTensorDescriptor(&o.operation), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(library.CreateReduceTensorDescriptor(&o.reduction), CUDNN_STATUS_SUCCESS);
  return o;
}

// Valid content for every descriptor. What a refused call leaves in one is not defined.
void reset(const Library& library, const Objects& o) {
  const auto f = CUDNN_DATA_FLOAT;
  const auto nan = CUDNN_NOT_PROPAGATE_NAN;
  for (auto tensor : {o.tensor, o.other})
    EXPECT_EQ(library.SetTensor4dDescriptor(tensor, CUDNN_TENSOR_NCHW, f, 2, 3, 5, 7), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(library.SetFilter4dDescriptor(o.filter, f, CUDNN_TENSOR_NCHW, 4, 3, 2, 2), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(library.SetConvolution2dDescriptor(o.convolution, 1, 1, 1, 1, 1, 1, CUDNN_CONVOLUTION, f),
            CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(library.SetPooling2dDescriptor(o.pooling, CUDNN_POOLING_MAX, nan, 2, 2, 1, 1, 1, 1),
            CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(library.SetActivationDescriptor(o.activation, CUDNN_ACTIVATION_RELU, nan, 1),
            CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(library.SetOpTensorDescriptor(o.operation, CUDNN_OP_TENSOR_ADD, f, nan), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(library.SetReduceTensorDescriptor(o.reduction, CUDNN_REDUCE_TENSOR_ADD, f, nan,
                                              CUDNN_REDUCE_TENSOR_NO_INDICES, CUDNN_32BIT_INDICES),
            CUDNN_STATUS_SUCCESS);
}

// Numbers for one call, the same for both libraries.
struct Arguments {
  int i[24], many[3][16];
  bool null;  // instead of the descriptor
};
constexpr int kNotWritten = -77;
struct Answers {
  int i[12], many[3][16];
  size_t bytes;
  double real;
  Answers() {
    std::fill(i, std::end(i), kNotWritten), bytes = 0, real = 0;
    for (auto& row : many) std::fill(row, std::end(row), kNotWritten);
  }
  // The values behind the dimensions of a descriptor are not defined.
  void keep(int dimensions) {
    for (auto& row : many) std::fill(row + std::clamp(dimensions, 0, 16), std::end(row), kNotWritten);
  }
  bool operator==(const Answers& other) const {
    return std::equal(i, std::end(i), other.i) && bytes == other.bytes && real == other.real &&
           std::equal(&many[0][0], &many[0][0] + 48, &other.many[0][0]);
  }
};

Arguments any_arguments(Random& random) {
  static constexpr int kOften[] = {1, 1, 2, 2, 3, 3, 4, 5, 6, 7};
  static constexpr int kStrange[] = {-1, 0, 8, 9, 11, 100, 70'000};
  Arguments a;
  const int strange_in = between(random, 0, 2) == 0 ? 12 : 400;  // one in that many
  const auto number = [&] {
    return between(random, 1, strange_in) == 1 ? kStrange[between(random, 0, std::size(kStrange) - 1)]
                                               : kOften[between(random, 0, std::size(kOften) - 1)];
  };
  for (int& x : a.i) x = number();
  for (auto& row : a.many)
    for (int& x : row) x = number();
  a.null = between(random, 0, 40) == 0;
  return a;
}

using Call = std::function<cudnnStatus_t(const Library&, const Objects&, const Arguments&, Answers*)>;
struct Named {
  const char* name;
  Call call;
};

template <class T>
T enumeration(int i) {
  return static_cast<T>(i - 1);  // the first of most is 0
}
// Not that of vectors of channels, which the software GPU has not.
cudnnTensorFormat_t format(int i) {
  return i == 1 + CUDNN_TENSOR_NCHW_VECT_C ? CUDNN_TENSOR_NCHW : enumeration<cudnnTensorFormat_t>(i);
}
template <class T>
T* as(int* i) {
  return reinterpret_cast<T*>(i);
}
#define TS_OBJECT(what) (a.null ? nullptr : o.what)

// Forms of four (two) dimensions leave some values undefined where a descriptor has others.
int tensor_dimensions(const Library& l, const Objects& o) {
  int n = 0, unused[CUDNN_DIM_MAX];
  cudnnDataType_t type;
  l.GetTensorNdDescriptor(o.tensor, 1, &type, &n, unused, unused);
  return n;
}
int filter_dimensions(const Library& l, const Objects& o) {
  int n = 0, unused[CUDNN_DIM_MAX];
  cudnnDataType_t type;
  cudnnTensorFormat_t format;
  l.GetFilterNdDescriptor(o.filter, 1, &type, &format, &n, unused);
  return n;
}
int convolution_dimensions(const Library& l, const Objects& o) {
  int n = 0, unused[CUDNN_DIM_MAX];
  cudnnConvolutionMode_t mode;
  cudnnDataType_t type;
  l.GetConvolutionNdDescriptor(o.convolution, 1, &n, unused, unused, unused, &mode, &type);
  return n;
}
int pooling_dimensions(const Library& l, const Objects& o) {
  int n = 0, unused[CUDNN_DIM_MAX];
  cudnnPoolingMode_t mode;
  cudnnNanPropagation_t nan;
  l.GetPoolingNdDescriptor(o.pooling, 1, &mode, &nan, &n, unused, unused, unused);
  return n;
}

const std::vector<Named>& calls() {
  static const std::vector<Named> kCalls = {
      {"SetTensor4dDescriptor",
       [](auto& l, auto& o, auto& a, auto*) {
         return l.SetTensor4dDescriptor(TS_OBJECT(tensor), format(a.i[0]),
                                        enumeration<cudnnDataType_t>(a.i[1]), a.i[2], a.i[3], a.i[4], a.i[5]);
       }},
      {"SetTensorNdDescriptorEx",
       [](auto& l, auto& o, auto& a, auto*) {
         if (a.i[2] == 2 || a.i[2] > 16) return CUDNN_STATUS_SUCCESS;
         return l.SetTensorNdDescriptorEx(TS_OBJECT(other), format(a.i[0]),
                                          enumeration<cudnnDataType_t>(a.i[1]), a.i[2], a.many[0]);
       }},
      {"SetTensor4dDescriptorEx",
       [](auto& l, auto& o, auto& a, auto*) {
         return l.SetTensor4dDescriptorEx(TS_OBJECT(tensor), enumeration<cudnnDataType_t>(a.i[0]), a.i[1], a.i[2],
                                          a.i[3], a.i[4], a.i[5] * 60, a.i[6] * 20, a.i[7] * 5, a.i[8]);
       }},
      {"SetTensorNdDescriptor",
       [](auto& l, auto& o, auto& a, auto*) {
         return l.SetTensorNdDescriptor(TS_OBJECT(tensor), enumeration<cudnnDataType_t>(a.i[0]), a.i[1], a.many[0],
                                        a.many[1]);
       }},
      {"GetTensor4dDescriptor",
       [](auto& l, auto& o, auto& a, Answers* r) {
         if (!a.null && tensor_dimensions(l, o) != 4) return CUDNN_STATUS_SUCCESS;
         return l.GetTensor4dDescriptor(TS_OBJECT(tensor), as<cudnnDataType_t>(&r->i[0]), &r->i[1], &r->i[2],
                                        &r->i[3], &r->i[4], &r->i[5], &r->i[6], &r->i[7], &r->i[8]);
       }},
      {"GetTensorNdDescriptor",
       [](auto& l, auto& o, auto& a, Answers* r) {
         const auto status = l.GetTensorNdDescriptor(TS_OBJECT(other), std::min(a.i[0], 8), as<cudnnDataType_t>(&r->i[0]), &r->i[1],
                                        r->many[0], r->many[1]);
         r->keep(r->i[1]);
         return status;
       }},
      {"GetTensorSizeInBytes",
       [](auto& l, auto& o, auto& a, Answers* r) {
         return l.GetTensorSizeInBytes(TS_OBJECT(tensor), &r->bytes);
       }},
      {"SetFilter4dDescriptor",
       [](auto& l, auto& o, auto& a, auto*) {
         return l.SetFilter4dDescriptor(TS_OBJECT(filter), enumeration<cudnnDataType_t>(a.i[0]),
                                        format(a.i[1]), a.i[2], a.i[3], a.i[4], a.i[5]);
       }},
      {"SetFilterNdDescriptor",
       [](auto& l, auto& o, auto& a, auto*) {
         return l.SetFilterNdDescriptor(TS_OBJECT(filter), enumeration<cudnnDataType_t>(a.i[0]),
                                        format(a.i[1]), a.i[2], a.many[0]);
       }},
      {"GetFilter4dDescriptor",
       [](auto& l, auto& o, auto& a, Answers* r) {
         if (!a.null && filter_dimensions(l, o) != 4) return CUDNN_STATUS_SUCCESS;
         return l.GetFilter4dDescriptor(TS_OBJECT(filter), as<cudnnDataType_t>(&r->i[0]),
                                        as<cudnnTensorFormat_t>(&r->i[1]), &r->i[2], &r->i[3], &r->i[4], &r->i[5]);
       }},
      {"GetFilterNdDescriptor",
       [](auto& l, auto& o, auto& a, Answers* r) {
         const auto status = l.GetFilterNdDescriptor(TS_OBJECT(filter), a.i[0], as<cudnnDataType_t>(&r->i[0]),
                                        as<cudnnTensorFormat_t>(&r->i[1]), &r->i[2], r->many[0]);
         r->keep(r->i[2]);
         return status;
       }},
      {"GetFilterSizeInBytes",
       [](auto& l, auto& o, auto& a, Answers* r) {
         return l.GetFilterSizeInBytes(TS_OBJECT(filter), &r->bytes);
       }},
      {"SetConvolution2dDescriptor",
       [](auto& l, auto& o, auto& a, auto*) {
         return l.SetConvolution2dDescriptor(TS_OBJECT(convolution), a.i[0] - 1, a.i[1] - 1, a.i[2], a.i[3], a.i[4],
                                             a.i[5], enumeration<cudnnConvolutionMode_t>(a.i[6]),
                                             enumeration<cudnnDataType_t>(a.i[7]));
       }},
      {"SetConvolutionNdDescriptor",
       [](auto& l, auto& o, auto& a, auto*) {
         return l.SetConvolutionNdDescriptor(TS_OBJECT(convolution), a.i[0], a.many[0], a.many[1], a.many[2],
                                             enumeration<cudnnConvolutionMode_t>(a.i[1]),
                                             enumeration<cudnnDataType_t>(a.i[2]));
       }},
      {"GetConvolution2dDescriptor",
       [](auto& l, auto& o, auto& a, Answers* r) {
         if (!a.null && convolution_dimensions(l, o) != 2) return CUDNN_STATUS_SUCCESS;
         return l.GetConvolution2dDescriptor(TS_OBJECT(convolution), &r->i[0], &r->i[1], &r->i[2], &r->i[3], &r->i[4],
                                             &r->i[5], as<cudnnConvolutionMode_t>(&r->i[6]),
                                             as<cudnnDataType_t>(&r->i[7]));
       }},
      {"GetConvolutionNdDescriptor",
       [](auto& l, auto& o, auto& a, Answers* r) {
         const auto status = l.GetConvolutionNdDescriptor(TS_OBJECT(convolution), a.i[0], &r->i[0], r->many[0], r->many[1],
                                             r->many[2], as<cudnnConvolutionMode_t>(&r->i[1]),
                                             as<cudnnDataType_t>(&r->i[2]));
         r->keep(r->i[0]);
         return status;
       }},
      {"SetConvolutionMathType",
       [](auto& l, auto& o, auto& a, auto*) {
         return l.SetConvolutionMathType(TS_OBJECT(convolution), enumeration<cudnnMathType_t>(a.i[0]));
       }},
      {"GetConvolutionMathType",
       [](auto& l, auto& o, auto& a, Answers* r) {
         return l.GetConvolutionMathType(TS_OBJECT(convolution), as<cudnnMathType_t>(&r->i[0]));
       }},
      {"SetConvolutionGroupCount",
       [](auto& l, auto& o, auto& a, auto*) {
         return l.SetConvolutionGroupCount(TS_OBJECT(convolution), a.i[0]);
       }},
      {"GetConvolutionGroupCount",
       [](auto& l, auto& o, auto& a, Answers* r) {
         return l.GetConvolutionGroupCount(TS_OBJECT(convolution), &r->i[0]);
       }},
      {"GetConvolution2dForwardOutputDim",
       [](auto& l, auto& o, auto& a, Answers* r) {
         if (tensor_dimensions(l, o) != 4 || filter_dimensions(l, o) != 4 || convolution_dimensions(l, o) != 2) return CUDNN_STATUS_SUCCESS;
         return l.GetConvolution2dForwardOutputDim(TS_OBJECT(convolution), o.tensor, o.filter, &r->i[0], &r->i[1],
                                                   &r->i[2], &r->i[3]);
       }},
      {"GetConvolutionNdForwardOutputDim",
       [](auto& l, auto& o, auto& a, Answers* r) {
         return l.GetConvolutionNdForwardOutputDim(TS_OBJECT(convolution), o.tensor, o.filter, a.i[0], r->many[0]);
       }},
      {"SetPooling2dDescriptor",
       [](auto& l, auto& o, auto& a, auto*) {
         return l.SetPooling2dDescriptor(TS_OBJECT(pooling), enumeration<cudnnPoolingMode_t>(a.i[0]),
                                         enumeration<cudnnNanPropagation_t>(a.i[1]), a.i[2], a.i[3], a.i[4] - 1,
                                         a.i[5] - 1, a.i[6], a.i[7]);
       }},
      {"SetPoolingNdDescriptor",
       [](auto& l, auto& o, auto& a, auto*) {
         return l.SetPoolingNdDescriptor(TS_OBJECT(pooling), enumeration<cudnnPoolingMode_t>(a.i[0]),
                                         enumeration<cudnnNanPropagation_t>(a.i[1]), a.i[2], a.many[0], a.many[1],
                                         a.many[2]);
       }},
      {"GetPooling2dDescriptor",
       [](auto& l, auto& o, auto& a, Answers* r) {
         if (!a.null && pooling_dimensions(l, o) != 2) return CUDNN_STATUS_SUCCESS;
         return l.GetPooling2dDescriptor(TS_OBJECT(pooling), as<cudnnPoolingMode_t>(&r->i[0]),
                                         as<cudnnNanPropagation_t>(&r->i[1]), &r->i[2], &r->i[3], &r->i[4], &r->i[5],
                                         &r->i[6], &r->i[7]);
       }},
      {"GetPoolingNdDescriptor",
       [](auto& l, auto& o, auto& a, Answers* r) {
         const auto status = l.GetPoolingNdDescriptor(TS_OBJECT(pooling), a.i[0], as<cudnnPoolingMode_t>(&r->i[0]),
                                         as<cudnnNanPropagation_t>(&r->i[1]), &r->i[2], r->many[0], r->many[1],
                                         r->many[2]);
         r->keep(r->i[2]);
         return status;
       }},
      {"GetPooling2dForwardOutputDim",
       [](auto& l, auto& o, auto& a, Answers* r) {
         if (tensor_dimensions(l, o) != 4 || pooling_dimensions(l, o) != 2) return CUDNN_STATUS_SUCCESS;
         return l.GetPooling2dForwardOutputDim(TS_OBJECT(pooling), o.tensor, &r->i[0], &r->i[1], &r->i[2], &r->i[3]);
       }},
      {"GetPoolingNdForwardOutputDim",
       [](auto& l, auto& o, auto& a, Answers* r) {
         return l.GetPoolingNdForwardOutputDim(TS_OBJECT(pooling), o.tensor, a.i[0], r->many[0]);
       }},
      {"SetActivationDescriptor",
       [](auto& l, auto& o, auto& a, auto*) {
         return l.SetActivationDescriptor(TS_OBJECT(activation), enumeration<cudnnActivationMode_t>(a.i[0]),
                                          enumeration<cudnnNanPropagation_t>(a.i[1]), a.i[2] * 0.5);
       }},
      {"GetActivationDescriptor",
       [](auto& l, auto& o, auto& a, Answers* r) {
         return l.GetActivationDescriptor(TS_OBJECT(activation), as<cudnnActivationMode_t>(&r->i[0]),
                                          as<cudnnNanPropagation_t>(&r->i[1]), &r->real);
       }},
      {"SetOpTensorDescriptor",
       [](auto& l, auto& o, auto& a, auto*) {
         return l.SetOpTensorDescriptor(TS_OBJECT(operation), enumeration<cudnnOpTensorOp_t>(a.i[0]),
                                        enumeration<cudnnDataType_t>(a.i[1]),
                                        enumeration<cudnnNanPropagation_t>(a.i[2]));
       }},
      {"GetOpTensorDescriptor",
       [](auto& l, auto& o, auto& a, Answers* r) {
         return l.GetOpTensorDescriptor(TS_OBJECT(operation), as<cudnnOpTensorOp_t>(&r->i[0]),
                                        as<cudnnDataType_t>(&r->i[1]), as<cudnnNanPropagation_t>(&r->i[2]));
       }},
      {"SetReduceTensorDescriptor",
       [](auto& l, auto& o, auto& a, auto*) {
         return l.SetReduceTensorDescriptor(
             TS_OBJECT(reduction), enumeration<cudnnReduceTensorOp_t>(a.i[0]), enumeration<cudnnDataType_t>(a.i[1]),
             enumeration<cudnnNanPropagation_t>(a.i[2]), enumeration<cudnnReduceTensorIndices_t>(a.i[3]),
             enumeration<cudnnIndicesType_t>(a.i[4]));
       }},
      {"GetReduceTensorDescriptor",
       [](auto& l, auto& o, auto& a, Answers* r) {
         return l.GetReduceTensorDescriptor(TS_OBJECT(reduction), as<cudnnReduceTensorOp_t>(&r->i[0]),
                                            as<cudnnDataType_t>(&r->i[1]), as<cudnnNanPropagation_t>(&r->i[2]),
                                            as<cudnnReduceTensorIndices_t>(&r->i[3]),
                                            as<cudnnIndicesType_t>(&r->i[4]));
       }},
      {"DeriveBNTensorDescriptor",
       [](auto& l, auto& o, auto& a, auto*) {
         return l.DeriveBNTensorDescriptor(TS_OBJECT(other), o.tensor, enumeration<cudnnBatchNormMode_t>(a.i[0]));
       }},
  };
  return kCalls;
}

std::string text_of(const char* name, cudnnStatus_t status, const int* numbers, const int (*many)[16]) {
  std::string out = std::string(name) + " " + std::to_string(status) + ":";
  for (int i = 0; i < 9; ++i) out += " " + std::to_string(numbers[i]);
  for (int row = 0; row < 3; ++row) {
    out += " [";
    for (int i = 0; i < 9; ++i) out += std::to_string(many[row][i]) + " ";
    out.back() = ']';
  }
  return out;
}

TEST(CudnnDescriptors, AnswerAsNvidiasLibrary) {
  Library real;
  if (!load_real(&real)) GTEST_SKIP() << "no cuDNN at " << TESSERA_REAL_CUDNN;
  Random random{9};
  const Objects theirs = create(real), ours = create(kStandIn);
  reset(real, theirs), reset(kStandIn, ours);
  std::map<std::string, int> succeeded;
  std::set<std::string> different;  // named once each
  for (int i = 0; i < 60'000; ++i) {
    const Named& named = calls()[size_t(between(random, 0, int(calls().size()) - 1))];
    const Arguments arguments = any_arguments(random);
    Answers wanted, got;
    const cudnnStatus_t status_wanted = named.call(real, theirs, arguments, &wanted);
    const cudnnStatus_t status = named.call(kStandIn, ours, arguments, &got);
    if (status == CUDNN_STATUS_SUCCESS)
      ++succeeded[named.name];
    else
      reset(real, theirs), reset(kStandIn, ours);
    const bool equal = status == status_wanted && (status != CUDNN_STATUS_SUCCESS || got == wanted);
    if (equal || !different.insert(named.name).second) continue;
    ADD_FAILURE() << "call " << i << "\n"
                  << text_of(named.name, status_wanted, arguments.i, arguments.many)
                  << (arguments.null ? " of no descriptor" : "") << "\n"
                  << text_of("NVIDIA's", status_wanted, wanted.i, wanted.many) << " " << wanted.bytes << "\n"
                  << text_of("ours", status, got.i, got.many) << " " << got.bytes;
  }
  for (const Named& named : calls()) EXPECT_GT(succeeded[named.name], 20) << named.name;
}

}  // namespace
}  // namespace tessera::test

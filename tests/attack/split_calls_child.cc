// Library calls whole and in pieces (interpose/operations/split.h): each family, along each axis, with no, one, two and many
// products. Every buffer lies between guard zones, and all of them must hold the same bytes after the pieces as after the
// whole call, whatever the call was not to touch included.
//   split_calls_child SEED ROUNDS      0: nothing was found, 1: the output says what
// On whatever libraries it finds. READER_SLICE, which tests/loader/split/reader.cc reads at each call, says whether calls are cut.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda.h>
#include <cudnn.h>
#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "operations/split.h"

namespace {

using tessera::operations::SplitAxis;
using tessera::operations::SplitFamily;

std::mt19937_64 g_random;
int64_t in(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(g_random);
}
bool coin() {
  return in(0, 1) == 1;
}
float number() {
  return float(in(-1000, 1000)) / 777.0f;
}

[[noreturn]] void stop(const std::string& what) {
  std::printf("%s\n", what.c_str());
  std::exit(1);
}
void check(int status, const char* what) {
  if (status != 0) stop(std::string(what) + ": " + std::to_string(status));
}

// ---- memory

constexpr size_t kGuardBytes = 2048;

// One allocation: guard zone, data, guard zone.
class Buffer {
 public:
  Buffer(std::string what, std::vector<unsigned char> data) : name(std::move(what)) {
    const auto zone = [&] {
      for (size_t i = 0; i < kGuardBytes; i++) bytes_.push_back(static_cast<unsigned char>(in(0, 255)));
    };
    zone();
    bytes_.insert(bytes_.end(), data.begin(), data.end());
    zone();
    check(cuMemAlloc_v2(&memory_, bytes_.size()), "cuMemAlloc");
  }
  ~Buffer() { cuMemFree_v2(memory_); }
  Buffer(const Buffer&) = delete;
  CUdeviceptr address() const { return memory_ + kGuardBytes; }
  void fill() const { check(cuMemcpyHtoD_v2(memory_, bytes_.data(), bytes_.size()), "cuMemcpyHtoD"); }
  std::vector<unsigned char> read() const {
    std::vector<unsigned char> out(bytes_.size());
    check(cuMemcpyDtoH_v2(out.data(), memory_, out.size()), "cuMemcpyDtoH");
    return out;
  }
  const std::string name;

 private:
  std::vector<unsigned char> bytes_;
  CUdeviceptr memory_ = 0;
};

// The memory of one call.
class Memory {
 public:
  float* numbers(const char* name, int64_t n) {
    std::vector<float> data(size_t(std::max<int64_t>(n, 1)));
    for (float& x : data) x = number();
    return reinterpret_cast<float*>(add(name, data));
  }
  float** pointers(const char* name, const std::vector<float*>& data) {
    return reinterpret_cast<float**>(add(name, data));
  }
  void fill() const {
    for (const auto& buffer : buffers_) buffer->fill();
  }
  std::vector<std::vector<unsigned char>> read() const {
    std::vector<std::vector<unsigned char>> out;
    for (const auto& buffer : buffers_) out.push_back(buffer->read());
    return out;
  }
  const std::string& name(size_t i) const { return buffers_[i]->name; }

 private:
  template <class T>
  CUdeviceptr add(const char* name, const std::vector<T>& data) {
    std::vector<unsigned char> bytes(data.size() * sizeof(T));
    std::memcpy(bytes.data(), data.data(), bytes.size());
    return buffers_.emplace_back(std::make_unique<Buffer>(name, std::move(bytes)))->address();
  }
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

// ---- calls

// Products, or images, of a call. kMany is drawn.
constexpr int64_t kMany = -1;
constexpr int64_t kCounts[] = {0, 1, 2, kMany};

struct Case {
  SplitFamily family;
  SplitAxis axis;  // the one that the sizes ask for
  int64_t count;
  std::string sizes() const {
    static const char* const kFamilies[] = {"product", "strided", "pointers",
                                            "groups",  "layouts", "convolution"};
    static const char* const kAxes[] = {"batch", "columns", "rows"};
    return std::string(kFamilies[int(family)]) + "/" + kAxes[int(axis)];
  }
  std::string text() const { return sizes() + ", " + std::to_string(count) + " products"; }
};

struct Handles {
  cublasHandle_t cublas = nullptr;
  cublasLtHandle_t lt = nullptr;
  cudnnHandle_t cudnn = nullptr;
} g_handles;

// A call with its memory; may be made any number of times.
using LibraryCall = std::function<int()>;

struct Sizes {
  int64_t m, n, k;
  explicit Sizes(SplitAxis axis)
      : m(axis == SplitAxis::kRows ? in(129, 400) : in(1, 24)),
        n(axis == SplitAxis::kColumns ? in(129, 400) : in(1, 24)),
        k(in(1, 8)) {}
};

// A matrix of the batch: how it lies, and how much memory all of them take. `same`: one for all products.
struct Operand {
  Operand(int64_t rows, int64_t columns, bool transposed, int64_t count, bool same)
      : leading((transposed ? columns : rows) + in(0, 3)),
        one(leading * (transposed ? rows : columns)),
        stride(same ? 0 : one + in(0, 5)),
        all(one + stride * std::max<int64_t>(count - 1, 0)) {}
  int64_t leading, one, stride, all;
};

// The sizes of cuBLAS products.
struct Products : Sizes {
  Products(SplitAxis axis, int64_t count)
      : Sizes(axis),
        ta(coin()),
        tb(coin()),
        a(m, k, ta, count, in(0, 3) == 0),
        b(k, n, tb, count, in(0, 3) == 0),
        c(m, n, false, count, count < 2 && coin()) {}
  static cublasOperation_t how(bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }
  bool ta, tb;
  Operand a, b, c;
  float alpha = number(), beta = coin() ? number() : 0;
};

LibraryCall product(Memory& memory, const Case& which) {
  const Products p(which.axis, 1);
  float *a = memory.numbers("A", p.a.all), *b = memory.numbers("B", p.b.all),
        *c = memory.numbers("C", p.c.all);
  return [=] {
    return cublasSgemm_v2(g_handles.cublas, p.how(p.ta), p.how(p.tb), int(p.m), int(p.n), int(p.k), &p.alpha,
                          a, int(p.a.leading), b, int(p.b.leading), &p.beta, c, int(p.c.leading));
  };
}

LibraryCall strided(Memory& memory, const Case& which) {
  const Products p(which.axis, which.count);
  float *a = memory.numbers("A", p.a.all), *b = memory.numbers("B", p.b.all),
        *c = memory.numbers("C", p.c.all);
  return [=] {
    return cublasSgemmStridedBatched(g_handles.cublas, p.how(p.ta), p.how(p.tb), int(p.m), int(p.n), int(p.k),
                                     &p.alpha, a, int(p.a.leading), p.a.stride, b, int(p.b.leading),
                                     p.b.stride, &p.beta, c, int(p.c.leading), p.c.stride, int(which.count));
  };
}

// Arrays longer than the batch: what their further pointers name is not of the call.
struct Arrays {
  float **a, **b, **c;
  Arrays(Memory& memory, const Operand& oa, const Operand& ob, const Operand& oc, int64_t count) {
    const int64_t further = in(0, 1) ? in(1, 600) : 0;
    const auto name = [&](const char* what, const char* array, const Operand& x, bool same) {
      std::vector<float*> out;
      float* const all = memory.numbers(what, x.one * (same ? 1 : count + 1));
      for (int64_t i = 0; i < count + further; i++)
        out.push_back(all + (same ? 0 : std::min(i, count) * x.one));
      return memory.pointers(array, out);
    };
    a = name("A", "pointers to A", oa, oa.stride == 0);
    b = name("B", "pointers to B", ob, ob.stride == 0);
    c = name("C", "pointers to C", oc, false);
  }
};

LibraryCall by_pointers(Memory& memory, const Case& which) {
  const Products p(which.axis, which.count);
  const Arrays arrays(memory, p.a, p.b, p.c, which.count);
  return [=] {
    return cublasSgemmBatched(g_handles.cublas, p.how(p.ta), p.how(p.tb), int(p.m), int(p.n), int(p.k),
                              &p.alpha, arrays.a, int(p.a.leading), arrays.b, int(p.b.leading), &p.beta,
                              arrays.c, int(p.c.leading), int(which.count));
  };
}

// `count` groups; the pointers of all stand in one array for each operand.
LibraryCall groups(Memory& memory, const Case& which) {
  struct Group {
    std::vector<cublasOperation_t> ta, tb;
    std::vector<int> m, n, k, lda, ldb, ldc, size;
    std::vector<float> alpha, beta;
    float **a, **b, **c;
  };
  auto g = std::make_shared<Group>();
  std::vector<float*> a, b, c;
  for (int64_t i = 0; i < which.count; i++) {
    const Products p(which.axis, 1);
    const int64_t size = in(1, 4);
    g->ta.push_back(p.how(p.ta)), g->tb.push_back(p.how(p.tb));
    g->m.push_back(int(p.m)), g->n.push_back(int(p.n)), g->k.push_back(int(p.k));
    g->lda.push_back(int(p.a.leading)), g->ldb.push_back(int(p.b.leading)),
        g->ldc.push_back(int(p.c.leading));
    g->size.push_back(int(size));
    g->alpha.push_back(p.alpha), g->beta.push_back(p.beta);
    for (int64_t j = 0; j < size; j++) {
      a.push_back(memory.numbers("A", p.a.one));
      b.push_back(memory.numbers("B", p.b.one));
      c.push_back(memory.numbers("C", p.c.one));
    }
  }
  for (int64_t further = in(0, 9); further > 0; further--)
    for (auto* array : {&a, &b, &c}) array->push_back(memory.numbers("not of the call", 400));
  g->a = memory.pointers("pointers to A", a);
  g->b = memory.pointers("pointers to B", b);
  g->c = memory.pointers("pointers to C", c);
  return [g, n = int(which.count)] {
    return cublasSgemmGroupedBatched(g_handles.cublas, g->ta.data(), g->tb.data(), g->m.data(), g->n.data(),
                                     g->k.data(), g->alpha.data(), g->a, g->lda.data(), g->b, g->ldb.data(),
                                     g->beta.data(), g->c, g->ldc.data(), n, g->size.data());
  };
}

// ---- cuBLASLt

template <class Handle, class Destroy>
std::shared_ptr<std::remove_pointer_t<Handle>> owned(Handle handle, Destroy destroy) {
  return {handle, [destroy](Handle x) { destroy(x); }};
}

struct Layout : Operand {
  Layout(int64_t rows, int64_t columns, bool by_rows, bool transposed, int64_t count, bool same)
      : Operand(rows, columns, by_rows != transposed, count, same) {
    cublasLtMatrixLayout_t made = nullptr;
    check(cublasLtMatrixLayoutCreate(&made, CUDA_R_32F, uint64_t(transposed ? columns : rows),
                                     uint64_t(transposed ? rows : columns), leading),
          "cublasLtMatrixLayoutCreate");
    layout = owned(made, cublasLtMatrixLayoutDestroy);
    set(CUBLASLT_MATRIX_LAYOUT_ORDER, int32_t(by_rows ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL));
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, int32_t(count));
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
  }
  template <class T>
  void set(cublasLtMatrixLayoutAttribute_t attribute, T value) {
    cublasLtMatrixLayoutSetAttribute(layout.get(), attribute, &value, sizeof value);
  }
  std::shared_ptr<cublasLtMatrixLayoutOpaque_t> layout;
};

LibraryCall layouts(Memory& memory, const Case& which) {
  const Sizes s(which.axis);
  const bool ta = coin(), tb = coin();
  const Layout a(s.m, s.k, coin(), ta, which.count, in(0, 3) == 0),
      b(s.k, s.n, coin(), tb, which.count, in(0, 3) == 0),
      c(s.m, s.n, coin(), false, which.count, in(0, 3) == 0), d(s.m, s.n, coin(), false, which.count, false);
  cublasLtMatmulDesc_t made = nullptr;
  check(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  const auto product = owned(made, cublasLtMatmulDescDestroy);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    check(cublasLtMatmulDescSetAttribute(made, attribute, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute");
  };
  const int64_t bias_stride = coin() ? s.m : 0;
  set(CUBLASLT_MATMUL_DESC_TRANSA, int32_t(ta ? CUBLAS_OP_T : CUBLAS_OP_N));
  set(CUBLASLT_MATMUL_DESC_TRANSB, int32_t(tb ? CUBLAS_OP_T : CUBLAS_OP_N));
  if (coin()) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE,
        uint32_t(coin() ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_RELU_BIAS));
    const void* bias = memory.numbers("bias", s.m + bias_stride * std::max<int64_t>(which.count - 1, 0));
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    set(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, bias_stride);
  }
  float *fa = memory.numbers("A", a.all), *fb = memory.numbers("B", b.all), *fd = memory.numbers("D", d.all);
  const bool in_place = coin();
  float* const fc = in_place ? fd : memory.numbers("C", c.all);
  const auto& lc = in_place ? d.layout : c.layout;
  const float alpha = number(), beta = coin() ? number() : 0;
  return [=, la = a.layout, lb = b.layout, ld = d.layout] {
    return cublasLtMatmul(g_handles.lt, product.get(), &alpha, fa, la.get(), fb, lb.get(), &beta, fc,
                          lc.get(), fd, ld.get(), nullptr, nullptr, 0, nullptr);
  };
}

// ---- cuDNN

struct Images {
  Images(Memory& memory, const char* name, int64_t n, int channels, int side) {
    const bool last = coin();
    const int between = in(0, 1) ? int(in(1, 9)) : 0, one = channels * side * side;
    const std::array dims{int(n), channels, side, side};
    const std::array strides = last ? std::array{one + between, 1, channels * side, channels}
                                    : std::array{one + between, side * side, side, 1};
    cudnnTensorDescriptor_t made = nullptr;
    check(cudnnCreateTensorDescriptor(&made), "cudnnCreateTensorDescriptor");
    tensor = owned(made, cudnnDestroyTensorDescriptor);
    cudnnSetTensorNdDescriptor(made, CUDNN_DATA_FLOAT, 4, dims.data(), strides.data());
    data = memory.numbers(name, (one + between) * std::max<int64_t>(n, 1));
  }
  std::shared_ptr<cudnnTensorStruct> tensor;
  float* data;
};

LibraryCall convolution(Memory& memory, const Case& which) {
  const int channels = int(in(1, 3)), features = int(in(1, 3)), side = int(in(3, 6));
  const Images x(memory, "x", which.count, channels, side), y(memory, "y", which.count, features, side),
      z(memory, "z", which.count, features, side);
  float* const w = memory.numbers("filter", features * channels * 9);
  cudnnFilterDescriptor_t filter = nullptr;
  check(cudnnCreateFilterDescriptor(&filter), "cudnnCreateFilterDescriptor");
  const auto f = owned(filter, cudnnDestroyFilterDescriptor);
  cudnnSetFilter4dDescriptor(filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, features, channels, 3, 3);
  cudnnConvolutionDescriptor_t convolved = nullptr;
  check(cudnnCreateConvolutionDescriptor(&convolved), "cudnnCreateConvolutionDescriptor");
  const auto conv = owned(convolved, cudnnDestroyConvolutionDescriptor);
  cudnnSetConvolution2dDescriptor(convolved, 1, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
  const float alpha = number(), beta = coin() ? number() : 0;
  if (coin())
    return [=] {
      return cudnnConvolutionBackwardData(g_handles.cudnn, &alpha, f.get(), w, y.tensor.get(), y.data,
                                          conv.get(), CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, nullptr, 0, &beta,
                                          x.tensor.get(), x.data);
    };
  if (coin())
    return [=] {
      return cudnnConvolutionForward(g_handles.cudnn, &alpha, x.tensor.get(), x.data, f.get(), w, conv.get(),
                                     CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, nullptr, 0, &beta,
                                     y.tensor.get(), y.data);
    };
  cudnnActivationDescriptor_t activation = nullptr;
  check(cudnnCreateActivationDescriptor(&activation), "cudnnCreateActivationDescriptor");
  const auto relu = owned(activation, cudnnDestroyActivationDescriptor);
  cudnnSetActivationDescriptor(activation, CUDNN_ACTIVATION_RELU, CUDNN_NOT_PROPAGATE_NAN, 0);
  cudnnTensorDescriptor_t one_for_each = nullptr;
  check(cudnnCreateTensorDescriptor(&one_for_each), "cudnnCreateTensorDescriptor");
  const auto of_bias = owned(one_for_each, cudnnDestroyTensorDescriptor);
  cudnnSetTensor4dDescriptor(one_for_each, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, features, 1, 1);
  float* const bias = memory.numbers("bias", features);
  const Images& added = coin() ? y : z;
  return [=] {
    return cudnnConvolutionBiasActivationForward(g_handles.cudnn, &alpha, x.tensor.get(), x.data, f.get(), w,
                                                 conv.get(), CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                                                 nullptr, 0, &beta, added.tensor.get(), added.data,
                                                 of_bias.get(), bias, relu.get(), y.tensor.get(), y.data);
  };
}

constexpr LibraryCall (*kCalls[])(Memory&, const Case&) = {product, strided, by_pointers,
                                                           groups,  layouts, convolution};

// ---- whole and in pieces

uint64_t split_calls() {
  static const auto counted = reinterpret_cast<uint64_t (*)()>(dlsym(RTLD_DEFAULT, "reader_split_calls"));
  return counted ? counted() : 0;
}

void slice_is(const char* ns) {
  setenv("READER_SLICE", ns, 1);
}

struct Made {
  int status;
  std::vector<std::vector<unsigned char>> bytes;
};
Made make(const Memory& memory, const LibraryCall& call) {
  memory.fill();
  Made made{call(), {}};
  if (const int waited = cuCtxSynchronize()) stop("the GPU answers " + std::to_string(waited));
  if (const auto idle = reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "reader_idle"))) idle();
  made.bytes = memory.read();
  return made;
}

// True: it went out in pieces.
bool try_case(const Case& which) {
  Memory memory;
  const LibraryCall call = kCalls[int(which.family)](memory, which);
  slice_is("0");
  const Made whole = make(memory, call);
  const uint64_t before = split_calls();
  constexpr const char* kSlices[] = {"1", "5", "25"};
  slice_is(kSlices[in(0, 2)]);
  for (int time = 0; time < 3; time++) {  // the first may be a trial
    const Made now = make(memory, call);
    if (now.status != whole.status)
      stop(which.text() + ": status " + std::to_string(now.status) + " instead of " +
           std::to_string(whole.status));
    for (size_t i = 0; i < whole.bytes.size(); i++) {
      size_t wrong = 0, first = 0;
      for (size_t at = whole.bytes[i].size(); at-- > 0;)
        if (now.bytes[i][at] != whole.bytes[i][at]) wrong++, first = at;
      if (wrong)
        stop(which.text() + ": " + std::to_string(wrong) + " of " + std::to_string(whole.bytes[i].size()) +
             " bytes of " + memory.name(i) + " are others, the first one at " +
             std::to_string(int64_t(first) - int64_t(kGuardBytes)));
    }
  }
  return split_calls() != before;
}

void begin() {
  setenv("TESSERA_SOFTGPU_LOCAL", TESSERA_GPU, 0);
  CUcontext context = nullptr;
  check(cuInit(0), "cuInit");
  check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  check(cublasCreate_v2(&g_handles.cublas), "cublasCreate");
  check(cublasLtCreate(&g_handles.lt), "cublasLtCreate");
  check(cudnnCreate(&g_handles.cudnn), "cudnnCreate");
}

constexpr SplitFamily kFamilies[] = {SplitFamily::kProduct,      SplitFamily::kStridedBatch,
                                     SplitFamily::kPointerBatch, SplitFamily::kGroups,
                                     SplitFamily::kLayouts,      SplitFamily::kConvolution};
constexpr SplitAxis kAxes[] = {SplitAxis::kBatch, SplitAxis::kColumns, SplitAxis::kRows};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  g_random.seed(std::strtoull(argv[1], nullptr, 10));
  const int rounds = std::atoi(argv[2]);
  begin();
  for (const SplitFamily family : kFamilies)
    for (const SplitAxis axis : kAxes) {
      int cut = 0;
      for (int round = 0; round < rounds; round++)
        for (const int64_t count : kCounts) {
          const int64_t products = count == kMany ? in(3, 20) : count;
          if (family == SplitFamily::kProduct && products != 1) continue;
          cut += try_case({family, axis, products});
        }
      std::printf("cut %s %d\n", Case{family, axis, kMany}.sizes().c_str(), cut);
    }
  return 0;
}

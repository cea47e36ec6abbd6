// Matrix products of the software GPU's cuBLAS against a reference in complex doubles: random shapes, transposes, leading
// dimensions, factors, strides, pointer modes, for each entry point.
#include "tests/unit/softgpu_libraries/support.h"

namespace tessera::test {
namespace {

constexpr cublasOperation_t kOperations[] = {CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C};

// The arguments of one call, as the entry points spell them.
template <class In, class Out, class Scalar>
struct Arguments {
  cublasHandle_t handle;
  cublasOperation_t op_a, op_b;
  int m, n, k, lda, ldb, ldc;
  const Scalar *alpha, *beta;
  const In *a, *b;
  Out* c;
  long long stride_a, stride_b, stride_c;
  const In *const *a_pointers, *const *b_pointers;
  Out* const* c_pointers;
  int products;
  cublasComputeType_t compute;
};

template <class T>
Value at(const std::vector<T>& x, int64_t first, cublasOperation_t op, int i, int j, int leading) {
  const Value plain =
      value(x[size_t(first + (op == CUBLAS_OP_N ? i + int64_t(j) * leading : j + int64_t(i) * leading))]);
  return op == CUBLAS_OP_C ? std::conj(plain) : plain;
}

template <class In, class Out, class Scalar>
struct Product {
  Product(Random& random, int n_products) : products(n_products) {
    op_a = kOperations[between(random, 0, 2)], op_b = kOperations[between(random, 0, 2)];
    m = between(random, 1, 70), n = between(random, 1, 70), k = between(random, 0, 70);
    lda = std::max(1, op_a == CUBLAS_OP_N ? m : k) + between(random, 0, 3);
    ldb = std::max(1, op_b == CUBLAS_OP_N ? k : n) + between(random, 0, 3);
    ldc = m + between(random, 0, 3);
    stride_a = int64_t(lda) * (op_a == CUBLAS_OP_N ? k : m) + between(random, 0, 5);
    stride_b = int64_t(ldb) * (op_b == CUBLAS_OP_N ? n : k) + between(random, 0, 5);
    stride_c = int64_t(ldc) * n + between(random, 0, 5);
    a = any<In>(random, size_t(stride_a * products)), b = any<In>(random, size_t(stride_b * products));
    c = any<Out>(random, size_t(stride_c * products));
    const auto factor = [&](int kind) {
      return kind == 0 ? element<Scalar>(0) : kind == 1 ? element<Scalar>(1) : any<Scalar>(random);
    };
    alpha = factor(between(random, 0, 5)), beta = factor(between(random, 0, 3));
    if (value(beta) == Value(0))  // then C is not read
      for (Out& x : c) x = element<Out>(std::numeric_limits<double>::quiet_NaN());
    by_device = between(random, 0, 1) == 1;
  }

  // C must equal this after the call; all between columns and products is as before.
  void expect(const std::vector<Out>& got) const {
    for (int64_t index = 0; index < int64_t(c.size()); ++index) {
      const int64_t product = index / stride_c, within = index % stride_c;
      const int i = int(within % ldc), j = int(within / ldc);
      if (i >= m || j >= n) {
        ASSERT_EQ(std::memcmp(&c[size_t(index)], &got[size_t(index)], sizeof(Out)), 0)
            << "written beyond the matrix";
        continue;
      }
      Value sum = 0;
      double size = 1e-30;
      for (int depth = 0; depth < k; ++depth) {
        const Value term = value(alpha) * at(a, product * stride_a, op_a, i, depth, lda) *
                           at(b, product * stride_b, op_b, depth, j, ldb);
        sum += term, size += std::abs(term);
      }
      if (value(beta) != Value(0)) {
        const Value term = value(beta) * value(c[size_t(index)]);
        sum += term, size += std::abs(term);
      }
      ASSERT_LE(std::abs(value(got[size_t(index)]) - sum),
                kTolerance<Out> * size + 1e-7 * (kTolerance<Out> > 1e-4))
          << "m " << m << " n " << n << " k " << k << " op " << op_a << op_b << " at " << i << ", " << j;
    }
  }

  template <class Call>
  void run(cublasHandle_t handle, cublasComputeType_t compute, Call call) const {
    const Device<In> device_a(a), device_b(b);
    const Device<Out> device_c(c);
    const Device<Scalar> factors(std::vector<Scalar>{alpha, beta});
    std::vector<In*> as, bs;
    std::vector<Out*> cs;
    for (int i = 0; i < products; ++i) {
      as.push_back(device_a.get() + i * stride_a), bs.push_back(device_b.get() + i * stride_b);
      cs.push_back(device_c.get() + i * stride_c);
    }
    const Device<In*> a_pointers(as), b_pointers(bs);
    const Device<Out*> c_pointers(cs);
    ASSERT_EQ(cublasSetPointerMode(handle, by_device ? CUBLAS_POINTER_MODE_DEVICE : CUBLAS_POINTER_MODE_HOST),
              CUBLAS_STATUS_SUCCESS);
    const Arguments<In, Out, Scalar> x{handle,
                                       op_a,
                                       op_b,
                                       m,
                                       n,
                                       k,
                                       lda,
                                       ldb,
                                       ldc,
                                       by_device ? factors.get() : &alpha,
                                       by_device ? factors.get() + 1 : &beta,
                                       device_a.get(),
                                       device_b.get(),
                                       device_c.get(),
                                       stride_a,
                                       stride_b,
                                       stride_c,
                                       a_pointers.get(),
                                       b_pointers.get(),
                                       c_pointers.get(),
                                       products,
                                       compute};
    ASSERT_EQ(call(x), CUBLAS_STATUS_SUCCESS);
    expect(device_c.read());
  }

  cublasOperation_t op_a, op_b;
  int m, n, k, lda, ldb, ldc;
  int64_t stride_a, stride_b, stride_c;
  int products;
  Scalar alpha, beta;
  bool by_device;
  std::vector<In> a, b;
  std::vector<Out> c;
};

// Ways to spell a call.
#define TS_ONE(name)                                                                                   \
  [](const auto& x) {                                                                                  \
    return name(x.handle, x.op_a, x.op_b, x.m, x.n, x.k, x.alpha, x.a, x.lda, x.b, x.ldb, x.beta, x.c, \
                x.ldc);                                                                                \
  }
#define TS_STRIDED(name)                                                                              \
  [](const auto& x) {                                                                                 \
    return name(x.handle, x.op_a, x.op_b, x.m, x.n, x.k, x.alpha, x.a, x.lda, x.stride_a, x.b, x.ldb, \
                x.stride_b, x.beta, x.c, x.ldc, x.stride_c, x.products);                              \
  }
#define TS_POINTERS(name)                                                                                   \
  [](const auto& x) {                                                                                       \
    return name(x.handle, x.op_a, x.op_b, x.m, x.n, x.k, x.alpha, x.a_pointers, x.lda, x.b_pointers, x.ldb, \
                x.beta, x.c_pointers, x.ldc, x.products);                                                   \
  }

class Gemm : public Cublas {
 protected:
  template <class In, class Out, class Scalar, class Call>
  void check(int products, Call call, cublasComputeType_t compute = CUBLAS_COMPUTE_32F) {
    constexpr int kRounds = 12;
    for (int round = 0; round < kRounds && !HasFatalFailure(); ++round)
      Product<In, Out, Scalar>(random_, products).run(handle_, compute, call);
  }
  template <class T, class Call>
  void check(int products, Call call) {
    check<T, T, T>(products, call);
  }

  // All three spellings with types given.
  template <class In, class Out, class Scalar>
  void check_ex(cublasComputeType_t compute) {
    const auto one = [](auto function) {
      return [function](const auto& x) {
        return function(x.handle, x.op_a, x.op_b, x.m, x.n, x.k, x.alpha, x.a, kType<In>, x.lda, x.b,
                        kType<In>, x.ldb, x.beta, x.c, kType<Out>, x.ldc, x.compute, CUBLAS_GEMM_DEFAULT);
      };
    };
    const auto strided = [](auto function) {
      return [function](const auto& x) {
        return function(x.handle, x.op_a, x.op_b, x.m, x.n, x.k, x.alpha, x.a, kType<In>, x.lda, x.stride_a,
                        x.b, kType<In>, x.ldb, x.stride_b, x.beta, x.c, kType<Out>, x.ldc, x.stride_c,
                        x.products, x.compute, CUBLAS_GEMM_DEFAULT);
      };
    };
    const auto pointers = [](auto function) {
      return [function](const auto& x) {
        return function(x.handle, x.op_a, x.op_b, x.m, x.n, x.k, x.alpha, (const void* const*)x.a_pointers,
                        kType<In>, x.lda, (const void* const*)x.b_pointers, kType<In>, x.ldb, x.beta,
                        (void* const*)x.c_pointers, kType<Out>, x.ldc, x.products, x.compute,
                        CUBLAS_GEMM_DEFAULT);
      };
    };
    using Type = cublasComputeType_t;
    using One = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                                   const void*, const void*, cudaDataType, int, const void*, cudaDataType,
                                   int, const void*, void*, cudaDataType, int, Type, cublasGemmAlgo_t);
    // The toolkit's C++ header adds overloads with the older kind of compute type: the cast picks.
    check<In, Out, Scalar>(1, one(static_cast<One>(&cublasGemmEx)), compute);
    check<In, Out, Scalar>(1, one(&cublasGemmEx_64), compute);
    using Strided = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                                       const void*, const void*, cudaDataType, int, long long, const void*,
                                       cudaDataType, int, long long, const void*, void*, cudaDataType, int,
                                       long long, int, Type, cublasGemmAlgo_t);
    check<In, Out, Scalar>(3, strided(static_cast<Strided>(&cublasGemmStridedBatchedEx)), compute);
    check<In, Out, Scalar>(3, strided(&cublasGemmStridedBatchedEx_64), compute);
    using Pointers =
        cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*,
                           const void* const[], cudaDataType, int, const void* const[], cudaDataType, int,
                           const void*, void* const[], cudaDataType, int, int, Type, cublasGemmAlgo_t);
    check<In, Out, Scalar>(3, pointers(static_cast<Pointers>(&cublasGemmBatchedEx)), compute);
    check<In, Out, Scalar>(3, pointers(&cublasGemmBatchedEx_64), compute);
  }
};

TEST_F(Gemm, Single) {
  check<float>(1, TS_ONE(cublasSgemm));
  check<float>(1, TS_ONE(cublasSgemm_64));
}
TEST_F(Gemm, EveryOtherType) {
  check<double>(1, TS_ONE(cublasDgemm));
  check<double>(1, TS_ONE(cublasDgemm_64));
  check<__half>(1, TS_ONE(cublasHgemm));
  check<__half>(1, TS_ONE(cublasHgemm_64));
  check<cuComplex>(1, TS_ONE(cublasCgemm));
  check<cuComplex>(1, TS_ONE(cublasCgemm_64));
  check<cuComplex>(1, TS_ONE(cublasCgemm3m));
  check<cuDoubleComplex>(1, TS_ONE(cublasZgemm));
  check<cuDoubleComplex>(1, TS_ONE(cublasZgemm_64));
  check<cuDoubleComplex>(1, TS_ONE(cublasZgemm3m));
}
TEST_F(Gemm, StridedBatched) {
  check<float>(4, TS_STRIDED(cublasSgemmStridedBatched));
  check<float>(4, TS_STRIDED(cublasSgemmStridedBatched_64));
  check<double>(4, TS_STRIDED(cublasDgemmStridedBatched));
  check<__half>(4, TS_STRIDED(cublasHgemmStridedBatched));
  check<cuComplex>(4, TS_STRIDED(cublasCgemmStridedBatched));
  check<cuDoubleComplex>(4, TS_STRIDED(cublasZgemmStridedBatched));
}
TEST_F(Gemm, BatchedByPointers) {
  check<float>(4, TS_POINTERS(cublasSgemmBatched));
  check<float>(4, TS_POINTERS(cublasSgemmBatched_64));
  check<double>(4, TS_POINTERS(cublasDgemmBatched));
  check<__half>(4, TS_POINTERS(cublasHgemmBatched));
  check<cuComplex>(4, TS_POINTERS(cublasCgemmBatched));
  check<cuDoubleComplex>(4, TS_POINTERS(cublasZgemmBatched));
}
TEST_F(Gemm, ExTypes) {
  check_ex<float, float, float>(CUBLAS_COMPUTE_32F);
  check_ex<float, float, float>(CUBLAS_COMPUTE_32F_FAST_TF32);
  check_ex<double, double, double>(CUBLAS_COMPUTE_64F);
  check_ex<__half, __half, float>(CUBLAS_COMPUTE_32F);
  check_ex<__half, __half, __half>(CUBLAS_COMPUTE_16F);
  check_ex<__half, float, float>(CUBLAS_COMPUTE_32F);
  check_ex<__nv_bfloat16, __nv_bfloat16, float>(CUBLAS_COMPUTE_32F);
  check_ex<__nv_bfloat16, float, float>(CUBLAS_COMPUTE_32F);
  check_ex<cuComplex, cuComplex, cuComplex>(CUBLAS_COMPUTE_32F);
  check_ex<cuDoubleComplex, cuDoubleComplex, cuDoubleComplex>(CUBLAS_COMPUTE_64F);
}

// More products than one launch of the library takes.
TEST_F(Gemm, ManyProducts) {
  constexpr int kProducts = 65540;
  const Device<float> a(any<float>(random_, kProducts)), b(any<float>(random_, kProducts)),
      c(std::vector<float>(kProducts, 0));
  const float alpha = 1, beta = 0;
  ASSERT_EQ(cublasSgemmStridedBatched(handle_, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &alpha, a.get(), 1, 1,
                                      b.get(), 1, 1, &beta, c.get(), 1, 1, kProducts),
            CUBLAS_STATUS_SUCCESS);
  const std::vector<float> as = a.read(), bs = b.read(), cs = c.read();
  for (size_t i = 0; i < kProducts; ++i) ASSERT_EQ(cs[i], as[i] * bs[i]) << i;
}

TEST_F(Gemm, NothingToDo) {
  const Device<float> memory(std::vector<float>(16, 3));
  const float one = 1, two = 2;
  float* x = memory.get();
  const auto call = [&](int m, int n, int k) {
    return cublasSgemm(handle_, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &one, x, 4, x, 4, &two, x, 4);
  };
  EXPECT_EQ(call(0, 4, 4), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(call(4, 0, 4), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(memory.read(), std::vector<float>(16, 3));
  EXPECT_EQ(call(4, 4, 0), CUBLAS_STATUS_SUCCESS);  // beta C remains
  EXPECT_EQ(memory.read(), std::vector<float>(16, 6));
}

TEST_F(Gemm, InvalidArguments) {
  const Device<float> memory(std::vector<float>(64, 0));
  const float one = 1;
  struct Case {
    int m = 4, n = 4, k = 4, lda = 4, ldb = 4, ldc = 4;
    cublasOperation_t op_a = CUBLAS_OP_N, op_b = CUBLAS_OP_N;
    const float *alpha = nullptr, *beta = nullptr;
  };
  const auto call = [&](cublasHandle_t handle, const Case& x) {
    return cublasSgemm(handle, x.op_a, x.op_b, x.m, x.n, x.k, x.alpha, memory.get(), x.lda, memory.get(),
                       x.ldb, x.beta, memory.get(), x.ldc);
  };
  const Case good{.alpha = &one, .beta = &one};
  EXPECT_EQ(call(handle_, good), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(call(nullptr, good), CUBLAS_STATUS_NOT_INITIALIZED);
  const auto bad = [&](auto change) {
    Case x = good;
    change(x);
    EXPECT_EQ(call(handle_, x), CUBLAS_STATUS_INVALID_VALUE);
  };
  bad([](Case& x) { x.m = -1; });
  bad([](Case& x) { x.n = -1; });
  bad([](Case& x) { x.k = -1; });
  bad([](Case& x) { x.lda = 3; });
  bad([](Case& x) { x.op_a = CUBLAS_OP_T, x.k = 5; });
  bad([](Case& x) { x.ldb = 3; });
  bad([](Case& x) { x.op_b = CUBLAS_OP_T, x.n = 5; });
  bad([](Case& x) { x.ldc = 3; });
  bad([](Case& x) { x.ldc = x.m = 0; });
  bad([](Case& x) { x.op_a = cublasOperation_t(7); });
  bad([](Case& x) { x.op_b = cublasOperation_t(-1); });
  bad([](Case& x) { x.alpha = nullptr; });
  bad([](Case& x) { x.beta = nullptr; });
  EXPECT_EQ(cublasSgemmStridedBatched(handle_, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, memory.get(), 4, 16,
                                      memory.get(), 4, 16, &one, memory.get(), 4, 16, -1),
            CUBLAS_STATUS_INVALID_VALUE);
}

}  // namespace
}  // namespace tessera::test

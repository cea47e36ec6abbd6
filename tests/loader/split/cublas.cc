// A cuBLAS that computes on the host, in order of k.
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#include <algorithm>
#include <complex>
#include <cstdio>

#include "tests/loader/split/fake.h"

namespace {

constexpr int kInvalid = 7, kNoMemory = 3, kNotSupported = 15;  // cublasStatus_t
int g_target = 0;                                               // SMs, as the program or its preloads set it
std::atomic<int> g_narrow_calls{0};

void note_call() {
  g_calls++;
  g_narrow_calls += g_target != 0;
}

// FAKE_SHORT=n: every n-th call wants memory that the device has only if its program, or a preload of it, gives some back.
bool is_refused_memory() {
  const char* every = getenv("FAKE_SHORT");
  if (!every || g_calls % atoi(every) != 0) return false;
  const auto refused = reinterpret_cast<unsigned (*)()>(dlsym(RTLD_DEFAULT, "reader_memory_short"));
  return refused && refused() == 0;
}

template <class T>
T conjugate(T x) {
  return x;
}
template <class T>
std::complex<T> conjugate(std::complex<T> x) {
  return std::conj(x);
}

template <class T>
T element(const T* x, int64_t leading, int how, int64_t row, int64_t column) {
  const T value = how == 0 ? x[row + column * leading] : x[column + row * leading];
  return how == 2 ? conjugate(value) : value;
}

template <class T>
int product(const void* handle, int ta, int tb, int64_t m, int64_t n, int64_t k, const T* alpha, const T* a,
            int64_t lda, const T* b, int64_t ldb, const T* beta, T* c, int64_t ldc) {
  if (!handle) return 1;
  if (m < 0 || n < 0 || k < 0 || lda < std::max<int64_t>(1, ta ? k : m) ||
      ldb < std::max<int64_t>(1, tb ? n : k) || ldc < std::max<int64_t>(1, m) || ta < 0 || ta > 2 || tb < 0 ||
      tb > 2)
    return kInvalid;
  const T more = depends_on_size(beta && *beta != T(0)) ? T(float(m * n % 1000)) * T(1e-3f) : T(0);
  const bool backwards = is_set_to("FAKE_BITS", "order") && m * n > 40'000;
  for (int64_t j = 0; j < n; j++)
    for (int64_t i = 0; i < m; i++) {
      T sum = more;
      for (int64_t step = 0; step < k; step++) {
        const int64_t l = backwards ? k - 1 - step : step;
        sum += element(a, lda, ta, i, l) * element(b, ldb, tb, l, j);
      }
      c[i + j * ldc] = *alpha * sum + (*beta == T(0) ? T(0) : *beta * c[i + j * ldc]);
    }
  return 0;
}

template <class T>
int strided(const void* handle, int ta, int tb, int64_t m, int64_t n, int64_t k, const T* alpha, const T* a,
            int64_t lda, int64_t sa, const T* b, int64_t ldb, int64_t sb, const T* beta, T* c, int64_t ldc,
            int64_t sc, int64_t count) {
  if (count < 0) return kInvalid;
  for (int64_t i = 0; i < count; i++)
    if (const int status =
            product(handle, ta, tb, m, n, k, alpha, a + i * sa, lda, b + i * sb, ldb, beta, c + i * sc, ldc))
      return status;
  return 0;
}

}  // namespace

#define TS_EXPORT extern "C" __attribute__((visibility("default"))) int

#define TS_ONE(symbol, T, Int)                                                                          \
  TS_EXPORT symbol(const void* handle, int ta, int tb, Int m, Int n, Int k, const T* alpha, const T* a, \
                   Int lda, const T* b, Int ldb, const T* beta, T* c, Int ldc) {                        \
    note_call();                                                                                        \
    if (is_refused_memory()) return kNoMemory;                                                          \
    return product(handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);                       \
  }
TS_ONE(cublasSgemm_v2, float, int)
TS_ONE(cublasSgemm_v2_64, float, int64_t)
TS_ONE(cublasDgemm_v2, double, int)
TS_ONE(cublasCgemm_v2, std::complex<float>, int)
TS_ONE(cublasZgemm_v2_64, std::complex<double>, int64_t)

#define TS_STRIDED(symbol, T, Int)                                                                         \
  TS_EXPORT symbol(const void* handle, int ta, int tb, Int m, Int n, Int k, const T* alpha, const T* a,    \
                   Int lda, long long sa, const T* b, Int ldb, long long sb, const T* beta, T* c, Int ldc, \
                   long long sc, Int count) {                                                              \
    note_call();                                                                                           \
    return strided(handle, ta, tb, m, n, k, alpha, a, lda, sa, b, ldb, sb, beta, c, ldc, sc, count);       \
  }
TS_STRIDED(cublasSgemmStridedBatched, float, int)
TS_STRIDED(cublasDgemmStridedBatched_64, double, int64_t)

TS_EXPORT cublasSgemmBatched(const void* handle, int ta, int tb, int m, int n, int k, const float* alpha,
                             const float* const a[], int lda, const float* const b[], int ldb,
                             const float* beta, float* const c[], int ldc, int count) {
  note_call();
  for (int i = 0; i < count; i++)
    if (const int status = product(handle, ta, tb, m, n, k, alpha, a[i], lda, b[i], ldb, beta, c[i], ldc))
      return status;
  return 0;
}

template <class T, class Int>
int grouped(const void* handle, const int ta[], const int tb[], const Int m[], const Int n[], const Int k[],
            const T alpha[], const T* const a[], const Int lda[], const T* const b[], const Int ldb[],
            const T beta[], T* const c[], const Int ldc[], Int groups, const Int size[]) {
  note_call();
  for (Int g = 0, i = 0; g < groups; g++)
    for (Int last = i + size[g]; i < last; i++)
      if (const int status = product(handle, ta[g], tb[g], m[g], n[g], k[g], &alpha[g], a[i], lda[g], b[i],
                                     ldb[g], &beta[g], c[i], ldc[g]))
        return status;
  return 0;
}
#define TS_GROUPS(symbol, T, Int)                                                                           \
  TS_EXPORT symbol(const void* handle, const int ta[], const int tb[], const Int m[], const Int n[],        \
                   const Int k[], const T alpha[], const T* const a[], const Int lda[], const T* const b[], \
                   const Int ldb[], const T beta[], T* const c[], const Int ldc[], Int groups,              \
                   const Int size[]) {                                                                      \
    return grouped(handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, groups, size);             \
  }
TS_GROUPS(cublasSgemmGroupedBatched, float, int)
TS_GROUPS(cublasDgemmGroupedBatched_64, double, int64_t)
// Double precision alone.
TS_EXPORT cublasGemmGroupedBatchedEx(const void* handle, const int ta[], const int tb[], const int m[],
                                     const int n[], const int k[], const void* alpha, const void* const a[],
                                     int type_a, const int lda[], const void* const b[], int type_b,
                                     const int ldb[], const void* beta, void* const c[], int type_c,
                                     const int ldc[], int groups, const int size[], int compute) {
  if (type_a != 1 || type_b != 1 || type_c != 1 || compute != 70) return kNotSupported;
  return grouped(handle, ta, tb, m, n, k, static_cast<const double*>(alpha),
                 reinterpret_cast<const double* const*>(a), lda, reinterpret_cast<const double* const*>(b),
                 ldb, static_cast<const double*>(beta), reinterpret_cast<double* const*>(c), ldc, groups,
                 size);
}

// Types: cudaDataType 0 and 1, single and double. Compute type and algorithm as given.
TS_EXPORT cublasGemmEx(const void* handle, int ta, int tb, int m, int n, int k, const void* alpha,
                       const void* a, int type_a, int lda, const void* b, int type_b, int ldb,
                       const void* beta, void* c, int type_c, int ldc, int compute, int algorithm) {
  note_call();
  if (type_a != type_b || type_b != type_c || compute != 68 || algorithm != -1) return kNotSupported;
  if (type_a == 0)
    return product(handle, ta, tb, m, n, k, static_cast<const float*>(alpha), static_cast<const float*>(a),
                   lda, static_cast<const float*>(b), ldb, static_cast<const float*>(beta),
                   static_cast<float*>(c), ldc);
  return kNotSupported;
}

TS_EXPORT cublasCreate_v2(void** handle) {
  *handle = &g_target;
  return 0;
}
TS_EXPORT cublasGetVersion_v2(const void*, int* version) {
  const char* given = getenv("FAKE_VERSION");
  *version = given ? atoi(given) : 130000;
  return 0;
}
TS_EXPORT cublasSetWorkspace_v2(const void*, void* workspace, size_t) {
  g_has_workspace = workspace != nullptr;
  return 0;
}
TS_EXPORT cublasSetStream_v2(const void*, void*) {
  g_has_workspace = false;
  return 0;
}
TS_EXPORT cublasGetStream_v2(const void*, void** stream) {
  *stream = nullptr;
  return 0;
}
TS_EXPORT cublasGetMathMode(const void*, int* mode) {
  const char* given = getenv("FAKE_MATH");  // cublasMath_t
  *mode = given ? atoi(given) : 0;
  return 0;
}
TS_EXPORT cublasGetPointerMode_v2(const void*, int* mode) {
  return *mode = 0;
}
TS_EXPORT cublasGetAtomicsMode(const void*, int* mode) {
  return *mode = 0;
}
TS_EXPORT cublasGetSmCountTarget(const void*, int* target) {
  *target = g_target;
  return 0;
}
TS_EXPORT cublasSetSmCountTarget(const void*, int target) {
  g_target = target;
  return 0;
}
// A test's questions.
TS_EXPORT cublasFakeCalls() {
  return g_calls.load();
}
TS_EXPORT cublasFakeNarrowCalls() {
  return g_narrow_calls.load();
}

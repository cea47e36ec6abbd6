// A library that is linked with cuBLAS, as extensions of frameworks are.
#include "tests/loader/calls.h"

extern "C" cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t transa,
                                         cublasOperation_t transb, int m, int n, int k, const float* alpha,
                                         const float* A, int lda, const float* B, int ldb, const float* beta,
                                         float* C, int ldc);

#ifdef TS_OWN_CUBLAS
// Its own cuBLAS inside, without a version, and called by way of the loader.
extern "C" __attribute__((visibility("default"), noinline)) cublasStatus_t cublasSgemm_v2(
    cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const float*, const float*,
    int, const float*, int, const float*, float*, int) {
  return 1'000'000 + m + n + k;
}
#endif

namespace {
// A call, not an address: by way of the linkage table.
template <class... T>
int call_by_name(T... arguments) {
  return cublasSgemm_v2(arguments...);
}
template <class... T>
int run(cublasStatus_t (*)(T...)) {
  return loader::call(&call_by_name<T...>);
}
}  // namespace

extern "C" __attribute__((visibility("default"))) int run_extension() {
  return run(static_cast<decltype(&cublasSgemm_v2)>(nullptr));
}

// Linked with the toolkit's cuBLAS: calls each matrix product without a handle, which needs no GPU.
#include "tests/loader/calls.h"

#define TS_CALL(symbol, base, params, args, what) extern "C" cublasStatus_t symbol params;
#include "interpose/operations/cublas_calls.def"

template <class... T>
int call_without_handle(int (*function)(cublasHandle_t, T...)) {
  return function(nullptr, T{}...);
}

int main() {
#define TS_CALL(symbol, base, params, args, what) printf("%s %d\n", #symbol, call_without_handle(&symbol));
#include "interpose/operations/cublas_calls.def"
  return 0;
}

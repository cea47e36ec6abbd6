// Linked with the toolkit's cuBLAS: calls each function of the catalogue without a handle, which needs no GPU.
#include "tests/loader/calls.h"

#define TS_CALL(symbol, base, params, args, what) extern "C" cublasStatus_t symbol params;
#include "interpose/operations/cublas_calls.def"

// Pointers point here: some functions write before they look at the handle.
alignas(64) char g_zeros[4096];

template <class T>
T nothing() {
  if constexpr (std::is_pointer_v<T>)
    return reinterpret_cast<T>(g_zeros);
  else
    return T{};
}

template <class... T>
int call_without_handle(int (*function)(cublasHandle_t, T...)) {
  return function(nullptr, nothing<T>()...);
}

int main() {
#define TS_CALL(symbol, base, params, args, what) printf("%s %d\n", #symbol, call_without_handle(&symbol));
#include "interpose/operations/cublas_calls.def"
  return 0;
}

// Linked with the fake library: calls each of its functions once.
#include "tests/loader/calls.h"

#define TS_GEMM_CALL(symbol, base, params, args, product) extern "C" cublasStatus_t symbol params;
#include "interpose/operations/gemm_calls.def"

int main() {
  if (!loader::make_page()) return 1;
#define TS_GEMM_CALL(symbol, base, params, args, product) printf("%s %d\n", #symbol, loader::call(&symbol));
#include "interpose/operations/gemm_calls.def"
  return 0;
}

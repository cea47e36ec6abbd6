// Linked with the fake library: calls each of its functions once.   caller [MODE]   what modes (sides, transposes) are
#include <cstdlib>

#include "tests/loader/calls.h"

#define TS_CALL(symbol, base, params, args, what) extern "C" cublasStatus_t symbol params;
#include "interpose/operations/cublas_calls.def"

int main(int argc, char** argv) {
  if (argc > 1) loader::g_mode = atoi(argv[1]);
  if (!loader::make_page()) return 1;
#define TS_CALL(symbol, base, params, args, what) printf("%s %d\n", #symbol, loader::call(&symbol));
#include "interpose/operations/cublas_calls.def"
  return 0;
}

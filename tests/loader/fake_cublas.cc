// A libcublas.so.13 that multiplies nothing: each function answers with a digest of all its arguments, so that one that
// was lost on the way shows. cublasDgemm_v2 calls another one by its exported name.
// With TS_NULL each answers at once, for benches.
#include "tests/loader/cublas_types.h"

#ifdef TS_NULL

#define TS_CALL(symbol, base, params, args, what)                                  \
  extern "C" __attribute__((visibility("default"))) cublasStatus_t symbol params { \
    return 0;                                                                      \
  }
#define TS_FOLLOW(symbol, params, args, before, after)                             \
  extern "C" __attribute__((visibility("default"))) cublasStatus_t symbol params { \
    return 0;                                                                      \
  }
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include "interpose/operations/cublas_calls.def"
#include "interpose/operations/cublas_followed.def"

#else

namespace {

template <class T>
uint64_t bits(T value) {
  return static_cast<uint64_t>(value);
}
template <class T>
uint64_t bits(T* value) {
  return reinterpret_cast<uint64_t>(value);
}

template <class... T>
int digest(T... arguments) {
  uint64_t hash = 0;
  ((hash = (hash ^ bits(arguments)) * 0x9e3779b97f4a7c15u), ...);
  return static_cast<int>(hash >> 33);
}

int nested();

}  // namespace

#define TS_CALL(symbol, base, params, args, what)                                    \
  extern "C" __attribute__((visibility("default"))) cublasStatus_t symbol params {   \
    static const char kName[] = #symbol;                                             \
    const int inner = __builtin_strcmp(kName, "cublasDgemm_v2") == 0 ? nested() : 0; \
    return digest args ^ (int(sizeof kName) << 8) ^ inner;                           \
  }
#include "interpose/operations/cublas_calls.def"

namespace {

// By way of the loader (no -Bsymbolic): comes through the hook again.
int nested() {
  const auto handle = reinterpret_cast<cublasHandle_t>(uint64_t{1});
  return cublasGemmEx(handle, {}, {}, 2, 2, 2, nullptr, nullptr, {}, 2, nullptr, {}, 2, nullptr, nullptr, {},
                      2, {}, {});
}

}  // namespace

#endif

// Compiles if cublas_calls.def says the same as the toolkit's header, and the types of hooks.cc are as wide as its types.
// C++ overloads some of these names: the conversion takes the one with exactly these parameters.
#include <cublas_api.h>

#include <type_traits>

#define TS_CALL(symbol, base, params, args, what) \
  static_assert(                                  \
      std::is_same_v<decltype(static_cast<cublasStatus_t(*) params>(&symbol)), cublasStatus_t(*) params>);
#include "interpose/operations/cublas_calls.def"

template <class T>
inline constexpr bool kIsNumber = std::is_enum_v<T> && sizeof(T) == sizeof(int);
static_assert(kIsNumber<cublasStatus_t> && kIsNumber<cublasOperation_t> && kIsNumber<cublasComputeType_t> &&
              kIsNumber<cublasGemmAlgo_t> && kIsNumber<cublasDiagType_t> && kIsNumber<cublasFillMode_t> &&
              kIsNumber<cublasSideMode_t> && kIsNumber<cudaDataType> && kIsNumber<cudaDataType_t>);
static_assert(std::is_pointer_v<cublasHandle_t>);
// cublas_calls.def compares these with 0.
static_assert(CUBLAS_SIDE_LEFT == 0 && CUBLAS_OP_N == 0);
static_assert(CUBLAS_STATUS_NOT_INITIALIZED == 1);  // LibraryRow, hooks.cc

// What the hooks (hooks.S) do not know: where cuBLAS's own function is, and whom to tell of the call.
#include <dlfcn.h>

#include "base/errno_guard.h"
#include "interpose/operations/call.h"

// Types of cuBLAS, as far as calls of it need them: pointers and numbers. A test compares with the header's.
struct cublasContext;
struct cuComplex;
struct cuDoubleComplex;
struct __half;
using cublasHandle_t = cublasContext*;
using cublasStatus_t = int;
using cublasOperation_t = int;
using cublasComputeType_t = int;
using cublasGemmAlgo_t = int;
using cudaDataType = int;
using cudaDataType_t = int;

#define TS_CUBLAS "libcublas.so.13"  // SONAME, and the version of its names

namespace tessera::library {
namespace {

// What the library itself answers to a handle that none of its functions made: there is no library that could have.
constexpr cublasStatus_t kNotInitialized = 1;

enum class Row : uint32_t {
#define TS_GEMM_CALL(symbol, base, params, args, product) symbol,
#include "interpose/operations/gemm_calls.def"
};
constexpr uint32_t kRows = 0
#define TS_GEMM_CALL(symbol, base, params, args, product) +1
#include "interpose/operations/gemm_calls.def"
    ;

}  // namespace
}  // namespace tessera::library

// Of the library, by row; null until the first call. Written by find(), all writers the same.
extern "C" {
constinit std::atomic<void*> tessera_gemm_real[tessera::library::kRows] = {};
}

namespace tessera::library {
namespace {

// The library that the loader gave to whoever asked for this version. It may have been opened RTLD_LOCAL, where
// RTLD_NEXT does not look. The handle is kept: the address must stay valid.
[[gnu::noinline]] void* find(Row row, const char* symbol, const void* ourselves) {
  const base::ErrnoGuard keep_errno;
  connect();
  void* library = dlopen(TS_CUBLAS, RTLD_NOLOAD | RTLD_LAZY);
  void* found = library ? dlsym(library, symbol) : nullptr;
  if (!found) found = dlvsym(RTLD_NEXT, symbol, TS_CUBLAS);
  if (found == ourselves) found = nullptr;
  tessera_gemm_real[uint32_t(row)].store(found, std::memory_order_release);  // pairs with real()
  return found;
}

template <class Function>
Function* real(Row row, const char* symbol, Function* hook) {
  void* known = tessera_gemm_real[uint32_t(row)].load(std::memory_order_acquire);  // pairs with find()
  if (!known) [[unlikely]]
    known = find(row, symbol, reinterpret_cast<const void*>(hook));
  return reinterpret_cast<Function*>(known);
}

}  // namespace
}  // namespace tessera::library

// The first version of exports.map is this name's: see hooks.S.
extern "C" {
extern __attribute__((visibility("default"))) const uint32_t tessera_ops_marker;
const uint32_t tessera_ops_marker = tessera::operations::kNoteVersion;
}

#define TS_GEMM_CALL(symbol, base, params, args, product)                               \
  extern "C" cublasStatus_t hook_##symbol params noexcept;                              \
  extern "C" cublasStatus_t told_##symbol params noexcept {                             \
    using namespace tessera::library;                                                   \
    auto* function = real<cublasStatus_t params>(Row::symbol, #symbol, &hook_##symbol); \
    if (!function) return kNotInitialized;                                              \
    const Call call(Entry::base, handle, product);                                      \
    return function args;                                                               \
  }
#include "interpose/operations/gemm_calls.def"

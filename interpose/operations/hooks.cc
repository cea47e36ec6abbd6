// Finds what the hooks (hooks.S) do not know: where the library's own function is, and whom to tell of the call.
#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include "base/errno_guard.h"
#include "base/exports.h"
#include "base/loader.h"
#include "interpose/operations/call.h"
#include "interpose/operations/cublas_workspace.h"
#include "interpose/operations/cudnn.h"
#include "interpose/operations/cudnn_graphs.h"
#include "interpose/operations/loaded_library.h"
#include "interpose/operations/lt.h"
#include "interpose/operations/split_cudnn.h"
#include "interpose/operations/split_gemm.h"
#include "interpose/operations/split_lt.h"
#include "operations/hook.h"

// Types of the libraries, as far as calls of them need them: pointers and numbers. A test compares with the headers.
struct CUstream_st;
struct cublasContext;
struct cublasLtContext;
struct cublasLtMatmulAlgo_t;
struct cublasLtMatmulDescOpaque_t;
struct cublasLtMatrixLayoutOpaque_t;
struct cublasLtMatrixTransformDescOpaque_t;
struct cuComplex;
struct cuDoubleComplex;
struct cudnnContext;
struct cudnnActivationStruct;
struct cudnnConvolutionStruct;
struct cudnnDropoutStruct;
struct cudnnFilterStruct;
struct cudnnLRNStruct;
struct cudnnOpTensorStruct;
struct cudnnPoolingStruct;
struct cudnnRNNDataStruct;
struct cudnnRNNStruct;
struct cudnnReduceTensorStruct;
struct cudnnTensorStruct;
struct cudnnTensorTransformStruct;
struct __half;
struct __nv_bfloat16;
using cublasHandle_t = cublasContext*;
using cublasLtHandle_t = cublasLtContext*;
using cublasLtMatmulDesc_t = cublasLtMatmulDescOpaque_t*;
using cublasLtMatrixLayout_t = cublasLtMatrixLayoutOpaque_t*;
using cublasLtMatrixTransformDesc_t = cublasLtMatrixTransformDescOpaque_t*;
using cudaStream_t = CUstream_st*;
using cudnnBackendDescriptor_t = void*;
using cudnnHandle_t = cudnnContext*;
using cudnnActivationDescriptor_t = cudnnActivationStruct*;
using cudnnConvolutionDescriptor_t = cudnnConvolutionStruct*;
using cudnnDropoutDescriptor_t = cudnnDropoutStruct*;
using cudnnFilterDescriptor_t = cudnnFilterStruct*;
using cudnnLRNDescriptor_t = cudnnLRNStruct*;
using cudnnOpTensorDescriptor_t = cudnnOpTensorStruct*;
using cudnnPoolingDescriptor_t = cudnnPoolingStruct*;
using cudnnRNNDataDescriptor_t = cudnnRNNDataStruct*;
using cudnnRNNDescriptor_t = cudnnRNNStruct*;
using cudnnReduceTensorDescriptor_t = cudnnReduceTensorStruct*;
using cudnnTensorDescriptor_t = cudnnTensorStruct*;
using cudnnTensorTransformDescriptor_t = cudnnTensorTransformStruct*;
using cublasOperation_t = int;
using cublasComputeType_t = int;
using cublasDiagType_t = int;
using cublasFillMode_t = int;
using cublasGemmAlgo_t = int;
using cublasSideMode_t = int;
using cudaDataType = int;
using cudaDataType_t = int;
using cudnnBackendAttributeName_t = int;
using cudnnBackendAttributeType_t = int;
using cudnnBackendDescriptorType_t = int;
using cudnnBatchNormMode_t = int;
using cudnnBatchNormOps_t = int;
using cudnnConvolutionBwdDataAlgo_t = int;
using cudnnConvolutionBwdFilterAlgo_t = int;
using cudnnConvolutionFwdAlgo_t = int;
using cudnnForwardMode_t = int;
using cudnnLRNMode_t = int;
using cudnnNormAlgo_t = int;
using cudnnNormMode_t = int;
using cudnnNormOps_t = int;
using cudnnSoftmaxAlgorithm_t = int;
using cudnnSoftmaxMode_t = int;
using cudnnWgradMode_t = int;

namespace tessera::library {
namespace {

constexpr bool can_be_cut(Entry entry) {
  const Family family = operations::kind_of(entry).family;
  return entry == Entry::cublasLtMatmul || family == Family::kProduct || family == Family::kConvolution ||
         family == Family::kConvolutionOfGradient || family == Family::kConvolutionActivation;
}

// Issues a call in pieces, if it is of a function whose calls can be cut. Of the others, which are most, no template is made.
template <Entry kEntry, bool = can_be_cut(kEntry)>
struct SplitFunction {
  static bool call(Call&, ...) { return false; }
};
template <Entry kEntry>
struct SplitFunction<kEntry, true> {
  template <class Function, class... Args>
  [[gnu::noinline]] static bool call(Call& call, Function* function, int* status, Args... args) {
    constexpr auto kKind = operations::kind_of(kEntry);
    const std::tuple<Args...> arguments(args...);
    if constexpr (kEntry == Entry::cublasLtMatmul)
      return split_lt(call, function, arguments, status);
    else if constexpr (kKind.family == Family::kProduct)
      return split_product<kKind.form>(call, function, arguments, status);
    else
      return split_convolution<kKind.family>(call, function, arguments, status);
  }
};

// In the order of hooks.S, which counts the first kind.
enum class Row : uint32_t {
#define TS_LIBRARY_CALL(library, symbol, base, params, args, what) symbol,
#include "interpose/operations/calls.def"
#define TS_LIBRARY_FOLLOW(library, symbol, params, args, before, after) symbol,
#include "interpose/operations/followed.def"
};
constexpr uint32_t kRows = 0
#define TS_LIBRARY_CALL(library, symbol, base, params, args, what) +1
#include "interpose/operations/calls.def"
#define TS_LIBRARY_FOLLOW(library, symbol, params, args, before, after) +1
#include "interpose/operations/followed.def"
    ;

// A library: its SONAME, which is the version of its names, too; and what it answers itself to a handle that none of its
// functions made. That is the answer where the library is not there: it could have made none.
struct LibraryRow {
  const char* soname;
  int not_initialized;
  std::atomic<const void*>* a_function;  // keeps one of its functions; null: nobody wants to know
};
constexpr LibraryRow kCublas{"libcublas.so.13", 1, nullptr},
    kCublasLt{"libcublasLt.so.13", 1, &g_lt_function}, kCudnn{"libcudnn.so.9", 1001, &g_cudnn_function};

// The two hooks of a row, in the order of hooks.S.
enum class Kind : uint32_t { kExported, kBound };
constexpr uint32_t index_of(Row row, Kind kind) {
  return uint32_t(row) * 2 + uint32_t(kind);
}

}  // namespace
}  // namespace tessera::library

// The functions that the hooks call, by index_of(); null until the first call, and when their library is unmapped. Who comes
// with another one meanwhile is not served.
extern "C" {
constinit std::atomic<void*> tessera_ops_real[tessera::library::kRows * 2] = {};
}

namespace tessera::library {
namespace {

// While it lives, a call runs that is followed. Innermost ones are the library's own.
class Follower {
 public:
  Follower() : follows_(t_depth++ == 0 && anybody_wants()) {}
  ~Follower() { --t_depth; }
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;
  bool follows() const { return follows_; }

 private:
  const bool follows_;
};
constexpr void nothing() {}

// Returns what is remembered: `found`, or what another thread found before.
void* remember(uint32_t index, const LibraryRow& of, void* found) {
  const void* none = nullptr;
  if (of.a_function) of.a_function->compare_exchange_strong(none, found, std::memory_order_relaxed);
  void* known = nullptr;
  // release, and acquire on failure: pairs with the loads of real() and of the hooks
  tessera_ops_real[index].compare_exchange_strong(known, found, std::memory_order_acq_rel,
                                                  std::memory_order_acquire);
  return known ? known : found;
}

// relaxed: nobody is in a function of a library that is being unmapped
void forget(uint32_t index, const LibraryRow& of, void* function) {
  const void* kept = function;
  if (of.a_function) of.a_function->compare_exchange_strong(kept, nullptr, std::memory_order_relaxed);
  tessera_ops_real[index].compare_exchange_strong(function, nullptr, std::memory_order_relaxed);
}

// In the library that the loader gave to whoever asked for this version. It may have been opened RTLD_LOCAL, where
// RTLD_NEXT does not look. The handle is kept: the address must stay valid.
[[gnu::noinline]] void* find(uint32_t index, const LibraryRow& of, const char* symbol,
                             const void* ourselves) {
  const base::ErrnoGuard keep_errno;
  connect();
  void* found = symbol_of(opened_library(of.soname), symbol);
  const auto by_version = base::loader().dlvsym;  // musl has none
  if (!found && by_version) found = by_version(RTLD_NEXT, symbol, of.soname);
  return !found || found == ourselves ? nullptr : remember(index, of, found);
}

template <class Function>
[[gnu::always_inline]] inline Function* real(uint32_t index, const LibraryRow& of, const char* symbol,
                                             Function* hook) {
  void* known = tessera_ops_real[index].load(std::memory_order_acquire);  // pairs with remember()
  if (!known) [[unlikely]]
    known = find(index, of, symbol, reinterpret_cast<const void*>(hook));
  return reinterpret_cast<Function*>(known);
}

}  // namespace
}  // namespace tessera::library

// The first version of exports.map is this name's: see hooks.S.
extern "C" {
extern __attribute__((visibility("default"))) const uint32_t tessera_ops_marker;
const uint32_t tessera_ops_marker = tessera::operations::kNoteVersion;
}

#define TS_LIST(...) __VA_ARGS__
#define TS_TOLD(row, hook, told, kind, symbol, base, params, args, what)                             \
  extern "C" int hook params noexcept;                                                               \
  extern "C" int told params noexcept {                                                              \
    using namespace tessera::library;                                                                \
    auto* const function = real<int params>(index_of(Row::symbol, Kind::kind), row, #symbol, &hook); \
    if (!function) return row.not_initialized;                                                       \
    Call call(Entry::base, #base, handle, what);                                                     \
    if (can_be_cut(Entry::base) && call.noted() && splitting()) {                                    \
      int status = 0;                                                                                \
      if (SplitFunction<Entry::base>::call(call, function, &status, TS_LIST args)) return status;    \
    }                                                                                                \
    return function args;                                                                            \
  }
#define TS_FOLLOWING(row, hook, told, kind, symbol, params, args, before, after)                     \
  extern "C" int hook params noexcept;                                                               \
  extern "C" int told params noexcept {                                                              \
    using namespace tessera::library;                                                                \
    auto* const function = real<int params>(index_of(Row::symbol, Kind::kind), row, #symbol, &hook); \
    if (!function) return row.not_initialized;                                                       \
    const Follower follower;                                                                         \
    if (!follower.follows()) return function args;                                                   \
    before;                                                                                          \
    const int status = function args;                                                                \
    if (status == 0) after;                                                                          \
    return status;                                                                                   \
  }
#define TS_LIBRARY_CALL(row, symbol, base, params, args, what)                            \
  TS_TOLD(row, hook_##symbol, told_##symbol, kExported, symbol, base, params, args, what) \
  TS_TOLD(row, bound_##symbol, told_bound_##symbol, kBound, symbol, base, params, args, what)
#include "interpose/operations/calls.def"
#define TS_LIBRARY_FOLLOW(row, symbol, params, args, before, after)                               \
  TS_FOLLOWING(row, hook_##symbol, told_##symbol, kExported, symbol, params, args, before, after) \
  TS_FOLLOWING(row, bound_##symbol, told_bound_##symbol, kBound, symbol, params, args, before, after)
#include "interpose/operations/followed.def"

namespace tessera::library {
namespace {

struct BoundHook {
  const char* symbol;
  const LibraryRow& library;
  void* (*address)();
};
// By Row.
constexpr BoundHook kBoundHooks[] = {
#define TS_LIBRARY_CALL(library, symbol, base, params, args, what) \
  {#symbol, library, [] { return reinterpret_cast<void*>(&bound_##symbol); }},
#include "interpose/operations/calls.def"
#define TS_LIBRARY_FOLLOW(library, symbol, params, args, before, after) \
  {#symbol, library, [] { return reinterpret_cast<void*>(&bound_##symbol); }},
#include "interpose/operations/followed.def"
};

}  // namespace
}  // namespace tessera::library

// operations/hook.h. Slow.
extern "C" __attribute__((visibility("default"))) void* tessera_ops_hook(const char* symbol,
                                                                         void* real) noexcept {
  using namespace tessera::library;
  if (!symbol || !real) return nullptr;
  for (uint32_t row = 0; row < kRows; row++) {
    if (strcmp(kBoundHooks[row].symbol, symbol) != 0) continue;
    const tessera::base::ErrnoGuard keep_errno;
    connect();
    const BoundHook& hook = kBoundHooks[row];
    return remember(index_of(Row(row), Kind::kBound), hook.library, real) == real ? hook.address() : nullptr;
  }
  return nullptr;
}

extern "C" __attribute__((visibility("default"))) void tessera_ops_forget(const link_map* library) noexcept {
  using namespace tessera::library;
  const tessera::base::Exports exports(library);
  for (uint32_t row = 0; row < kRows; row++) {
    const uint32_t index = index_of(Row(row), Kind::kBound);
    void* const real = tessera_ops_real[index].load(std::memory_order_relaxed);  // compared only
    const BoundHook& hook = kBoundHooks[row];
    if (real && exports.find(hook.symbol, hook.library.soname) == real) forget(index, hook.library, real);
  }
}

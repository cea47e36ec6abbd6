// A libcublasLt.so.13 that multiplies nothing: its two functions that launch answer with a digest of all their arguments, so that
// one that was lost on the way shows. With TS_NULL they answer at once, for benches, and descriptors are those of the toolkit's
// library, TS_REAL_LT, so that reading them takes what it takes.
#include <dlfcn.h>

#include <cstdint>
#include <cstring>

#define TS_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

#ifdef TS_NULL
template <class... T>
int digest(T...) {
  return 0;
}
#else
uint64_t bits(uint64_t value) {
  return value;
}
uint64_t bits(const void* value) {
  return reinterpret_cast<uint64_t>(value);
}
template <class... T>
int digest(T... arguments) {
  uint64_t hash = 0;
  ((hash = (hash ^ bits(arguments)) * 0x9e3779b97f4a7c15u), ...);
  return static_cast<int>(hash >> 33);
}
#endif

using P = const void*;

}  // namespace

TS_EXPORT int cublasLtMatmul(P handle, P matmul, P alpha, P a, P a_layout, P b, P b_layout, P beta, P c,
                             P c_layout, void* d, P d_layout, P algorithm, void* workspace, size_t bytes,
                             P stream) {
  return digest(handle, matmul, alpha, a, a_layout, b, b_layout, beta, c, c_layout, static_cast<P>(d),
                d_layout, algorithm, static_cast<P>(workspace), bytes, stream);
}
TS_EXPORT int cublasLtMatrixTransform(P handle, P transform, P alpha, P a, P a_layout, P beta, P b,
                                      P b_layout, void* c, P c_layout, P stream) {
  return digest(handle, transform, alpha, a, a_layout, beta, b, b_layout, static_cast<P>(c), c_layout,
                stream);
}

#ifdef TS_REAL_LT

namespace {
template <class Function>
Function* real(Function*, const char* name) {
  static void* const library = dlopen(TS_REAL_LT, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(dlsym(library, name));
}
}  // namespace
// Looked up once.
#define TS_FORWARD(name, params, args)                                                \
  TS_EXPORT int name params {                                                         \
    static auto* const function = real(static_cast<decltype(&name)>(nullptr), #name); \
    return function args;                                                             \
  }
TS_FORWARD(cublasLtMatrixLayoutInit_internal,
           (void* to, size_t bytes, int type, uint64_t rows, uint64_t columns, int64_t leading),
           (to, bytes, type, rows, columns, leading))
TS_FORWARD(cublasLtMatmulDescInit_internal, (void* to, size_t bytes, int compute_type, int scale_type),
           (to, bytes, compute_type, scale_type))
TS_FORWARD(cublasLtMatrixLayoutGetAttribute, (P from, int attribute, void* to, size_t bytes, size_t* written),
           (from, attribute, to, bytes, written))
TS_FORWARD(cublasLtMatmulDescGetAttribute, (P from, int attribute, void* to, size_t bytes, size_t* written),
           (from, attribute, to, bytes, written))
TS_FORWARD(cublasLtMatrixLayoutSetAttribute, (void* to, int attribute, P from, size_t bytes),
           (to, attribute, from, bytes))
TS_FORWARD(cublasLtMatmulDescSetAttribute, (void* to, int attribute, P from, size_t bytes),
           (to, attribute, from, bytes))

#else

// Descriptors of its own, without setters, so that attributes are asked for: a word for each of the first attributes. The last bytes are left as they are.
namespace {
constexpr int kWords = 31;
struct Words {
  uint64_t of[kWords];
};
int get(P from, int attribute, void* to, size_t bytes, size_t* written) {
  uint64_t word = 0;
  if (attribute < kWords) word = static_cast<const Words*>(from)->of[attribute];
  std::memcpy(to, &word, bytes);
  *written = bytes;
  return 0;
}
}  // namespace
TS_EXPORT int cublasLtMatrixLayoutInit_internal(void* to, size_t, int type, uint64_t rows, uint64_t columns,
                                                int64_t leading) {
  const uint64_t words[] = {uint64_t(type), 0, rows, columns, uint64_t(leading), 1, 0};
  std::memcpy(to, words, sizeof words);
  return 0;
}
TS_EXPORT int cublasLtMatmulDescInit_internal(void* to, size_t, int compute_type, int scale_type) {
  Words words{};
  words.of[0] = uint64_t(compute_type);
  words.of[1] = uint64_t(scale_type);
  words.of[7] = 1;  // the epilogue that does nothing
  words.of[22] = words.of[26] = ~uint64_t{0};
  std::memcpy(to, &words, sizeof words);
  return 0;
}
TS_EXPORT int cublasLtMatrixLayoutGetAttribute(P from, int attribute, void* to, size_t bytes,
                                               size_t* written) {
  return get(from, attribute, to, bytes, written);
}
TS_EXPORT int cublasLtMatmulDescGetAttribute(P from, int attribute, void* to, size_t bytes, size_t* written) {
  return get(from, attribute, to, bytes, written);
}

#endif

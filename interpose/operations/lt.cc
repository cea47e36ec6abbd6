#include "interpose/operations/lt.h"

#include <dlfcn.h>
#include <string.h>

#include <atomic>

#include "interpose/operations/described.h"
#include "interpose/operations/loaded_library.h"
#include "interpose/operations/lt_attributes.h"
#include "operations/matmul.h"

namespace tessera::library {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

constexpr int kNotTransposed = 0;
constexpr int kComputeIn32F = 68;

using InitMatmul = int (*)(void* matmul, size_t bytes, int compute_type, int scale_type);

// The library that reads descriptors.
struct LtLibrary {
  GetAttribute layout, matmul;
  Significant layout_bits, matmul_bits;
};
constinit LtLibrary g_library{};  // constant once it is found
constinit OnceFound g_found;
constinit std::atomic<const void*> g_function{nullptr};  // any of the library

// Storage of programs that keep their own is initialised by the same functions. A library whose descriptors are larger
// refuses this storage: then their bytes are never compared.
template <size_t kWords, class Init>
void learn(Init init, Significant* out) {
  uint64_t zeros[kWords], ones[kWords];
  memset(zeros, 0, sizeof zeros);
  memset(ones, 0xff, sizeof ones);
  if (init(zeros, sizeof zeros) == 0 && init(ones, sizeof ones) == 0)
    learn_significant(zeros, ones, sizeof zeros, out);
}

bool open_library(LtLibrary* out) {
  void* const library = lt_library();
  if (!library) return false;
  out->layout = reinterpret_cast<GetAttribute>(dlsym(library, "cublasLtMatrixLayoutGetAttribute"));
  out->matmul = reinterpret_cast<GetAttribute>(dlsym(library, "cublasLtMatmulDescGetAttribute"));
  if (!out->layout || !out->matmul) return false;
  const auto layout = reinterpret_cast<InitLayout>(dlsym(library, "cublasLtMatrixLayoutInit_internal"));
  const auto matmul = reinterpret_cast<InitMatmul>(dlsym(library, "cublasLtMatmulDescInit_internal"));
  if (layout)
    learn<kLayoutWords>([&](void* at, size_t bytes) { return layout(at, bytes, 0, 1, 1, 1); },
                        &out->layout_bits);
  if (matmul)
    learn<kMatmulWords>([&](void* at, size_t bytes) { return matmul(at, bytes, kComputeIn32F, 0); },
                        &out->matmul_bits);
  return true;
}

bool have_library() {
  return g_found.have([] { return open_library(&g_library); });
}

template <class T>
bool read(GetAttribute getter, const void* descriptor, int attribute, T* to) {
  size_t written = 0;
  return getter(descriptor, attribute, to, sizeof *to, &written) == 0 && written == sizeof *to;
}
template <class T>
bool read_layout(const void* layout, LayoutAttribute attribute, T* to) {
  return read(g_library.layout, layout, attribute, to);
}
template <class T>
bool read_matmul(const void* matmul, MatmulAttribute attribute, T* to) {
  return read(g_library.matmul, matmul, attribute, to);
}

bool read_type(const void* layout, Type* to) {
  return read_layout(layout, kLayoutType, to);
}

// Rows, columns and how many.
struct Extent {
  int64_t rows, columns;
  int32_t count;
};
bool read_extent(const void* layout, Extent* to) {
  return read_layout(layout, kLayoutRows, &to->rows) && read_layout(layout, kLayoutColumns, &to->columns) &&
         read_layout(layout, kLayoutBatch, &to->count);
}

// ---- products

// Only elements of 8 bits and fewer are scaled by more than one factor.
bool may_be_scaled(Type type) {
  return operations::bits_of(type) <= 8;
}
bool read_scale(const void* matmul, MatmulAttribute attribute, operations::MatmulOperand* of) {
  return !may_be_scaled(of->type) || read_matmul(matmul, attribute, &of->scale);
}

bool read_epilogue(const void* matmul, operations::Matmul* to) {
  if (!read_matmul(matmul, kEpilogue, &to->epilogue)) return false;
  return to->epilogue == kDefaultEpilogue || (read_matmul(matmul, kVectorType, &to->vector_type) &&
                                              read_matmul(matmul, kAuxiliaryType, &to->auxiliary_type));
}

// Often the same layout as D's.
bool read_type_of_c(const LtMatmul& what, operations::Matmul* to) {
  to->c.type = to->d.type;
  return what.c == what.d || read_type(what.c, &to->c.type);
}

bool read_matmul(const LtMatmul& what, operations::Matmul* to, int32_t* compute_type) {
  Extent d;
  int32_t transposed = 0;
  if (!read_extent(what.d, &d) || !read_matmul(what.operation, kTransposeA, &transposed)) return false;
  to->shape = {d.rows, d.columns, 0, d.count};
  return read_layout(what.a, transposed == kNotTransposed ? kLayoutColumns : kLayoutRows, &to->shape.k) &&
         read_type(what.a, &to->a.type) && read_type(what.b, &to->b.type) && read_type(what.d, &to->d.type) &&
         read_type_of_c(what, to) && read_matmul(what.operation, kComputeType, compute_type) &&
         read_scale(what.operation, kScaleModeA, &to->a) && read_scale(what.operation, kScaleModeB, &to->b) &&
         read_scale(what.operation, kScaleModeC, &to->c) &&
         read_scale(what.operation, kOutScaleModeD, &to->d) && read_epilogue(what.operation, to);
}

bool read_operation(const LtMatmul& what, Operation* out) {
  operations::Matmul matmul;
  int32_t compute_type = 0;
  if (!read_matmul(what, &matmul, &compute_type)) return false;
  const auto cost = matmul_cost(matmul);
  if (!cost) return false;
  const GemmShape& s = matmul.shape;
  out->shape = {.dims = {s.m, s.n, s.k}, .count = s.count, .n_dims = 3};
  out->types = {matmul.a.type, matmul.b.type, matmul.d.type};
  out->computed_as = operations::computed_as(compute_type, matmul.a.type);
  out->cost = *cost;
  return true;
}

bool read_operation(const LtTransform& what, Operation* out) {
  operations::Transform transform;
  Extent c;
  Types& types = transform.types;
  if (!read_extent(what.c, &c) || !read_type(what.a, &types.a) || !read_type(what.c, &types.c)) return false;
  types.b = types.a;
  if (what.has_b && !read_type(what.b, &types.b)) return false;
  transform = {c.rows, c.columns, c.count, types, what.has_b};
  const auto cost = transform_cost(transform);
  if (!cost) return false;
  out->shape = {.dims = {c.rows, c.columns}, .count = c.count, .n_dims = 2};
  out->types = types;
  out->computed_as = types.a;
  out->cost = *cost;
  return true;
}

template <class What>
[[gnu::noinline]] bool read_and_remember(const What& what, DescriptorKey* key, Operation* out) {
  const Entry entry = out->entry;
  if (!have_library() || !read_operation(what, out)) return false;
  out->entry = entry;
  key->remember(*out);
  return true;
}

template <class What>
const Operation* described_by(DescriptorKey* key, const What& what, Operation* own) {
  if (const Operation* known = key->find()) return known;
  return read_and_remember(what, key, own) ? own : nullptr;
}

template <class What>
bool describe_into(const What& what, Operation* out) {
  const Operation* found = described(what, out);
  if (found && found != out) *out = *found;
  return found;
}

}  // namespace

void know_lt_library(const void* function) {
  const void* none = nullptr;
  g_function.compare_exchange_strong(none, function, kRelaxed);  // code, which does not change
}

void* lt_library() {
  return library_of(g_function.load(kRelaxed));
}

bool describe(const LtMatmul& what, Operation* out) {
  return describe_into(what, out);
}
bool describe(const LtTransform& what, Operation* out) {
  return describe_into(what, out);
}

const Operation* described(const LtMatmul& what, Operation* own) {
  if (!what.operation || !what.a || !what.b || !what.c || !what.d || !have_library()) return nullptr;
  DescriptorKey key;
  key.add(what.operation, g_library.matmul_bits);
  for (const void* layout : {what.a, what.b, what.c}) key.add(layout, g_library.layout_bits);
  if (what.d != what.c) key.add(what.d, g_library.layout_bits);
  return described_by(&key, what, own);
}

const Operation* described(const LtTransform& what, Operation* own) {
  if (!what.a || !what.c || (what.has_b && !what.b) || !have_library()) return nullptr;
  DescriptorKey key;
  key.add(what.a, g_library.layout_bits);
  key.add(what.c, g_library.layout_bits);
  if (what.has_b) key.add(what.b, g_library.layout_bits);
  return described_by(&key, what, own);
}

}  // namespace tessera::library

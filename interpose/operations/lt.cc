#include "interpose/operations/lt.h"

#include "interpose/operations/loaded_library.h"
#include "interpose/operations/lt_places.h"
#include "interpose/operations/product.h"
#include "operations/matmul.h"

namespace tessera::library {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

constexpr int kNotTransposed = 0;

constinit LtPlaces g_places{};  // constant once they are found
constinit OnceFound g_found;

bool have_library() {
  return g_found.have([] {
    void* const library = lt_library();
    return library && find_places(library, &g_places);
  });
}

template <class T>
bool read_layout(const void* layout, LayoutAttribute attribute, T* to) {
  return g_places.layout.read(layout, attribute, to);
}
template <class T>
bool read_matmul(const void* matmul, MatmulAttribute attribute, T* to) {
  return g_places.matmul.read(matmul, attribute, to);
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
  return to->epilogue == uint32_t(kDefaultEpilogue) ||
         (read_matmul(matmul, kVectorType, &to->vector_type) &&
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

// Most calls: nothing but a product, of elements that are not scaled, with C like D. That is one of cublasGemmEx.
bool is_plain(Type a, Type b, Type c, Type d, int32_t epilogue) {
  return epilogue == kDefaultEpilogue && c == d && !may_be_scaled(a) && !may_be_scaled(b) &&
         !may_be_scaled(d);
}
bool describe_plain(const LtMatmul& what, Operation* out) {
  const auto& layout = g_places.layout;
  const auto& matmul = g_places.matmul;
  if (!g_places.have_all) return false;
  const Type a = layout.at_place<Type>(what.a, kLayoutType), b = layout.at_place<Type>(what.b, kLayoutType),
             c = layout.at_place<Type>(what.c, kLayoutType), d = layout.at_place<Type>(what.d, kLayoutType);
  if (!is_plain(a, b, c, d, matmul.at_place<int32_t>(what.operation, kEpilogue))) return false;
  const bool transposed = matmul.at_place<int32_t>(what.operation, kTransposeA) != kNotTransposed;
  const Products products{
      .shape = {.m = layout.at_place<int64_t>(what.d, kLayoutRows),
                .n = layout.at_place<int64_t>(what.d, kLayoutColumns),
                .k = layout.at_place<int64_t>(what.a, transposed ? kLayoutRows : kLayoutColumns),
                .count = layout.at_place<int32_t>(what.d, kLayoutBatch)},
      .types = {a, b, d},
      .computed_as = operations::computed_as(matmul.at_place<int32_t>(what.operation, kComputeType), a)};
  return describe_product(products, out);
}

[[gnu::noinline]] bool read_operation(const LtMatmul& what, Operation* out) {
  operations::Matmul matmul;
  int32_t compute_type = 0;
  if (!read_matmul(what, &matmul, &compute_type)) return false;
  const auto cost = matmul_cost(matmul);
  if (!cost) return false;
  const GemmShape& s = matmul.shape;
  set_shape(out->shape, s.count, s.m, s.n, s.k);
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
  set_shape(out->shape, c.count, c.rows, c.columns);
  out->types = types;
  out->computed_as = types.a;
  out->cost = *cost;
  return true;
}

}  // namespace

constinit std::atomic<const void*> g_lt_function{nullptr};

void* lt_library() {
  return library_of(g_lt_function.load(kRelaxed));
}

bool describe(const LtMatmul& what, Operation* out) {
  if (!what.operation || !what.a || !what.b || !what.c || !what.d || !have_library()) return false;
  return describe_plain(what, out) || read_operation(what, out);
}
bool describe(const LtTransform& what, Operation* out) {
  return what.a && what.c && (!what.has_b || what.b) && have_library() && read_operation(what, out);
}

}  // namespace tessera::library

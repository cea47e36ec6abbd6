#include "interpose/operations/split_lt.h"

#include <string.h>

#include <algorithm>
#include <iterator>

#include "interpose/operations/loaded_library.h"
#include "interpose/operations/lt.h"
#include "interpose/operations/sm_target.h"
#include "interpose/operations/split_key.h"
#include "interpose/operations/split_libraries.h"

namespace tessera::library {
namespace {

// ---- the library

using AlgoCheck = int (*)(const void* handle, const void* operation, const void* a, const void* b,
                          const void* c, const void* d, const void* algorithm, LtCheckResult* result);
struct LtFunctions {
  GetAttribute layout, product;
  SetAttribute set_layout;
  SetAttribute set_product;  // null: its products are larger than what we copy
  AlgoCheck check;
  size_t (*version)();
};
constinit LtFunctions g_lt{};  // constant once it is found
constinit OnceFound g_found;

bool find_lt(LtFunctions* out) {
  void* const library = lt_library();
  InitLayout init = nullptr;
  InitMatmul init_product = nullptr;
  find_function(library, "cublasLtMatmulDescInit_internal", init_product);
  find_function(library, "cublasLtMatmulDescSetAttribute", out->set_product);
  if (!are_whole_in<kMatmulWords>(init_product)) out->set_product = nullptr;
  return find_function(library, "cublasLtMatrixLayoutGetAttribute", out->layout) &&
         find_function(library, "cublasLtMatmulDescGetAttribute", out->product) &&
         find_function(library, "cublasLtMatrixLayoutSetAttribute", out->set_layout) &&
         find_function(library, "cublasLtMatmulAlgoCheck", out->check) &&
         find_function(library, "cublasLtGetVersion", out->version) &&
         find_function(library, "cublasLtMatrixLayoutInit_internal", init) &&
         are_whole_in<kLayoutWords>(init);
}

// Null also where the function that is called is of another copy of the library.
const LtFunctions* lt_of(const void* function) {
  if (!g_found.have([] { return find_lt(&g_lt); })) return nullptr;
  return of_one_library(function, reinterpret_cast<const void*>(g_lt.check)) ? &g_lt : nullptr;
}

constexpr int kInternalError = 14;  // cublasStatus_t
constexpr auto kFamily = operations::SplitFamily::kLayouts;

// Attributes that came after the first cuBLAS 13: where the library does not know them they are not set.
constexpr bool is_newer(LayoutAttribute attribute) {
  return attribute == kLayoutBatchMode;
}
constexpr bool is_newer(MatmulAttribute attribute) {
  return attribute == kEmulation;
}
template <class Attribute, class T>
bool read(GetAttribute getter, const void* descriptor, Attribute attribute, T* to, size_t bytes = sizeof(T)) {
  size_t written = 0;
  if (getter(descriptor, attribute, to, bytes, &written) == 0) return written == bytes;
  return is_newer(attribute);
}

// ---- what can be cut

// Rules for what a product's descriptor says beside its shape.
enum class Rule : uint8_t {
  kCounts,  // bits may depend on it, pieces have the same
  kGiven,   // a pointer to one factor for all pieces: it counts whether there is one
  kMustBe,  // nothing else can be cut
};
struct ProductRule {
  MatmulAttribute attribute;
  uint8_t bytes;
  Rule rule;
  uint64_t value = 0;
};
constexpr uint64_t kFull = 2;  // cublasFillMode_t
constexpr ProductRule kRules[] = {
    {kComputeType, 4, Rule::kCounts},
    {kScaleType, 4, Rule::kCounts},
    {kPointerMode, 4, Rule::kCounts},
    {kTransposeA, 4, Rule::kCounts},
    {kTransposeB, 4, Rule::kCounts},
    {kTransposeC, 4, Rule::kMustBe},
    {kFillMode, 4, Rule::kMustBe, kFull},
    {kEpilogue, 4, Rule::kCounts},
    {kBiasPointer, 8, Rule::kGiven},
    {kBiasStride, 8, Rule::kCounts},
    {kSmTarget, 4, Rule::kCounts},
    {kScalePointerA, 8, Rule::kGiven},
    {kScalePointerB, 8, Rule::kGiven},
    {kScalePointerC, 8, Rule::kGiven},
    {kScalePointerD, 8, Rule::kGiven},
    {kLargestOfD, 8, Rule::kMustBe},  // each piece would write its own
    {kLargestOfAuxiliary, 8, Rule::kMustBe},
    {kFastAccumulation, 1, Rule::kCounts},
    {kVectorType, 4, Rule::kCounts},
    {kScaleModeA, 4, Rule::kMustBe},  // one factor for all of a matrix
    {kScaleModeB, 4, Rule::kMustBe},
    {kScaleModeC, 4, Rule::kMustBe},
    {kScaleModeD, 4, Rule::kMustBe},
    {kOutScalePointerD, 8, Rule::kMustBe},
    {kOutScaleModeD, 4, Rule::kMustBe},
    {kEmulation, 8, Rule::kMustBe},  // how precise it is may depend on the numbers of whole matrices
};
constexpr size_t kRuleCount = std::size(kRules);
constexpr size_t row_of(MatmulAttribute attribute) {
  for (size_t i = 0; i < kRuleCount; i++)
    if (kRules[i].attribute == attribute) return i;
  return kRuleCount;
}

constexpr uint64_t kEmulatedFixedPoint = 79;                // cublasComputeType_t, as kEmulation
constexpr uint64_t kInHostMemory = 0, kInDeviceMemory = 1;  // cublasLtPointerMode_t: one number each
constexpr int32_t kOrderOfColumns = 0, kOrderOfRows = 1;    // cublasLtOrder_t
constexpr uint64_t kConjugated = 2;                         // the last cublasOperation_t
enum Vector : uint8_t { kNoVector, kAdded, kSumOfD, kSumOfA, kSumOfB };
enum Auxiliary : uint8_t { kNothing, kMask, kMatrix };
struct EpilogueRow {
  uint64_t number;
  Vector vector;
  Auxiliary auxiliary;
};
constexpr EpilogueRow kEpilogues[] = {
#define TS_EPILOGUE(name, number, vector, auxiliary) {number, vector, auxiliary},
#include "operations/epilogues.def"
};
// Null: writes something beside D, or reads what a piece would have to move in.
const EpilogueRow* epilogue_that_can_be_cut(uint64_t number) {
  for (const EpilogueRow& row : kEpilogues)
    if (row.number == number)
      return row.auxiliary == kNothing && (row.vector == kNoVector || row.vector == kAdded) ? &row : nullptr;
  return nullptr;
}

// Size of one number of this cudaDataType; 0: not known.
size_t bytes_of(uint64_t type) {
  return operations::bits_of(static_cast<Type>(type)) / 8;
}

}  // namespace

bool LtCall::read_product() {
  static_assert(kRuleCount <= kMostRules);
  for (size_t i = 0; i < kRuleCount; i++) {
    const ProductRule& rule = kRules[i];
    if (!read(g_lt.product, lt_.operation, rule.attribute, &product_[i], rule.bytes)) return false;
    if (rule.rule == Rule::kMustBe && product_[i] != rule.value) return false;
  }
  return product_[row_of(kComputeType)] != kEmulatedFixedPoint &&
         product_[row_of(kPointerMode)] <= kInDeviceMemory && product_[row_of(kTransposeA)] <= kConjugated &&
         product_[row_of(kTransposeB)] <= kConjugated &&
         epilogue_that_can_be_cut(product_[row_of(kEpilogue)]) != nullptr;
}

bool LtCall::read_layouts() {
  const void* const layouts[] = {lt_.a.layout, lt_.b.layout, lt_.c.layout, lt_.d.layout};
  const uint64_t addresses[] = {lt_.a.address, lt_.b.address, lt_.c.address, lt_.d.address};
  for (const Operand i : {kA, kB, kC, kD}) {
    Layout& x = layouts_[i];
    const auto get = [&](LayoutAttribute attribute, auto* to) {
      return read(g_lt.layout, layouts[i], attribute, to);
    };
    if (!get(kLayoutType, &x.type) || !get(kLayoutOrder, &x.order) || !get(kLayoutRows, &x.rows) ||
        !get(kLayoutColumns, &x.columns) || !get(kLayoutLeading, &x.leading) ||
        !get(kLayoutBatch, &x.products) || !get(kLayoutStride, &x.stride) ||
        !get(kLayoutPlaneOffset, &x.plane_offset) || !get(kLayoutBatchMode, &x.batch_mode))
      return false;
    const uint32_t bits = operations::bits_of(static_cast<Type>(x.type));
    const bool is_plain = (x.order == kOrderOfColumns || x.order == kOrderOfRows) && x.plane_offset == 0 &&
                          x.batch_mode == 0 && bits != 0 && bits % 8 == 0;
    if (!is_plain || (addresses[i] == 0 && i != kC)) return false;
    const bool transposed =
        (i == kA && product_[row_of(kTransposeA)] != 0) || (i == kB && product_[row_of(kTransposeB)] != 0);
    matrices_[i] = {addresses[i], x.leading, x.stride, bits, (x.order == kOrderOfRows) != transposed};
  }
  return true;
}

// Nothing in the descriptors that the library would refuse for the whole call but not for a piece.
bool LtCall::fits() const {
  const Layout &a = layouts_[kA], &b = layouts_[kB], &c = layouts_[kC], &d = layouts_[kD];
  const bool ta = product_[row_of(kTransposeA)] != 0, tb = product_[row_of(kTransposeB)] != 0;
  const uint64_t m = ta ? a.columns : a.rows, k = ta ? a.rows : a.columns;
  const uint64_t of_b = tb ? b.columns : b.rows, n = tb ? b.rows : b.columns;
  return m == d.rows && n == d.columns && k == of_b && c.rows == d.rows && c.columns == d.columns &&
         a.products == d.products && b.products == d.products && c.products == d.products &&
         operations::leading_dimensions_fit(shape_, matrices_[kA], matrices_[kB], matrices_[kC]) &&
         operations::leading_dimensions_fit(shape_, matrices_[kA], matrices_[kB], matrices_[kD]);
}

// It is D, at the same place element by element, or the call does not write it.
bool LtCall::c_is_apart() const {
  const operations::Matrix &c = matrices_[kC], &d = matrices_[kD];
  if (c.address == 0) return true;
  if (c.address == d.address) return c == d;
  operations::GemmShape shape = shape_;
  if (c.stride == 0) shape.count = 1;
  const auto read = operations::region_of(shape, c), written = operations::region_of(shape_, d);
  return read && written &&
         (c.address + read->extent() <= d.address || d.address + written->extent() <= c.address);
}

// As many elements as D has rows. Where they are the product's descriptor says, which is not ours to change.
operations::Matrix LtCall::bias() const {
  return {.address = product_[row_of(kBiasPointer)],
          .leading = shape_.m,
          .stride = int64_t(product_[row_of(kBiasStride)]),
          .bits = 8,  // at least: only whether it stays is asked
          .transposed = false};
}

std::optional<operations::Split> LtCall::cut(int64_t pieces) {
  if (!lt_of(function) || !lt_.alpha || !lt_.beta || !read_product() || !read_layouts()) return std::nullopt;
  const Layout& d = layouts_[kD];
  const Layout& a = layouts_[kA];
  const uint64_t k = product_[row_of(kTransposeA)] != 0 ? a.rows : a.columns;
  if (std::max({d.rows, d.columns, k}) > uint64_t(INT64_MAX)) return std::nullopt;
  shape_ = {int64_t(d.rows), int64_t(d.columns), int64_t(k), d.products};
  if (!fits() || !operations::region_of(shape_, matrices_[kD]) || !c_is_apart()) return std::nullopt;
  const bool has_bias = epilogue_that_can_be_cut(product_[row_of(kEpilogue)])->vector == kAdded;
  const operations::Matrix its_bias = bias();
  const auto cut = operations::split_of(kFamily, shape_, pieces, has_bias ? &its_bias : nullptr);
  if (!cut || !make_layouts(operations::piece_of(*cut, shape_, 0))) return std::nullopt;
  return cut;
}

uint64_t LtCall::settings() {
  ClassKey key;
  key.add(g_lt.version());
  for (size_t i = 0; i < kRuleCount; i++)
    key.add(kRules[i].rule == Rule::kGiven ? uint64_t(product_[i] != 0) : product_[i]);
  key.add_alignment(product_[row_of(kBiasPointer)]);
  for (const Operand i : {kA, kB, kC, kD}) {
    const Layout& x = layouts_[i];
    key.add(x.type, x.order, x.rows, x.columns, x.leading, x.products, x.stride, matrices_[i].address != 0);
    key.add_alignment(matrices_[i].address);
  }
  key.add(lt_.c.address == lt_.d.address, lt_.algorithm != nullptr, lt_.workspace_bytes);
  key.add_alignment(lt_.workspace);
  if (lt_.algorithm) key.add_bytes(lt_.algorithm, sizeof LtCheckResult::algorithm);
  // A library that can read them may choose by them.
  if (product_[row_of(kPointerMode)] == kInHostMemory) {
    const size_t bytes = bytes_of(product_[row_of(kScaleType)]);
    if (bytes == 0) return 0;
    for (const void* scalar : {lt_.alpha, lt_.beta}) key.add_bytes(scalar, bytes);
  }
  return key.value();
}

// The program's layouts with the piece's sizes.
bool LtCall::make_layouts(const operations::Piece& piece) {
  const void* const layouts[] = {lt_.a.layout, lt_.b.layout, lt_.c.layout, lt_.d.layout};
  const bool ta = product_[row_of(kTransposeA)] != 0, tb = product_[row_of(kTransposeB)] != 0;
  const struct {
    int64_t rows, columns;
  } sizes[] = {{ta ? shape_.k : piece.m, ta ? piece.m : shape_.k},
               {tb ? piece.n : shape_.k, tb ? shape_.k : piece.n},
               {piece.m, piece.n},
               {piece.m, piece.n}};
  for (const Operand i : {kA, kB, kC, kD}) {
    uint64_t* const to = piece_layouts_[i];
    memcpy(to, layouts[i], sizeof piece_layouts_[i]);
    const auto rows = uint64_t(sizes[i].rows), columns = uint64_t(sizes[i].columns);
    const auto products = int32_t(piece.count);
    if (g_lt.set_layout(to, kLayoutRows, &rows, sizeof rows) != 0 ||
        g_lt.set_layout(to, kLayoutColumns, &columns, sizeof columns) != 0 ||
        g_lt.set_layout(to, kLayoutBatch, &products, sizeof products) != 0)
      return false;
  }
  return true;
}

// The first and the last piece: the others are as the first. Without an algorithm of the caller's there is none to ask about.
bool LtCall::takes(const operations::Split& cut) {
  if (!lt_.algorithm) return true;
  for (const int64_t index : {int64_t{0}, cut.pieces() - 1}) {
    LtCheckResult found{};
    if (!make_layouts(operations::piece_of(cut, shape_, index)) ||
        g_lt.check(lt_.handle, lt_.operation, piece_layouts_[kA], piece_layouts_[kB], piece_layouts_[kC],
                   piece_layouts_[kD], lt_.algorithm, &found) != 0 ||
        found.workspace_bytes > lt_.workspace_bytes)
      return false;
  }
  return true;
}

std::optional<operations::Result> LtCall::result() const {
  return operations::Result{kFamily, shape_, matrices_[kD]};
}

bool LtCall::stream(void** out) const {
  *out = lt_.stream;
  return true;
}

// By the header the target matters where the library chooses: not with the caller's algorithm.
bool LtCall::narrow(uint32_t sms) {
  int32_t before = 0;
  if (lt_.algorithm || !lt_of(function) || !g_lt.set_product ||
      !read(g_lt.product, lt_.operation, kSmTarget, &before) || !is_less(sms, before))
    return false;
  memcpy(narrowed_, lt_.operation, sizeof narrowed_);
  const auto target = int32_t(sms);
  if (g_lt.set_product(narrowed_, kSmTarget, &target, sizeof target) != 0) return false;
  operation_ = narrowed_;
  return true;
}

int LtCall::issue_whole() const {
  const uint64_t values[] = {as_number(operation_),   lt_.a.address,           as_number(lt_.a.layout),
                             lt_.b.address,           as_number(lt_.b.layout), lt_.c.address,
                             as_number(lt_.c.layout), lt_.d.address,           as_number(lt_.d.layout)};
  return repeater.issue(repeater.context, values);
}

int LtCall::issue(const operations::Split& cut, int64_t index, uint64_t result) {
  const operations::Piece piece = operations::piece_of(cut, shape_, index);
  const operations::SplitRow& row = *operations::split_row(kFamily, cut.axis);
  if (!make_layouts(piece)) return kInternalError;
  operations::Matrix c = matrices_[kC], d = matrices_[kD];
  if (c.address == d.address) c.address = result;
  d.address = result;
  const auto layout = [&](Operand i) { return reinterpret_cast<uint64_t>(piece_layouts_[i]); };
  const uint64_t values[] = {as_number(operation_),
                             operations::moved(matrices_[kA], row.a, piece),
                             layout(kA),
                             operations::moved(matrices_[kB], row.b, piece),
                             layout(kB),
                             c.address ? operations::moved(c, row.c, piece) : 0,
                             layout(kC),
                             operations::moved(d, row.c, piece),
                             layout(kD)};
  return repeater.issue(repeater.context, values);
}

}  // namespace tessera::library

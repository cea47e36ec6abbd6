// Products of cuBLAS in pieces: where its functions have which argument, by form and number of arguments.
#pragma once

#include <cstddef>
#include <optional>
#include <tuple>
#include <type_traits>

#include "interpose/operations/sm_target.h"
#include "interpose/operations/split_arguments.h"
#include "operations/split_groups.h"

struct cuComplex;
struct cuDoubleComplex;
struct __half;

namespace tessera::library {

// cublasOperation_t: N is 0; T and C, the conjugate, both read columns as rows.
inline constexpr int kNotTransposed = 0;

// Positions of arguments; 0: has none.
struct Places {
  size_t a = 0, lda = 0, stride_a = 0, b = 0, ldb = 0, stride_b = 0, c = 0, ldc = 0, stride_c = 0, count = 0;
  bool known = false;
};
// All have: handle, transa, transb, m, n, k, alpha, A, B, beta, C. With a matrix come its type, in functions that name types, its
// leading dimension, and its stride; behind C the count, and in functions that name types two more numbers, but for some of one product.
constexpr Places places_of(operations::Form form, size_t n_arguments) {
  using operations::Form;
  const bool strided = form == Form::kStrided, batch = strided || form == Form::kPointers;
  if (!batch && form != Form::kOne) return {};
  for (const size_t types : {0, 1}) {
    const size_t leading = 1 + types, width = leading + 1 + strided;
    const size_t a = 7, b = a + width, c = b + width + 1, end = c + width + batch;
    if (n_arguments != end + 2 * types && (batch || n_arguments != end)) continue;
    const auto stride = [&](size_t matrix) { return strided ? matrix + leading + 1 : 0; };
    return {.a = a,
            .lda = a + leading,
            .stride_a = stride(a),
            .b = b,
            .ldb = b + leading,
            .stride_b = stride(b),
            .c = c,
            .ldc = c + leading,
            .stride_c = stride(c),
            .count = batch ? c + width : 0,
            .known = true};
  }
  return {};
}

// All numbers, no pointers.
template <class... Args>
uint64_t settings_of(const std::tuple<Args...>& arguments) {
  uint64_t hash = sizeof...(Args);
  std::apply(
      [&](const auto&... one) {
        ((std::is_pointer_v<std::remove_cvref_t<decltype(one)>>
              ? void()
              : void(hash = mixed_in(hash, as_number(one)))),
         ...);
      },
      arguments);
  return hash;
}

template <size_t kPlace, class... Args>
int64_t number_at(const std::tuple<Args...>& arguments) {
  if constexpr (kPlace == 0)
    return 0;
  else
    return static_cast<int64_t>(std::get<kPlace>(arguments));
}

// ---- alpha and beta

// Bytes of one that is pointed to as T; 0: the compute type says.
template <class T>
inline constexpr size_t kScalarBytes = sizeof(T);
template <>
inline constexpr size_t kScalarBytes<void> = 0;
template <>
inline constexpr size_t kScalarBytes<__half> = 2;
template <>
inline constexpr size_t kScalarBytes<cuComplex> = 8;
template <>
inline constexpr size_t kScalarBytes<cuDoubleComplex> = 16;

// Size of a real number, by a cublasComputeType_t; 0: none that is known.
constexpr size_t scalar_bytes_of(int compute) {
  switch (compute) {
    case 64:  // CUBLAS_COMPUTE_16F, _PEDANTIC
    case 65:
      return 2;
    case 68:  // CUBLAS_COMPUTE_32F, _PEDANTIC, _FAST_16F, _FAST_16BF, _FAST_TF32, _EMULATED_16BFX9
    case 69:
    case 74:
    case 75:
    case 77:
    case 78:
    case 72:  // CUBLAS_COMPUTE_32I, _PEDANTIC
    case 73:
      return 4;
    case 70:  // CUBLAS_COMPUTE_64F, _PEDANTIC; not _EMULATED_FIXEDPOINT: see GemmCall::settings()
    case 71:
      return 8;
    default:
      return 0;
  }
}

// Functions that name types end with the compute type and an algorithm.
template <class... Args>
size_t scalar_bytes(const std::tuple<Args...>& arguments, bool is_of_complex) {
  using Alpha = std::tuple_element_t<6, std::tuple<Args...>>;
  if constexpr (constexpr size_t kBytes = kScalarBytes<std::remove_cv_t<std::remove_pointer_t<Alpha>>>;
                kBytes != 0)
    return kBytes;
  else
    return scalar_bytes_of(std::get<sizeof...(Args) - 2>(arguments)) * (is_of_complex ? 2 : 1);
}

// ---- groups: arrays of everything

struct GroupPlaces {
  size_t alpha = 6, a = 7, lda = 8, b = 9, ldb = 10, beta = 11, c = 12, ldc = 13, count = 14, size = 15;
  size_t compute = 0;  // 0: alpha and beta are of the type that their pointers say
};
constexpr GroupPlaces group_places_of(size_t n_arguments) {
  if (n_arguments == 16) return {};
  return {
      .lda = 9, .b = 10, .ldb = 12, .beta = 13, .c = 14, .ldc = 16, .count = 17, .size = 18, .compute = 19};
}

template <class Pointer>
void advance(Pointer& array, int64_t elements, size_t bytes = sizeof(*Pointer{})) {
  array = reinterpret_cast<Pointer>(reinterpret_cast<uint64_t>(array) + uint64_t(elements) * bytes);
}

// Nothing that the library would refuse for the whole call but not for a piece.
template <class Int>
bool groups_can_be_cut(const operations::Groups<Int>& g, const int* ta, const int* tb, const Int* lda,
                       const Int* ldb, const Int* ldc) {
  if (!ta || !tb || !lda || !ldb || !ldc) return false;
  for (int64_t i = 0; i < g.count; i++) {
    const operations::GemmShape shape{g.m[i], g.n[i], g.k[i], g.size[i]};
    const auto of = [](int64_t leading, int transposition) {
      return operations::Matrix{0, leading, 0, 8, transposition != kNotTransposed};
    };
    if (shape.m <= 0 || shape.n <= 0 || shape.k <= 0 || shape.count <= 0) return false;
    if (ta[i] < 0 || ta[i] > 2 || tb[i] < 0 || tb[i] > 2) return false;
    if (!operations::leading_dimensions_fit(shape, of(lda[i], ta[i]), of(ldb[i], tb[i]),
                                            of(ldc[i], kNotTransposed)))
      return false;
  }
  return true;
}

// One call of groups, by its arguments.
template <class Function, class... Args>
struct GroupCall {
  static constexpr GroupPlaces kAt = group_places_of(sizeof...(Args));
  using Arguments = std::tuple<Args...>;
  using Int = std::remove_cvref_t<decltype(*std::get<kAt.size>(Arguments{}))>;
  Function* function;
  Arguments arguments;

  template <size_t kPlace>
  auto at() const {
    return std::get<kPlace>(arguments);
  }
  operations::Groups<Int> groups() const {
    return {at<3>(), at<4>(), at<5>(), at<kAt.size>(), int64_t(at<kAt.count>())};
  }
  size_t scalar_bytes() const {
    if constexpr (kAt.compute != 0)
      return scalar_bytes_of(at<kAt.compute>());
    else
      return sizeof(*at<kAt.alpha>());
  }
  bool can_be_cut() const {
    return scalar_bytes() != 0 && at<kAt.alpha>() && at<kAt.beta>() &&
           groups_can_be_cut(groups(), at<1>(), at<2>(), at<kAt.lda>(), at<kAt.ldb>(), at<kAt.ldc>());
  }
  // `before`: products of the groups before the piece's first.
  int issue(const operations::GroupPiece& piece, int64_t before) const {
    Arguments changed = arguments;
    const auto by_group = [&]<size_t... kPlaces>(std::index_sequence<kPlaces...>) {
      (advance(std::get<kPlaces>(changed), piece.group), ...);
    };
    by_group(std::index_sequence<1, 2, 3, 4, 5, kAt.lda, kAt.ldb, kAt.ldc, kAt.size>{});
    advance(std::get<kAt.alpha>(changed), piece.group, scalar_bytes());
    advance(std::get<kAt.beta>(changed), piece.group, scalar_bytes());
    const operations::SplitRow& row =
        *operations::split_row(operations::SplitFamily::kGroups, operations::SplitAxis::kBatch);
    const operations::Piece products{.product = before + piece.product};
    const auto moves = [&](auto& array, operations::Moves how) {
      const operations::Matrix named{.address = as_number(array)};
      array = as_argument<std::remove_reference_t<decltype(array)>>(operations::moved(named, how, products));
    };
    moves(std::get<kAt.a>(changed), row.a);
    moves(std::get<kAt.b>(changed), row.b);
    moves(std::get<kAt.c>(changed), row.c);
    std::get<kAt.count>(changed) = Int(piece.groups);
    const Int some = Int(piece.products);
    if (piece.groups == 1) std::get<kAt.size>(changed) = &some;
    return std::apply(function, changed);
  }
};

template <class Function, class... Args>
bool split_groups(Call& call, const GroupCall<Function, Args...>& what, int* status) {
  const int64_t wanted = pieces_if_relaxed(call);
  if (wanted < 2) return false;
  if (!what.can_be_cut()) return count_kept_form(), false;
  const operations::Groups groups = what.groups();
  const uint64_t all = operations::work_of(groups), most = all / uint64_t(wanted) + 1;
  const operations::GroupPiece first = operations::piece_from(groups, 0, 0, most);
  if (first.groups == groups.count && first.products == groups.size[0]) return count_kept_form(), false;
  int64_t issued = 0, group = 0, before = 0;
  operations::for_pieces(groups, most, [&](const operations::GroupPiece& piece) {
    for (; group < piece.group; group++) before += groups.size[group];
    const PieceNote note(call.note(), operations::work_of(groups, piece), all);
    *status = what.issue(piece, before);
    issued++;
    return *status == 0;
  });
  count_pieces(issued);
  return true;
}

// ---- one product, or a batch of them

constexpr operations::SplitFamily family_of(operations::Form form) {
  using operations::Form;
  using operations::SplitFamily;
  return form == Form::kStrided    ? SplitFamily::kStridedBatch
         : form == Form::kPointers ? SplitFamily::kPointerBatch
         : form == Form::kGrouped  ? SplitFamily::kGroups
                                   : SplitFamily::kProduct;
}

struct GemmArguments {
  const void* handle;
  operations::GemmShape shape;
  operations::SplitFamily family;
  operations::Matrix a, b, c;  // of kPointerBatch: the arrays
  uint64_t numbers;            // hash of all other numbers of the call
  const void *alpha, *beta;    // in host memory or on the device, as the handle says
  size_t scalar_bytes;         // of each; 0: of a type that is not known
};

class GemmCall final : public SplitCall {
 public:
  // The values of `again`: m, n, A, B, C, count.
  GemmCall(const void* called, const Repeater& again, const GemmArguments& arguments)
      : SplitCall(called, again), gemm_(arguments) {}

  std::optional<operations::Split> cut(int64_t pieces) override;
  uint64_t settings() override;
  std::optional<operations::Result> result() const override;
  bool stream(void** out) const override;
  bool narrow(uint32_t sms) override;
  int issue(const operations::Split& cut, int64_t index, uint64_t result) override;

 private:
  // False if its address stands in arrays in device memory.
  bool result_is_known() const { return gemm_.family != operations::SplitFamily::kPointerBatch; }

  const GemmArguments gemm_;
  std::optional<SmTarget> target_;
};

// `arguments`: of a function of that form, called with what `call` was told of.
template <operations::Form kForm, class Function, class... Args>
bool split_product(Call& call, Function* function, const std::tuple<Args...>& arguments, int* status) {
  constexpr Places kAt = places_of(kForm, sizeof...(Args));
  if constexpr (kForm == operations::Form::kGrouped) {
    return split_groups(call, GroupCall<Function, Args...>{function, arguments}, status);
  } else if constexpr (!kAt.known) {
    return false;
  } else {
    const Operation& operation = call.operation();
    const auto matrix = [&](uint64_t address, int64_t leading, int64_t stride, Type type, int transposition) {
      return operations::Matrix{address, leading, stride, operations::bits_of(type),
                                transposition != kNotTransposed};
    };
    const GemmArguments gemm{
        .handle = std::get<0>(arguments),
        .shape = {std::get<3>(arguments), std::get<4>(arguments), std::get<5>(arguments),
                  kAt.count ? number_at<kAt.count>(arguments) : 1},
        .family = family_of(kForm),
        .a = matrix(as_number(std::get<kAt.a>(arguments)), number_at<kAt.lda>(arguments),
                    number_at<kAt.stride_a>(arguments), operation.types.a, std::get<1>(arguments)),
        .b = matrix(as_number(std::get<kAt.b>(arguments)), number_at<kAt.ldb>(arguments),
                    number_at<kAt.stride_b>(arguments), operation.types.b, std::get<2>(arguments)),
        .c = matrix(as_number(std::get<kAt.c>(arguments)), number_at<kAt.ldc>(arguments),
                    number_at<kAt.stride_c>(arguments), operation.types.c, kNotTransposed),
        .numbers = settings_of(arguments),
        .alpha = std::get<6>(arguments),
        .beta = std::get<kAt.c - 1>(arguments),
        .scalar_bytes = scalar_bytes(arguments, operations::is_complex(operation.types.c))};
    const auto run = [&](const auto& again) {
      GemmCall what(reinterpret_cast<const void*>(function), again.repeater(), gemm);
      return split(call, what, status);
    };
    using Arguments = std::tuple<Args...>;
    if constexpr (kAt.count != 0)
      return run(PieceCall<Function, Arguments, 3, 4, kAt.a, kAt.b, kAt.c, kAt.count>(function, arguments));
    else
      return run(PieceCall<Function, Arguments, 3, 4, kAt.a, kAt.b, kAt.c>(function, arguments));
  }
}

}  // namespace tessera::library

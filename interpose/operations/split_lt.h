// Products of cuBLASLt in pieces: batches by the batch, one product into slabs. A piece has the program's handle, product
// descriptor, algorithm, workspace and stream, and layouts of its own: copies of the program's with fewer rows, columns or
// products. A call that is to keep off some SMs has a copy of the product's descriptor, too: the program's is never written.
// So nothing can be cut whose descriptor of the product names memory that a piece would have to move in, or write
// beside D: split_lt.cc has the tables.
#pragma once

#include "interpose/operations/lt_attributes.h"
#include "interpose/operations/split_arguments.h"

namespace tessera::library {

// As cublasLtMatmul() has them.
struct LtArguments {
  const void *handle, *operation, *alpha, *beta;
  struct {
    uint64_t address;
    const void* layout;
  } a, b, c, d;
  const void* algorithm;  // null: the library chooses one, for each piece as for the whole
  uint64_t workspace, workspace_bytes;
  void* stream;
};

// cublasLtMatmulHeuristicResult_t; a test compares.
struct LtCheckResult {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int32_t status;
  float waves;
  int32_t reserved[4];
};

class LtCall final : public SplitCall {
 public:
  // The values of `again`: descriptor of the product; address and layout of A, B, C, D.
  LtCall(const void* called, const Repeater& again, const LtArguments& arguments)
      : SplitCall(called, again), lt_(arguments) {}

  std::optional<operations::Split> cut(int64_t pieces) override;
  uint64_t settings() override;
  bool takes(const operations::Split& cut) override;
  std::optional<operations::Result> result() const override;
  bool stream(void** out) const override;
  int issue_whole() const override;
  bool narrow(uint32_t sms) override;
  int issue(const operations::Split& cut, int64_t index, uint64_t result) override;

 private:
  enum Operand : uint32_t { kA, kB, kC, kD, kOperands };
  // A layout as its descriptor says it.
  struct Layout {
    int32_t type = 0, order = 0;
    uint64_t rows = 0, columns = 0;
    int64_t leading = 0;
    int32_t products = 0;
    int64_t stride = 0, plane_offset = 0;
    uint32_t batch_mode = 0;
  };
  bool read_product();
  bool read_layouts();
  bool fits() const;
  operations::Matrix bias() const;
  bool make_layouts(const operations::Piece& piece);
  bool c_is_apart() const;

  const LtArguments lt_;
  // Written by cut(). Attributes of the product by their rows in split_lt.cc.
  static constexpr size_t kMostRules = 32;
  uint64_t product_[kMostRules] = {};
  Layout layouts_[kOperands];
  operations::Matrix matrices_[kOperands] = {};
  operations::GemmShape shape_ = {};
  uint64_t piece_layouts_[kOperands][kLayoutWords];
  // Written by narrow().
  const void* operation_ = lt_.operation;  // that the library is called with
  uint64_t narrowed_[kMatmulWords];
};

// `arguments`: of cublasLtMatmul().
template <class Function, class... Args>
bool split_lt(Call& call, Function* function, const std::tuple<Args...>& arguments, int* status) {
  static_assert(sizeof...(Args) == 16);
  const LtArguments lt{.handle = std::get<0>(arguments),
                       .operation = std::get<1>(arguments),
                       .alpha = std::get<2>(arguments),
                       .beta = std::get<7>(arguments),
                       .a = {as_number(std::get<3>(arguments)), std::get<4>(arguments)},
                       .b = {as_number(std::get<5>(arguments)), std::get<6>(arguments)},
                       .c = {as_number(std::get<8>(arguments)), std::get<9>(arguments)},
                       .d = {as_number(std::get<10>(arguments)), std::get<11>(arguments)},
                       .algorithm = std::get<12>(arguments),
                       .workspace = as_number(std::get<13>(arguments)),
                       .workspace_bytes = std::get<14>(arguments),
                       .stream = std::get<15>(arguments)};
  const PieceCall<Function, std::tuple<Args...>, 1, 3, 4, 5, 6, 8, 9, 10, 11> again(function, arguments);
  LtCall what(reinterpret_cast<const void*>(function), again.repeater(), lt);
  return split(call, what, status);
}

}  // namespace tessera::library

// Convolutions of cuDNN's legacy interface in pieces: forward (also with bias and activation) and the gradient of the data, by the
// image. A piece has the program's handle, filter, convolution, algorithm and workspace, and tensor descriptors of its own, with
// fewer images. The gradient of the filter is a sum over images and stays whole, as do graphs of the backend interface.
#pragma once

#include "interpose/operations/cudnn.h"
#include "interpose/operations/split_arguments.h"

namespace tessera::library {

// A tensor with an image for each of the batch.
struct Images {
  const void* descriptor;
  uint64_t address;
};
// As the three functions have them. x is what is read, y what is written: of the gradient, dy and dx.
struct ConvolutionArguments {
  const void *handle, *filter, *convolution;
  int algorithm;
  uint64_t workspace, workspace_bytes;
  const void *alpha, *beta;  // beta: of the third function alpha2, the factor of z
  Images x, z, y;            // z: of the third function only, else null
  const void *bias, *activation;
  bool of_gradient;
};

class ConvolutionCall final : public SplitCall {
 public:
  // The values of `again`: descriptor and address of x, of z if there is one, of y.
  ConvolutionCall(const void* called, const Repeater& again, const ConvolutionArguments& arguments)
      : SplitCall(called, again), arguments_(arguments) {}
  ~ConvolutionCall();

  std::optional<operations::Split> cut(int64_t pieces) override;
  uint64_t settings() override;
  bool takes(const operations::Split& cut) override;
  std::optional<operations::Result> result() const override;
  bool stream(void** out) const override;
  int issue(const operations::Split& cut, int64_t index, uint64_t result) override;

 private:
  static constexpr int kMostDims = 8;  // CUDNN_DIM_MAX
  struct Tensor {
    int type = -1, n = 0, dims[kMostDims] = {}, strides[kMostDims] = {};
    void* of_piece = nullptr;  // a descriptor of ours
    operations::Matrix images = {};
    uint64_t end = 0;  // behind its last element
  };
  enum Operand : uint32_t { kX, kZ, kY, kOperands };

  bool has(Operand i) const { return i != kZ || arguments_.z.descriptor; }
  const Images& asked(Operand i) const {
    return i == kX ? arguments_.x : i == kZ ? arguments_.z : arguments_.y;
  }
  bool read(Operand i);
  bool fits(Operand i) const;
  bool make_tensors(int64_t images);

  const ConvolutionArguments arguments_;
  // Written by cut(): a convolution as a batch of products, whose C is an image.
  Tensor tensors_[kOperands];
  operations::GemmShape shape_ = {};
};

// `arguments`: of a function of that family.
template <Family kFamily, class Function, class... Args>
bool split_convolution(Call& call, Function* function, const std::tuple<Args...>& arguments, int* status) {
  constexpr bool kOfGradient = kFamily == Family::kConvolutionOfGradient,
                 kActivated = kFamily == Family::kConvolutionActivation;
  static_assert(sizeof...(Args) == (kActivated ? 18 : 13));
  // All have: handle, alpha, two operands with their descriptors, convolution, algorithm, workspace, its size, beta.
  constexpr size_t kX = kOfGradient ? 4 : 2, kFilter = kOfGradient ? 2 : 4, kZ = 11,
                   kY = kActivated ? 16 : 11;
  const auto images = [&]<size_t kPlace>(std::integral_constant<size_t, kPlace>) {
    return Images{std::get<kPlace>(arguments), as_number(std::get<kPlace + 1>(arguments))};
  };
  ConvolutionArguments convolution{.handle = std::get<0>(arguments),
                                   .filter = std::get<kFilter>(arguments),
                                   .convolution = std::get<6>(arguments),
                                   .algorithm = std::get<7>(arguments),
                                   .workspace = as_number(std::get<8>(arguments)),
                                   .workspace_bytes = std::get<9>(arguments),
                                   .alpha = std::get<1>(arguments),
                                   .beta = std::get<10>(arguments),
                                   .x = images(std::integral_constant<size_t, kX>()),
                                   .z = {},
                                   .y = images(std::integral_constant<size_t, kY>()),
                                   .bias = nullptr,
                                   .activation = nullptr,
                                   .of_gradient = kOfGradient};
  const auto run = [&](const auto& again) {
    ConvolutionCall what(reinterpret_cast<const void*>(function), again.repeater(), convolution);
    return split(call, what, status);
  };
  using Arguments = std::tuple<Args...>;
  if constexpr (kActivated) {
    convolution.z = images(std::integral_constant<size_t, kZ>());
    convolution.bias = std::get<13>(arguments);
    convolution.activation = std::get<15>(arguments);
    return run(PieceCall<Function, Arguments, kX, kX + 1, kZ, kZ + 1, kY, kY + 1>(function, arguments));
  } else {
    return run(PieceCall<Function, Arguments, kX, kX + 1, kY, kY + 1>(function, arguments));
  }
}

}  // namespace tessera::library

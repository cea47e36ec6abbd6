// The network on the device: y = max(0, x + norm2(conv2(max(0, norm1(conv1(x)))))), the mean of each channel, classes. Training has
// the way back and descent with momentum. One stream; memory lives as long as the process. Single-threaded.
#pragma once

#include "../network.h"
#include "layers.h"
#include "shape.h"

namespace samples::resnet {

constexpr int kBlock = 128;

// Loss and its gradient by the logarithms; one thread adds up in the order of the images.
__global__ void cross_entropy(const float* logarithms, const int* target, float* gradient, float* loss,
                              int batch, int classes) {
  float sum = 0;
  for (int b = 0; b < batch; ++b)
    for (int c = 0; c < classes; ++c) {
      const bool wanted = c == target[b];
      if (wanted) sum -= logarithms[b * classes + c];
      gradient[b * classes + c] = wanted ? -1.0f / batch : 0.0f;
    }
  *loss = sum / batch;
}

__global__ void __launch_bounds__(kBlock)
    descend(float* parameter, float* velocity, const float* gradient, float rate, float momentum, int count) {
  const int i = blockIdx.x * kBlock + threadIdx.x;
  if (i >= count) return;
  velocity[i] = momentum * velocity[i] + gradient[i];
  parameter[i] -= rate * velocity[i];
}

class Model {
 public:
  Model(const Shape& shape, uint64_t seed, bool training)
      : shape_(shape),
        layout_(parameters_of(shape)),
        training_(training),
        stream_(make_stream()),
        cudnn_(stream_),
        conv1_(cudnn_, shape.batch, shape.channels, shape.channels, shape.size, kWindow, training),
        conv2_(cudnn_, shape.batch, shape.channels, shape.channels, shape.size, kWindow, training),
        norm1_(cudnn_, shape.batch, shape.channels, shape.size),
        norm2_(cudnn_, shape.batch, shape.channels, shape.size),
        rectifier_(cudnn_, shape.batch, shape.channels, shape.size),
        head_(cudnn_, shape.batch, shape.channels, shape.size, shape.classes, training) {
    parameters_ = device_parameters(layout_.all, layout_.count, seed,
                                    [](float fan_in) { return std::sqrt(3.0f / fan_in); });
    for (float** features : {&x_, &convolved1_, &normalised1_, &hidden_, &convolved2_, &sum_, &out_})
      *features = device_array<float>(shape.images());
    logarithms_ = device_array<float>(shape.scores());
    target_ = device_array<int>(size_t(shape.batch));
    if (!training) return;
    for (float** state : {&gradient_, &velocity_}) {
      *state = device_array<float>(layout_.count);
      CUDA_CHECK(cudaMemset(*state, 0, layout_.count * sizeof(float)));
    }
    d_a_ = device_array<float>(shape.images()), d_b_ = device_array<float>(shape.images());
    d_logarithms_ = device_array<float>(shape.scores()), loss_ = device_array<float>(1);
  }

  cudaStream_t stream() const { return stream_; }
  const Shape& shape() const { return shape_; }
  const Parameters& layout() const { return layout_; }
  float* parameters() const { return parameters_; }
  const float* gradient() const { return gradient_; }
  const float* loss() const { return loss_; }
  const float* logarithms() const { return logarithms_; }

  // The host's memory stays as it is until the stream has passed this.
  void set_images(const float* pinned) {
    CUDA_CHECK(cudaMemcpyAsync(x_, pinned, shape_.images() * sizeof(float), cudaMemcpyHostToDevice, stream_));
  }
  void set_targets(const int* pinned) {
    CUDA_CHECK(cudaMemcpyAsync(target_, pinned, size_t(shape_.batch) * sizeof(int), cudaMemcpyHostToDevice,
                               stream_));
  }

  void forward() {
    conv1_.forward(x_, at(layout_.filter1), convolved1_);
    normalise(norm1_, convolved1_, layout_.scale1, layout_.shift1, normalised1_);
    rectifier_.forward(normalised1_, hidden_);
    conv2_.forward(hidden_, at(layout_.filter2), convolved2_);
    normalise(norm2_, convolved2_, layout_.scale2, layout_.shift2, sum_);
    rectifier_.add(x_, sum_);
    rectifier_.forward(sum_, out_);
    head_.forward(out_, at(layout_.head), at(layout_.head_bias), logarithms_);
  }

  // Loss of the targets, and its gradient.
  void differentiate() {
    forward();
    cross_entropy<<<1, 1, 0, stream_>>>(logarithms_, target_, d_logarithms_, loss_, shape_.batch,
                                        shape_.classes);
    CUDA_CHECK(cudaGetLastError());
    head_.backward(out_, at(layout_.head), logarithms_, d_logarithms_, d_a_, gradient_at(layout_.head),
                   gradient_at(layout_.head_bias));
    rectifier_.backward(sum_, out_, d_a_, d_b_);
    norm2_.backward(convolved2_, d_b_, at(layout_.scale2), d_a_, gradient_at(layout_.scale2),
                    gradient_at(layout_.shift2));
    conv2_.filter_gradient(hidden_, d_a_, gradient_at(layout_.filter2));
    conv2_.input_gradient(at(layout_.filter2), d_a_, d_b_);
    rectifier_.backward(normalised1_, hidden_, d_b_, d_a_);
    norm1_.backward(convolved1_, d_a_, at(layout_.scale1), d_b_, gradient_at(layout_.scale1),
                    gradient_at(layout_.shift1));
    conv1_.filter_gradient(x_, d_b_, gradient_at(layout_.filter1));
  }

  void update() {
    const int count = int(layout_.count);
    descend<<<(count + kBlock - 1) / kBlock, kBlock, 0, stream_>>>(parameters_, velocity_, gradient_, 0.05f,
                                                                   0.9f, count);
    CUDA_CHECK(cudaGetLastError());
  }

 private:
  float* at(const Tensor& t) const { return parameters_ + t.offset; }
  float* gradient_at(const Tensor& t) const { return gradient_ + t.offset; }
  void normalise(Normalisation& norm, const float* x, const Tensor& scale, const Tensor& shift, float* y) {
    if (training_)
      norm.train(x, at(scale), at(shift), y);
    else
      norm.infer(x, at(scale), at(shift), y);
  }

  const Shape shape_;
  const Parameters layout_;
  const bool training_;
  cudaStream_t stream_;
  Cudnn cudnn_;
  Convolution conv1_, conv2_;
  Normalisation norm1_, norm2_;
  Rectifier rectifier_;
  Head head_;
  float* parameters_ = nullptr;
  int* target_ = nullptr;
  float *x_, *convolved1_, *normalised1_, *hidden_, *convolved2_, *sum_, *out_, *logarithms_;
  // Training only; d_a_ and d_b_ take turns as the gradient of what flows through the block.
  float *gradient_ = nullptr, *velocity_ = nullptr, *d_a_ = nullptr, *d_b_ = nullptr;
  float *d_logarithms_ = nullptr, *loss_ = nullptr;
};

}  // namespace samples::resnet

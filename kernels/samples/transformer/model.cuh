// The decoder on the device: parameters, forward pass, and for training the way back and Adam. Work is enqueued on one stream;
// memory lives as long as the process. Single-threaded.
#pragma once

#include <memory>

#include "../network.h"
#include "kernels.cuh"
#include "products.h"
#include "shape.h"

namespace samples::transformer {

class Model {
 public:
  Model(const Shape& shape, uint64_t seed, bool training)
      : shape_(shape),
        layout_(parameters_of(shape)),
        training_(training),
        stream_(make_stream()),
        products_(stream_) {
    parameters_ = device_parameters(layout_.all, layout_.count, seed,
                                    [](float fan_in) { return 1.0f / std::sqrt(fan_in); });
    token_ = device_array<int>(tokens()), target_ = device_array<int>(tokens());
    x_ = array(width()), qkv_ = array(3 * width()), context_heads_ = array(width());
    for (int i = 0; i < shape.layers; ++i) blocks_.push_back(make_block(i));
    last_norm_ = array(width()), last_moments_ = device_array<float2>(tokens());
    logits_ = array(shape.vocabulary);
    if (training) make_training_state();
  }

  cudaStream_t stream() const { return stream_; }
  const Shape& shape() const { return shape_; }
  const Parameters& layout() const { return layout_; }
  float* parameters() const { return parameters_; }
  float* gradient() const { return gradient_; }
  const float* loss() const { return loss_; }

  // Both have shape().tokens() numbers; the memory stays as it is until the stream has passed this.
  void set_tokens(const int* pinned) { copy_in(token_, pinned); }
  void set_targets(const int* pinned) { copy_in(target_, pinned); }

  // Probabilities of the token that follows each sequence, to batch rows of `output` (device).
  void predict(float* output) {
    forward();
    const int rows = shape_.batch, step = shape_.length * width();  // the last position of each sequence
    products_.multiply({last_norm_ + step - width(), step}, {at(layout_.head), shape_.vocabulary}, output,
                       rows, shape_.vocabulary, width());
    softmax<<<blocks_for_rows(rows), kBlock, 0, stream_>>>(output, rows, shape_.vocabulary, false);
    CUDA_CHECK(cudaGetLastError());
  }

  // Loss of the targets, and its gradient.
  void differentiate() {
    const int rows = tokens(), columns = shape_.vocabulary;
    forward();
    products_.multiply({last_norm_, width()}, {at(layout_.head), columns}, logits_, rows, columns, width());
    cross_entropy<<<blocks_for_rows(rows), kBlock, 0, stream_>>>(logits_, target_, row_loss_, rows, columns);
    mean<<<1, kBlock, 0, stream_>>>(row_loss_, loss_, rows);
    backward();
    CUDA_CHECK(cudaGetLastError());
  }

  void update(int64_t step) {  // from 0
    Adam a{0.003f, 0.9f, 0.99f, 1e-8f, 0, 0};
    a.first_correction = float(1 / (1 - std::pow(double(a.first_decay), double(step + 1))));
    a.second_correction = float(1 / (1 - std::pow(double(a.second_decay), double(step + 1))));
    const int count = int(layout_.count);
    adam<<<blocks_for(count), kBlock, 0, stream_>>>(parameters_, first_, second_, gradient_, a, count);
    CUDA_CHECK(cudaGetLastError());
  }

 private:
  // What one layer computes and, training, keeps for the way back.
  struct Block {
    const Layer* at = nullptr;
    float *norm1, *heads, *probability, *context, *middle, *norm2, *before, *hidden, *out;
    float2 *moments1, *moments2;
    std::unique_ptr<Linear> qkv, merge, up, down;
  };

  int tokens() const { return shape_.tokens(); }
  int width() const { return shape_.width; }
  int score_rows() const { return shape_.batch * shape_.heads * shape_.length; }
  int score_count() const { return score_rows() * shape_.length; }
  float* array(int columns) const { return device_array<float>(size_t(tokens()) * size_t(columns)); }
  float* at(const Tensor& t) const { return parameters_ + t.offset; }
  float* gradient_at(const Tensor& t) const { return gradient_ + t.offset; }
  void copy_in(int* to, const int* pinned) {
    CUDA_CHECK(cudaMemcpyAsync(to, pinned, size_t(tokens()) * sizeof(int), cudaMemcpyHostToDevice, stream_));
  }
  HeadShape head_shape(int parts) const {
    return {shape_.length, shape_.heads, shape_.head_width(), parts, shape_.batch};
  }
  // One of query, key, value as a batch of matrices, one for each head of each sequence.
  Operand heads(const float* all, int part, bool transposed = false) const {
    return {all + size_t(part) * tokens() * width(), shape_.head_width(), transposed,
            (long long)shape_.length * shape_.head_width()};
  }
  Operand scores(const float* all, bool transposed = false) const {
    return {all, shape_.length, transposed, (long long)shape_.length * shape_.length};
  }
  float score_factor() const { return 1.0f / std::sqrt(float(shape_.head_width())); }

  Block make_block(int i) {
    const Layer& l = layout_.layers[size_t(i)];
    Block b;
    b.at = &l;
    b.norm1 = array(width()), b.heads = array(3 * width()), b.context = array(width()),
    b.middle = array(width());
    b.norm2 = array(width()), b.hidden = array(shape_.hidden), b.out = array(width());
    b.before = training_ ? array(shape_.hidden) : nullptr;
    b.probability = device_array<float>(size_t(score_count()));
    b.moments1 = device_array<float2>(tokens()), b.moments2 = device_array<float2>(tokens());
    const auto linear = [&](const Tensor& w, const Tensor& bias, int in, int out,
                            cublasLtEpilogue_t epilogue) {
      return std::make_unique<Linear>(products_, tokens(), in, out, epilogue, at(w), at(bias));
    };
    b.qkv = linear(l.qkv, l.qkv_bias, width(), 3 * width(), CUBLASLT_EPILOGUE_BIAS);
    b.merge = linear(l.merge, l.merge_bias, width(), width(), CUBLASLT_EPILOGUE_BIAS);
    // The way back needs what the activation was applied to.
    b.up = linear(l.up, l.up_bias, width(), shape_.hidden,
                  training_ ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_GELU_BIAS);
    b.down = linear(l.down, l.down_bias, shape_.hidden, width(), CUBLASLT_EPILOGUE_BIAS);
    return b;
  }

  void make_training_state() {
    for (float** state : {&gradient_, &first_, &second_}) {
      *state = device_array<float>(layout_.count);
      CUDA_CHECK(cudaMemset(*state, 0, layout_.count * sizeof(float)));
    }
    row_loss_ = array(1), loss_ = device_array<float>(1);
    dx_ = array(width()), d_width_ = array(width()), d_hidden_ = array(shape_.hidden);
    d_heads_ = array(3 * width()), d_qkv_ = array(3 * width());
    d_score_ = device_array<float>(size_t(score_count()));
  }

  void normalise(const float* x, const Tensor& scale, const Tensor& shift, float* y, float2* moments) {
    norm<<<blocks_for_rows(tokens()), kBlock, 0, stream_>>>(x, at(scale), at(shift), y, moments, tokens(),
                                                            width());
  }

  // Up to the normalised vectors behind the last layer.
  void forward() {
    const int count = tokens() * width();
    embed<<<blocks_for(count), kBlock, 0, stream_>>>(token_, at(layout_.token), at(layout_.position), x_,
                                                     shape_.length, width(), count);
    const float* x = x_;
    for (Block& b : blocks_) {
      attend(b, x);
      feed_forward(b);
      x = b.out;
    }
    normalise(x, layout_.norm_scale, layout_.norm_shift, last_norm_, last_moments_);
  }

  void attend(Block& b, const float* x) {
    const int count = tokens() * width(), n = shape_.batch * shape_.heads, length = shape_.length;
    normalise(x, b.at->norm1_scale, b.at->norm1_shift, b.norm1, b.moments1);
    b.qkv->run(b.norm1, nullptr, qkv_);
    split_heads<<<blocks_for(3 * count), kBlock, 0, stream_>>>(qkv_, b.heads, head_shape(3), 3 * count);
    products_.multiply_batch(heads(b.heads, 0), heads(b.heads, 1, true), b.probability, length, length,
                             shape_.head_width(), score_factor(), n);
    softmax<<<blocks_for_rows(score_rows()), kBlock, 0, stream_>>>(b.probability, score_rows(), length, true);
    products_.multiply_batch(scores(b.probability), heads(b.heads, 2), context_heads_, length,
                             shape_.head_width(), length, 1, n);
    merge_heads<<<blocks_for(count), kBlock, 0, stream_>>>(context_heads_, b.context, head_shape(1), count);
    b.merge->run(b.context, x, b.middle);
  }

  void feed_forward(Block& b) {
    normalise(b.middle, b.at->norm2_scale, b.at->norm2_shift, b.norm2, b.moments2);
    if (training_) {
      const int count = tokens() * shape_.hidden;
      b.up->run(b.norm2, nullptr, b.before);
      gelu_of<<<blocks_for(count), kBlock, 0, stream_>>>(b.before, b.hidden, count);
    } else {
      b.up->run(b.norm2, nullptr, b.hidden);
    }
    b.down->run(b.hidden, b.middle, b.out);
  }

  // dw = x^T dy, db = sums of dy, dx = dy w^T of y = x w + b.
  void linear_backward(const float* x, const float* dy, const Tensor& w, const Tensor& bias, float* dx,
                       int in, int out) {
    products_.multiply({x, in, true}, {dy, out}, gradient_at(w), in, out, tokens());
    column_sums<<<blocks_for_columns(out), kBlock, 0, stream_>>>(dy, gradient_at(bias), tokens(), out);
    products_.multiply({dy, out}, {at(w), out, true}, dx, tokens(), in, out);
  }

  void normalise_backward(const float* dy, const float* x, const float2* moments, const Tensor& scale,
                          const Tensor& shift, bool first) {
    norm_scale_gradient<<<blocks_for_columns(width()), kBlock, 0, stream_>>>(
        dy, x, moments, gradient_at(scale), tokens(), width());
    column_sums<<<blocks_for_columns(width()), kBlock, 0, stream_>>>(dy, gradient_at(shift), tokens(),
                                                                     width());
    norm_backward<<<blocks_for_rows(tokens()), kBlock, 0, stream_>>>(dy, x, moments, at(scale), dx_, first,
                                                                     tokens(), width());
  }

  // From the gradient of the logits to all others; dx_ is that of what flows between the layers.
  void backward() {
    const int columns = shape_.vocabulary;
    products_.multiply({last_norm_, width(), true}, {logits_, columns}, gradient_at(layout_.head), width(),
                       columns, tokens());
    products_.multiply({logits_, columns}, {at(layout_.head), columns, true}, d_width_, tokens(), width(),
                       columns);
    normalise_backward(d_width_, blocks_.empty() ? x_ : blocks_.back().out, last_moments_, layout_.norm_scale,
                       layout_.norm_shift, true);
    for (size_t i = blocks_.size(); i-- > 0;) {
      feed_forward_backward(blocks_[i]);
      attend_backward(blocks_[i], i == 0 ? x_ : blocks_[i - 1].out);
    }
    const int vectors = shape_.vocabulary * width(), positions = shape_.length * width();
    token_gradient<<<blocks_for(vectors), kBlock, 0, stream_>>>(token_, dx_, gradient_at(layout_.token),
                                                                tokens(), width(), vectors);
    position_gradient<<<blocks_for(positions), kBlock, 0, stream_>>>(dx_, gradient_at(layout_.position),
                                                                     shape_.batch, positions);
  }

  void feed_forward_backward(Block& b) {
    const int count = tokens() * shape_.hidden;
    linear_backward(b.hidden, dx_, b.at->down, b.at->down_bias, d_hidden_, shape_.hidden, width());
    gelu_backward<<<blocks_for(count), kBlock, 0, stream_>>>(b.before, d_hidden_, count);
    linear_backward(b.norm2, d_hidden_, b.at->up, b.at->up_bias, d_width_, width(), shape_.hidden);
    normalise_backward(d_width_, b.middle, b.moments2, b.at->norm2_scale, b.at->norm2_shift, false);
  }

  void attend_backward(Block& b, const float* x) {
    const int count = tokens() * width(), n = shape_.batch * shape_.heads, length = shape_.length;
    const int head_width = shape_.head_width();
    float *d_query = d_heads_, *d_key = d_heads_ + count, *d_value = d_heads_ + 2 * count;
    linear_backward(b.context, dx_, b.at->merge, b.at->merge_bias, d_width_, width(), width());
    split_heads<<<blocks_for(count), kBlock, 0, stream_>>>(d_width_, context_heads_, head_shape(1), count);
    products_.multiply_batch(heads(context_heads_, 0), heads(b.heads, 2, true), d_score_, length, length,
                             head_width, 1, n);
    products_.multiply_batch(scores(b.probability, true), heads(context_heads_, 0), d_value, length,
                             head_width, length, 1, n);
    softmax_backward<<<blocks_for_rows(score_rows()), kBlock, 0, stream_>>>(
        b.probability, d_score_, score_factor(), score_rows(), length);
    products_.multiply_batch(scores(d_score_), heads(b.heads, 1), d_query, length, head_width, length, 1, n);
    products_.multiply_batch(scores(d_score_, true), heads(b.heads, 0), d_key, length, head_width, length, 1,
                             n);
    merge_heads<<<blocks_for(3 * count), kBlock, 0, stream_>>>(d_heads_, d_qkv_, head_shape(3), 3 * count);
    linear_backward(b.norm1, d_qkv_, b.at->qkv, b.at->qkv_bias, d_width_, width(), 3 * width());
    normalise_backward(d_width_, x, b.moments1, b.at->norm1_scale, b.at->norm1_shift, false);
  }

  const Shape shape_;
  const Parameters layout_;
  const bool training_;
  cudaStream_t stream_;
  Products products_;
  std::vector<Block> blocks_;
  float* parameters_ = nullptr;
  int *token_ = nullptr, *target_ = nullptr;
  // Of the forward pass: the embedded tokens, then scratch of one layer.
  float *x_ = nullptr, *qkv_ = nullptr, *context_heads_ = nullptr;
  float *last_norm_ = nullptr, *logits_ = nullptr;
  float2* last_moments_ = nullptr;
  // Training only.
  float *gradient_ = nullptr, *first_ = nullptr, *second_ = nullptr, *row_loss_ = nullptr, *loss_ = nullptr;
  float *dx_ = nullptr, *d_width_ = nullptr, *d_hidden_ = nullptr, *d_heads_ = nullptr, *d_qkv_ = nullptr;
  float* d_score_ = nullptr;
};

}  // namespace samples::transformer

// The layers of cuDNN that the network is made of, on one stream, in single precision and NCHW. Single-threaded; everything lives as
// long as the process.
#pragma once

#include <cudnn.h>

#include "../support.h"

namespace samples::resnet {

#define CUDNN_CHECK(call)                                                                    \
  do {                                                                                       \
    const cudnnStatus_t status_ = (call);                                                    \
    if (status_ != CUDNN_STATUS_SUCCESS) samples::fail(#call, cudnnGetErrorString(status_)); \
  } while (0)

constexpr float kOne = 1, kZero = 0;

class Cudnn {
 public:
  explicit Cudnn(cudaStream_t stream) {
    CUDNN_CHECK(cudnnCreate(&handle_));
    CUDNN_CHECK(cudnnSetStream(handle_, stream));
  }
  operator cudnnHandle_t() const { return handle_; }
  // Grows; asked for before anything runs.
  void need_workspace(size_t bytes) {
    if (bytes <= bytes_) return;
    if (workspace_) CUDA_CHECK(cudaFree(workspace_));
    workspace_ = device_array<char>(bytes), bytes_ = bytes;
  }
  void* workspace() const { return workspace_; }
  size_t workspace_bytes() const { return bytes_; }

 private:
  cudnnHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  size_t bytes_ = 0;
};

inline cudnnTensorDescriptor_t tensor(int n, int c, int h, int w) {
  cudnnTensorDescriptor_t t;
  CUDNN_CHECK(cudnnCreateTensorDescriptor(&t));
  CUDNN_CHECK(cudnnSetTensor4dDescriptor(t, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, n, c, h, w));
  return t;
}

// The first algorithm that always has the same bits.
template <class Perf>
auto deterministic(const Perf* found, int n) {
  for (int i = 0; i < n; ++i)
    if (found[i].status == CUDNN_STATUS_SUCCESS && found[i].determinism == CUDNN_DETERMINISTIC)
      return found[i].algo;
  fail("cuDNN", "has no deterministic algorithm for a convolution of this shape");
  return found[0].algo;
}

// y = w * x with a square window and as much padding as keeps the size.
class Convolution {
 public:
  Convolution(Cudnn& cudnn, int batch, int in, int out, int size, int window, bool training)
      : cudnn_(cudnn), x_(tensor(batch, in, size, size)), y_(tensor(batch, out, size, size)) {
    CUDNN_CHECK(cudnnCreateFilterDescriptor(&w_));
    CUDNN_CHECK(cudnnSetFilter4dDescriptor(w_, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, out, in, window, window));
    CUDNN_CHECK(cudnnCreateConvolutionDescriptor(&convolution_));
    const int pad = window / 2;
    CUDNN_CHECK(cudnnSetConvolution2dDescriptor(convolution_, pad, pad, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION,
                                                CUDNN_DATA_FLOAT));
    choose_algorithms(training);
  }

  void forward(const float* x, const float* w, float* y) {
    CUDNN_CHECK(cudnnConvolutionForward(cudnn_, &kOne, x_, x, w_, w, convolution_, forward_,
                                        cudnn_.workspace(), cudnn_.workspace_bytes(), &kZero, y_, y));
  }
  void filter_gradient(const float* x, const float* dy, float* dw) {
    CUDNN_CHECK(cudnnConvolutionBackwardFilter(cudnn_, &kOne, x_, x, y_, dy, convolution_, filter_,
                                               cudnn_.workspace(), cudnn_.workspace_bytes(), &kZero, w_, dw));
  }
  void input_gradient(const float* w, const float* dy, float* dx) {
    CUDNN_CHECK(cudnnConvolutionBackwardData(cudnn_, &kOne, w_, w, y_, dy, convolution_, data_,
                                             cudnn_.workspace(), cudnn_.workspace_bytes(), &kZero, x_, dx));
  }

 private:
  void choose_algorithms(bool training) {
    constexpr int kMost = 8;
    int n = 0;
    size_t bytes = 0;
    cudnnConvolutionFwdAlgoPerf_t forward[kMost];
    CUDNN_CHECK(cudnnGetConvolutionForwardAlgorithm_v7(cudnn_, x_, w_, convolution_, y_, kMost, &n, forward));
    forward_ = deterministic(forward, n);
    CUDNN_CHECK(cudnnGetConvolutionForwardWorkspaceSize(cudnn_, x_, w_, convolution_, y_, forward_, &bytes));
    cudnn_.need_workspace(bytes);
    if (!training) return;
    cudnnConvolutionBwdFilterAlgoPerf_t filter[kMost];
    CUDNN_CHECK(
        cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnn_, x_, y_, convolution_, w_, kMost, &n, filter));
    filter_ = deterministic(filter, n);
    CUDNN_CHECK(
        cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnn_, x_, y_, convolution_, w_, filter_, &bytes));
    cudnn_.need_workspace(bytes);
    cudnnConvolutionBwdDataAlgoPerf_t data[kMost];
    CUDNN_CHECK(
        cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnn_, w_, y_, convolution_, x_, kMost, &n, data));
    data_ = deterministic(data, n);
    CUDNN_CHECK(
        cudnnGetConvolutionBackwardDataWorkspaceSize(cudnn_, w_, y_, convolution_, x_, data_, &bytes));
    cudnn_.need_workspace(bytes);
  }

  Cudnn& cudnn_;
  cudnnTensorDescriptor_t x_, y_;
  cudnnFilterDescriptor_t w_ = nullptr;
  cudnnConvolutionDescriptor_t convolution_ = nullptr;
  cudnnConvolutionFwdAlgo_t forward_{};
  cudnnConvolutionBwdFilterAlgo_t filter_{};
  cudnnConvolutionBwdDataAlgo_t data_{};
};

// Batch normalisation of each channel.
class Normalisation {
 public:
  static constexpr double kEpsilon = 1e-5, kAverage = 0.1;

  Normalisation(Cudnn& cudnn, int batch, int channels, int size)
      : cudnn_(cudnn), x_(tensor(batch, channels, size, size)), parameters_(tensor(1, channels, 1, 1)) {
    const std::vector<float> ones(size_t(channels), 1);
    for (float** statistic : {&mean_, &variance_, &saved_mean_, &saved_inverse_}) {
      *statistic = device_array<float>(ones.size());
      CUDA_CHECK(cudaMemset(*statistic, 0, ones.size() * sizeof(float)));
    }
    CUDA_CHECK(cudaMemcpy(variance_, ones.data(), ones.size() * sizeof(float), cudaMemcpyHostToDevice));
  }

  void train(const float* x, const float* scale, const float* shift, float* y) {
    CUDNN_CHECK(cudnnBatchNormalizationForwardTraining(cudnn_, kMode, &kOne, &kZero, x_, x, x_, y,
                                                       parameters_, scale, shift, kAverage, mean_, variance_,
                                                       kEpsilon, saved_mean_, saved_inverse_));
  }
  void infer(const float* x, const float* scale, const float* shift, float* y) {
    CUDNN_CHECK(cudnnBatchNormalizationForwardInference(
        cudnn_, kMode, &kOne, &kZero, x_, x, x_, y, parameters_, scale, shift, mean_, variance_, kEpsilon));
  }
  void backward(const float* x, const float* dy, const float* scale, float* dx, float* dscale,
                float* dshift) {
    CUDNN_CHECK(cudnnBatchNormalizationBackward(cudnn_, kMode, &kOne, &kZero, &kOne, &kZero, x_, x, x_, dy,
                                                x_, dx, parameters_, scale, dscale, dshift, kEpsilon,
                                                saved_mean_, saved_inverse_));
  }

 private:
  static constexpr cudnnBatchNormMode_t kMode = CUDNN_BATCHNORM_SPATIAL;
  Cudnn& cudnn_;
  cudnnTensorDescriptor_t x_, parameters_;
  float *mean_, *variance_, *saved_mean_, *saved_inverse_;
};

// y = max(0, x)
class Rectifier {
 public:
  Rectifier(Cudnn& cudnn, int batch, int channels, int size)
      : cudnn_(cudnn), x_(tensor(batch, channels, size, size)) {
    CUDNN_CHECK(cudnnCreateActivationDescriptor(&activation_));
    CUDNN_CHECK(cudnnSetActivationDescriptor(activation_, CUDNN_ACTIVATION_RELU, CUDNN_NOT_PROPAGATE_NAN, 0));
  }
  void forward(const float* x, float* y) {
    CUDNN_CHECK(cudnnActivationForward(cudnn_, activation_, &kOne, x_, x, &kZero, x_, y));
  }
  void backward(const float* x, const float* y, const float* dy, float* dx) {
    CUDNN_CHECK(cudnnActivationBackward(cudnn_, activation_, &kOne, x_, y, x_, dy, x_, x, &kZero, x_, dx));
  }
  void add(const float* x, float* to) { CUDNN_CHECK(cudnnAddTensor(cudnn_, &kOne, x_, x, &kOne, x_, to)); }

 private:
  Cudnn& cudnn_;
  cudnnTensorDescriptor_t x_;
  cudnnActivationDescriptor_t activation_ = nullptr;
};

// From features to the logarithms of the classes' probabilities: the mean of each channel, a product, a softmax.
class Head {
 public:
  Head(Cudnn& cudnn, int batch, int channels, int size, int classes, bool training)
      : cudnn_(cudnn),
        x_(tensor(batch, channels, size, size)),
        pooled_(tensor(batch, channels, 1, 1)),
        scores_(tensor(batch, classes, 1, 1)),
        bias_(tensor(1, classes, 1, 1)),
        product_(cudnn, batch, channels, classes, 1, 1, training) {
    CUDNN_CHECK(cudnnCreatePoolingDescriptor(&pooling_));
    CUDNN_CHECK(cudnnSetPooling2dDescriptor(pooling_, CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING,
                                            CUDNN_NOT_PROPAGATE_NAN, size, size, 0, 0, size, size));
    mean_ = device_array<float>(size_t(batch * channels)),
    mean_gradient_ = device_array<float>(size_t(batch * channels));
    score_ = device_array<float>(size_t(batch * classes));
  }

  void forward(const float* x, const float* w, const float* bias, float* logarithms) {
    CUDNN_CHECK(cudnnPoolingForward(cudnn_, pooling_, &kOne, x_, x, &kZero, pooled_, mean_));
    product_.forward(mean_, w, score_);
    CUDNN_CHECK(cudnnAddTensor(cudnn_, &kOne, bias_, bias, &kOne, scores_, score_));
    CUDNN_CHECK(cudnnSoftmaxForward(cudnn_, CUDNN_SOFTMAX_LOG, CUDNN_SOFTMAX_MODE_CHANNEL, &kOne, scores_,
                                    score_, &kZero, scores_, logarithms));
  }
  void backward(const float* x, const float* w, const float* logarithms, const float* dlogarithms, float* dx,
                float* dw, float* dbias) {
    CUDNN_CHECK(cudnnSoftmaxBackward(cudnn_, CUDNN_SOFTMAX_LOG, CUDNN_SOFTMAX_MODE_CHANNEL, &kOne, scores_,
                                     logarithms, scores_, dlogarithms, &kZero, scores_, score_));
    CUDNN_CHECK(cudnnConvolutionBackwardBias(cudnn_, &kOne, scores_, score_, &kZero, bias_, dbias));
    product_.filter_gradient(mean_, score_, dw);
    product_.input_gradient(w, score_, mean_gradient_);
    CUDNN_CHECK(cudnnPoolingBackward(cudnn_, pooling_, &kOne, pooled_, mean_, pooled_, mean_gradient_, x_, x,
                                     &kZero, x_, dx));
  }

 private:
  Cudnn& cudnn_;
  cudnnTensorDescriptor_t x_, pooled_, scores_, bias_;
  Convolution product_;
  cudnnPoolingDescriptor_t pooling_ = nullptr;
  float *mean_, *mean_gradient_, *score_;
};

}  // namespace samples::resnet

// A small inference service: requests arrive at random (open loop, Poisson), each is one forward pass of a
// two-layer network over a batch of rows, and what counts is the time from the *intended* arrival to the
// result on the host.
//   input copy -> X*W1 -> bias+GELU -> *W2 -> softmax -> weighted row sums -> result copy -> synchronise
// An ordinary CUDA program: runtime API, one stream, pinned buffers.

#include "gemm.cuh"
#include "request_loop.h"

namespace {

using namespace samples;

constexpr int kBlock = 128;  // threads of the kernels other than gemm
constexpr int kPanel = 32;   // of gemm

__global__ void __launch_bounds__(kBlock)
    bias_gelu(float* x, const float* __restrict__ bias, int columns, int count) {
  const int i = blockIdx.x * kBlock + threadIdx.x;
  if (i < count) x[i] = gelu(x[i] + bias[i % columns]);
}

// One warp per row.
__global__ void __launch_bounds__(kBlock) softmax(float* x, int rows, int columns) {
  const int row = (blockIdx.x * kBlock + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  float* p = x + size_t(row) * columns;
  float top = -INFINITY;
  for (int c = lane; c < columns; c += 32) top = fmaxf(top, p[c]);
  top = warp_max(top);
  float sum = 0;
  for (int c = lane; c < columns; c += 32) {
    const float e = expf(p[c] - top);
    p[c] = e;
    sum += e;
  }
  const float scale = 1.0f / warp_sum(sum);
  for (int c = lane; c < columns; c += 32) p[c] *= scale;
}

// Expected class score per row: sum of probability x weight; one warp per row.
__global__ void __launch_bounds__(kBlock)
    weighted_sum(const float* __restrict__ x, const float* __restrict__ weight, float* out, int rows,
                 int columns) {
  const int row = (blockIdx.x * kBlock + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  float sum = 0;
  for (int c = lane; c < columns; c += 32) sum += x[size_t(row) * columns + c] * weight[c];
  sum = warp_sum(sum);
  if (lane == 0) out[row] = sum;
}

struct Options {
  ServiceOptions service;
  int64_t rows = 0, features = 0, hidden = 0, classes = 0;
  double scale = 1;
  std::string preset = "auto";
};

// The network and its buffers; lives as long as the process.
class Network {
 public:
  explicit Network(const Options& o)
      : rows_(int(o.rows)),
        features_(int(o.features)),
        hidden_(int(o.hidden)),
        classes_(int(o.classes)),
        seed_(o.service.seed) {
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    for (float*& input : host_inputs_) CUDA_CHECK(cudaMallocHost(&input, input_bytes()));
    CUDA_CHECK(cudaMallocHost(&host_output_, output_bytes()));
    input_ = device_array<float>(size_t(rows_) * features_);
    w1_ = device_filled(size_t(features_) * hidden_, seed_ * 1000 + 1, 2.0f / std::sqrt(float(features_)));
    bias_ = device_filled(hidden_, seed_ * 1000 + 2, 0.5f);
    w2_ = device_filled(size_t(hidden_) * classes_, seed_ * 1000 + 3, 4.0f / std::sqrt(float(hidden_)));
    weight_ = device_filled(classes_, seed_ * 1000 + 4, 1.0f);
    activations_ = device_array<float>(size_t(rows_) * hidden_);
    logits_ = device_array<float>(size_t(rows_) * classes_);
    output_ = device_array<float>(rows_);
  }

  void prepare(int input) {
    fill(host_inputs_[input], size_t(rows_) * features_, seed_ * 1000003 + input, 1.0f);
  }

  void run(int input) {
    last_input_ = host_inputs_[input];
    CUDA_CHECK(cudaMemcpyAsync(input_, last_input_, input_bytes(), cudaMemcpyHostToDevice, stream_));
    launch_gemm(input_, w1_, activations_, rows_, hidden_, features_, kPanel, stream_);
    const int count = rows_ * hidden_;
    bias_gelu<<<(count + kBlock - 1) / kBlock, kBlock, 0, stream_>>>(activations_, bias_, hidden_, count);
    launch_gemm(activations_, w2_, logits_, rows_, classes_, hidden_, kPanel, stream_);
    const int row_blocks = (rows_ * 32 + kBlock - 1) / kBlock;
    softmax<<<row_blocks, kBlock, 0, stream_>>>(logits_, rows_, classes_);
    weighted_sum<<<row_blocks, kBlock, 0, stream_>>>(logits_, weight_, output_, rows_, classes_);
    CUDA_CHECK(cudaGetLastError());
    CUDA_CHECK(cudaMemcpyAsync(host_output_, output_, output_bytes(), cudaMemcpyDeviceToHost, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

  // The same forward pass on the host, in double precision; largest difference of any row of the last
  // request.
  double largest_error() const {
    const auto numbers = [&](size_t n, int which, float amplitude) {
      std::vector<float> v(n);
      fill(v.data(), n, uint64_t(seed_) * 1000 + which, amplitude);
      return v;
    };
    const auto w1 = numbers(size_t(features_) * hidden_, 1, 2.0f / std::sqrt(float(features_)));
    const auto bias = numbers(hidden_, 2, 0.5f);
    const auto w2 = numbers(size_t(hidden_) * classes_, 3, 4.0f / std::sqrt(float(hidden_)));
    const auto weight = numbers(classes_, 4, 1.0f);
    double worst = 0;
    for (int row = 0; row < rows_; ++row) {
      const float* x = last_input_ + size_t(row) * features_;
      std::vector<double> activation(hidden_), probability(classes_);
      for (int h = 0; h < hidden_; ++h) {
        double v = bias[h];
        for (int f = 0; f < features_; ++f) v += double(x[f]) * w1[size_t(f) * hidden_ + h];
        activation[h] = 0.5 * v * (1 + std::tanh(0.7978845608 * (v + 0.044715 * v * v * v)));
      }
      double top = -INFINITY, sum = 0, score = 0;
      for (int c = 0; c < classes_; ++c) {
        for (int h = 0; h < hidden_; ++h) probability[c] += activation[h] * w2[size_t(h) * classes_ + c];
        top = std::max(top, probability[c]);
      }
      for (int c = 0; c < classes_; ++c) sum += (probability[c] = std::exp(probability[c] - top));
      for (int c = 0; c < classes_; ++c) score += probability[c] / sum * weight[c];
      worst = std::max(worst, std::abs(score - host_output_[row]));
    }
    return worst;
  }

  const float* output() const { return host_output_; }
  size_t output_bytes() const { return size_t(rows_) * sizeof(float); }

 private:
  size_t input_bytes() const { return size_t(rows_) * features_ * sizeof(float); }

  int rows_, features_, hidden_, classes_;
  int64_t seed_;
  cudaStream_t stream_ = nullptr;
  float *host_inputs_[kInputs] = {}, *host_output_ = nullptr;  // pinned
  const float* last_input_ = nullptr;                          // of host_inputs_
  float *input_, *w1_, *bias_, *w2_, *weight_, *activations_, *logits_, *output_;
};

void choose_sizes(Options& o) {
  const bool gpu = wants_gpu_sizes(o.preset);
  const auto size = [&](int64_t& value, int64_t soft, int64_t real, double factor) {
    if (value == 0) value = int64_t(double(gpu ? real : soft) * factor);
    positive("size", double(value));
    value = round_up(value, kTileRows);
  };
  size(o.rows, 224, 4096, o.scale);
  size(o.features, 64, 512, 1);
  size(o.hidden, 64, 1024, 1);
  size(o.classes, 64, 512, 1);
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  std::vector<Option> options = service_options(o.service);
  options.insert(options.end(), {{"--rows", &o.rows, "batch rows per request"},
                                 {"--features", &o.features, "input width"},
                                 {"--hidden", &o.hidden, "hidden width"},
                                 {"--classes", &o.classes, "output width"},
                                 {"--scale", &o.scale, "multiplies the preset's rows"},
                                 {"--preset", &o.preset, "sizes: auto, soft or gpu"}});
  parse_options(argc, argv, "Answers randomly arriving requests and reports their latency.", options);
  positive("--scale", o.scale);
  choose_sizes(o);
  Network network(o);
  char sizes[128];
  std::snprintf(sizes, sizeof sizes, "rows=%lld features=%lld hidden=%lld classes=%lld", (long long)o.rows,
                (long long)o.features, (long long)o.hidden, (long long)o.classes);
  return serve(network, o.service, sizes);
}

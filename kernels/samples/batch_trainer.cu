// A training-like loop that would take the whole GPU: per step two long matrix products (compute-bound,
// hundreds of short blocks), an activation, a momentum update over a large parameter array (memory-bound) and
// reductions. At most two steps are queued ahead, as frameworks do that read the loss with some delay. An
// ordinary CUDA program.

#include "gemm.cuh"
#include "training_loop.h"

namespace {

using namespace samples;

constexpr int kBlock = 128;            // threads of the kernels other than gemm
constexpr int kReduceElements = 1024;  // summed by one block

__global__ void __launch_bounds__(kBlock)
    activate(float* x, const float* __restrict__ bias, int columns, int count) {
  const int i = blockIdx.x * kBlock + threadIdx.x;
  if (i < count) {
    const float v = x[i] + bias[i % columns];
    x[i] = v > 0 ? v : 0.01f * v;
  }
}

// Momentum step: reads three arrays, writes two, hardly computes.
__global__ void __launch_bounds__(kBlock)
    update(float* parameter, float* momentum, const float* __restrict__ gradient,
           const float* __restrict__ loss, int gradient_count, int count) {
  const int i = blockIdx.x * kBlock + threadIdx.x;
  if (i < count) {
    const float m = 0.9f * momentum[i] + 0.1f * (gradient[i % gradient_count] + 0.001f * loss[0]);
    momentum[i] = m;
    parameter[i] = 0.999f * parameter[i] - 0.01f * fminf(fmaxf(m, -1.0f), 1.0f);
  }
}

// Partial sums in a fixed order: a strided sum per thread, a tree per warp, then the warps in order.
__global__ void __launch_bounds__(kBlock) reduce(const float* __restrict__ x, float* partial, int count) {
  __shared__ float warps[kBlock / 32];
  float sum = 0;
  const int begin = blockIdx.x * kReduceElements, end = min(begin + kReduceElements, count);
  for (int i = begin + int(threadIdx.x); i < end; i += kBlock) sum += x[i];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kBlock / 32; ++w) sum += warps[w];
    partial[blockIdx.x] = sum;
  }
}

__global__ void __launch_bounds__(kBlock)
    finish_loss(const float* __restrict__ partial, int n, float scale, float* loss) {
  __shared__ float warps[kBlock / 32];
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += kBlock) sum += partial[i];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kBlock / 32; ++w) sum += warps[w];
    loss[0] = sum * scale;
  }
}

struct Options {
  TrainingOptions training;
  int64_t seed = 2, m = 0, n = 0, k = 0, panel = 0, parameters = 0;
  double scale = 1;
  std::string preset = "auto";
};

class Trainer {
 public:
  explicit Trainer(const Options& o)
      : m_(int(o.m)), n_(int(o.n)), k_(int(o.k)), panel_(int(o.panel)), n_parameters_(int(o.parameters)) {
    const uint64_t seed = uint64_t(o.seed) * 1000;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    input_ = device_filled(size_t(m_) * k_, seed + 1, 1.0f);
    // The weights of both products are the head of the parameter array, so every step changes the next one.
    parameters_ = device_filled(n_parameters_, seed + 2, 1.0f / std::sqrt(float(k_)));
    momentum_ = device_array<float>(n_parameters_);
    CUDA_CHECK(cudaMemset(momentum_, 0, size_t(n_parameters_) * sizeof(float)));
    bias_ = device_filled(n_, seed + 3, 0.1f);
    forward_ = device_array<float>(size_t(m_) * n_);
    backward_ = device_array<float>(size_t(m_) * n_);
    n_partial_ = (m_ * n_ + kReduceElements - 1) / kReduceElements;
    partial_ = device_array<float>(n_partial_);
    loss_ = device_array<float>(1);
  }

  cudaStream_t stream() const { return stream_; }

  void enqueue_step(int64_t) {
    const int count = m_ * n_;
    const int blocks = (count + kBlock - 1) / kBlock;
    launch_gemm(input_, parameters_, forward_, m_, n_, k_, panel_, stream_);
    activate<<<blocks, kBlock, 0, stream_>>>(forward_, bias_, n_, count);
    reduce<<<n_partial_, kBlock, 0, stream_>>>(forward_, partial_, count);
    finish_loss<<<1, kBlock, 0, stream_>>>(partial_, n_partial_, 1.0f / float(count), loss_);
    launch_gemm(input_, parameters_ + size_t(k_) * n_, backward_, m_, n_, k_, panel_, stream_);
    update<<<(n_parameters_ + kBlock - 1) / kBlock, kBlock, 0, stream_>>>(parameters_, momentum_, backward_,
                                                                          loss_, count, n_parameters_);
    CUDA_CHECK(cudaGetLastError());
  }

  void add_state(Checksum& sum) const {
    add_floats(sum, parameters_, n_parameters_, stream_);
    add_floats(sum, loss_, 1, stream_);
  }

 private:
  int m_, n_, k_, panel_, n_parameters_, n_partial_;
  cudaStream_t stream_ = nullptr;
  float *input_, *parameters_, *momentum_, *bias_, *forward_, *backward_, *partial_, *loss_;
};

void choose_sizes(Options& o) {
  const bool gpu = wants_gpu_sizes(o.preset);
  const auto size = [&](int64_t& value, int64_t soft, int64_t real, double factor) {
    if (value == 0) value = int64_t(double(gpu ? real : soft) * factor);
    positive("size", double(value));
    value = round_up(value, kTileRows);
  };
  size(o.m, 640, 6144, o.scale);
  size(o.n, 256, 6144, 1);
  size(o.k, 32, 1024, 1);
  size(o.panel, 224, 32, 1);
  size(o.parameters, 65536, 16777216, o.scale);
  o.parameters = std::max(o.parameters, 2 * o.k * o.n);
  if (gemm_shared_bytes(int(o.panel)) > 48 * 1024) fail("--panel", "needs more than 48 KiB of shared memory");
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  std::vector<Option> options = training_options(o.training);
  options.insert(options.end(),
                 {{"--seed", &o.seed, "of weights and input (default 2)"},
                  {"--m", &o.m, "rows of the products"},
                  {"--n", &o.n, "columns of the products"},
                  {"--k", &o.k, "length of the sums"},
                  {"--panel", &o.panel, "steps of k held in shared memory at once"},
                  {"--parameters", &o.parameters, "size of the updated array"},
                  {"--scale", &o.scale, "multiplies the preset's m and parameters"},
                  {"--preset", &o.preset, "sizes: auto, soft or gpu"}});
  parse_options(argc, argv, "Repeats a training-like step and reports steps per second.", options);
  positive("--scale", o.scale);
  choose_sizes(o);
  Trainer trainer(o);
  char sizes[128];
  std::snprintf(sizes, sizeof sizes, "m=%lld n=%lld k=%lld parameters=%lld", (long long)o.m, (long long)o.n,
                (long long)o.k, (long long)o.parameters);
  return train(trainer, o.training, sizes);
}

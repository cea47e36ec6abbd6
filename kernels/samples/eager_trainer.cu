// A trainer as an eager framework runs one, whose limit is its CPU: many short launches, each after some CPU time of
// the framework, and one synchronise per step. Lengths are spread as those of GPT-2 small's step in eager PyTorch on
// an H200: 731 launches, 17 ms of GPU time, products of 50 us, a mean of 23 us. Alone it has the GPU for 0.6 of its time.
// An ordinary CUDA program.

#include "gemm.cuh"
#include "training_loop.h"

namespace {

using namespace samples;

constexpr int kBlock = 128;  // threads of the kernels other than gemm
constexpr int kPanel = 32;   // of gemm
constexpr int kWarps = kBlock / 32;

// Launches of a layer, forward and backward: 61, of which 12 layers make 732 and, on an H200, 17 ms.
constexpr int kProducts = 12;    // 50 us each: a linear layer, or a part of the gradient of one
constexpr int kShort = 30;       // 5 us: what is added, scaled and copied
constexpr int kNormalised = 17;  // 20 us: passes over all activations
constexpr int kUpdates = 2;      // 140 us: the optimiser, over one slice of the parameters
constexpr int kLaunchesOfLayer = kProducts + kShort + kNormalised + kUpdates;

__global__ void __launch_bounds__(kBlock)
    add(float* x, const float* __restrict__ bias, int columns, int count) {
  const int i = blockIdx.x * kBlock + threadIdx.x;
  if (i < count) x[i] = 0.5f * x[i] + bias[i % columns];
}

// Every row to a mean of 0 and a variance of 1; one warp per row.
__global__ void __launch_bounds__(kBlock)
    normalise(const float* __restrict__ in, float* out, int rows, int columns) {
  const int row = (blockIdx.x * kBlock + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  const float* x = in + size_t(row) * columns;
  float sum = 0, squares = 0;
  for (int c = lane; c < columns; c += 32) {
    sum += x[c];
    squares += x[c] * x[c];
  }
  const float mean = warp_sum(sum) / columns, variance = warp_sum(squares) / columns - mean * mean;
  const float scale = rsqrtf(fmaxf(variance, 0.0f) + 1e-5f);
  for (int c = lane; c < columns; c += 32) out[size_t(row) * columns + c] = (x[c] - mean) * scale;
}

// Momentum step: reads three arrays, writes two, hardly computes.
__global__ void __launch_bounds__(kBlock)
    update(float* parameter, float* momentum, const float* __restrict__ gradient, int gradient_count,
           int count) {
  const int i = blockIdx.x * kBlock + threadIdx.x;
  if (i < count) {
    const float m = 0.9f * momentum[i] + 0.1f * gradient[i % gradient_count];
    momentum[i] = m;
    parameter[i] = 0.999f * parameter[i] - 0.01f * fminf(fmaxf(m, -1.0f), 1.0f);
  }
}

// The mean of a row of each block, in a fixed order.
__global__ void __launch_bounds__(kBlock) loss_of(const float* __restrict__ x, float* loss, int count) {
  __shared__ float warps[kWarps];
  float sum = 0;
  for (int i = threadIdx.x; i < count; i += kBlock) sum += x[i] * x[i];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kWarps; ++w) sum += warps[w];
    loss[0] = sum / float(count);
  }
}

struct Options {
  TrainingOptions training;
  int64_t seed = 2, layers = 0, rows = 0, columns = 0, product_rows = 0, depth = 0, brief = 0, parameters = 0;
  double busy = 0.6, cpu_us = 0;
  bool sleep = false;  // instead of computing: the software GPU needs the CPUs
  std::string preset = "auto";
};

// Stands for the framework's work on the CPU between two launches.
class CpuTime {
 public:
  explicit CpuTime(bool sleeps) : sleeps_(sleeps) {}
  void set_ns(double per_launch_ns) { per_launch_ns_ = per_launch_ns; }
  double per_launch_ns() const { return per_launch_ns_; }
  void pass() {
    owed_ns_ += per_launch_ns_;
    if (owed_ns_ <= 0) return;
    const uint64_t begin_ns = now_ns(), end_ns = begin_ns + uint64_t(owed_ns_);
    if (sleeps_) sleep_until_ns(end_ns);
    while (now_ns() < end_ns) continue;
    owed_ns_ -= double(now_ns() - begin_ns);  // who woke late passes less of it the next time
  }

 private:
  const bool sleeps_;
  double per_launch_ns_ = 0, owed_ns_ = 0;
};

class Trainer {
 public:
  explicit Trainer(const Options& o)
      : layers_(int(o.layers)),
        rows_(int(o.rows)),
        columns_(int(o.columns)),
        product_rows_(int(o.product_rows)),
        depth_(int(o.depth)),
        brief_(int(o.brief)),
        n_parameters_(int(o.parameters)),
        busy_(o.busy),
        cpu_(o.sleep) {
    const uint64_t seed = uint64_t(o.seed) * 1000;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreateWithFlags(&layer_, cudaEventDisableTiming));
    CUDA_CHECK(cudaMallocHost(&batch_, batch_bytes()));
    CUDA_CHECK(cudaMallocHost(&host_loss_, sizeof(float)));
    fill(batch_, size_t(product_rows_) * depth_, seed + 1, 1.0f);
    input_ = device_array<float>(size_t(product_rows_) * depth_);
    // The weights of the products are the head of the parameters, so every step changes the next one.
    parameters_ = device_filled(n_parameters_, seed + 2, 1.0f / std::sqrt(float(depth_)));
    momentum_ = device_array<float>(n_parameters_);
    CUDA_CHECK(cudaMemset(momentum_, 0, size_t(n_parameters_) * sizeof(float)));
    bias_ = device_filled(columns_, seed + 3, 0.1f);
    activations_ = device_filled(size_t(rows_) * columns_, seed + 4, 1.0f);
    normalised_ = device_array<float>(size_t(rows_) * columns_);
    loss_ = device_array<float>(1);
    if (o.cpu_us > 0) cpu_.set_ns(o.cpu_us * 1e3);
  }

  cudaStream_t stream() const { return stream_; }

  // The first steps pass no CPU time: they say how much of it makes the GPU busy for its share.
  void enqueue_step(int64_t step) {
    const bool measured = cpu_.per_launch_ns() == 0;
    const uint64_t begin_ns = now_ns();
    CUDA_CHECK(cudaMemcpyAsync(input_, batch_, batch_bytes(), cudaMemcpyHostToDevice, stream_));
    for (int layer = 0; layer < layers_; ++layer) enqueue_layer(layer);
    loss_of<<<1, kBlock, 0, stream_>>>(activations_, loss_, columns_);
    CUDA_CHECK(cudaGetLastError());
    const double enqueued_ns = double(now_ns() - begin_ns);
    CUDA_CHECK(cudaMemcpyAsync(host_loss_, loss_, sizeof(float), cudaMemcpyDeviceToHost, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    if (measured) learn(step, enqueued_ns, double(now_ns() - begin_ns));
  }

  void add_state(Checksum& sum) const {
    add_floats(sum, parameters_, n_parameters_, stream_);
    sum.add(host_loss_, sizeof(float));
  }

 private:
  static constexpr int kMeasuredSteps = 3;  // of which the shortest counts: nobody disturbed it

  size_t batch_bytes() const { return size_t(product_rows_) * depth_ * sizeof(float); }

  // Products, and between them the others, evenly.
  void enqueue_layer(int layer) {
    int n_short = 0, n_normalised = 0;
    for (int product = 1; product <= kProducts; ++product) {
      const float* weights = parameters_ + size_t((layer * kProducts + product) % 2) * depth_ * columns_;
      launch_gemm(input_, weights, activations_, product_rows_, columns_, depth_, kPanel, stream_);
      cpu_.pass();
      for (; n_short < kShort * product / kProducts; ++n_short) {
        add<<<(brief_ + kBlock - 1) / kBlock, kBlock, 0, stream_>>>(activations_, bias_, columns_, brief_);
        cpu_.pass();
      }
      for (; n_normalised < kNormalised * product / kProducts; ++n_normalised) {
        normalise<<<(rows_ + kWarps - 1) / kWarps, kBlock, 0, stream_>>>(activations_, normalised_, rows_,
                                                                         columns_);
        cpu_.pass();
      }
    }
    for (int i = 0; i < kUpdates; ++i) {
      update<<<(n_parameters_ + kBlock - 1) / kBlock, kBlock, 0, stream_>>>(
          parameters_, momentum_, normalised_, rows_ * columns_, n_parameters_);
      cpu_.pass();
    }
    CUDA_CHECK(cudaMemcpyAsync(activations_, normalised_, size_t(product_rows_) * columns_ * sizeof(float),
                               cudaMemcpyDeviceToDevice, stream_));
    CUDA_CHECK(cudaEventRecord(layer_, stream_));
  }

  void learn(int64_t step, double enqueued_ns, double gpu_ns) {
    least_gpu_ns_ = std::min(least_gpu_ns_, gpu_ns);
    least_enqueue_ns_ = std::min(least_enqueue_ns_, enqueued_ns);
    if (step + 1 < kMeasuredSteps) return;
    const int launches = layers_ * kLaunchesOfLayer + 1;
    cpu_.set_ns(std::max(1.0, (least_gpu_ns_ / busy_ - least_enqueue_ns_) / launches));
    std::printf("launches=%d gpu_ms=%.3f cpu_us=%.2f\n", launches, least_gpu_ns_ * 1e-6,
                cpu_.per_launch_ns() * 1e-3);
  }

  const int layers_, rows_, columns_, product_rows_, depth_, brief_, n_parameters_;
  const double busy_;
  CpuTime cpu_;
  double least_gpu_ns_ = 1e18, least_enqueue_ns_ = 1e18;  // of a step that passed no CPU time
  cudaStream_t stream_ = nullptr;
  cudaEvent_t layer_ = nullptr;                    // of the end of one: nobody waits for it
  float *batch_ = nullptr, *host_loss_ = nullptr;  // pinned
  float *input_, *parameters_, *momentum_, *bias_, *activations_, *normalised_, *loss_;
};

void choose_sizes(Options& o) {
  const bool gpu = wants_gpu_sizes(o.preset);
  const auto size = [&](int64_t& value, int64_t soft, int64_t real, int64_t multiple) {
    if (value == 0) value = gpu ? real : soft;
    positive("size", double(value));
    value = round_up(value, multiple);
  };
  size(o.layers, 1, 12, 1);
  size(o.rows, 64, 12288, kTileRows);
  size(o.columns, 64, 768, kTileRows);
  size(o.product_rows, 64, 1024, kTileRows);
  size(o.depth, 32, 512, kTileDepth);
  size(o.brief, 2048, 1 << 20, 1);
  size(o.parameters, 32768, 28 << 20, 1);
  o.parameters = std::max(o.parameters, 2 * o.depth * o.columns);
  o.brief = std::min(o.brief, o.rows * o.columns);
  if (o.product_rows > o.rows) fail("--product-rows", "must not be more than --rows");
  if (!(o.busy > 0 && o.busy <= 1)) fail("--busy", "must be above 0, and 1 at most");
  o.sleep = !gpu;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  std::vector<Option> options = training_options(o.training);
  options.insert(
      options.end(),
      {{"--seed", &o.seed, "of weights and input (default 2)"},
       {"--layers", &o.layers, "of 61 launches each"},
       {"--rows", &o.rows, "of the activations"},
       {"--columns", &o.columns, "of the activations"},
       {"--product-rows", &o.product_rows, "of the activations that a product computes"},
       {"--depth", &o.depth, "length of the sums of a product"},
       {"--brief", &o.brief, "elements of the shortest kernels"},
       {"--parameters", &o.parameters, "size of the updated array"},
       {"--busy", &o.busy, "share of its time for which it has the GPU, alone (default 0.6)"},
       {"--cpu-us", &o.cpu_us, "instead of --busy: CPU time between two launches"},
       {"--preset", &o.preset, "sizes: auto, soft or gpu"}});
  parse_options(argc, argv, "Trains as an eager framework does, and reports steps per second.", options);
  choose_sizes(o);
  Trainer trainer(o);
  char sizes[160];
  std::snprintf(sizes, sizeof sizes, "layers=%lld rows=%lld columns=%lld depth=%lld parameters=%lld",
                (long long)o.layers, (long long)o.rows, (long long)o.columns, (long long)o.depth,
                (long long)o.parameters);
  return train(trainer, o.training, sizes);
}

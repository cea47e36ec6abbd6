// A training-like loop that would take the whole GPU: per step two long matrix products (compute-bound,
// hundreds of short blocks), an activation, a momentum update over a large parameter array (memory-bound) and
// reductions. At most two steps are queued ahead, as frameworks do that read the loss with some delay. An
// ordinary CUDA program.

#include <signal.h>

#include "gemm.cuh"
#include "support.h"

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

volatile sig_atomic_t stop_requested = 0;
void request_stop(int) {
  stop_requested = 1;
}

struct Options {
  int64_t seed = 2, steps = 0, checksum_steps = 5, m = 0, n = 0, k = 0, panel = 0, parameters = 0;
  double seconds = 0, scale = 1;
  std::string preset = "auto", csv;
};

// One line per finished step, as soon as the host knows: whoever watches the file sees training progress.
class StepLog {
 public:
  explicit StepLog(const std::string& path) {
    if (path.empty()) return;
    file_ = std::fopen(path.c_str(), "w");
    if (!file_) fail("cannot write --csv file", path.c_str());
    std::fprintf(file_, "step,start_ns,end_ns\n");
    last_end_ns_ = now_ns();
  }
  void finished(int64_t step) {
    if (!file_) return;
    const uint64_t end_ns = now_ns();
    std::fprintf(file_, "%lld,%llu,%llu\n", (long long)step, (unsigned long long)last_end_ns_,
                 (unsigned long long)end_ns);
    std::fflush(file_);
    last_end_ns_ = end_ns;
  }

 private:
  FILE* file_ = nullptr;
  uint64_t last_end_ns_ = 0;
};

class Trainer {
 public:
  explicit Trainer(const Options& o)
      : m_(int(o.m)),
        n_(int(o.n)),
        k_(int(o.k)),
        panel_(int(o.panel)),
        n_parameters_(int(o.parameters)),
        log_(o.csv) {
    const uint64_t seed = uint64_t(o.seed) * 1000;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    for (cudaEvent_t& event : done_) CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
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

  // Enqueues one step, after waiting for the one before the previous.
  void step() {
    cudaEvent_t done = done_[n_steps_ % 2];
    if (n_steps_ >= 2) finish(n_steps_ - 2);
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
    CUDA_CHECK(cudaEventRecord(done, stream_));
    ++n_steps_;
  }

  int64_t steps() const { return n_steps_; }
  void wait() {
    while (n_logged_ < n_steps_) finish(n_logged_);
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

  uint64_t checksum() {
    std::vector<float> host(n_parameters_);
    float loss = 0;
    CUDA_CHECK(cudaMemcpyAsync(host.data(), parameters_, host.size() * sizeof(float), cudaMemcpyDeviceToHost,
                               stream_));
    CUDA_CHECK(cudaMemcpyAsync(&loss, loss_, sizeof loss, cudaMemcpyDeviceToHost, stream_));
    wait();
    Checksum sum;
    sum.add(host.data(), host.size() * sizeof(float));
    sum.add(&loss, sizeof loss);
    return sum.value;
  }

 private:
  // Waits for the end of a step; each step once, in order.
  void finish(int64_t step) {
    if (step < n_logged_) return;
    CUDA_CHECK(cudaEventSynchronize(done_[step % 2]));
    log_.finished(step);
    n_logged_ = step + 1;
  }

  int m_, n_, k_, panel_, n_parameters_, n_partial_;
  StepLog log_;
  int64_t n_steps_ = 0, n_logged_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t done_[2] = {};
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
  parse_options(argc, argv, "Repeats a training-like step and reports steps per second.",
                {{"--seconds", Option::kReal, &o.seconds, "stop after this time (default 10)"},
                 {"--steps", Option::kInt, &o.steps, "stop after so many steps"},
                 {"--checksum-steps", Option::kInt, &o.checksum_steps,
                  "checksum of the state after so many (default 5)"},
                 {"--seed", Option::kInt, &o.seed, "of weights and input (default 2)"},
                 {"--m", Option::kInt, &o.m, "rows of the products"},
                 {"--n", Option::kInt, &o.n, "columns of the products"},
                 {"--k", Option::kInt, &o.k, "length of the sums"},
                 {"--panel", Option::kInt, &o.panel, "steps of k held in shared memory at once"},
                 {"--parameters", Option::kInt, &o.parameters, "size of the updated array"},
                 {"--csv", Option::kText, &o.csv, "file: step,start_ns,end_ns (CLOCK_MONOTONIC over the stretch)"},
                 {"--scale", Option::kReal, &o.scale, "multiplies the preset's m and parameters"},
                 {"--stretch", Option::kReal, &clock_stretch, "run this program's clock so many times slower"},
                 {"--preset", Option::kText, &o.preset, "sizes: auto, soft or gpu"}});
  positive("--scale", o.scale);
  positive("--stretch", clock_stretch);
  positive("--checksum-steps", double(o.checksum_steps));
  if (o.seconds <= 0 && o.steps <= 0) o.seconds = 10;
  choose_sizes(o);

  // SIGTERM and SIGINT end the loop after the current step; the report is printed all the same.
  struct sigaction action = {};
  action.sa_handler = request_stop;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);

  // The first checksum_steps steps are the warm-up: they always run, so that the checksum never depends on
  // the time.
  Trainer trainer(o);
  while (trainer.steps() < o.checksum_steps) trainer.step();
  const uint64_t checksum = trainer.checksum();
  std::printf("m=%lld n=%lld k=%lld parameters=%lld\n", (long long)o.m, (long long)o.n, (long long)o.k,
              (long long)o.parameters);
  std::fflush(stdout);

  const int64_t first_step = trainer.steps();
  const uint64_t begin_ns = now_ns();
  const uint64_t deadline_ns = o.seconds > 0 ? begin_ns + uint64_t(o.seconds * 1e9) : UINT64_MAX;
  while (!stop_requested && now_ns() < deadline_ns && (o.steps <= 0 || trainer.steps() < o.steps))
    trainer.step();
  trainer.wait();
  const double seconds = double(now_ns() - begin_ns) * 1e-9;
  const int64_t timed = trainer.steps() - first_step;

  std::printf("steps=%lld timed_steps=%lld seconds=%.3f\n", (long long)trainer.steps(), (long long)timed,
              seconds);
  std::printf("steps_per_s=%.4f\n", seconds > 0 ? double(timed) / seconds : 0.0);
  std::printf("checksum_steps=%lld checksum=%016llx\n", (long long)o.checksum_steps,
              (unsigned long long)checksum);
  return 0;
}

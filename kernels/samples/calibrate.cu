// Measures what a GPU does: memory bandwidth, arithmetic peaks, launch cost, cost of one slice more, copies.
// Prints one JSON object; `tessera calibrate` runs it and writes a GPU description from it
// (docs/profiles.md). An ordinary CUDA program on the runtime API; every test grows until it lasts long
// enough to be measured, so the same code serves a card and the software GPU. Times are the device's own
// (events).
#include <cuda_fp16.h>
#include <mma.h>

#include <chrono>
#include <functional>
#include <future>

#include "support.h"

using namespace samples;

namespace {

double g_target_ms = 20;  // a measured run lasts at least this
constexpr int kThreads = 256;

__global__ void copy_bytes(const float4* __restrict__ from, float4* __restrict__ to, size_t n) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x)
    to[i] = from[i];
}

__global__ void copy_again(const float4* __restrict__ from, float4* __restrict__ to, size_t n, int rounds) {
  for (int r = 0; r < rounds; r++)
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x)
      to[i] = from[i];
}

// Eight independent chains per thread: latency is hidden.
template <class T>
__global__ void multiply_add(T* out, T factor, int rounds) {
  T a[8];
  for (int i = 0; i < 8; i++) a[i] = T(threadIdx.x + i);
  for (int r = 0; r < rounds; r++)
#pragma unroll
    for (int k = 0; k < 8; k++)
#pragma unroll
      for (int i = 0; i < 8; i++) a[i] = a[i] * factor + T(1);
  T sum = T(0);
  for (int i = 0; i < 8; i++) sum = sum + a[i];
  if (sum == T(-1)) out[0] = sum;
}

__global__ void multiply_add_half2(__half2* out, __half2 factor, int rounds) {
  __half2 a[8];
  for (int i = 0; i < 8; i++) a[i] = __float2half2_rn(float(threadIdx.x + i));
  for (int r = 0; r < rounds; r++)
#pragma unroll
    for (int k = 0; k < 8; k++)
#pragma unroll
      for (int i = 0; i < 8; i++) a[i] = __hfma2(a[i], factor, factor);
  __half2 sum = a[0];
  for (int i = 1; i < 8; i++) sum = __hadd2(sum, a[i]);
  if (__low2float(sum) == -1.0f) out[0] = sum;
}

__global__ void tensor_half(float* out, int rounds) {
  namespace wmma = nvcuda::wmma;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> b;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> c[4];
  wmma::fill_fragment(a, __float2half(0.5f));
  wmma::fill_fragment(b, __float2half(0.25f));
  for (int i = 0; i < 4; i++) wmma::fill_fragment(c[i], float(i));
  for (int r = 0; r < rounds; r++)
#pragma unroll
    for (int i = 0; i < 4; i++) wmma::mma_sync(c[i], a, b, c[i]);
  float sum = 0;
  for (int i = 0; i < 4; i++) sum += c[i].x[0];
  if (sum == -1.0f) out[0] = sum;
}

__global__ void nothing() {}

// Keeps the default stream waiting until everything that is measured lies in it: then a CPU that is late with its
// launches adds nothing to what they take. A launch that never returns while work waits would wait for ever; so the gate
// opens by itself in the end.
class Gate {
 public:
  Gate() { CUDA_CHECK(cudaLaunchHostFunc(nullptr, wait, this)); }
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  void open() {
    if (opened_) return;
    opened_ = true;
    may_pass_.set_value();
    passed_.get_future().wait();  // the stream's thread reads this object
  }

 private:
  static void wait(void* gate) {
    Gate& self = *static_cast<Gate*>(gate);
    self.may_pass_.get_future().wait_for(std::chrono::seconds(2));
    self.passed_.set_value();
  }

  bool opened_ = false;
  std::promise<void> may_pass_, passed_;
};

class Stopwatch {
 public:
  Stopwatch() {
    CUDA_CHECK(cudaEventCreate(&start_));
    CUDA_CHECK(cudaEventCreate(&stop_));
  }
  // Time on the device of what `launch` enqueues. Its code is loaded: a driver may load code only when nothing waits.
  double ms(const std::function<void()>& launch) {
    Gate gate;
    CUDA_CHECK(cudaEventRecord(start_));
    launch();
    CUDA_CHECK(cudaGetLastError());
    CUDA_CHECK(cudaEventRecord(stop_));
    gate.open();
    CUDA_CHECK(cudaEventSynchronize(stop_));
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, start_, stop_));
    return ms;
  }
  double least_ms(int times, const std::function<void()>& launch) {
    double least = ms(launch);
    for (int i = 1; i < times; i++) least = std::min(least, ms(launch));
    return least;
  }

 private:
  cudaEvent_t start_, stop_;
};

// Work per millisecond of launch(size), where size doubles until it lasts g_target_ms; the fixed cost cancels
// out because the last two sizes are compared.
double rate(Stopwatch& watch, uint64_t size, uint64_t most, const std::function<double(uint64_t)>& work,
            const std::function<void(uint64_t)>& launch) {
  launch(size);  // code is loaded here
  CUDA_CHECK(cudaDeviceSynchronize());
  double ms = watch.least_ms(3, [&] { launch(size); }), half_ms = 0;
  while (ms < g_target_ms && size * 2 <= most) {
    size *= 2;
    half_ms = ms;
    ms = watch.least_ms(3, [&] { launch(size); });
  }
  const double total = work(size);
  return half_ms > 0 && ms > half_ms ? (total - work(size / 2)) / (ms - half_ms) : total / ms;
}

// Keeps half of the GPU's threads busy with one kind of work until it is killed, so that a program beside it
// finds room but not that resource. Its kernels are long: when one ends, blocks of the other program that
// wait take its room. Says "ready" once they run one after the other.
[[noreturn]] void be_a_neighbour(const std::string& kind, const cudaDeviceProp& p) {
  constexpr double kKernelMs = 100;
  const unsigned blocks =
      unsigned(p.multiProcessorCount) * unsigned(std::max(1, p.maxThreadsPerMultiProcessor / kThreads / 2));
  // Larger than the L2 cache by far.
  const size_t buffer =
      std::min<size_t>(p.totalGlobalMem / 8, std::max<size_t>(1 << 22, size_t(8) * size_t(p.l2CacheSize)));
  char *from = nullptr, *to = nullptr;
  CUDA_CHECK(cudaMalloc(&from, buffer));
  CUDA_CHECK(cudaMalloc(&to, buffer));
  const auto launch = [&](int rounds) {
    if (kind == "memory")
      copy_again<<<blocks, kThreads>>>(reinterpret_cast<float4*>(from), reinterpret_cast<float4*>(to),
                                       buffer / sizeof(float4), rounds);
    else
      multiply_add<float><<<blocks, kThreads>>>(reinterpret_cast<float*>(to), 0.999f, rounds);
    CUDA_CHECK(cudaGetLastError());
  };
  int rounds = 1;
  launch(rounds);  // code is loaded here
  CUDA_CHECK(cudaDeviceSynchronize());
  for (Stopwatch watch; watch.ms([&] { launch(rounds); }) < kKernelMs && rounds < (1 << 28);) rounds *= 2;
  cudaEvent_t done[2];
  for (cudaEvent_t& event : done) CUDA_CHECK(cudaEventCreate(&event));
  for (unsigned n = 0;; n++) {
    launch(rounds);
    CUDA_CHECK(cudaEventRecord(done[n % 2]));
    if (n > 0) CUDA_CHECK(cudaEventSynchronize(done[(n - 1) % 2]));  // one runs, one waits
    if (n == 1) {
      std::puts("ready");
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  double target_ms = 20;
  std::string neighbour;
  parse_options(argc, argv, "Measures the GPU and prints what it found as JSON.",
                {{"--target-ms", &target_ms, "least length of a measured run"},
                 {"--neighbour", &neighbour,
                  "measures nothing: keeps half of the GPU busy with 'memory' or 'compute' until killed"}});
  if (!neighbour.empty() && neighbour != "memory" && neighbour != "compute")
    fail("--neighbour", "is none of: memory, compute");
  positive("--target-ms", target_ms);
  g_target_ms = target_ms;
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  cudaDeviceProp p{};
  CUDA_CHECK(cudaGetDeviceProperties(&p, device));
  if (!neighbour.empty()) be_a_neighbour(neighbour, p);
  int clock_khz = 0, memory_khz = 0, reserved_shared = 0, engines = 0;
  cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, device);
  cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, device);
  cudaDeviceGetAttribute(&reserved_shared, cudaDevAttrReservedSharedMemoryPerBlock, device);
  cudaDeviceGetAttribute(&engines, cudaDevAttrAsyncEngineCount, device);
  int driver = 0;
  CUDA_CHECK(cudaDriverGetVersion(&driver));

  Stopwatch watch;
  // Enough blocks to fill every SM: eight of 256 threads.
  const unsigned blocks = unsigned(p.multiProcessorCount) * 8;
  const size_t most_bytes = std::min<size_t>(p.totalGlobalMem / 4, size_t(4) << 30);
  char *from = nullptr, *to = nullptr;
  size_t buffer = std::min<size_t>(most_bytes, size_t(64) << 20);
  // Larger than the L2 cache by far, where there is room.
  while (buffer < most_bytes && buffer < size_t(16) * size_t(p.l2CacheSize)) buffer *= 2;
  CUDA_CHECK(cudaMalloc(&from, buffer));
  CUDA_CHECK(cudaMalloc(&to, buffer));

  const double copied_per_ms = rate(
      watch, 1 << 20, buffer, [](uint64_t bytes) { return 2.0 * double(bytes); },
      [&](uint64_t bytes) {
        copy_bytes<<<blocks, kThreads>>>(reinterpret_cast<float4*>(from), reinterpret_cast<float4*>(to),
                                         bytes / sizeof(float4));
      });
  const double threads = double(blocks) * kThreads;
  const auto flops = [&](double per_round) {
    return [=](uint64_t rounds) { return threads * per_round * double(rounds); };
  };
  constexpr uint64_t kMostRounds = uint64_t(1) << 24;
  const double fp32 = rate(watch, 1, kMostRounds, flops(128), [&](uint64_t rounds) {
    multiply_add<float><<<blocks, kThreads>>>(reinterpret_cast<float*>(to), 0.999f, int(rounds));
  });
  const double fp64 = rate(watch, 1, kMostRounds, flops(128), [&](uint64_t rounds) {
    multiply_add<double><<<blocks, kThreads>>>(reinterpret_cast<double*>(to), 0.999, int(rounds));
  });
  const double fp16 = rate(watch, 1, kMostRounds, flops(256), [&](uint64_t rounds) {
    multiply_add_half2<<<blocks, kThreads>>>(reinterpret_cast<__half2*>(to), __float2half2_rn(0.5f),
                                             int(rounds));
  });
  // Per warp and round: four 16x16x16 products.
  const double tensor = rate(watch, 1, kMostRounds, flops(4.0 * 2 * 16 * 16 * 16 / 32), [&](uint64_t rounds) {
    tensor_half<<<blocks, kThreads>>>(reinterpret_cast<float*>(to), int(rounds));
  });

  // A kernel behind another one: what one launch more costs on the device.
  nothing<<<1, 32>>>();
  CUDA_CHECK(cudaDeviceSynchronize());
  constexpr int kLaunches = 64;
  const double one_ms = watch.least_ms(5, [] { nothing<<<1, 32>>>(); });
  const double many_ms = watch.least_ms(5, [] {
    for (int i = 0; i < kLaunches; i++) nothing<<<1, 32>>>();
  });
  const double launch_us = (many_ms - one_ms) / (kLaunches - 1) * 1e3;

  // One kernel, whole and in eight pieces of full waves: what a piece more costs.
  constexpr int kPieces = 8;
  int rounds = 1;
  const auto work_in = [&](int pieces) {
    for (int i = 0; i < pieces; i++)
      multiply_add<float>
          <<<blocks * kPieces / pieces, kThreads>>>(reinterpret_cast<float*>(to), 0.999f, rounds);
  };
  double whole_ms = watch.least_ms(3, [&] { work_in(1); });
  while (whole_ms < g_target_ms / 2 && rounds < (1 << 20)) {
    rounds *= 2;
    whole_ms = watch.least_ms(3, [&] { work_in(1); });
  }
  const double cut_ms = watch.least_ms(3, [&] { work_in(kPieces); });
  const double slice_us = std::max(0.0, (cut_ms - whole_ms) / (kPieces - 1) * 1e3);

  char* host = nullptr;
  const size_t host_bytes = std::min<size_t>(buffer, size_t(64) << 20);
  CUDA_CHECK(cudaMallocHost(&host, host_bytes));
  const auto bytes_of = [](uint64_t bytes) { return double(bytes); };
  const double h2d = rate(watch, 1 << 18, host_bytes, bytes_of, [&](uint64_t n) {
    CUDA_CHECK(cudaMemcpyAsync(to, host, n, cudaMemcpyHostToDevice));
  });
  const double d2h = rate(watch, 1 << 18, host_bytes, bytes_of, [&](uint64_t n) {
    CUDA_CHECK(cudaMemcpyAsync(host, to, n, cudaMemcpyDeviceToHost));
  });
  const double small_ms = watch.least_ms(5, [&] {
    for (int i = 0; i < kLaunches; i++) CUDA_CHECK(cudaMemcpyAsync(to, host, 64, cudaMemcpyHostToDevice));
  });

  std::printf(
      "{\"name\": \"%s\", \"driver\": %d, \"cc_major\": %d, \"cc_minor\": %d, \"sms\": %d, \"clock_mhz\": "
      "%.9g, "
      "\"sm_threads\": %d, \"sm_blocks\": %d, \"sm_registers\": %d, \"sm_shared_bytes\": %zu, "
      "\"block_shared_optin_bytes\": %zu, \"block_reserved_shared_bytes\": %d, \"memory_bytes\": %zu, "
      "\"memory_clock_mhz\": %.9g, \"bus_bits\": %d, \"l2_bytes\": %d, \"engines\": %d, "
      "\"memory_bytes_per_s\": %.9g, \"fp32_per_s\": %.9g, \"fp64_per_s\": %.9g, \"fp16_per_s\": %.9g, "
      "\"tensor_fp16_per_s\": %.9g, \"launch_us\": %.9g, \"slice_us\": %.9g, \"h2d_bytes_per_s\": %.9g, "
      "\"d2h_bytes_per_s\": %.9g, \"copy_overhead_us\": %.9g}\n",
      p.name, driver, p.major, p.minor, p.multiProcessorCount, clock_khz / 1e3, p.maxThreadsPerMultiProcessor,
      p.maxBlocksPerMultiProcessor, p.regsPerMultiprocessor, p.sharedMemPerMultiprocessor,
      p.sharedMemPerBlockOptin, reserved_shared, p.totalGlobalMem, memory_khz / 1e3, p.memoryBusWidth,
      p.l2CacheSize, engines, copied_per_ms * 1e3, fp32 * 1e3, fp64 * 1e3, fp16 * 1e3, tensor * 1e3,
      launch_us, slice_us, h2d * 1e3, d2h * 1e3, small_ms / kLaunches * 1e3);
  return 0;
}

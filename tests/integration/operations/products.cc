// Products of cuBLAS, longer than a slice, over and over:   products FILE   until SIGTERM; appends a byte to FILE after each
// round. Exits 5 if a round's results have other bits than the first one's.
//   products FILE memory     while a trial of splitting holds memory, allocates all that was free before it; then as above
//   products FILE reset      while a trial of splitting waits to be compared, resets the device; then as above
//   products shapes N SEED   one product each of N random shapes (scripts/prior_error.py)
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include "tests/integration/operations/wait_for_role.h"

namespace {

volatile sig_atomic_t g_stop = 0;

void check(int status, const char* what) {
  if (status == 0) return;
  std::fprintf(stderr, "products: %s: %d\n", what, status);
  std::exit(1);
}

// Numbers whose sums round: the order of k would show.
template <class T>
struct Matrix {
  Matrix(size_t n, unsigned seed) : size(n) {
    std::vector<T> values(n);
    for (T& value : values) value = T(int((seed = seed * 1664525 + 1013904223) >> 8) % 2000 - 1000) / T(777);
    check(cudaMalloc(reinterpret_cast<void**>(&data), n * sizeof(T)), "cudaMalloc");
    check(cudaMemcpy(data, values.data(), n * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  std::vector<char> bytes() const {
    std::vector<char> out(size * sizeof(T));
    check(cudaMemcpy(out.data(), data, out.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return out;
  }
  size_t size;
  T* data = nullptr;
};

int random_shapes(cublasHandle_t handle, cudaStream_t stream, int n, unsigned seed) {
  std::mt19937 random(seed);
  const auto size = [&] {
    return int(8 * std::exp2(std::uniform_real_distribution<>(0, 5)(random)));
  };  // 8 to 256
  for (int i = 0; i < n; i++) {
    const int m = size(), columns = size(), k = size();
    const Matrix<float> a(size_t(m) * size_t(k), 1), b(size_t(k) * size_t(columns), 2),
        c(size_t(m) * size_t(columns), 3);
    const float one = 1;
    check(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, m, columns, k, &one, a.data, m, b.data, k, &one,
                      c.data, m),
          "cublasSgemm");
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    for (const float* memory : {a.data, b.data, c.data})
      check(cudaFree(const_cast<float*>(memory)), "cudaFree");
  }
  return 0;
}

// The handle and stream that programs make first, before and after a reset.
struct Gpu {
  cublasHandle_t handle = nullptr;
  cudaStream_t stream = nullptr;
  Gpu() {
    check(cudaStreamCreate(&stream), "cudaStreamCreate");
    check(cublasCreate(&handle), "cublasCreate");
    check(cublasSetStream(handle, stream), "cublasSetStream");
  }
};

size_t free_bytes() {
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

// Two copies of C are more than what else comes and goes. How much was free before the trial; 0: stopped before there was one.
size_t wait_for_trial(const Gpu& gpu) {
  constexpr int kSize = 1024, kDepth = 4;
  const Matrix<float> a(kSize * kDepth, 1), b(kSize * kDepth, 2), c(kSize * kSize, 3);
  const float one = 1;
  // Whatever the library takes at its first call; too short to be cut.
  check(
      cublasSgemm(gpu.handle, CUBLAS_OP_N, CUBLAS_OP_T, 8, 8, 1, &one, a.data, 8, b.data, 8, &one, c.data, 8),
      "cublasSgemm");
  while (!g_stop) {
    const size_t before = free_bytes();
    check(cublasSgemm(gpu.handle, CUBLAS_OP_N, CUBLAS_OP_T, kSize, kSize, kDepth, &one, a.data, kSize, b.data,
                      kSize, &one, c.data, kSize),
          "cublasSgemm");
    if (free_bytes() + kSize * kSize * sizeof(float) < before) return before;
    check(cudaStreamSynchronize(gpu.stream), "cudaStreamSynchronize");
  }
  return 0;
}

void allocate_all(const Gpu& gpu) {
  constexpr size_t kMargin = 64 * 1024;
  const size_t free = wait_for_trial(gpu);
  void* memory = nullptr;
  if (free == 0) return;
  check(cudaMalloc(&memory, free - kMargin), "cudaMalloc of what was free");
  check(cudaFree(memory), "cudaFree");
}

}  // namespace

int main(int argc, char** argv) {
  const bool shapes = argc == 4 && std::strcmp(argv[1], "shapes") == 0;
  const std::string_view first_of_all = argc == 3 ? argv[2] : "";
  if (argc != 2 && !shapes && first_of_all != "memory" && first_of_all != "reset") return 2;
  signal(SIGTERM, [](int) { g_stop = 1; });
  Gpu gpu;
  if (first_of_all == "memory") allocate_all(gpu);
  if (first_of_all == "reset" && wait_for_trial(gpu) != 0) {
    check(cudaDeviceReset(), "cudaDeviceReset");
    gpu = Gpu();
  }
  const auto& [handle, stream] = gpu;
  if (shapes) {
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    wait_for_role(g_stop);
    return random_shapes(handle, stream, std::atoi(argv[2]), unsigned(std::atoi(argv[3])));
  }
  const int progress = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  constexpr int kM = 520, kN = 512, kK = 16, kSmall = 64, kDeep = 32, kBatch = 16;
  const Matrix<float> a(kM * kK, 1), b(kN * kK, 2), c(kM * kN, 3);
  const Matrix<float> as(kSmall * kDeep * kBatch, 4), bs(kSmall * kDeep * kBatch, 5),
      cs(kSmall * kSmall * kBatch, 6);
  const float alpha = 1.25f, beta = 0;
  std::vector<char> first, first_batch;
  while (!g_stop) {
    check(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_T, kM, kN, kK, &alpha, a.data, kM, b.data, kN, &beta,
                      c.data, kM),
          "cublasSgemm");
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    check(cublasSgemmStridedBatched(handle, CUBLAS_OP_T, CUBLAS_OP_N, kSmall, kSmall, kDeep, &alpha, as.data,
                                    kDeep, kSmall * kDeep, bs.data, kDeep, kSmall * kDeep, &beta, cs.data,
                                    kSmall, kSmall * kSmall, kBatch),
          "cublasSgemmStridedBatched");
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    const std::vector<char> now = c.bytes(), batch = cs.bytes();
    if (first.empty()) first = now, first_batch = batch;
    if (now != first || batch != first_batch) return 5;
    if (write(progress, ".", 1) != 1) return 1;
  }
  return 0;
}

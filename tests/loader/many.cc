// Many threads that multiply many shapes:   many THREADS SHAPES CALLS   each thread calls CALLS times, by turns each shape
// (m = 1 .. SHAPES), and a forked child does the same.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/loader/cublas_types.h"

extern "C" cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t transa,
                                         cublasOperation_t transb, int m, int n, int k, const float* alpha,
                                         const float* A, int lda, const float* B, int ldb, const float* beta,
                                         float* C, int ldc);

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const int n_threads = atoi(argv[1]), n_shapes = atoi(argv[2]), n_calls = atoi(argv[3]);
  const auto handle = reinterpret_cast<cublasHandle_t>(uint64_t{1});
  const auto work = [&] {
    for (int i = 0; i < n_calls; i++)
      cublasSgemm_v2(handle, {}, {}, 1 + i % n_shapes, 2, 3, nullptr, nullptr, 1, nullptr, 1, nullptr,
                     nullptr, 1);
  };
  work();  // the child inherits what was found
  const pid_t child = fork();
  std::vector<std::thread> threads;
  threads.reserve(size_t(n_threads));
  for (int i = 0; i < n_threads; i++) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  if (child == 0) _exit(0);
  int status = 0;
  return waitpid(child, &status, 0) == child ? status : 1;
}

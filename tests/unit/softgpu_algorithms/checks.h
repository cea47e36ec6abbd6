// The common part of this folder's algorithms: device arrays, comparisons that name the first difference. Host code.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

struct Algorithm {
  const char* name;
  void (*run)();  // ends the program with a message if a result is wrong
};
std::vector<Algorithm> library_algorithms();
std::vector<Algorithm> own_algorithms();
std::vector<Algorithm> group_algorithms();

inline size_t g_times = 1;  // the library's algorithms take that many times the numbers

[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}
inline void check_cuda(cudaError_t code, const char* text, int line) {
  if (code != cudaSuccess)
    fail("line " + std::to_string(line) + ": " + text + ": " + cudaGetErrorString(code));
}
#define CHECK_CUDA(call) check_cuda(call, #call, __LINE__)

template <class T>
class Device {
 public:
  explicit Device(size_t n) : n_(n) {
    CHECK_CUDA(cudaMalloc(&data_, n * sizeof(T)));
    CHECK_CUDA(cudaMemset(data_, 0, n * sizeof(T)));
  }
  explicit Device(const std::vector<T>& from) : Device(from.size()) {
    CHECK_CUDA(cudaMemcpy(data_, from.data(), n_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  Device(const Device&) = delete;
  ~Device() { cudaFree(data_); }
  T* data() { return data_; }
  std::vector<T> get() const {
    std::vector<T> v(n_);
    CHECK_CUDA(cudaMemcpy(v.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
  }

 private:
  T* data_ = nullptr;
  size_t n_;
};

template <class T>
void expect_equal(const std::vector<T>& got, const std::vector<T>& want, const char* what) {
  if (got.size() != want.size())
    fail(std::string(what) + ": " + std::to_string(got.size()) + " values, not " +
         std::to_string(want.size()));
  for (size_t i = 0; i < got.size(); ++i)
    if (got[i] != want[i])
      fail(std::string(what) + "[" + std::to_string(i) + "] is " + std::to_string(got[i]) + ", not " +
           std::to_string(want[i]));
}
// Sums in another order: relative to the largest value wanted.
inline void expect_near(const std::vector<float>& got, const std::vector<float>& want, double tolerance,
                        const char* what) {
  double largest = 0;
  for (float x : want) largest = std::fmax(largest, std::fabs(x));
  if (got.size() != want.size()) fail(std::string(what) + ": wrong number of values");
  for (size_t i = 0; i < got.size(); ++i)
    if (!(std::fabs(double(got[i]) - want[i]) <= tolerance * largest))
      fail(std::string(what) + "[" + std::to_string(i) + "] is " + std::to_string(got[i]) + ", not " +
           std::to_string(want[i]));
}

// The common part of tests of the software GPU's cuBLAS: numbers of every element type, device memory, tolerances.
// Header only; device memory is freed with its owner.
#pragma once

#include <cuComplex.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

namespace tessera::test {

using Value = std::complex<double>;  // what references are computed with

inline Value value(float x) {
  return x;
}
inline Value value(double x) {
  return x;
}
inline Value value(__half x) {
  return __half2float(x);
}
inline Value value(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
inline Value value(cuComplex x) {
  return {x.x, x.y};
}
inline Value value(cuDoubleComplex x) {
  return {x.x, x.y};
}

template <class T>
T element(Value x) {
  if constexpr (std::is_same_v<T, __half>)
    return __float2half(float(x.real()));
  else if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __float2bfloat16(float(x.real()));
  else if constexpr (std::is_same_v<T, cuComplex>)
    return {float(x.real()), float(x.imag())};
  else if constexpr (std::is_same_v<T, cuDoubleComplex>)
    return {x.real(), x.imag()};
  else
    return T(x.real());
}

template <class T>
inline constexpr cudaDataType kType = CUDA_R_32F;
template <>
inline constexpr cudaDataType kType<double> = CUDA_R_64F;
template <>
inline constexpr cudaDataType kType<__half> = CUDA_R_16F;
template <>
inline constexpr cudaDataType kType<__nv_bfloat16> = CUDA_R_16BF;
template <>
inline constexpr cudaDataType kType<cuComplex> = CUDA_C_32F;
template <>
inline constexpr cudaDataType kType<cuDoubleComplex> = CUDA_C_64F;

// How far a stored result may be from the reference, as a share of the sum of the absolute values of its terms.
template <class T>
inline constexpr double kTolerance = 1e-5;
template <>
inline constexpr double kTolerance<double> = 1e-14;
template <>
inline constexpr double kTolerance<cuDoubleComplex> = 1e-14;
template <>
inline constexpr double kTolerance<__half> = 1e-3;
template <>
inline constexpr double kTolerance<__nv_bfloat16> = 1e-2;

using Random = std::mt19937;

inline int between(Random& random, int first, int last) {
  return std::uniform_int_distribution<int>(first, last)(random);
}
template <class T>
T any(Random& random) {
  std::uniform_real_distribution<double> part(-1, 1);
  const double real = part(random), imaginary = part(random);
  return element<T>({real, imaginary});
}
template <class T>
std::vector<T> any(Random& random, size_t n) {
  std::vector<T> out(n);
  for (T& x : out) x = any<T>(random);
  return out;
}

template <class T>
class Device {
 public:
  explicit Device(const std::vector<T>& content) : n_(content.size()) {
    EXPECT_EQ(cudaMalloc(&memory_, std::max<size_t>(1, n_) * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(memory_, content.data(), n_ * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~Device() { EXPECT_EQ(cudaFree(memory_), cudaSuccess); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  T* get() const { return static_cast<T*>(memory_); }
  std::vector<T> read() const {  // waits for everything before it
    std::vector<T> out(n_);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(out.data(), memory_, n_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return out;
  }

 private:
  void* memory_ = nullptr;
  size_t n_;
};

class Cublas : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(cublasCreate(&handle_), CUBLAS_STATUS_SUCCESS); }
  void TearDown() override {
    EXPECT_EQ(cublasDestroy(handle_), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  cublasHandle_t handle_ = nullptr;
  Random random_{14};
};

}  // namespace tessera::test

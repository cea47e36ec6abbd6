// An ordinary program of cuBLAS, linked with the toolkit's own library and never told of another: products by handle and in a
// batch, and a dot product, against loops on the host. Exits 0 if all agree.
#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

constexpr int kN = 48, kBatch = 3;

bool ok(int status, const char* what) {
  if (status != 0) std::printf("%s: status %d\n", what, status);
  return status == 0;
}

std::vector<float> numbers(int seed) {
  std::vector<float> out(size_t(kN * kN * kBatch));
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = float((int(i) * 37 + seed) % 17 - 8);  // small integers: sums are exact
  return out;
}

float* upload(const std::vector<float>& content) {
  void* memory = nullptr;
  ok(cudaMalloc(&memory, content.size() * sizeof(float)), "cudaMalloc");
  ok(cudaMemcpy(memory, content.data(), content.size() * sizeof(float), cudaMemcpyHostToDevice),
     "cudaMemcpy");
  return static_cast<float*>(memory);
}

int wrong(const std::vector<float>& a, const std::vector<float>& b, const std::vector<float>& c) {
  int bad = 0;
  for (int p = 0; p < kBatch; ++p)
    for (int j = 0; j < kN; ++j)
      for (int i = 0; i < kN; ++i) {
        float sum = 0;
        for (int k = 0; k < kN; ++k)
          sum += a[size_t(p * kN * kN + k * kN + i)] * b[size_t(p * kN * kN + k * kN + j)];
        bad += c[size_t(p * kN * kN + j * kN + i)] != 2 * sum;
      }
  return bad;
}

}  // namespace

int main() {
  const std::vector<float> a = numbers(1), b = numbers(5);
  float *da = upload(a), *db = upload(b), *dc = upload(std::vector<float>(a.size(), NAN));
  cublasHandle_t handle;
  if (!ok(cublasCreate(&handle), "cublasCreate")) return 1;
  const float two = 2, zero = 0;
  constexpr long long kStride = kN * kN;
  if (!ok(cublasSgemmStridedBatched(handle, CUBLAS_OP_N, CUBLAS_OP_T, kN, kN, kN, &two, da, kN, kStride, db,
                                    kN, kStride, &zero, dc, kN, kStride, kBatch),
          "cublasSgemmStridedBatched"))
    return 1;
  std::vector<float> c(a.size());
  if (!ok(cudaMemcpy(c.data(), dc, c.size() * sizeof(float), cudaMemcpyDeviceToHost), "cudaMemcpy")) return 1;
  float dot = 0, dot_wanted = 0;
  if (!ok(cublasSdot(handle, int(a.size()), da, 1, db, 1, &dot), "cublasSdot")) return 1;
  for (size_t i = 0; i < a.size(); ++i) dot_wanted += a[i] * b[i];
  const int bad = wrong(a, b, c);
  std::printf("%d elements differ, dot product %g of %g\n", bad, dot, dot_wanted);
  return bad == 0 && dot == dot_wanted && ok(cublasDestroy(handle), "cublasDestroy") ? 0 : 1;
}

// Linked with the toolkit's cuBLASLt: calls its two functions that launch again and again without a handle, which needs no
// GPU, with descriptors that are there, are not, or hold any bytes; prints each status.
#include <cublasLt.h>

#include <cstdio>
#include <random>

namespace {

std::mt19937_64 g_random(14);

bool one_in(unsigned n) {
  return g_random() % n == 0;
}
template <class Opaque>
Opaque* any_of(Opaque& made) {
  static Opaque garbage;
  for (uint64_t& word : garbage.data) word = g_random() >> (g_random() % 64);
  return one_in(4) ? nullptr : one_in(4) ? &garbage : &made;
}

}  // namespace

int main() {
  cublasLtMatrixLayoutOpaque_t a{}, b{}, c{};
  cublasLtMatmulDescOpaque_t matmul{};
  cublasLtMatrixTransformDescOpaque_t transform{};
  printf("%d %d %d %d %d\n", cublasLtMatrixLayoutInit(&a, CUDA_R_32F, 3, 7, 3),
         cublasLtMatrixLayoutInit(&b, CUDA_R_32F, 7, 5, 7), cublasLtMatrixLayoutInit(&c, CUDA_R_32F, 3, 5, 3),
         cublasLtMatmulDescInit(&matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F),
         cublasLtMatrixTransformDescInit(&transform, CUDA_R_32F));
  float number = 1;
  for (int i = 0; i < 500; i++) {
    float* const data = one_in(3) ? nullptr : &number;
    printf("%d %d\n",
           cublasLtMatmul(nullptr, any_of(matmul), data, data, any_of(a), data, any_of(b), data, data,
                          any_of(c), data, any_of(c), nullptr, data, one_in(2) ? 0 : 4, nullptr),
           cublasLtMatrixTransform(nullptr, any_of(transform), data, data, any_of(a), data, data, any_of(b),
                                   data, any_of(c), nullptr));
  }
  return 0;
}

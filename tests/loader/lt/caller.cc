// Calls the two functions of cuBLASLt that launch, with descriptors of 3 x 5 = 3 x 7 times 7 x 5, and prints their answers:
//   linked            as it was linked with the library, twice
//   dlsym LIBRARY     looked up by name
//   namespace LIBRARY the same of a copy in a namespace of its own
//   moved LIBRARY     the same, after a first copy was looked up and closed without a call
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

#include "tests/loader/moving.h"

using P = const void*;
extern "C" int cublasLtMatmul(P, P, P, P, P, P, P, P, P, P, void*, P, P, void*, size_t, P);
extern "C" int cublasLtMatrixTransform(P, P, P, P, P, P, P, P, void*, P, P);
extern "C" int cublasLtMatrixLayoutInit_internal(void*, size_t, int, uint64_t, uint64_t, int64_t);
extern "C" int cublasLtMatmulDescInit_internal(void*, size_t, int, int);

namespace {

// Their addresses are arguments: the same in every run.
struct Page {
  uint64_t a[8], b[8], d[8], matmul[32];
};
Page* const g_page = reinterpret_cast<Page*>(0x3000'0000'0000);
bool make_page() {
  return mmap(g_page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
              0) == g_page;
}

P at(uint64_t address) {
  return reinterpret_cast<P>(address);
}

void call(decltype(&cublasLtMatmul) matmul, decltype(&cublasLtMatrixTransform) transform) {
  if (!matmul || !transform) {
    puts("none");
    return;
  }
  void* const d = const_cast<void*>(at(8));
  printf("%d\n", matmul(at(1), g_page->matmul, at(2), at(3), g_page->a, at(4), g_page->b, at(5), at(6),
                        g_page->d, d, g_page->d, at(9), d, 10, at(11)));
  printf("%d\n",
         transform(at(1), at(2), at(3), at(4), g_page->d, at(5), nullptr, nullptr, d, g_page->d, at(6)));
  printf("%d\n",
         transform(at(1), at(2), at(3), at(4), g_page->d, at(5), at(6), g_page->d, d, g_page->d, at(7)));
}
void call_of(void* library) {
  const auto get = [&](const char* name) { return library ? dlsym(library, name) : nullptr; };
  call(reinterpret_cast<decltype(&cublasLtMatmul)>(get("cublasLtMatmul")),
       reinterpret_cast<decltype(&cublasLtMatrixTransform)>(get("cublasLtMatrixTransform")));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || !make_page()) return 2;
  constexpr int kF32 = 0, kComputeIn32F = 68;
  cublasLtMatrixLayoutInit_internal(g_page->a, sizeof g_page->a, kF32, 3, 7, 3);
  cublasLtMatrixLayoutInit_internal(g_page->b, sizeof g_page->b, kF32, 7, 5, 7);
  cublasLtMatrixLayoutInit_internal(g_page->d, sizeof g_page->d, kF32, 3, 5, 3);
  cublasLtMatmulDescInit_internal(g_page->matmul, sizeof g_page->matmul, kComputeIn32F, kF32);
  if (strcmp(argv[1], "linked") == 0)
    for (int i = 0; i < 2; i++) call(&cublasLtMatmul, &cublasLtMatrixTransform);
  else if (argc == 3 && strcmp(argv[1], "dlsym") == 0)
    call_of(dlopen(argv[2], RTLD_NOW | RTLD_LOCAL));
  else if (argc == 3 && strcmp(argv[1], "moved") == 0) {
    void* const first = dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW);
    if (!first || !dlsym(first, "cublasLtMatmul") || !loader::close_for_good(first)) return 1;
    call_of(dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW));
  } else if (argc == 3 && strcmp(argv[1], "namespace") == 0)
    call_of(dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW));
  else
    return 2;
  return 0;
}

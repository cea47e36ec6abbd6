// Assertions and the list of cases of the CUDA test program. Host code of the .cu files only; one case per
// process, because some leave the context broken on purpose.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <string>

namespace checks {

struct Case {
  const char* name;
  void (*run)();
};
extern const Case kMemoryCases[];  // each list ends with a null name
extern const Case kStreamCases[];
extern const Case kGraphCases[];
extern const Case kKernelCases[];

inline int g_failures = 0;

inline void expect(bool ok, const char* file, int line, const std::string& what) {
  if (ok) return;
  ++g_failures;
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}

inline void expect_status(cudaError_t got, cudaError_t wanted, const char* file, int line, const char* what) {
  expect(got == wanted, file, line,
         std::string(what) + ": " + cudaGetErrorName(got) + ", expected " + cudaGetErrorName(wanted));
}

}  // namespace checks

#define EXPECT(condition) checks::expect((condition), __FILE__, __LINE__, #condition)
#define EXPECT_EQ(a, b)                          \
  checks::expect((a) == (b), __FILE__, __LINE__, \
                 std::string(#a " == " #b ": ") + std::to_string(a) + " and " + std::to_string(b))
#define EXPECT_CUDA(wanted, call) checks::expect_status((call), (wanted), __FILE__, __LINE__, #call)
#define OK(call) EXPECT_CUDA(cudaSuccess, call)

// The toolkit's own static runtime as far as it goes on this driver: it must fail or succeed as without us.
#include <cuda_runtime.h>

#include "tests/conformance/programs/print.h"

int main() {
  int count = -1, version = -1;
  void* memory = nullptr;
  SAY(cudaGetDeviceCount(&count));
  std::printf("%d\n", count);
  SAY(cudaDriverGetVersion(&version));
  std::printf("%d\n", version);
  SAY(cudaMalloc(&memory, 16));
  std::printf("%s\n", cudaGetErrorName(cudaGetLastError()));
}

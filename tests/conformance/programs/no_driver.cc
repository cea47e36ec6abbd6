// A linked program on a machine without a driver. Without us it would not start; with us it must get errors
// that programs know how to handle (docs/driver_api.md).
#include <cuda.h>

#include "tests/conformance/programs/print.h"

int main() {
  int version = -1, count = -1;
  void* p = &version;
  const char* text = "";
  auto status = static_cast<CUdriverProcAddressQueryResult>(77);
  SAY(cuInit(0));
  SAY(cuDriverGetVersion(&version));
  std::printf("%d\n", version);
  SAY(cuDeviceGetCount(&count));
  SAY(cuGetProcAddress("cuInit", &p, 12000, 0, &status));
  std::printf("%d %d\n", p == nullptr, int(status));
  SAY(cuGetErrorString(CUDA_ERROR_NO_DEVICE, &text));
  std::printf("%s\n", text);
  SAY(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
}

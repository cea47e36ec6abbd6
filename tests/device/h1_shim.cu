// H1: does everything work unchanged through the shim? Run it with and without the preload library and
// compare: the runtime starts, names and aliases lead to one library, both ways to a function give one
// pointer, results are right, cuBLAS and cuDNN start and compute. --libraries adds the latter two (found by
// dlopen; absent ones are "skipped").
#include <dlfcn.h>

#include "probe.h"

namespace {

using probe::Report;

__global__ void axpy(float a, const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}

std::string file_of(void* address) {
  Dl_info info{};
  if (!address || !dladdr(address, &info) || !info.dli_fname) return "none";
  const char* slash = std::strrchr(info.dli_fname, '/');
  return slash ? slash + 1 : info.dli_fname;
}

// The driver under both its names, and whether the two ways to a function agree.
bool identities(Report& report) {
  void* by_soname = dlopen("libcuda.so.1", RTLD_NOW);
  void* by_name = dlopen("libcuda.so", RTLD_NOW);
  void* init = by_soname ? dlsym(by_soname, "cuInit") : nullptr;
  report.text("libcuda_so_1", file_of(init));
  report.text("libcuda_so", by_name ? file_of(dlsym(by_name, "cuInit")) : "not found");
  const bool names_agree = by_name && dlsym(by_name, "cuInit") == init;
  report.boolean("names_agree", names_agree);

  using Lookup = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
  const auto lookup = reinterpret_cast<Lookup>(dlsym(by_soname, "cuGetProcAddress_v2"));
  static const struct {
    const char *base, *symbol;
    cuuint64_t flags;
  } kPairs[] = {
      {"cuLaunchKernel", "cuLaunchKernel", CU_GET_PROC_ADDRESS_LEGACY_STREAM},
      {"cuLaunchKernel", "cuLaunchKernel_ptsz", CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM},
      {"cuLaunchKernelEx", "cuLaunchKernelEx", CU_GET_PROC_ADDRESS_LEGACY_STREAM},
      {"cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync_v2", CU_GET_PROC_ADDRESS_LEGACY_STREAM},
      {"cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync_v2_ptsz", CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM},
      {"cuStreamSynchronize", "cuStreamSynchronize", CU_GET_PROC_ADDRESS_LEGACY_STREAM},
      {"cuGraphLaunch", "cuGraphLaunch", CU_GET_PROC_ADDRESS_LEGACY_STREAM},
      {"cuGetProcAddress", "cuGetProcAddress_v2", CU_GET_PROC_ADDRESS_LEGACY_STREAM},
  };
  std::string different;
  for (const auto& pair : kPairs) {
    void* asked = nullptr;
    CUdriverProcAddressQueryResult status{};
    if (lookup) lookup(pair.base, &asked, 12000, pair.flags, &status);
    if (!asked || asked != dlsym(by_soname, pair.symbol)) different += std::string(" ") + pair.symbol;
  }
  report.text("pointers_that_differ", different.empty() ? "none" : different.substr(1));
  return (names_agree || !by_name) && different.empty();  // without development files there is one name
}

bool kernel_is_right() {
  const int n = 100000;
  std::vector<float> x(n), y(n, 1.0f);
  for (int i = 0; i < n; ++i) x[i] = float(i % 1000);
  float* dx = samples::device_array<float>(n);
  float* dy = samples::device_array<float>(n);
  CUDA_CHECK(cudaMemcpy(dx, x.data(), n * sizeof(float), cudaMemcpyHostToDevice));
  CUDA_CHECK(cudaMemcpy(dy, y.data(), n * sizeof(float), cudaMemcpyHostToDevice));
  axpy<<<(n + 127) / 128, 128>>>(2.0f, dx, dy, n);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaMemcpy(y.data(), dy, n * sizeof(float), cudaMemcpyDeviceToHost));
  for (int i = 0; i < n; ++i) {
    if (y[i] != 1.0f + 2.0f * x[i]) return false;
  }
  return true;
}

// cuBLAS without its headers: handle, one product of 256x256 matrices of ones, every element 256.
std::string cublas() {
  void* library = dlopen("libcublas.so.13", RTLD_NOW);
  if (!library) library = dlopen("libcublas.so.12", RTLD_NOW);
  if (!library) return "skipped: not installed";
  const auto create = reinterpret_cast<int (*)(void**)>(dlsym(library, "cublasCreate_v2"));
  const auto sgemm =
      reinterpret_cast<int (*)(void*, int, int, int, int, int, const float*, const float*, int, const float*,
                               int, const float*, float*, int)>(dlsym(library, "cublasSgemm_v2"));
  if (!create || !sgemm) return "failed: symbols";
  void* handle = nullptr;
  if (const int status = create(&handle)) return "failed: cublasCreate " + std::to_string(status);
  const int n = 256;
  std::vector<float> host(n * n, 1.0f);
  float* a = samples::device_array<float>(n * n);
  float* c = samples::device_array<float>(n * n);
  CUDA_CHECK(cudaMemcpy(a, host.data(), n * n * sizeof(float), cudaMemcpyHostToDevice));
  const float one = 1, zero = 0;
  if (const int status = sgemm(handle, 0, 0, n, n, n, &one, a, n, a, n, &zero, c, n)) {
    return "failed: cublasSgemm " + std::to_string(status);
  }
  CUDA_CHECK(cudaMemcpy(host.data(), c, n * n * sizeof(float), cudaMemcpyDeviceToHost));
  for (float v : host) {
    if (v != float(n)) return "failed: wrong result";
  }
  return "ok";
}

std::string cudnn() {
  void* library = dlopen("libcudnn.so.9", RTLD_NOW);
  if (!library) return "skipped: not installed";
  const auto create = reinterpret_cast<int (*)(void**)>(dlsym(library, "cudnnCreate"));
  if (!create) return "failed: symbols";
  void* handle = nullptr;
  const int status = create(&handle);
  return status == 0 ? "ok" : "failed: cudnnCreate " + std::to_string(status);
}

}  // namespace

int main(int argc, char** argv) {
  bool libraries = false;
  samples::parse_options(argc, argv, "H1: the shim in front of the real driver.",
                         {{"--libraries", &libraries, "also cuBLAS and cuDNN"}});
  Report report("H1");
  const char* preload = std::getenv("LD_PRELOAD");
  report.boolean("preloaded", preload && std::strstr(preload, "tessera"));
  const cudaError_t first = cudaFree(nullptr);
  report.text("first_call", cudaGetErrorName(first));
  bool right = first == cudaSuccess;
  if (right) {
    probe::add_device(report);
    right &= identities(report);
    const bool kernel_right = kernel_is_right();
    report.boolean("kernel_right", kernel_right);
    right &= kernel_right;
    const auto ask = [&](const char* library, const std::string& answer) {
      report.text(library, answer);
      right &= answer.rfind("failed", 0) != 0;
    };
    if (libraries) {
      ask("cublas", cublas());
      ask("cudnn", cudnn());
    }
  }
  report.print();
  return right ? 0 : 1;
}

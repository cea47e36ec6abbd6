// Loading an image of 20,000 kernels and looking each of them up: what the preload library adds for a
// best-effort program, whose kernels all get variants, over the driver alone (the software GPU). Each regime
// is its own process (this program again, with --measure), which prints its nanoseconds.
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "driver_api/cuda.h"
#include "tests/bench/timing.h"

namespace {

constexpr int kKernels = 20'000, kRounds = 3;

std::string text() {
  std::string out = ".version 8.0\n.target sm_80\n.address_size 64\n";
  for (int i = 0; i < kKernels; ++i)
    out += ".visible .entry kernel" + std::to_string(i) +
           "(.param .u64 out)\n{\n.reg .b32 %r<3>;\n.reg .b64 %rd<3>;\nld.param.u64 %rd1, [out];\n"
           "mov.u32 %r1, %ctaid.x;\nmul.wide.u32 %rd2, %r1, 4;\nadd.u64 %rd1, %rd1, %rd2;\n"
           "st.global.u32 [%rd1], %r1;\nret;\n}\n";
  return out;
}

template <class F>
F* function(void* library, const char* name) {
  return reinterpret_cast<F*>(dlsym(library, name));
}

int measure(const char* path) {
  void* library = dlopen(path, RTLD_NOW);
  if (!library) return 1;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  if (function<decltype(cuInit)>(library, "cuInit")(0) != CUDA_SUCCESS ||
      function<decltype(cuDevicePrimaryCtxRetain)>(library, "cuDevicePrimaryCtxRetain")(&context, 0) !=
          CUDA_SUCCESS ||
      function<decltype(cuCtxSetCurrent)>(library, "cuCtxSetCurrent")(context) != CUDA_SUCCESS)
    return 1;
  const std::string image = text();
  auto* find = function<decltype(cuModuleGetFunction)>(library, "cuModuleGetFunction");
  const uint64_t begin = tessera::base::now_ns();
  if (function<decltype(cuModuleLoadData)>(library, "cuModuleLoadData")(&module, image.c_str()) !=
      CUDA_SUCCESS)
    return 1;
  for (int i = 0; i < kKernels; ++i) {
    CUfunction f = nullptr;
    if (find(&f, module, ("kernel" + std::to_string(i)).c_str()) != CUDA_SUCCESS) return 1;
  }
  printf("%llu\n", static_cast<unsigned long long>(tessera::base::now_ns() - begin));
  return 0;
}

// Nanoseconds of one process; 0 if it failed.
double run(const char* self, const char* path, const std::string& folder, bool cached) {
  const std::string command =
      "TESSERA_SOFTGPU_DIR=" + folder + " TESSERA_SOFTGPU_LINGER_MS=500" + " TESSERA_SOCKET=" + folder +
      "/none TESSERA_DRIVER=" TS_SOFTGPU " TESSERA_CACHE_DIR=" + folder +
      "/cache TESSERA_CACHE_MAX_MB=" + (cached ? "256 " : "0 ") + self + " --measure " + path;
  FILE* output = popen(command.c_str(), "r");
  double ns = 0;
  const bool fine = output && fscanf(output, "%lf", &ns) == 1;
  return output && pclose(output) == 0 && fine ? ns : 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], "--measure") == 0) return measure(argv[2]);
  std::string folder = "/tmp/bench-load-XXXXXX";
  if (!mkdtemp(folder.data())) return 1;
  std::vector<double> bare, cut, kept;
  for (int round = 0; round < kRounds; ++round) {
    bare.push_back(run(argv[0], TS_SOFTGPU, folder, false));
    cut.push_back(run(argv[0], TS_SHIM, folder, false));
    kept.push_back(run(argv[0], TS_SHIM, folder, true));
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  using tessera::bench::quantile;
  if (quantile(bare, 0) == 0 || quantile(cut, 0) == 0 || quantile(kept, 0) == 0) {
    fprintf(stderr, "bench_load: a process failed\n");
    return 1;
  }
  tessera::bench::Report report;
  report.add("slice.load_20k_kernels_bare_ms", quantile(bare, 0.5) / 1e6);
  report.add("slice.load_20k_kernels_over_bare", quantile(cut, 0.5) / quantile(bare, 0.5));
  report.add("slice.load_20k_kernels_kept_over_bare", quantile(kept, 0.5) / quantile(bare, 0.5));
  report.print();
  return 0;
}

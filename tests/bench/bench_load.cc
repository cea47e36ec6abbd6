// Loading an image of 20,000 kernels and looking each of them up: what the preload library adds for a
// best-effort program, whose kernels all get variants, over the driver alone (the software GPU). Each regime
// is its own process (this program again, with --measure), which prints its nanoseconds.
// Likewise a fat binary of 2 GB of machine code, of which the software GPU reads no more than headers: what the library adds
// is held against the time of copying it once, the least that a driver with a GPU does.
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "driver_api/cuda.h"
#include "kernels/image/write.h"
#include "tests/bench/timing.h"

namespace {

constexpr int kKernels = 20'000, kRounds = 5;
constexpr size_t kLargeBytes = 2'000'000'000, kCodes = 64;

std::string text(int kernels) {
  std::string out = ".version 8.0\n.target sm_80\n.address_size 64\n";
  for (int i = 0; i < kernels; ++i)
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

// The processor time of this thread: a wait for CPUs that others have is not the library's.
uint64_t cpu_ns() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return uint64_t(t.tv_sec) * 1'000'000'000 + uint64_t(t.tv_nsec);
}

// A container of the PTX of one kernel and kCodes times machine code for another GPU.
std::vector<uint8_t> large_image() {
  using namespace tessera::image;
  constexpr size_t kHeaderBytes = 16, kSizeAt = 8;  // docs/formats.md
  const auto container = [](EntryKind kind, unsigned sm, std::vector<uint8_t> payload) {
    LoadedEntry entry;
    entry.kind = kind;
    entry.sm = sm;
    entry.version_major = 8;
    entry.payload = std::move(payload);
    auto written = write_container({&entry, 1});
    return written ? *std::move(written) : std::vector<uint8_t>();
  };
  const std::string ptx = text(1);
  std::vector<uint8_t> machine_code(kLargeBytes / kCodes, 1);
  memcpy(machine_code.data(), "\177ELF", 4);
  std::vector<uint8_t> out = container(EntryKind::kPtx, 80, {ptx.begin(), ptx.end()});
  const std::vector<uint8_t> code = container(EntryKind::kCubin, 75, std::move(machine_code));
  if (out.empty() || code.empty()) return {};
  out.reserve(out.size() + kCodes * code.size());
  for (size_t i = 0; i < kCodes; ++i) out.insert(out.end(), code.begin() + kHeaderBytes, code.end());
  const uint64_t bytes = out.size() - kHeaderBytes;
  memcpy(out.data() + kSizeAt, &bytes, sizeof bytes);
  return out;
}

double copy_once_ns() {
  const std::vector<uint8_t> from(kLargeBytes / kCodes, 1);
  std::vector<uint8_t> to(from.size());
  const uint64_t begin = cpu_ns();
  for (size_t i = 0; i < kCodes; ++i) {
    memcpy(to.data(), from.data(), from.size());
    asm volatile("" : : "r"(to.data()) : "memory");
  }
  return double(cpu_ns() - begin);
}

int measure(const char* path, bool large) {
  void* library = dlopen(path, RTLD_NOW);
  if (!library) return 1;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  if (function<decltype(cuInit)>(library, "cuInit")(0) != CUDA_SUCCESS ||
      function<decltype(cuDevicePrimaryCtxRetain)>(library, "cuDevicePrimaryCtxRetain")(&context, 0) !=
          CUDA_SUCCESS ||
      function<decltype(cuCtxSetCurrent)>(library, "cuCtxSetCurrent")(context) != CUDA_SUCCESS)
    return 1;
  const std::string ptx = large ? "" : text(kKernels);
  const std::vector<uint8_t> container = large ? large_image() : std::vector<uint8_t>();
  const void* image = large ? static_cast<const void*>(container.data()) : ptx.c_str();
  const int kernels = large ? 1 : kKernels;
  auto* find = function<decltype(cuModuleGetFunction)>(library, "cuModuleGetFunction");
  const uint64_t begin = large ? cpu_ns() : tessera::base::now_ns();
  if (function<decltype(cuModuleLoadData)>(library, "cuModuleLoadData")(&module, image) != CUDA_SUCCESS)
    return 1;
  for (int i = 0; i < kernels; ++i) {
    CUfunction f = nullptr;
    if (find(&f, module, ("kernel" + std::to_string(i)).c_str()) != CUDA_SUCCESS) return 1;
  }
  printf("%llu\n", static_cast<unsigned long long>((large ? cpu_ns() : tessera::base::now_ns()) - begin));
  return 0;
}

// Nanoseconds of one process; 0 if it failed.
double run(const char* self, const char* path, const std::string& folder, bool cached, bool large = false) {
  const std::string command = "TESSERA_SOFTGPU_DIR=" + folder + " TESSERA_SOFTGPU_LINGER_MS=500" +
                              " TESSERA_SOCKET=" + folder +
                              "/none TESSERA_DRIVER=" TS_SOFTGPU " TESSERA_CACHE_DIR=" + folder +
                              "/cache TESSERA_CACHE_MAX_MB=" + (cached ? "256 " : "0 ") + self +
                              (large ? " --measure-large " : " --measure ") + path;
  FILE* output = popen(command.c_str(), "r");
  double ns = 0;
  const bool fine = output && fscanf(output, "%lf", &ns) == 1;
  return output && pclose(output) == 0 && fine ? ns : 0;
}

}  // namespace

int main(int argc, char** argv) {
  for (const bool large : {false, true})
    if (argc == 3 && strcmp(argv[1], large ? "--measure-large" : "--measure") == 0)
      return measure(argv[2], large);
  std::string folder = "/tmp/bench-load-XXXXXX";
  if (!mkdtemp(folder.data())) return 1;
  std::vector<double> bare, cut, kept, large_bare, large;
  for (int round = 0; round < kRounds; ++round) {
    bare.push_back(run(argv[0], TS_SOFTGPU, folder, false));
    cut.push_back(run(argv[0], TS_SHIM, folder, false));
    kept.push_back(run(argv[0], TS_SHIM, folder, true));
    large_bare.push_back(run(argv[0], TS_SOFTGPU, folder, false, true));
    large.push_back(run(argv[0], TS_SHIM, folder, false, true));
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  using tessera::bench::quantile;
  if (quantile(bare, 0) == 0 || quantile(cut, 0) == 0 || quantile(kept, 0) == 0 ||
      quantile(large_bare, 0) == 0 || quantile(large, 0) == 0) {
    fprintf(stderr, "bench_load: a process failed\n");
    return 1;
  }
  tessera::bench::Report report;
  report.add("slice.load_20k_kernels_bare_ms", quantile(bare, 0.5) / 1e6);
  report.add("slice.load_20k_kernels_over_bare", quantile(cut, 0.5) / quantile(bare, 0.5));
  report.add("slice.load_20k_kernels_kept_over_bare", quantile(kept, 0.5) / quantile(bare, 0.5));
  const double added_ns = quantile(large, 0) - quantile(large_bare, 0);  // other work only adds
  report.add("load.image_2gb_bare_ms", quantile(large_bare, 0) / 1e6);
  report.add("load.image_2gb_added_ms", added_ns / 1e6);
  report.add("load.image_2gb_over_bare", 1 + added_ns / copy_once_ns());
  report.print();
  return 0;
}

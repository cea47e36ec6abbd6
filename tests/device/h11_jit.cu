// H11: the driver's compiler. How long does it take from PTX to a loaded module (first time, from its cache,
// without cache), and does PTX compiled here give the same bits as the machine code that nvcc made of the
// same source? The cubin is for sm_90.
#include "probe.h"

namespace {

const char* const kKernels[] = {"contracted", "approximate", "reduced", "integers"};
constexpr int kN = 1 << 16;

struct Loaded {
  CUresult result = CUDA_SUCCESS;
  CUmodule module = nullptr;
  double ms = 0;
};

Loaded load(const std::string& path) {
  Loaded loaded;
  const std::string image = probe::file_text(path);
  const auto load_data = probe::driver_function<decltype(&cuModuleLoadData)>("cuModuleLoadData");
  const uint64_t start = probe::now_ns();
  loaded.result = load_data(&loaded.module, image.c_str());
  loaded.ms = double(probe::now_ns() - start) * 1e-6;
  return loaded;
}

std::vector<float> run(CUmodule module, const char* kernel, float* a, float* b, float* out) {
  CUfunction function = nullptr;
  probe::driver_check(probe::driver_function<decltype(&cuModuleGetFunction)>("cuModuleGetFunction")(
                          &function, module, kernel),
                      kernel);
  int n = kN;
  void* parameters[] = {&a, &b, &out, &n};
  probe::driver_check(probe::driver_function<decltype(&cuLaunchKernel)>("cuLaunchKernel")(
                          function, kN / 256, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr),
                      kernel);
  std::vector<float> result(kN);
  CUDA_CHECK(cudaMemcpy(result.data(), out, kN * sizeof(float), cudaMemcpyDeviceToHost));
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder = probe::own_folder();
  samples::parse_options(
      argc, argv, "H11: compiling PTX on the spot.",
      {{"--folder", &folder, "where h11_kernels.ptx and .cubin are"}});
  CUDA_CHECK(cudaFree(nullptr));
  probe::Report report("H11");
  probe::add_device(report);
  const char* cache = std::getenv("CUDA_CACHE_DISABLE");
  report.text("cache_disabled", cache ? cache : "0");
  const Loaded first = load(folder + "/h11_kernels.ptx"), second = load(folder + "/h11_kernels.ptx");
  probe::driver_check(first.result, "cuModuleLoadData of PTX");
  probe::driver_check(second.result, "cuModuleLoadData of PTX, again");
  const Loaded machine = load(folder + "/h11_kernels.cubin");
  report.number("ptx_first_ms", first.ms).number("ptx_again_ms", second.ms).number("cubin_ms", machine.ms);
  report.boolean("cubin_loads", machine.result == CUDA_SUCCESS);
  float* a = samples::device_filled(kN, 1, 1.0f);
  float* b = samples::device_filled(kN, 2, 1.0f);
  float* out = samples::device_array<float>(kN);
  for (const char* kernel : kKernels) {
    const std::vector<float> one = run(first.module, kernel, a, b, out),
                             two = run(second.module, kernel, a, b, out);
    report.boolean(std::string(kernel) + "_repeatable",
                   !std::memcmp(one.data(), two.data(), one.size() * sizeof(float)));
    if (machine.result != CUDA_SUCCESS) continue;
    const std::vector<float> native = run(machine.module, kernel, a, b, out);
    size_t different = 0;
    for (size_t i = 0; i < one.size(); ++i) different += std::memcmp(&one[i], &native[i], sizeof(float)) != 0;
    report.number(std::string(kernel) + "_values_that_differ_from_cubin", double(different));
  }
  report.print();
}

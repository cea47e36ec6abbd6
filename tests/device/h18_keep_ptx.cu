// H18: what does the driver make of a fat binary of `tessera ptxas`, machine code with its PTX beside it? Does it
// take the machine code in each call that loads images, whatever the PTX says? Are cut variants, which it
// compiles from that PTX, equal to the machine code bit for bit? The machine code is for sm_90.
//
//   h18_kept.fatbin    tessera ptxas of h18_kernels.ptx     h18_kernels.cubin  ptxas of it
//   h18_variants.ptx   tessera inspect --emit-slice of it
#include "probe.h"

namespace {

const char* const kKernels[] = {"contracted", "approximate", "reduced", "integers"};
constexpr int kN = 1 << 16, kThreads = 256, kBlocks = kN / kThreads;
constexpr const char *kOfMachineCode = "1234567890", *kOfPtx = "1987654321";

template <class F>
F entry(const char* name) {
  return probe::driver_function<F>(name);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  if (at == std::string::npos || from.size() != to.size()) samples::fail("not in the fat binary", from.c_str());
  return text.replace(at, from.size(), to);
}

// Makes the PTX version 9.9, whatever it was.
std::string of_newer_version(std::string ptx) {
  const size_t at = ptx.find(".version ") + std::strlen(".version ");
  return ptx.replace(at, 3, "9.9");
}

struct Loaded {
  CUresult result = CUDA_SUCCESS;
  CUmodule module = nullptr;
};

Loaded by_module(const std::string& image) {
  Loaded loaded;
  loaded.result = entry<decltype(&cuModuleLoadData)>("cuModuleLoadData")(&loaded.module, image.c_str());
  return loaded;
}

Loaded by_module_with_options(const std::string& image) {
  Loaded loaded;
  loaded.result = entry<decltype(&cuModuleLoadDataEx)>("cuModuleLoadDataEx")(&loaded.module, image.c_str(), 0, nullptr, nullptr);
  return loaded;
}

Loaded by_fat_binary(const std::string& image) {
  Loaded loaded;
  loaded.result = entry<decltype(&cuModuleLoadFatBinary)>("cuModuleLoadFatBinary")(&loaded.module, image.c_str());
  return loaded;
}

Loaded by_library(const std::string& image) {
  Loaded loaded;
  CUlibrary library = nullptr;
  loaded.result = entry<decltype(&cuLibraryLoadData)>("cuLibraryLoadData")(&library, image.c_str(), nullptr, nullptr, 0, nullptr,
                                                                           nullptr, 0);
  if (loaded.result == CUDA_SUCCESS)
    loaded.result = entry<decltype(&cuLibraryGetModule)>("cuLibraryGetModule")(&loaded.module, library);
  return loaded;
}

void launch(CUmodule module, const std::string& kernel, int blocks, int threads, void** parameters) {
  CUfunction function = nullptr;
  probe::driver_check(entry<decltype(&cuModuleGetFunction)>("cuModuleGetFunction")(&function, module, kernel.c_str()),
                      kernel.c_str());
  probe::driver_check(entry<decltype(&cuLaunchKernel)>("cuLaunchKernel")(function, unsigned(blocks), 1, 1, unsigned(threads), 1, 1, 0,
                                                                         nullptr, parameters, nullptr),
                      kernel.c_str());
}

// "machine code", "ptx", or why neither.
std::string origin(const Loaded& loaded) {
  if (loaded.result != CUDA_SUCCESS) return "error " + std::to_string(int(loaded.result));
  uint32_t* out = samples::device_array<uint32_t>(1);
  void* parameters[] = {&out};
  launch(loaded.module, "origin", 1, 1, parameters);
  uint32_t value = 0;
  CUDA_CHECK(cudaMemcpy(&value, out, sizeof value, cudaMemcpyDeviceToHost));
  CUDA_CHECK(cudaFree(out));
  const std::string text = std::to_string(value);
  return text == kOfMachineCode ? "machine code" : text == kOfPtx ? "ptx" : "value " + text;
}

struct Arrays {
  float *a = nullptr, *b = nullptr, *out = nullptr;
};

std::vector<float> values(const Arrays& arrays) {
  CUDA_CHECK(cudaDeviceSynchronize());
  std::vector<float> result(kN);
  CUDA_CHECK(cudaMemcpy(result.data(), arrays.out, kN * sizeof(float), cudaMemcpyDeviceToHost));
  CUDA_CHECK(cudaMemset(arrays.out, 0, kN * sizeof(float)));
  return result;
}

std::vector<float> whole(CUmodule module, const std::string& kernel, Arrays arrays) {
  int n = kN;
  void* parameters[] = {&arrays.a, &arrays.b, &arrays.out, &n};
  launch(module, kernel, kBlocks, kThreads, parameters);
  return values(arrays);
}

// As the product launches a variant: first block of the slice, grid of the whole (docs/slicing.md).
std::vector<float> sliced(CUmodule module, const std::string& kernel, Arrays arrays) {
  constexpr int kSlice = 48;
  for (int first = 0; first < kBlocks; first += kSlice) {
    int n = kN;
    uint32_t slice[6] = {uint32_t(first), 0, 0, kBlocks, 1, 1};
    void* parameters[] = {&arrays.a, &arrays.b, &arrays.out, &n, slice};
    launch(module, kernel + "__tessera_slice", std::min(kSlice, kBlocks - first), kThreads, parameters);
  }
  return values(arrays);
}

double differing(const std::vector<float>& x, const std::vector<float>& y) {
  double count = 0;
  for (size_t i = 0; i < x.size(); ++i) count += std::memcmp(&x[i], &y[i], sizeof(float)) != 0;
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder = probe::own_folder();
  samples::parse_options(argc, argv, "H18: machine code with its PTX beside it.",
                         {{"--folder", &folder, "where the images h18_* are"}});
  CUDA_CHECK(cudaFree(nullptr));
  probe::Report report("H18");
  probe::add_device(report);
  const char* forced = std::getenv("CUDA_FORCE_PTX_JIT");
  report.text("force_ptx_jit", forced ? forced : "0");
  const std::string kept = probe::file_text(folder + "/h18_kept.fatbin"), ptx = probe::file_text(folder + "/h18_kernels.ptx");

  // Each says by its number that it was taken.
  const std::string marked = replaced(ptx, kOfMachineCode, kOfPtx), other = replaced(kept, ptx, marked);
  report.text("module_load_data", origin(by_module(other)))
      .text("module_load_data_ex", origin(by_module_with_options(other)))
      .text("module_load_fat_binary", origin(by_fat_binary(other)))
      .text("library_load_data", origin(by_library(other)))
      .text("with_ptx_of_a_newer_version", origin(by_module(replaced(kept, ptx, of_newer_version(marked)))))
      .text("with_ptx_that_is_none", origin(by_module(replaced(kept, ptx, std::string(ptx.size(), '?')))));

  const Loaded machine = by_module(probe::file_text(folder + "/h18_kernels.cubin")), both = by_module(kept),
               variants = by_module(probe::file_text(folder + "/h18_variants.ptx"));
  report.boolean("cubin_loads", machine.result == CUDA_SUCCESS);
  probe::driver_check(both.result, "cuModuleLoadData of h18_kept.fatbin");
  probe::driver_check(variants.result, "cuModuleLoadData of h18_variants.ptx");
  const Arrays arrays{samples::device_filled(kN, 1, 1.0f), samples::device_filled(kN, 2, 1.0f), samples::device_array<float>(kN)};
  values(arrays);
  for (const char* kernel : kKernels) {
    const std::string name = kernel;
    const std::vector<float> of_both = whole(both.module, name, arrays);
    if (machine.result == CUDA_SUCCESS)
      report.number(name + "_differ_from_cubin", differing(of_both, whole(machine.module, name, arrays)));
    report.number(name + "_differ_variant_whole_ptx", differing(whole(variants.module, name, arrays), sliced(variants.module, name, arrays)));
    report.number(name + "_differ_variant_kept", differing(of_both, sliced(variants.module, name, arrays)));
  }
  report.print();
}

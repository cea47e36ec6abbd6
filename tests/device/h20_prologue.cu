// H20: can machine code be cut by a range check that is put in front of it? h20_spliced.cubin is machine code
// that nvcc made of h20_kernels.cu, with the check of h20_range_check.ptx, as ptxas compiled it, in front
// (h20_splice.cc). Does the driver load it, and do launches of the whole grid, each of which runs one range of
// blocks, leave what one launch of the untouched code leaves? What do they cost? The machine code is for sm_90.
// `source` asks the same of h20_checked.ptx, where the check stands in the source.
#include <functional>

#include "probe.h"

namespace {

const char* const kKernels[] = {"looped", "reduced", "called", "jumped", "added"};
constexpr int kThreads = 256;
constexpr unsigned kNone = 0;

struct Work {
  unsigned width = 0, height = 0;  // blocks
  int n = 0;
  float *a = nullptr, *b = nullptr, *out = nullptr;
  unsigned blocks() const { return width * height; }
};

struct Image {
  CUresult result = CUDA_SUCCESS;
  CUmodule module = nullptr;
  bool checks = false;  // its kernels take a range
};

Image load(const std::string& path, bool checks) {
  Image image;
  image.checks = checks;
  const std::string bytes = probe::file_text(path);
  image.result = probe::driver_function<decltype(&cuModuleLoadData)>("cuModuleLoadData")(&image.module, bytes.c_str());
  return image;
}

void launch(const Image& image, const char* kernel, const Work& work, unsigned first, unsigned end) {
  CUfunction function = nullptr;
  probe::driver_check(probe::driver_function<decltype(&cuModuleGetFunction)>("cuModuleGetFunction")(
                          &function, image.module, kernel),
                      kernel);
  Work w = work;
  void* parameters[] = {&w.a, &w.b, &w.out, &w.n, &first, &end};
  if (!image.checks) parameters[4] = nullptr;  // not read
  probe::driver_check(probe::driver_function<decltype(&cuLaunchKernel)>("cuLaunchKernel")(
                          function, work.width, work.height, 1, kThreads, 1, 1, 0, nullptr, parameters, nullptr),
                      kernel);
}

// Blocks [first, end) in `slices` launches.
void launch_slices(const Image& image, const char* kernel, const Work& work, unsigned first, unsigned end, unsigned slices) {
  for (unsigned i = 0; i < slices; ++i)
    launch(image, kernel, work, first + (end - first) * i / slices, first + (end - first) * (i + 1) / slices);
}

using Values = std::vector<float>;

Values after(const Work& work, const std::function<void()>& launches) {
  const size_t bytes = size_t(work.n) * sizeof(float);
  CUDA_CHECK(cudaMemset(work.out, 0, bytes));
  launches();
  CUDA_CHECK(cudaDeviceSynchronize());
  Values values(size_t(work.n));
  CUDA_CHECK(cudaMemcpy(values.data(), work.out, bytes, cudaMemcpyDeviceToHost));
  return values;
}

size_t different(const Values& x, const Values& y, size_t begin, size_t end) {
  size_t count = 0;
  for (size_t i = begin; i < end; ++i) count += std::memcmp(&x[i], &y[i], sizeof(float)) != 0;
  return count;
}

// Bits of `kernel` in pieces against one whole launch of `plain`.
void compare(probe::Report& report, const std::string& form, const Image& plain, const Image& image, const char* kernel,
             const Work& work) {
  const unsigned blocks = work.blocks(), third = blocks / 3;
  const Values zero(size_t(work.n)), whole = after(work, [&] { launch(plain, kernel, work, 0, blocks); });
  const auto values = [&](unsigned first, unsigned end, unsigned slices) {
    return after(work, [&] { launch_slices(image, kernel, work, first, end, slices); });
  };
  const std::string name = form + "_" + kernel;
  const size_t all = whole.size(), part = size_t(third) * kThreads;
  report.number(name + "_differ_whole", double(different(whole, values(0, blocks, 1), 0, all)));
  report.number(name + "_differ_in_7_slices", double(different(whole, values(0, blocks, 7), 0, all)));
  report.number(name + "_differ_in_slices_of_one_block", double(different(whole, values(0, blocks, blocks), 0, all)));
  // Other blocks must leave nothing, or the check does not check.
  const Values some = values(third, 2 * third, 1);
  report.boolean(name + "_only_its_range",
                 !different(whole, some, part, 2 * part) && !different(zero, some, 0, part) && !different(zero, some, 2 * part, all) &&
                     different(zero, some, part, 2 * part) > 0);
}

void time(probe::Report& report, const std::string& form, const Image& plain, const Image& image, const char* kernel,
          const Work& work) {
  const unsigned blocks = work.blocks();
  const auto ms = [&](const Image& from, unsigned slices) {
    launch_slices(from, kernel, work, 0, blocks, slices);
    return probe::device_ms(nullptr, [&] { launch_slices(from, kernel, work, 0, blocks, slices); });
  };
  const std::string name = form + "_" + kernel;
  const auto nothing_ms = probe::device_ms(nullptr, [&] { launch(image, kernel, work, kNone, kNone); });
  report.number(name + "_plain_ms", ms(plain, 1)).number(name + "_whole_ms", ms(image, 1));
  report.number(name + "_8_slices_ms", ms(image, 8)).number(name + "_empty_range_ms", nothing_ms);
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder = probe::own_folder();
  int64_t width = 512, height = 4;
  samples::parse_options(argc, argv, "H20: a range check in front of machine code.",
                         {{"--folder", &folder, "where the images h20_* are"},
                          {"--width", &width, "blocks in x"},
                          {"--height", &height, "blocks in y"}});
  CUDA_CHECK(cudaFree(nullptr));
  Work work;
  work.width = unsigned(width);
  work.height = unsigned(height);
  work.n = int(width * height * kThreads);
  work.a = samples::device_filled(work.n, 1, 1.0f);
  work.b = samples::device_filled(work.n, 2, 1.0f);
  work.out = samples::device_array<float>(work.n);
  probe::Report report("H20");
  probe::add_device(report);
  const Image plain = load(folder + "/h20_kernels.cubin", false), spliced = load(folder + "/h20_spliced.cubin", true),
              source = load(folder + "/h20_checked.ptx", true);
  report.boolean("plain_loads", plain.result == CUDA_SUCCESS).number("spliced_load_result", double(spliced.result));
  probe::driver_check(source.result, "cuModuleLoadData of h20_checked.ptx");
  const bool machine_code = plain.result == CUDA_SUCCESS && spliced.result == CUDA_SUCCESS;
  for (const char* kernel : kKernels) {
    // PTX compiled on the spot against itself: its bits need not be those of nvcc's machine code (H11).
    compare(report, "source", source, source, kernel, work);
    time(report, "source", source, source, kernel, work);
    if (!machine_code) continue;
    compare(report, "spliced", plain, spliced, kernel, work);
    time(report, "spliced", plain, spliced, kernel, work);
  }
  report.print();
}

// H20: can machine code be cut by a range check that is put in front of it? h20_spliced_KERNEL.cubin is machine code
// that nvcc made of h20_kernels.cu, in which this kernel has the check of h20_range_check.ptx, as ptxas compiled it, in front
// (h20_splice.cc). Does the driver load it, and do launches of the whole grid, each of which runs one range of blocks or of
// clusters, leave what one launch of the untouched code leaves? What do they cost? Each kernel is a kind of its own with an
// answer of its own, which a kind that ends the process does not take from the others: a child asks, this process keeps the
// answers and starts another child for the rest. The machine code is for sm_90. A GPU that does not take it, such as the
// software GPU, is asked the same of h20_checked.ptx, where the check stands in the source.
#include <cstring>
#include <fstream>

#include "h20_parameters.h"
#include "processes.h"

namespace {

constexpr int kThreads = 256;
constexpr unsigned kNone = 0;
constexpr unsigned kMostSlices = 256;

struct Kind {
  const char* kernel;
  unsigned cluster = 1;       // blocks in x and in y
  unsigned dynamic_bytes = 0;  // of shared memory
};
const Kind kKinds[] = {
    {"looped"}, {"reduced"}, {"called"}, {"jumped"},
    {"added"},  {"left"},    {"parted"}, {"dynamic", 1, 2 * kThreads * sizeof(float)},
    {"grouped"}, {"odd"},    {"large"},  {"bare"},
    {"handed"}, {"mapped"},  {"clustered", 2},
};
constexpr size_t kKindCount = std::size(kKinds);

enum class State : uint32_t { kNotAsked, kBegun, kEqual, kRefused, kWrong };

// A child writes what it finds; the first process reads that when the child has ended.
struct Answer {
  State state;
  int32_t result;            // CUresult of a call that the driver refused
  char step[24];             // that call, or what was wrong
  uint32_t different[3];     // values: whole, in seven slices, in the smallest slices
  float plain_ms, whole_ms, eight_slices_ms, empty_range_ms;
};
struct Page {
  Answer answers[kKindCount];
  uint32_t machine_code;  // 1: it is what was asked; 0: the source
};

struct Work {
  unsigned width = 0, height = 0;  // blocks
  int n = 0;
  float *a = nullptr, *b = nullptr, *out = nullptr;
  CUtensorMap map{};  // of `a`, a row for each block
  OddParameter odd{};
  LargeParameter large{};
};

template <class F>
F entry(const char* name) {
  return probe::driver_function<F>(name);
}

struct Image {
  CUmodule module = nullptr;
  bool checks = false;  // its kernels take a range
};

// The first call that the driver refuses ends a kind.
struct Refusal {
  CUresult result;
  const char* step;
};
void expect(CUresult result, const char* step) {
  if (result != CUDA_SUCCESS) throw Refusal{result, step};
}

Image load(const std::string& path, bool checks) {
  Image image;
  image.checks = checks;
  const std::string bytes = probe::file_text(path);
  expect(entry<decltype(&cuModuleLoadData)>("cuModuleLoadData")(&image.module, bytes.c_str()), "load");
  return image;
}

// The kernel without parameters finds its work in memory of its module.
void set_bare_arguments(const Image& image, const Work& work) {
  const BareArguments arguments{work.a, work.out, work.n};
  CUdeviceptr address = 0;
  size_t bytes = 0;
  expect(entry<decltype(&cuModuleGetGlobal)>("cuModuleGetGlobal")(&address, &bytes, image.module, "bare_arguments"),
         "variable");
  CUDA_CHECK(cudaMemcpy(reinterpret_cast<void*>(address), &arguments, sizeof arguments, cudaMemcpyHostToDevice));
}

void launch(const Image& image, const Kind& kind, const Work& work, unsigned first, unsigned end) {
  CUfunction function = nullptr;
  expect(entry<decltype(&cuModuleGetFunction)>("cuModuleGetFunction")(&function, image.module, kind.kernel), "function");
  Work w = work;
  const std::string kernel = kind.kernel;
  std::vector<void*> parameters;
  if (kernel != "bare") parameters = {&w.a, &w.b, &w.out, &w.n};
  if (kernel == "mapped") parameters.push_back(&w.map);
  if (kernel == "odd") parameters.push_back(&w.odd);
  if (kernel == "large") parameters.push_back(&w.large);
  if (image.checks) parameters.insert(parameters.end(), {&first, &end});
  expect(entry<decltype(&cuLaunchKernel)>("cuLaunchKernel")(function, work.width, work.height, 1, kThreads, 1, 1,
                                                            kind.dynamic_bytes, nullptr, parameters.data(), nullptr),
         "launch");
}

// Units [first, end) in `slices` launches.
void launch_slices(const Image& image, const Kind& kind, const Work& work, unsigned first, unsigned end, unsigned slices) {
  for (unsigned i = 0; i < slices; ++i)
    launch(image, kind, work, first + (end - first) * i / slices, first + (end - first) * (i + 1) / slices);
}

using Values = std::vector<float>;

template <class Launches>
Values after(const Work& work, Launches launches) {
  const size_t bytes = size_t(work.n) * sizeof(float);
  CUDA_CHECK(cudaMemset(work.out, 0, bytes));
  launches();
  expect(CUresult(cudaDeviceSynchronize()), "run");
  Values values(static_cast<size_t>(work.n));
  CUDA_CHECK(cudaMemcpy(values.data(), work.out, bytes, cudaMemcpyDeviceToHost));
  return values;
}

bool same(float x, float y) {
  return std::memcmp(&x, &y, sizeof x) == 0;
}
uint32_t different(const Values& x, const Values& y) {
  uint32_t count = 0;
  for (size_t i = 0; i < x.size(); ++i) count += !same(x[i], y[i]);
  return count;
}

// The number that the check compares, of the block that writes value `i`.
unsigned unit_of(const Kind& kind, const Work& work, size_t i) {
  const unsigned block = unsigned(i / kThreads), x = block % work.width, y = block / work.width;
  return y / kind.cluster * (work.width / kind.cluster) + x / kind.cluster;
}

// Compares pieces with one whole launch of `plain`. Values of blocks outside of a range must stay as they were, or the check does
// not check.
const char* compare(const Image& plain, const Image& image, const Kind& kind, const Work& work, Answer* answer) {
  const unsigned units = work.width * work.height / (kind.cluster * kind.cluster), third = units / 3;
  const Values whole = after(work, [&] { launch(plain, kind, work, 0, units); });
  const auto values = [&](unsigned first, unsigned end, unsigned slices) {
    return after(work, [&] { launch_slices(image, kind, work, first, end, slices); });
  };
  const unsigned slices[] = {1, 7, std::min(units, kMostSlices)};
  for (size_t k = 0; k < std::size(slices); ++k) answer->different[k] = different(whole, values(0, units, slices[k]));
  const Values some = values(third, 2 * third, 1);
  bool only_its_range = true, something = false;
  for (size_t i = 0; i < some.size(); ++i) {
    const unsigned unit = unit_of(kind, work, i);
    const bool inside = unit >= third && unit < 2 * third;
    only_its_range = only_its_range && same(some[i], inside ? whole[i] : 0.0f);
    something = something || (inside && some[i] != 0.0f);
  }
  if (answer->different[0] + answer->different[1] + answer->different[2]) return "values differ";
  return only_its_range && something ? nullptr : "not its range alone";
}

void time(const Image& plain, const Image& image, const Kind& kind, const Work& work, Answer* answer) {
  const unsigned units = work.width * work.height / (kind.cluster * kind.cluster);
  const auto ms = [&](const Image& from, unsigned end, unsigned slices) {
    launch_slices(from, kind, work, 0, end, slices);
    return float(probe::device_ms(nullptr, [&] { launch_slices(from, kind, work, 0, end, slices); }));
  };
  answer->plain_ms = ms(plain, units, 1);
  answer->whole_ms = ms(image, units, 1);
  answer->eight_slices_ms = ms(image, units, 8);
  answer->empty_range_ms = ms(image, kNone, 1);
}

// One kind. False: the context is of no further use.
bool ask(const Kind& kind, const std::string& folder, bool machine_code, const Work& work, Answer* answer) {
  answer->state = State::kBegun;
  try {
    const std::string spliced = folder + "/h20_spliced_" + kind.kernel + ".cubin", source = folder + "/h20_checked.ptx";
    const Image image = load(machine_code ? spliced : source, true);
    // PTX compiled on the spot is compared with itself: its bits need not be those of nvcc's machine code (H11).
    const Image plain = machine_code ? load(folder + "/h20_kernels.cubin", false) : image;
    for (const Image& one : {plain, image}) set_bare_arguments(one, work);
    const char* wrong = compare(plain, image, kind, work, answer);
    if (!wrong) time(plain, image, kind, work, answer);
    if (wrong) std::snprintf(answer->step, sizeof answer->step, "%s", wrong);
    answer->state = wrong ? State::kWrong : State::kEqual;
    const auto unload = entry<decltype(&cuModuleUnload)>("cuModuleUnload");
    unload(image.module);
    if (machine_code) unload(plain.module);
    return true;
  } catch (const Refusal& refusal) {
    answer->result = refusal.result;
    std::snprintf(answer->step, sizeof answer->step, "%s", refusal.step);
    // The driver took a kernel that fails when it runs.
    const bool ran = std::strcmp(refusal.step, "run") == 0;
    answer->state = ran ? State::kWrong : State::kRefused;
    return !ran;
  }
}

Work make_work(unsigned width, unsigned height) {
  Work work;
  work.width = width;
  work.height = height;
  work.n = int(width * height * kThreads);
  work.a = samples::device_filled(work.n, 1, 1.0f);
  work.b = samples::device_filled(work.n, 2, 1.0f);
  work.out = samples::device_array<float>(work.n);
  for (size_t i = 0; i < sizeof work.odd.bytes; ++i) work.odd.bytes[i] = int8_t(i * 37);
  for (int i = 0; i < kLargeValues; ++i) work.large.values[i] = float(i) * 0.25f;
  const cuuint64_t size[] = {kThreads, width * height}, stride[] = {kThreads * sizeof(float)};
  const cuuint32_t box[] = {kThreads, 1}, step[] = {1, 1};
  probe::driver_check(
      entry<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled")(
          &work.map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, work.a, size, stride, box, step,
          CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
          CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
      "cuTensorMapEncodeTiled");
  return work;
}

// The child: asks what was not asked, until the context is of no further use. Prints the device.
int ask_all(Page* page, const std::string& folder, unsigned width, unsigned height) {
  CUDA_CHECK(cudaFree(nullptr));
  probe::Report report;
  probe::add_device(report);
  report.print();
  std::fflush(stdout);
  const Work work = make_work(width, height);
  CUmodule module = nullptr;
  const std::string plain = probe::file_text(folder + "/h20_kernels.cubin");
  page->machine_code =
      entry<decltype(&cuModuleLoadData)>("cuModuleLoadData")(&module, plain.c_str()) == CUDA_SUCCESS;
  if (module) entry<decltype(&cuModuleUnload)>("cuModuleUnload")(module);
  for (size_t k = 0; k < kKindCount; ++k)
    if (page->answers[k].state == State::kNotAsked &&
        !ask(kKinds[k], folder, page->machine_code != 0, work, &page->answers[k]))
      return 0;
  return 0;
}

const char* text_of(State state) {
  switch (state) {
    case State::kEqual: return "equal";
    case State::kRefused: return "refused by the driver";
    case State::kNotAsked: return "not asked";
    case State::kBegun:
    case State::kWrong: return "wrong";
  }
  return "";
}

std::string driver_release() {
  std::ifstream in("/sys/module/nvidia/version");
  std::string text;
  std::getline(in, text);
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder = probe::own_folder();
  int64_t width = 512, height = 4, descriptor = -1;
  double limit_s = probe::rehearsed() ? 50 : 8;
  samples::parse_options(argc, argv, "H20: a range check in front of machine code.",
                         {{"--folder", &folder, "where the images h20_* are"},
                          {"--width", &width, "blocks in x, an even number"},
                          {"--height", &height, "blocks in y, an even number"},
                          {"--limit-s", &limit_s, "for each child"},
                          {"--page", &descriptor, "of the child: where the answers are kept"}});
  if (descriptor >= 0)
    return ask_all(processes::map_page<Page>(int(descriptor)), folder, unsigned(width), unsigned(height));
  descriptor = processes::make_page();
  Page* page = processes::map_page<Page>(int(descriptor));
  probe::Report report("H20");
  std::string device;
  const uint64_t begin_ns = samples::now_ns();
  const auto left = [&] {
    return std::count_if(std::begin(page->answers), std::end(page->answers),
                         [](const Answer& a) { return a.state == State::kNotAsked; });
  };
  for (auto before = left(); before > 0;) {
    processes::Child child({"--folder", folder, "--width", std::to_string(width), "--height", std::to_string(height),
                            "--page", std::to_string(descriptor)},
                           {});
    device = child.answer(limit_s);
    for (Answer& a : page->answers)
      if (a.state == State::kBegun) {
        a.state = State::kWrong;
        std::snprintf(a.step, sizeof a.step, "the process ended");
      }
    const auto now = left();
    if (now == before) break;  // it could not even begin
    before = now;
  }
  report.raw("device", device).text("driver", driver_release());
  report.text("asked_of", page->machine_code ? "machine code" : "the check in the source");
  const auto equal = std::count_if(std::begin(page->answers), std::end(page->answers),
                                   [](const Answer& a) { return a.state == State::kEqual; });
  report.number("kinds", double(kKindCount)).number("equal", double(equal));
  report.number("seconds", double(samples::now_ns() - begin_ns) * 1e-9);
  for (size_t k = 0; k < kKindCount; ++k) {
    const Answer& a = page->answers[k];
    const std::string name = kKinds[k].kernel;
    report.text(name, text_of(a.state));
    if (a.state == State::kRefused || a.state == State::kWrong)
      report.text(name + "_step", a.step).number(name + "_result", a.result);
    if (a.state == State::kWrong)
      report.number(name + "_differ_whole", a.different[0])
          .number(name + "_differ_in_7_slices", a.different[1])
          .number(name + "_differ_in_smallest_slices", a.different[2]);
    if (a.state == State::kEqual)
      report.number(name + "_plain_ms", a.plain_ms)
          .number(name + "_whole_ms", a.whole_ms)
          .number(name + "_8_slices_ms", a.eight_slices_ms)
          .number(name + "_empty_range_ms", a.empty_range_ms);
  }
  report.print();
  return left() == 0 ? 0 : 1;
}

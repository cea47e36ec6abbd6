// H8: what cutting costs, by how long the kernel is. One kernel of eight waves as 1, 2, 4 ... launches of its parts, back to
// back in one stream: device time of all, overhead per extra launch, and the smallest part that keeps the total within 5 %.
// A kernel of one wave cannot gain: its parts leave multiprocessors idle.
#include "probe.h"

namespace {

struct Cutting {
  cudaStream_t stream = nullptr;
  float* scratch = nullptr;
  int blocks = 0;
  int64_t repeats = 5, max_slices = 256;

  double total_ms(int slices, int rounds) const {
    std::vector<double> ms;
    for (int64_t r = 0; r < repeats; ++r) {
      ms.push_back(probe::device_ms(stream, [&] {
        for (int i = 0; i < slices; ++i) {
          const int begin = int(int64_t(blocks) * i / slices), end = int(int64_t(blocks) * (i + 1) / slices);
          probe::work<<<unsigned(end - begin), 128, 0, stream>>>(scratch, rounds);
        }
      }));
    }
    CUDA_CHECK(cudaGetLastError());
    return probe::quantile(ms, 0.5);
  }

  std::string of_length(double kernel_ms) const {
    const int rounds = probe::rounds_for(stream, scratch, blocks, kernel_ms);
    const double whole_ms = total_ms(1, rounds);
    double smallest_useful_ms = whole_ms;
    std::string rows;
    for (int slices = 2; slices <= std::min<int64_t>(max_slices, blocks); slices *= 2) {
      const double ms = total_ms(slices, rounds);
      if (ms <= whole_ms * 1.05) smallest_useful_ms = whole_ms / slices;
      probe::Report row;
      row.number("slices", slices)
          .number("total_ms", ms)
          .number("overhead_us_per_slice", (ms - whole_ms) * 1000 / (slices - 1));
      rows += (rows.empty() ? "" : ", ") + row.str();
    }
    probe::Report report;
    report.number("wanted_ms", kernel_ms)
        .number("whole_ms", whole_ms)
        .number("smallest_slice_within_5_percent_ms", smallest_useful_ms);
    return report.raw("slices", "[" + rows + "]").str();
  }
};

}  // namespace

int main(int argc, char** argv) {
  double waves = 8;
  std::string kernels_ms = "0.2,1,10";
  Cutting cutting;
  samples::parse_options(argc, argv, "H8: slice launch cost.",
                         {{"--kernels-ms", &kernels_ms, "lengths of the uncut kernel"},
                          {"--waves", &waves, "of the kernel on the device"},
                          {"--repeats", &cutting.repeats, "per number of slices; the median counts"},
                          {"--max-slices", &cutting.max_slices, "at most"}});
  samples::positive("--waves", waves);
  CUDA_CHECK(cudaStreamCreateWithFlags(&cutting.stream, cudaStreamNonBlocking));
  cutting.scratch = samples::device_array<float>(1);
  cutting.blocks = probe::blocks_of(waves);
  std::string lengths;
  for (size_t at = 0; at < kernels_ms.size(); at = kernels_ms.find(',', at) + 1) {
    lengths += (lengths.empty() ? "" : ", ") + cutting.of_length(std::strtod(kernels_ms.c_str() + at, nullptr));
    if (kernels_ms.find(',', at) == std::string::npos) break;
  }
  probe::Report report("H8");
  probe::add_device(report);
  report.number("blocks", cutting.blocks).number("waves", waves).raw("kernels", "[" + lengths + "]").print();
}

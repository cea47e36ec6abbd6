// H8: what cutting costs. One kernel of many blocks as 1, 2, 4 ... launches of its parts, back to back in one
// stream: device time of all, overhead per extra launch, and the smallest part that keeps the total within 5
// %.
#include "probe.h"

int main(int argc, char** argv) {
  double kernel_ms = 20;
  int64_t repeats = 5, max_slices = 256, blocks_per_sm = 64;
  samples::parse_options(
      argc, argv, "H8: slice launch cost.",
      {{"--kernel-ms", &kernel_ms, "length of the uncut kernel"},
       {"--repeats", &repeats, "per number of slices; the median counts"},
       {"--max-slices", &max_slices, "up to so many"},
       {"--blocks-per-sm", &blocks_per_sm, "of the uncut kernel"}});
  int n_multiprocessors = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  float* scratch = samples::device_array<float>(1);
  const int blocks = int(blocks_per_sm) * n_multiprocessors;
  const int rounds = probe::rounds_for(stream, scratch, blocks, kernel_ms);

  double whole_ms = 0, smallest_useful_ms = kernel_ms;
  std::string rows;
  for (int slices = 1; slices <= std::min<int64_t>(max_slices, blocks); slices *= 2) {
    std::vector<double> ms;
    for (int64_t r = 0; r < repeats; ++r) {
      ms.push_back(probe::device_ms(stream, [&] {
        for (int i = 0; i < slices; ++i) {
          const int begin = int(int64_t(blocks) * i / slices), end = int(int64_t(blocks) * (i + 1) / slices);
          probe::work<<<end - begin, 128, 0, stream>>>(scratch, rounds);
        }
      }));
    }
    const double median = probe::quantile(ms, 0.5);
    if (slices == 1) whole_ms = median;
    const double overhead_us = slices == 1 ? 0 : (median - whole_ms) * 1000 / (slices - 1);
    if (median <= whole_ms * 1.05) smallest_useful_ms = whole_ms / slices;
    char row[160];
    std::snprintf(row, sizeof row, "%s{\"slices\": %d, \"total_ms\": %.4f, \"overhead_us_per_slice\": %.3f}",
                  rows.empty() ? "" : ", ", slices, median, overhead_us);
    rows += row;
  }
  CUDA_CHECK(cudaGetLastError());
  probe::Report report("H8");
  probe::add_device(report);
  report.number("blocks", blocks)
      .number("whole_ms", whole_ms)
      .number("smallest_slice_within_5_percent_ms", smallest_useful_ms);
  report.raw("slices", "[" + rows + "]").print();
}

// H6: occupancy shaping by dynamic shared memory. Does a launch with another amount of it wait until the
// multiprocessors have drained (the split between L1 and shared memory is set per multiprocessor)? Chains of
// short launches in two streams: all with the same amount, and alternating between two amounts.
#include "probe.h"

namespace {

extern __shared__ float dynamic_memory[];
__global__ void shaped(float* out, int rounds) {
  dynamic_memory[threadIdx.x] = float(threadIdx.x);
  float x = dynamic_memory[threadIdx.x];
  for (int i = 0; i < rounds; ++i) x = x * 0.999f + 0.5f;
  if (x == 1234.5f) out[0] = x;
}

}  // namespace

int main(int argc, char** argv) {
  int64_t launches = 200, repeats = 9, rounds = 2000;
  samples::parse_options(argc, argv, "H6: does changing dynamic shared memory drain an SM?",
                         {{"--launches", &launches, "per chain"},
                          {"--repeats", &repeats, "per chain; the median counts"},
                          {"--rounds", &rounds, "work per block"}});
  int n_multiprocessors = 0, most_bytes = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  CUDA_CHECK(cudaDeviceGetAttribute(&most_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  CUDA_CHECK(cudaFuncSetAttribute(shaped, cudaFuncAttributeMaxDynamicSharedMemorySize, most_bytes));
  cudaStream_t main_stream, streams[2];
  CUDA_CHECK(cudaStreamCreateWithFlags(&main_stream, cudaStreamNonBlocking));
  for (cudaStream_t& s : streams) CUDA_CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  cudaEvent_t fork, joined[2];
  CUDA_CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  for (cudaEvent_t& e : joined) CUDA_CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  float* scratch = samples::device_array<float>(1);

  // Half a block per multiprocessor and launch: what a launch must wait for is not room.
  const int blocks = std::max(1, n_multiprocessors / 2);
  const auto chain_ms = [&](int first_bytes, int second_bytes, bool two_streams) {
    std::vector<double> ms;
    for (int64_t r = 0; r < repeats; ++r) {
      ms.push_back(probe::device_ms(main_stream, [&] {
        CUDA_CHECK(cudaEventRecord(fork, main_stream));
        for (cudaStream_t s : streams) CUDA_CHECK(cudaStreamWaitEvent(s, fork, 0));
        for (int64_t i = 0; i < launches; ++i) {
          const cudaStream_t stream = streams[two_streams ? i % 2 : 0];
          shaped<<<blocks, 128, size_t(i % 2 ? second_bytes : first_bytes), stream>>>(scratch, int(rounds));
        }
        for (int s = 0; s < 2; ++s) {
          CUDA_CHECK(cudaEventRecord(joined[s], streams[s]));
          CUDA_CHECK(cudaStreamWaitEvent(main_stream, joined[s], 0));
        }
      }));
    }
    return probe::quantile(ms, 0.5) / double(launches) * 1000;
  };
  const int small = 1024, large = most_bytes / 2;
  chain_ms(small, large, true);  // first launches load code
  probe::Report report("H6");
  probe::add_device(report);
  report.number("small_bytes", small).number("large_bytes", large);
  for (const bool two : {false, true}) {
    const std::string streams_text = two ? "two_streams_" : "one_stream_";
    const double all_small = chain_ms(small, small, two), all_large = chain_ms(large, large, two),
                 mixed = chain_ms(small, large, two);
    report.number(streams_text + "small_us_per_launch", all_small)
        .number(streams_text + "large_us_per_launch", all_large)
        .number(streams_text + "alternating_us_per_launch", mixed)
        .number(streams_text + "alternating_over_mean", mixed / ((all_small + all_large) / 2));
  }
  CUDA_CHECK(cudaGetLastError());
  report.print();
}

// H10: what a kernel that stops at a block boundary and goes on later would need. A chain of stream waits on
// a word in mapped host memory (cost of each that is already satisfied; from the host's store to the kernel
// behind it), and a flag in mapped host memory that a running kernel polls (from the host's store to the
// kernel seeing it; what polling costs it).
#include "probe.h"

namespace {

using probe::now_ns;
using WaitValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

// Answers every value of `flag` in `answer`, until the value is `last`.
__global__ void answer_flag(volatile unsigned* flag, volatile unsigned* answer, unsigned last) {
  unsigned seen = 0;
  while (seen != last) {
    const unsigned value = *flag;
    if (value == seen) continue;
    seen = value;
    *answer = value;
    __threadfence_system();
  }
}

// The same work with and without a look at the flag between its parts, as at block boundaries.
__global__ void polling_work(float* out, int parts, int rounds, volatile unsigned* flag) {
  float x = float(threadIdx.x);
  for (int p = 0; p < parts; ++p) {
    for (int i = 0; i < rounds; ++i) x = x * 0.999f + 0.5f;
    if (flag && threadIdx.x == 0 && *flag == ~0u) x = 0;
    __syncthreads();
  }
  if (x == 1234.5f) out[0] = x;
}

}  // namespace

int main(int argc, char** argv) {
  int64_t rounds = 200, chain = 50;
  samples::parse_options(argc, argv, "H10: wait-value chains and flags in host memory.",
                         {{"--rounds", &rounds, "measured rounds"},
                          {"--chain", &chain, "waits per chain"}});
  const auto wait_value = probe::driver_function<WaitValue>("cuStreamWaitValue32");
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  void *host = nullptr, *device = nullptr;
  CUDA_CHECK(cudaHostAlloc(&host, 4096, cudaHostAllocMapped));
  CUDA_CHECK(cudaHostGetDevicePointer(&device, host, 0));
  std::memset(host, 0, 4096);
  volatile uint32_t* gate = static_cast<volatile uint32_t*>(host);
  volatile uint32_t* flag = gate + 16;
  volatile uint32_t* answer = gate + 32;
  unsigned* device_words = static_cast<unsigned*>(device);
  const auto gate_address = reinterpret_cast<CUdeviceptr>(device);
  probe::Report report("H10");
  probe::add_device(report);

  // Satisfied waits between empty kernels.
  const auto chain_us = [&](bool with_wait) {
    std::vector<double> us;
    for (int64_t r = 0; r < std::max<int64_t>(rounds / 10, 3); ++r)
      us.push_back(1000 / double(chain) * probe::device_ms(stream, [&] {
                     for (int64_t i = 0; i < chain; ++i) {
                       if (with_wait)
                         probe::driver_check(wait_value(stream, gate_address, 0, CU_STREAM_WAIT_VALUE_GEQ),
                                             "cuStreamWaitValue32");
                       probe::nothing<<<1, 32, 0, stream>>>();
                     }
                   }));
    return probe::quantile(us, 0.5);
  };
  chain_us(true);
  report.number("chain_plain_us", chain_us(false)).number("chain_satisfied_wait_us", chain_us(true));

  // From the host's store until the work behind the wait is seen to be done.
  std::vector<double> released_us, plain_us;
  for (int64_t r = 0; r < rounds; ++r) {
    const uint32_t value = uint32_t(r) + 1;
    probe::driver_check(wait_value(stream, gate_address, value, CU_STREAM_WAIT_VALUE_GEQ),
                        "cuStreamWaitValue32");
    probe::nothing<<<1, 32, 0, stream>>>();
    samples::sleep_until_ns(now_ns() + 200000);  // the stream stands at the wait
    uint64_t start = now_ns();
    *gate = value;
    CUDA_CHECK(cudaStreamSynchronize(stream));
    released_us.push_back(double(now_ns() - start) * 1e-3);
    start = now_ns();
    probe::nothing<<<1, 32, 0, stream>>>();
    CUDA_CHECK(cudaStreamSynchronize(stream));
    plain_us.push_back(double(now_ns() - start) * 1e-3);
  }
  report.spread("store_to_done_us", released_us).spread("launch_to_done_us", plain_us);

  // A running kernel and a flag in host memory, there and back.
  std::vector<double> round_trip_us;
  answer_flag<<<1, 1, 0, stream>>>(device_words + 16, device_words + 32, unsigned(rounds));
  for (uint32_t value = 1; value <= uint32_t(rounds); ++value) {
    const uint64_t start = now_ns();
    *flag = value;
    while (*answer != value) {
    }
    round_trip_us.push_back(double(now_ns() - start) * 1e-3);
  }
  CUDA_CHECK(cudaStreamSynchronize(stream));
  report.spread("flag_round_trip_us", round_trip_us);

  int n_multiprocessors = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  float* scratch = samples::device_array<float>(1);
  for (const int part_rounds : {100, 1000, 10000}) {
    const auto ms = [&](unsigned* polled) {
      std::vector<double> all;
      for (int i = 0; i < 5; ++i)
        all.push_back(probe::device_ms(stream, [&] {
          polling_work<<<n_multiprocessors, 128, 0, stream>>>(scratch, 20, part_rounds, polled);
        }));
      return probe::quantile(all, 0.5);
    };
    ms(nullptr);
    report.number("polling_added_us_per_look_" + std::to_string(part_rounds) + "_rounds",
                  (ms(device_words + 16) - ms(nullptr)) * 1000 / 20);
  }
  report.print();
}

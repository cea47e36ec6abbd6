// H3: how to see completion without blocking. A stream write into pinned host memory against an event: CPU
// time of the call, device time between kernels, and how long after the work the host sees it (against a
// synchronise).
#include "probe.h"

namespace {
using probe::now_ns;
using WriteValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
}  // namespace

int main(int argc, char** argv) {
  int64_t rounds = 200, chain = 50;
  samples::parse_options(argc, argv, "H3: markers.",
                         {{"--rounds", &rounds, "measured rounds"},
                          {"--chain", &chain, "kernels per chain"}});
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const auto write_value = probe::driver_function<WriteValue>("cuStreamWriteValue32");
  volatile uint32_t* word = nullptr;
  void *host = nullptr, *device = nullptr;
  CUDA_CHECK(cudaHostAlloc(&host, 4096, cudaHostAllocMapped));
  CUDA_CHECK(cudaHostGetDevicePointer(&device, host, 0));
  word = static_cast<volatile uint32_t*>(host);
  *word = 0;
  const auto address = reinterpret_cast<CUdeviceptr>(device);
  cudaEvent_t event;
  CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  uint32_t value = 0;
  const auto mark_write = [&] {
    probe::driver_check(write_value(stream, address, ++value, 0), "cuStreamWriteValue32");
  };
  const auto mark_event = [&] { CUDA_CHECK(cudaEventRecord(event, stream)); };
  const auto mark_none = [] {};
  const auto kernel = [&] { probe::nothing<<<1, 32, 0, stream>>>(); };

  const auto cpu_ns = [&](auto&& mark) {
    std::vector<double> ns;
    for (int64_t r = 0; r < rounds; ++r) {
      kernel();
      const uint64_t start = now_ns();
      for (int i = 0; i < 20; ++i) mark();
      ns.push_back(double(now_ns() - start) / 20);
      CUDA_CHECK(cudaStreamSynchronize(stream));
    }
    return probe::quantile(ns, 0.5);
  };
  const auto device_us = [&](auto&& mark) {  // per kernel of a chain with a marker after each
    std::vector<double> us;
    for (int64_t r = 0; r < std::max<int64_t>(rounds / 10, 3); ++r) {
      us.push_back(1000 / double(chain) * probe::device_ms(stream, [&] {
                     for (int64_t i = 0; i < chain; ++i) {
                       kernel();
                       mark();
                     }
                   }));
    }
    return probe::quantile(us, 0.5);
  };
  // From before the launch until the host sees the end; the three differ only in how it looks.
  const auto seen_us = [&](auto&& mark, auto&& seen) {
    std::vector<double> us;
    for (int64_t r = 0; r < rounds; ++r) {
      const uint64_t start = now_ns();
      kernel();
      mark();
      while (!seen()) {
      }
      us.push_back(double(now_ns() - start) * 1e-3);
      CUDA_CHECK(cudaStreamSynchronize(stream));
    }
    return probe::quantile(us, 0.5);
  };

  for (int i = 0; i < 20; ++i) kernel();
  CUDA_CHECK(cudaStreamSynchronize(stream));
  probe::Report report("H3");
  probe::add_device(report);
  report.number("write_call_ns", cpu_ns(mark_write)).number("event_call_ns", cpu_ns(mark_event));
  report.number("chain_plain_us", device_us(mark_none))
      .number("chain_write_us", device_us(mark_write))
      .number("chain_event_us", device_us(mark_event));
  report.number("seen_by_write_us", seen_us(mark_write, [&] { return *word == value; }))
      .number("seen_by_event_us", seen_us(mark_event, [&] { return cudaEventQuery(event) == cudaSuccess; }))
      .number("seen_by_sync_us",
              seen_us(mark_none, [&] { return cudaStreamSynchronize(stream) == cudaSuccess; }));
  report.print();
}

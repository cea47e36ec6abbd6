// H24: a process is killed behind a closed gate (cuStreamWaitValue64 on a shared page), with work queued behind it, and
// in the middle of a kernel. Does its neighbour live: its status, its values, its times, and can a newcomer still begin?
// Says so of the sharing that its environment has; under_mps.py runs it under an MPS of our own.
#include "processes.h"

namespace {

using processes::Child;
using samples::now_ns;

struct Page {
  uint64_t word;  // the gate; closed while it is 0
  char padding[56];
  std::atomic<uint32_t> victim_ready, neighbour_rounds, killed, stop;
  uint32_t kernel_began;  // stored by the device
};

constexpr unsigned kValues = 1 << 14;
__host__ __device__ unsigned value_of(unsigned index, unsigned round) {
  unsigned x = index * 2654435761u + round;
  for (int i = 0; i < 64; ++i) x = x * 1664525u + (x >> 7) + 1013904223u;
  return x;
}
__global__ void fill_values(unsigned* out, unsigned round) {
  const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < kValues) out[index] = value_of(index, round);
}
__global__ void begin_and_work(volatile unsigned* began, float* out, int rounds) {
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    *began = 1;
    __threadfence_system();
  }
  float x = float(threadIdx.x);
  for (int i = 0; i < rounds; ++i) x = x * 0.999f + 0.5f;
  if (x == 1234.5f) out[0] = x;
}

// Work whose values are known, round by round, until told to stop or until a call fails.
int neighbour(Page* page, int64_t own_rounds) {
  unsigned* device = samples::device_array<unsigned>(kValues);
  std::vector<unsigned> host(kValues);
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::vector<double> before_us, after_us;
  uint64_t wrong_values = 0;
  cudaError_t status = cudaSuccess;
  for (unsigned round = 0; status == cudaSuccess && !page->stop && round != unsigned(own_rounds); ++round) {
    std::vector<double>& times_us = page->killed ? after_us : before_us;
    const uint64_t start_ns = now_ns();
    fill_values<<<kValues / 128, 128, 0, stream>>>(device, round);
    status = cudaGetLastError();
    if (status == cudaSuccess)
      status = cudaMemcpyAsync(host.data(), device, kValues * 4, cudaMemcpyDeviceToHost, stream);
    if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
    times_us.push_back(double(now_ns() - start_ns) * 1e-3);
    if (status != cudaSuccess) break;
    for (unsigned i = 0; i < kValues; ++i) wrong_values += host[i] != value_of(i, round);
    page->neighbour_rounds = round + 1;
  }
  probe::Report report;
  report.text("status", cudaGetErrorName(status))
      .number("wrong_values", double(wrong_values))
      .number("rounds_before", double(before_us.size()))
      .number("rounds_after", double(after_us.size()))
      .spread("before_us", before_us)
      .spread("after_us", after_us)
      .number("after_us_max", probe::quantile(after_us, 1));
  report.print();
  return 0;
}

// Takes up its place and stays there until it is killed.
int victim(Page* page, const std::string& place, double kernel_ms, int64_t n_streams, int64_t n_kernels) {
  const auto wait_value = probe::driver_function<processes::WaitValue64>("cuStreamWaitValue64");
  const CUdeviceptr pinned = processes::pin_page(page);
  float* scratch = samples::device_array<float>(1);
  int n_multiprocessors = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  std::vector<cudaStream_t> streams(n_streams);
  for (cudaStream_t& stream : streams) CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const int rounds = probe::rounds_for(streams[0], scratch, n_multiprocessors, kernel_ms);
  auto* began = reinterpret_cast<unsigned*>(pinned + offsetof(Page, kernel_began));
  // The kernel's code is loaded before the gate closes: loading it waits for what runs.
  begin_and_work<<<1, 128, 0, streams[0]>>>(began, scratch, 1);
  CUDA_CHECK(cudaDeviceSynchronize());
  page->kernel_began = 0;
  if (place == "in_kernel") {
    begin_and_work<<<n_multiprocessors, 128, 0, streams[0]>>>(began, scratch, rounds);
  } else {
    for (cudaStream_t stream : streams) {
      probe::driver_check(wait_value(stream, pinned, processes::kOpen, CU_STREAM_WAIT_VALUE_GEQ),
                          "cuStreamWaitValue64");
      for (int64_t i = 0; place == "work_queued" && i < n_kernels; ++i)
        begin_and_work<<<n_multiprocessors, 128, 0, stream>>>(began, scratch, rounds);
    }
  }
  CUDA_CHECK(cudaGetLastError());
  page->victim_ready = 1;
  for (;;) pause();
}

}  // namespace

int main(int argc, char** argv) {
  std::string role = "all", place;
  int64_t page_descriptor = -1, rounds = 200, n_streams = 4, n_kernels = 100;
  double kernel_ms = 500, limit_s = 20;
  samples::parse_options(argc, argv, "H24: a neighbour of a process that is killed.",
                         {{"--role", &role, "all; neighbour and victim are started by it"},
                          {"--place", &place, "where the victim is killed"},
                          {"--page", &page_descriptor, "descriptor of the shared page"},
                          {"--rounds", &rounds, "the neighbour's, before and after"},
                          {"--streams", &n_streams, "of the victim"},
                          {"--kernels", &n_kernels, "queued in each stream"},
                          {"--kernel-ms", &kernel_ms, "length of the victim's kernel"},
                          {"--limit-s", &limit_s, "for each wait"}});
  if (role != "all") {
    Page* page = processes::map_page<Page>(int(page_descriptor));
    return role == "victim" ? victim(page, place, kernel_ms, n_streams, n_kernels) : neighbour(page, rounds);
  }
  probe::Report report("H24");
  bool all_lived = true, held = true;  // held: what was to be seen could be seen
  for (const std::string where : {"nobody_killed", "closed_gate", "work_queued", "in_kernel"}) {
    const int descriptor = processes::make_page();
    Page* page = processes::map_page<Page>(descriptor);
    const std::string shared = std::to_string(descriptor);
    Child beside({"--role", "neighbour", "--page", shared, "--rounds", "-1"}, {});
    const auto goes_on = [&] {
      const uint32_t wanted = page->neighbour_rounds + uint32_t(rounds);
      processes::wait_until(limit_s, [&] { return page->neighbour_rounds >= wanted || !beside.alive(); });
      return page->neighbour_rounds >= wanted;
    };
    processes::wait_until(limit_s, [&] { return page->neighbour_rounds > 0 || !beside.alive(); });
    probe::Report row;
    if (where != "nobody_killed") {
      Child killed(
          {"--role", "victim", "--page", shared, "--place", where, "--kernel-ms", std::to_string(kernel_ms),
           "--streams", std::to_string(n_streams), "--kernels", std::to_string(n_kernels)},
          {});
      const volatile uint32_t& kernel_began = page->kernel_began;
      const auto in_place = [&] { return page->victim_ready && (where != "in_kernel" || kernel_began); };
      processes::wait_until(limit_s, [&] { return in_place() || !killed.alive(); });
      held &= in_place();
      row.boolean("in_place", in_place());
      // In a kernel there is no time to look at the neighbour first.
      if (where != "in_kernel") row.boolean("neighbour_went_on_beside_it", goes_on());
      page->killed = 1;
      const uint64_t start_ns = now_ns();
      killed.kill_now();
      row.number("death_ms", double(now_ns() - start_ns) * 1e-6);
    } else {
      goes_on();
      page->killed = 1;
    }
    const bool lived = goes_on();
    page->stop = 1;
    const std::string answer = beside.answer(limit_s);
    Child newcomer(
        {"--role", "neighbour", "--page", std::to_string(processes::make_page()), "--rounds", "20"}, {});
    const std::string last = newcomer.answer(limit_s);
    const auto sound = [](const std::string& text) {
      return text.find("\"status\": \"cudaSuccess\", \"wrong_values\": 0,") != std::string::npos;
    };
    if (where == "nobody_killed") held &= sound(answer);
    all_lived = all_lived && lived && sound(answer) && sound(last);
    row.boolean("neighbour_lived", lived && sound(answer))
        .boolean("newcomer_lived", sound(last))
        .raw("neighbour", answer)
        .raw("newcomer", last);
    report.raw(where, row.str());
    close(descriptor);
  }
  report.boolean("all_lived", all_lived).print();
  return held ? 0 : 1;
}

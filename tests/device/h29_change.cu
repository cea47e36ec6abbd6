// H29: what a change between two processes costs, by what the one that leaves is doing: nothing since long (idle), nothing
// since just now (drained), a stream of it waits for a word with work behind it (waiting), or a kernel of it runs (kernel).
// The times of two short kernels of the other process, one after the other: the first one pays for the change. Of the sharing
// that its environment has; `alone` is without a process that leaves.
#include <sched.h>

#include <optional>

#include "processes.h"

namespace {

using samples::now_ns;

struct Page {
  std::atomic<uint64_t> word;  // of `waiting`: closed while it is 0
  char padding[56];
  std::atomic<uint32_t> left, asked, stop;  // rounds: what it does, it does; the other has its times
  char padding_2[52];
  uint32_t began;  // stored by the device: the round of the kernel that runs
};

__global__ void begin_and_work(volatile unsigned* began, unsigned round, float* out, int rounds) {
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    *began = round;
    __threadfence_system();
  }
  float x = float(threadIdx.x);
  for (int i = 0; i < rounds; ++i) x = x * 0.999f + 0.5f;
  if (x == 1234.5f) out[0] = x;
}

// Is in its state from round to round, and leaves it when the other has its times.
int leave(Page* page, const std::string& state, double kernel_ms) {
  const auto wait_value = probe::driver_function<processes::WaitValue64>("cuStreamWaitValue64");
  const CUdeviceptr pinned = processes::pin_page(page);
  auto* began_on_device = reinterpret_cast<unsigned*>(pinned + offsetof(Page, began));
  const volatile uint32_t* began = &page->began;
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  float* scratch = samples::device_array<float>(1);
  const int blocks = probe::blocks_of(1);
  const int rounds = probe::rounds_for(stream, scratch, blocks, kernel_ms);
  const auto work = [&](uint32_t round) {
    begin_and_work<<<unsigned(blocks), 128, 0, stream>>>(began_on_device, round, scratch, rounds);
    CUDA_CHECK(cudaGetLastError());
  };
  work(0);  // loads its code: that would wait behind the closed word
  CUDA_CHECK(cudaStreamSynchronize(stream));
  for (uint32_t round = 1; !page->stop; ++round) {
    while (page->asked != round && !page->stop) sched_yield();
    if (page->stop) break;
    page->word = 0;
    if (state == "waiting")
      probe::driver_check(wait_value(stream, pinned, processes::kOpen, CU_STREAM_WAIT_VALUE_GEQ),
                          "cuStreamWaitValue64");
    if (state != "idle") work(round);
    if (state == "drained") CUDA_CHECK(cudaStreamSynchronize(stream));
    if (state == "kernel")
      while (*began != round) sched_yield();
    page->left = round;
    while (page->asked == round && !page->stop) sched_yield();  // it has them when it asks for the next
    page->word = processes::kOpen;
    CUDA_CHECK(cudaStreamSynchronize(stream));
  }
  page->word = processes::kOpen;
  std::printf("{\"kernel_rounds\": %d}\n", rounds);
  return 0;
}

// Asks for the state and takes its times, for a number of rounds; without anybody to ask, alone.
int come(Page* page, bool alone, int64_t rounds, double pause_us) {
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const auto timed_us = [&] {
    const uint64_t start_ns = now_ns();
    probe::nothing<<<1, 1, 0, stream>>>();
    CUDA_CHECK(cudaStreamSynchronize(stream));
    return double(now_ns() - start_ns) * 1e-3;
  };
  timed_us();  // loads its code
  std::vector<double> first_us, second_us;
  for (uint32_t round = 1; round <= uint32_t(rounds); ++round) {
    if (!alone) {
      page->asked = round;
      if (!processes::wait_until(10, [&] { return page->left == round; }))
        samples::fail("the other process", "does not answer");
    }
    first_us.push_back(timed_us());
    second_us.push_back(timed_us());
    samples::sleep_until_ns(now_ns() + uint64_t(pause_us * 1e3));
  }
  page->stop = 1;
  probe::Report report;
  report.number("rounds", double(rounds)).spread("first_us", first_us).spread("second_us", second_us).print();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string role = "all", state = "alone";
  int64_t rounds = 200, descriptor = -1;
  double kernel_ms = 1, pause_us = 500;
  samples::parse_options(argc, argv,
                         "H29: the cost of a change between processes by what the leaving one does.",
                         {{"--role", &role, "all; leave and come are started by it"},
                          {"--state", &state, "of the process that leaves"},
                          {"--page", &descriptor, "of their page"},
                          {"--rounds", &rounds, "for each state"},
                          {"--kernel-ms", &kernel_ms, "of the process that leaves"},
                          {"--pause-us", &pause_us, "between two rounds"}});
  if (role != "all") {
    Page* page = processes::map_page<Page>(int(descriptor));
    return role == "leave" ? leave(page, state, kernel_ms) : come(page, state == "alone", rounds, pause_us);
  }
  probe::Report report("H29");
  bool answered = true;
  for (const char* each : {"alone", "idle", "drained", "waiting", "kernel"}) {
    const int page = processes::make_page();
    const auto started = [&](const char* as) {
      return std::vector<std::string>{"--role",      as,
                                      "--state",     each,
                                      "--page",      std::to_string(page),
                                      "--rounds",    std::to_string(rounds),
                                      "--kernel-ms", std::to_string(kernel_ms),
                                      "--pause-us",  std::to_string(pause_us)};
    };
    const bool alone = std::string(each) == "alone";
    std::optional<processes::Child> leaves;
    if (!alone) leaves.emplace(started("leave"), std::vector<std::pair<std::string, std::string>>{});
    processes::Child comes(started("come"), {});
    const std::string answer = comes.answer(30);
    answered &= !processes::failed(answer) && (alone || !processes::failed(leaves->answer(5)));
    report.raw(each, answer);
    close(page);
  }
  report.print();
  return answered ? 0 : 1;
}

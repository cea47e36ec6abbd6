// One side of the questions about sharing (H4, H5); h4_mps.py and h5_timeslice.py start several of them.
//   --role latency   a short kernel and a synchronise every few milliseconds; prints the spread of its time
//   --role hog       keeps the device full with kernels of --kernel-ms; prints how many it did
//   --role calibrate prints the --rounds that make a kernel last --kernel-ms on the idle device, and how long it lasts
//   --role pulse     short kernels back to back, each timed; prints runs and gaps, i.e. time slices as seen
//   from inside
#include <signal.h>

#include "probe.h"

namespace {

using probe::now_ns;
volatile sig_atomic_t stop_requested = 0;

struct Sharer {
  cudaStream_t stream = nullptr;
  float* scratch = nullptr;
  int blocks = 0;
  uint64_t deadline_ns = 0;
  bool running() const { return !stop_requested && now_ns() < deadline_ns; }
};

void latency(const Sharer& s, int rounds, probe::Report& report) {
  std::vector<double> us;
  while (s.running()) {
    samples::sleep_until_ns(now_ns() + 5000000);
    const uint64_t start = now_ns();
    probe::work<<<s.blocks, 128, 0, s.stream>>>(s.scratch, rounds);
    CUDA_CHECK(cudaStreamSynchronize(s.stream));
    us.push_back(double(now_ns() - start) * 1e-3);
  }
  report.number("samples", double(us.size())).spread("latency_us", us);
}

void hog(const Sharer& s, int rounds, probe::Report& report) {
  int64_t done = 0;
  const uint64_t start = now_ns();
  while (s.running()) {
    for (int i = 0; i < 2; ++i) probe::work<<<s.blocks, 128, 0, s.stream>>>(s.scratch, rounds);
    CUDA_CHECK(cudaStreamSynchronize(s.stream));
    done += 2;
  }
  report.number("kernels", double(done))
      .number("kernels_per_s", double(done) / (double(now_ns() - start) * 1e-9));
}

// End times of many short kernels on the device's own clock: where two are much further apart than the kernel
// is long, somebody else ran in between.
void pulse(const Sharer& s, int rounds, double kernel_ms, probe::Report& report) {
  constexpr int kEvents = 256;
  std::vector<cudaEvent_t> events(kEvents);
  for (cudaEvent_t& event : events) CUDA_CHECK(cudaEventCreate(&event));
  std::vector<double> runs_ms, gaps_ms;
  while (s.running()) {
    for (cudaEvent_t event : events) {
      probe::work<<<s.blocks, 128, 0, s.stream>>>(s.scratch, rounds);
      CUDA_CHECK(cudaEventRecord(event, s.stream));
    }
    CUDA_CHECK(cudaStreamSynchronize(s.stream));
    double run = 0;
    bool whole = false;  // a run counts once both its ends were seen
    for (int i = 1; i < kEvents; ++i) {
      float ms = 0;
      CUDA_CHECK(cudaEventElapsedTime(&ms, events[size_t(i) - 1], events[size_t(i)]));
      if (ms < 2 * kernel_ms + 0.1) {
        run += ms;
        continue;
      }
      if (whole) runs_ms.push_back(run);
      gaps_ms.push_back(ms - kernel_ms);
      run = 0;
      whole = true;
    }
  }
  report.number("gaps", double(gaps_ms.size())).spread("run_ms", runs_ms).spread("gap_ms", gaps_ms);
}

}  // namespace

int main(int argc, char** argv) {
  std::string role = "latency";
  double seconds = 3, kernel_ms = 0.2, waves = 1;
  int64_t stream_priority = 0, given_rounds = 0;
  bool announce = false;
  samples::parse_options(
      argc, argv, "One sharer of the device.",
      {{"--role", &role, "latency, hog, pulse or calibrate"},
       {"--seconds", &seconds, "how long"},
       {"--kernel-ms", &kernel_ms, "length of one kernel alone"},
       {"--waves", &waves, "waves of one kernel on the device"},
       {"--rounds", &given_rounds, "from --role calibrate, if others are running"},
       {"--stream-priority", &stream_priority, "as CUDA has it: lower first"},
       {"--announce", &announce, "print \"ready\" when the loop starts"}});
  signal(SIGTERM, [](int) { stop_requested = 1; });
  Sharer s;
  CUDA_CHECK(cudaStreamCreateWithPriority(&s.stream, cudaStreamNonBlocking, int(stream_priority)));
  s.scratch = samples::device_array<float>(1);
  s.blocks = probe::blocks_of(waves);
  const probe::Calibrated kernel = given_rounds > 0
                                       ? probe::Calibrated{given_rounds, kernel_ms}
                                       : probe::calibrate_work(s.stream, s.scratch, s.blocks, kernel_ms);
  const int rounds = int(kernel.amount);
  if (announce) {
    std::printf("ready\n");
    std::fflush(stdout);
  }
  s.deadline_ns = now_ns() + uint64_t(seconds * 1e9);
  probe::Report report("sharer");
  report.text("role", role).number("rounds", rounds).number("kernel_ms", kernel.ms).number("blocks", s.blocks);
  if (role == "latency")
    latency(s, rounds, report);
  else if (role == "hog")
    hog(s, rounds, report);
  else if (role == "pulse")
    pulse(s, rounds, kernel_ms, report);
  else if (role != "calibrate")
    samples::fail("--role is one of latency, hog, pulse, calibrate, not", role.c_str());
  report.print();
}

// The loop around a training step: how long, what is reported, the log of finished steps. At most two steps are queued ahead, as
// frameworks do that read the loss with some delay. Used by the main files of the samples that train. Single-threaded.
#pragma once

#include <signal.h>

#include "support.h"

namespace samples {

constexpr int kStepsAhead = 2;  // queued before the host waits for the oldest

struct TrainingOptions {
  int64_t steps = 0, checksum_steps = 5;
  double seconds = 0;
  std::string csv;
};

inline std::vector<Option> training_options(TrainingOptions& o) {
  return {{"--seconds", &o.seconds, "stop after this time (default 10)"},
          {"--steps", &o.steps, "stop after N steps"},
          {"--checksum-steps", &o.checksum_steps, "checksum of the state after N steps (default 5)"},
          {"--csv", &o.csv, "file: step,start_ns,end_ns (CLOCK_MONOTONIC over the stretch)"},
          {"--stretch", &clock_stretch, "run this program's clock X times slower"}};
}

// Launches the steps of a stream as CUDA graphs. Each graph is captured anew after `per_graph` steps; 0: no graph.
class CapturedSteps {
 public:
  explicit CapturedSteps(int per_graph) : per_graph_(per_graph) {}
  template <class Enqueue>
  void run(int64_t step, cudaStream_t stream, Enqueue&& enqueue) {
    // Libraries make objects at their first call, which must not be captured.
    if (step == 0 || per_graph_ == 0) return enqueue();
    if ((step - 1) % per_graph_ == 0) capture(stream, enqueue);
    CUDA_CHECK(cudaGraphLaunch(graph_, stream));
  }

 private:
  template <class Enqueue>
  void capture(cudaStream_t stream, Enqueue& enqueue) {
    cudaGraph_t captured = nullptr;
    if (graph_) CUDA_CHECK(cudaGraphExecDestroy(graph_));
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    enqueue();
    CUDA_CHECK(cudaStreamEndCapture(stream, &captured));
    CUDA_CHECK(cudaGraphInstantiate(&graph_, captured, 0));
    CUDA_CHECK(cudaGraphDestroy(captured));
  }
  const int per_graph_;
  cudaGraphExec_t graph_ = nullptr;
};

// One line per finished step, as soon as the host knows: whoever watches the file sees training progress.
class StepLog {
 public:
  explicit StepLog(const std::string& path) {
    if (path.empty()) return;
    file_ = std::fopen(path.c_str(), "w");
    if (!file_) fail("cannot write --csv file", path.c_str());
    std::fprintf(file_, "step,start_ns,end_ns\n");
    last_end_ns_ = now_ns();
  }
  void finished(int64_t step) {
    if (!file_) return;
    const uint64_t end_ns = now_ns();
    std::fprintf(file_, "%lld,%llu,%llu\n", (long long)step, (unsigned long long)last_end_ns_,
                 (unsigned long long)end_ns);
    std::fflush(file_);
    last_end_ns_ = end_ns;
  }

 private:
  FILE* file_ = nullptr;
  uint64_t last_end_ns_ = 0;
};

// A Model has a stream(), enqueue_step(number) on it, and add_state(Checksum&), which reads what was trained.
template <class Model>
class TrainingLoop {
 public:
  TrainingLoop(Model& model, const std::string& csv) : model_(model), log_(csv) {
    for (cudaEvent_t& event : done_) CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }

  // Enqueues one step, after waiting for the one before the previous.
  void step() {
    if (n_steps_ >= kStepsAhead) finish(n_steps_ - kStepsAhead);
    model_.enqueue_step(n_steps_);
    CUDA_CHECK(cudaEventRecord(done_[n_steps_ % kStepsAhead], model_.stream()));
    ++n_steps_;
  }
  int64_t steps() const { return n_steps_; }
  void wait() {
    while (n_logged_ < n_steps_) finish(n_logged_);
    CUDA_CHECK(cudaStreamSynchronize(model_.stream()));
  }
  uint64_t checksum() {
    wait();
    Checksum sum;
    model_.add_state(sum);
    return sum.value;
  }

 private:
  // Waits for the end of a step; each step once, in order.
  void finish(int64_t step) {
    if (step < n_logged_) return;
    CUDA_CHECK(cudaEventSynchronize(done_[step % kStepsAhead]));
    log_.finished(step);
    n_logged_ = step + 1;
  }

  Model& model_;
  StepLog log_;
  int64_t n_steps_ = 0, n_logged_ = 0;
  cudaEvent_t done_[kStepsAhead] = {};
};

inline volatile sig_atomic_t stop_requested = 0;

// SIGTERM and SIGINT end the loop after the current step; the report is printed all the same.
inline void stop_by_signal() {
  struct sigaction action = {};
  action.sa_handler = [](int) { stop_requested = 1; };
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

// The exit status. The first checksum_steps steps are the warm-up: they always run, so that the checksum never depends on the
// time. `sizes` is printed after them.
template <class Model>
int train(Model& model, TrainingOptions o, const char* sizes) {
  positive("--stretch", clock_stretch);
  positive("--checksum-steps", double(o.checksum_steps));
  if (o.seconds <= 0 && o.steps <= 0) o.seconds = 10;
  stop_by_signal();
  TrainingLoop<Model> loop(model, o.csv);
  while (loop.steps() < o.checksum_steps) loop.step();
  const uint64_t checksum = loop.checksum();
  std::printf("%s\n", sizes);
  std::fflush(stdout);

  const int64_t first_step = loop.steps();
  const uint64_t begin_ns = now_ns();
  const uint64_t deadline_ns = o.seconds > 0 ? begin_ns + uint64_t(o.seconds * 1e9) : UINT64_MAX;
  while (!stop_requested && now_ns() < deadline_ns && (o.steps <= 0 || loop.steps() < o.steps)) loop.step();
  loop.wait();
  const double seconds = double(now_ns() - begin_ns) * 1e-9;
  const int64_t timed = loop.steps() - first_step;

  std::printf("steps=%lld timed_steps=%lld seconds=%.3f\n", (long long)loop.steps(), (long long)timed,
              seconds);
  std::printf("steps_per_s=%.4f\n", seconds > 0 ? double(timed) / seconds : 0.0);
  std::printf("checksum_steps=%lld checksum=%016llx\n", (long long)o.checksum_steps,
              (unsigned long long)checksum);
  return 0;
}

}  // namespace samples

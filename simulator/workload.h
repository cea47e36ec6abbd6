// Describes what programs do, as plain data: jobs (a request, a training iteration) made of steps (kernels launched
// asynchronously, one synchronise, host work), and how jobs arrive. Built by scenario.cc or by tests; read by
// the simulation. Times are those of the program alone on the modelled GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scheduler_daemon/policy/policy.h"
#include "simulator/random.h"

namespace tessera::simulator {

struct Kernel {
  uint32_t n_blocks = 1;
  uint64_t block_ns = 0;        // one block, all its neighbours being of the same kernel
  uint64_t usual_block_ns = 0;  // mean over launches of this shape; 0 = every launch is alike
  double sms_per_block = 1;     // how much of an SM one block takes
  double occupancy_knee = 1;    // part of its wave from which on more blocks at once do not make it faster
  policy::ResourceClass resource_class = policy::ResourceClass::kCompute;
  bool can_cut = true;
  bool copy = false;  // of the copy engine
  bool collective =
      false;  // it ends when all ranks of its gang have begun it, and `block_ns` have passed then

  uint32_t wave_blocks(uint32_t sm_count) const {  // that run at once when alone
    return uint32_t(std::max(1.0, sm_count / sms_per_block + 1e-6));
  }
  uint64_t solo_ns(uint32_t sm_count) const { return solo_ns(sm_count, n_blocks); }
  uint64_t solo_ns(uint32_t sm_count, uint32_t blocks) const;
  // How much faster its blocks are while `resident` of them run than with a full wave (its whole grid, if that
  // is less). 1 = every block adds throughput.
  double block_speed(uint32_t sm_count, double resident) const;
  Kernel usual() const;  // what its history says that it is
};

struct LaunchCosts {       // ns; of a program alone, besides its kernels
  uint64_t launch_ns = 0;  // of the host, per launch
  uint64_t gap_ns = 0;     // between two kernels of one stream
  uint64_t sync_ns = 0;    // completion until a synchronise returns
};

inline constexpr uint32_t kSlotsPerSm = 4;  // blocks per SM where nothing else is known

// A kernel for the copy engine: takes its time in the stream, and hardly an SM.
Kernel copy_kernel(uint64_t ns);

struct Segment {  // `count` launches of one kernel, each with its own draw of the block time
  uint32_t count = 1;
  Kernel kernel;
  double cv = 0;           // of the block time, per launch (lognormal)
  uint64_t host_ns = 0;    // CPU time of the program before each launch
  bool graph = false;      // of a protected program: its launches are the nodes of one graph, and one call
  bool joins = false;      // its first launch belongs to the call of the launch before it
  bool of_tokens = false;  // Serving::decode: its length grows with the tokens that are cached
};

struct Step {
  std::vector<Segment> segments;
  uint32_t repeat = 1;
  uint64_t gap_ns = 0;  // host work after the synchronise
  double gap_cv = 0;
};

struct RequestLength {  // tokens
  uint32_t prompt = 1, output = 1;
};

// A server of a language model: its jobs are steps over all requests that run (simulator/token_server.h). Phases are given
// for a number of tokens at once, and for a number of sequences with their cached tokens.
struct Serving {
  std::vector<Step> prefill, decode;
  uint32_t prefill_tokens = 2048, decode_batch = 1, decode_context = 1024;
  uint32_t most_running = 32;   // requests in a step
  uint32_t step_tokens = 2048;  // that a step takes at most
  RequestLength mean{.prompt = 512, .output = 128};
  double cv = 0;                       // of both lengths, lognormal
  std::vector<RequestLength> lengths;  // recorded, replayed from a random place on; empty: drawn

  // Kernels of one step: `tokens` of prompts and of running requests together, or `cached` of those that are one token
  // further; in a step without prompts the first is 0.
  std::vector<Step> step(uint32_t tokens, uint64_t cached) const;
  std::vector<Step> one_request() const;  // of mean length, by itself
};

struct Workload {
  std::string name;
  std::vector<Step> steps;
  std::optional<Serving> serving;  // then `steps` are those of one request by itself
  double cv = 0;                   // of the whole job: all block times of one job share this draw
  // A job has one of these lengths, each equally often, by which the launches of its segments are multiplied. Empty: all alike.
  std::vector<double> lengths;
  bool is_short(double length) const {  // the least of several
    return lengths.size() > 1 && length <= *std::min_element(lengths.begin(), lengths.end());
  }
  // Steps that the program is ahead of the GPU: after each it waits for the one that many steps before. 0 = it synchronises.
  uint32_t steps_ahead = 0;
  uint64_t memory_bytes = 0;             // that must be on the GPU while a job runs: see ModelMemory
  std::vector<double> recorded_gaps_ns;  // between starts of jobs, if it was recorded (chakra_workload.h)

  // Mean length of a job that has the GPU to itself: kernels, the gaps between them, launches that the GPU
  // waits for, host work.
  uint64_t alone_ns(uint32_t sm_count, const LaunchCosts& costs) const;
  policy::ResourceClass main_class(uint32_t sm_count) const;  // of most of its GPU time
};

// A job drawn from a workload.
struct Launch {
  Kernel kernel;
  bool last_of_step = false;
  bool in_call = false;  // of the launch before it: a node of its graph
  uint64_t host_ns = 0;  // CPU time before it
  uint64_t gap_ns = 0;   // after the synchronise of the step
};
// Into `job`, whose memory is used again. Returns which of the workload's lengths it has.
double draw_job(const Workload& workload, Random* random, std::vector<Launch>* job);
// Appends; `of_job` and `length` are the job's own.
void draw_steps(const std::vector<Step>& steps, double of_job, double length, Random* random,
                std::vector<Launch>* job);

enum class ArrivalKind : uint8_t { kClosed, kPoisson, kBursty, kGamma, kOnOff, kDiurnal, kPeriodic, kTrace };

struct Arrivals {
  ArrivalKind kind = ArrivalKind::kClosed;  // closed: the next job starts when the last one ended
  uint32_t users = 1;                       // kClosed: jobs that are asked for at once
  double load = 0.5;                        // share of the time that the jobs would take alone
  double rate_per_s = 0;                    // of jobs, instead of a load; 0 = by load
  double burst_cv = 3;                      // kBursty, kGamma: coefficient of variation of the gaps
  uint64_t on_ns = 200'000'000, off_ns = 200'000'000;  // kOnOff: mean lengths
  uint64_t period_ns = 2'000'000'000;                  // kDiurnal: one "day"
  std::vector<double>
      gaps_ns;  // kTrace: between arrivals, replayed from a random place on; load does not count,
                // a rate stretches them
};

// Draws arrival times one after another, of jobs that take `alone_ns` alone.
class ArrivalProcess {
 public:
  ArrivalProcess(const Arrivals& arrivals, uint64_t alone_ns, Random random)
      : arrivals_(arrivals),
        mean_gap_ns_(arrivals.rate_per_s > 0 ? 1e9 / arrivals.rate_per_s : double(alone_ns) / arrivals.load),
        random_(random) {}
  uint64_t next_ns();  // later than or at the previous one

 private:
  Arrivals arrivals_;
  double mean_gap_ns_;
  Random random_;
  double at_ns_ = 0;
  double on_until_ns_ = 0;
  uint64_t next_gap_ = UINT64_MAX;  // kTrace; UINT64_MAX: not begun
};

}  // namespace tessera::simulator

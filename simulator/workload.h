// What programs do, as plain data: jobs (a request, a training iteration) made of steps (kernels launched
// asynchronously, one synchronise, host work), and how jobs arrive. Built by scenario.cc or by tests; read by
// the simulation. Times are those of the program alone on the modelled GPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler_daemon/policy/policy.h"
#include "simulator/random.h"

namespace tessera::simulator {

struct Kernel {
  uint32_t n_blocks = 1;
  uint64_t block_ns = 0;     // one block, all its neighbours being of the same kernel
  double sms_per_block = 1;  // how much of an SM one block takes
  policy::ResourceClass resource_class = policy::ResourceClass::kCompute;
  bool can_cut = true;

  uint32_t wave_blocks(uint32_t sm_count) const;  // blocks that run at once when alone
  uint64_t solo_ns(uint32_t sm_count) const { return solo_ns(sm_count, n_blocks); }
  uint64_t solo_ns(uint32_t sm_count, uint32_t blocks) const;
};

struct Segment {  // `count` launches of one kernel, each with its own draw of the block time
  uint32_t count = 1;
  Kernel kernel;
  double cv = 0;  // of the block time, per launch (lognormal)
};

struct Step {
  std::vector<Segment> segments;
  uint32_t repeat = 1;
  uint64_t gap_ns = 0;  // host work after the synchronise
  double gap_cv = 0;
};

struct Workload {
  std::string name;
  std::vector<Step> steps;
  double cv = 0;  // of the whole job: all block times of one job share this draw

  uint64_t solo_ns(uint32_t sm_count) const;      // GPU and host, launch costs not counted
  uint64_t gpu_solo_ns(uint32_t sm_count) const;  // GPU alone
};

// A job drawn from a workload.
struct Launch {
  Kernel kernel;
  bool last_of_step = false;
  uint64_t gap_ns = 0;  // after the synchronise of the step
};
std::vector<Launch> draw_job(const Workload& workload, Random* random);

enum class ArrivalKind : uint8_t { kClosed, kPoisson, kBursty, kOnOff, kDiurnal, kPeriodic, kTrace };

struct Arrivals {
  ArrivalKind kind = ArrivalKind::kClosed;             // closed: the next job starts when the last one ended
  double load = 0.5;                                   // share of the time that the jobs would take alone
  double burst_cv = 3;                                 // kBursty: coefficient of variation of the gaps
  uint64_t on_ns = 200'000'000, off_ns = 200'000'000;  // kOnOff: mean lengths
  uint64_t period_ns = 2'000'000'000;                  // kDiurnal: one "day"
  std::vector<double>
      gaps_ns;  // kTrace: between arrivals, replayed from a random place on; load does not count
};

// Draws arrival times one after another.
class ArrivalProcess {
 public:
  ArrivalProcess(const Arrivals& arrivals, uint64_t solo_ns, Random random)
      : arrivals_(arrivals), mean_gap_ns_(double(solo_ns) / arrivals.load), random_(random) {}
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

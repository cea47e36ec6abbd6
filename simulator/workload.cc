#include "simulator/workload.h"

#include <algorithm>
#include <cmath>

namespace tessera::simulator {

uint32_t Kernel::wave_blocks(uint32_t sm_count) const {
  return uint32_t(std::max(1.0, std::floor(sm_count / sms_per_block + 1e-6)));
}

uint64_t Kernel::solo_ns(uint32_t sm_count, uint32_t blocks) const {
  uint32_t wave = wave_blocks(sm_count);
  return uint64_t((blocks + wave - 1) / wave) * block_ns;
}

uint64_t Workload::gpu_solo_ns(uint32_t sm_count) const {
  uint64_t sum = 0;
  for (const Step& step : steps)
    for (const Segment& s : step.segments) sum += step.repeat * s.count * s.kernel.solo_ns(sm_count);
  return sum;
}

uint64_t Workload::solo_ns(uint32_t sm_count) const {
  uint64_t sum = gpu_solo_ns(sm_count);
  for (const Step& step : steps) sum += step.repeat * step.gap_ns;
  return sum;
}

std::vector<Launch> draw_job(const Workload& workload, Random* random) {
  std::vector<Launch> job;
  double of_job = random->lognormal(workload.cv);
  for (const Step& step : workload.steps) {
    for (uint32_t r = 0; r < step.repeat; ++r) {
      for (const Segment& segment : step.segments) {
        for (uint32_t i = 0; i < segment.count; ++i) {
          Launch launch{.kernel = segment.kernel};
          double factor = of_job * random->lognormal(segment.cv);
          launch.kernel.block_ns = std::max<uint64_t>(200, uint64_t(double(launch.kernel.block_ns) * factor));
          job.push_back(launch);
        }
      }
      if (job.empty()) continue;
      job.back().last_of_step = true;
      job.back().gap_ns = uint64_t(double(step.gap_ns) * random->lognormal(step.gap_cv));
    }
  }
  return job;
}

uint64_t ArrivalProcess::next_ns() {
  double gap = mean_gap_ns_;
  switch (arrivals_.kind) {
    case ArrivalKind::kClosed:
      gap = 0;
      break;
    case ArrivalKind::kPeriodic:
      break;
    case ArrivalKind::kTrace:
      if (next_gap_ == UINT64_MAX) next_gap_ = random_.next();
      gap = arrivals_.gaps_ns[next_gap_++ % arrivals_.gaps_ns.size()];
      break;
    case ArrivalKind::kPoisson:
      gap = random_.exponential(gap);
      break;
    case ArrivalKind::kBursty:
      gap *= random_.lognormal(arrivals_.burst_cv);
      break;
    case ArrivalKind::kDiurnal: {
      // Rate swings between 0.2 and 1.8 of the mean over one period.
      double phase = at_ns_ / double(arrivals_.period_ns) * 6.283185307179586;
      gap = random_.exponential(gap / (1 + 0.8 * std::sin(phase)));
      break;
    }
    case ArrivalKind::kOnOff: {
      double on = double(arrivals_.on_ns), off = double(arrivals_.off_ns);
      double left = random_.exponential(gap * on / (on + off));  // in on-time
      while (at_ns_ + left > on_until_ns_) {
        left -= std::max(0.0, on_until_ns_ - at_ns_);
        at_ns_ = std::max(at_ns_, on_until_ns_) + random_.exponential(off);
        on_until_ns_ = at_ns_ + random_.exponential(on);
      }
      gap = left;
      break;
    }
  }
  at_ns_ += gap;
  return uint64_t(at_ns_);
}

}  // namespace tessera::simulator

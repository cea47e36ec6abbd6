#include "simulator/workload.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace tessera::simulator {
namespace {

uint32_t launches_of(const Segment& segment, double length) {
  return uint32_t(std::max(1.0, std::round(segment.count * length)));
}

// The segment's launch number `n` is of the call before it.
bool in_call(const Segment& segment, uint32_t n) {
  return n == 0 ? segment.joins : segment.graph;
}

// From the first launch until the synchronise returns.
uint64_t step_alone_ns(const Step& step, double length, uint32_t sm_count, const LaunchCosts& costs) {
  uint64_t launched_ns = 0, end_ns = 0;
  for (const Segment& segment : step.segments) {
    const uint32_t count = launches_of(segment, length);
    for (uint32_t n = 0; n < count; ++n) {
      if (!in_call(segment, n)) launched_ns += segment.host_ns + costs.launch_ns;
      const uint64_t free_ns = end_ns == 0 ? 0 : end_ns + costs.gap_ns;
      end_ns = std::max(launched_ns, free_ns) + segment.kernel.solo_ns(sm_count);
    }
  }
  return end_ns + costs.sync_ns;
}

void grow_time(double factor, Kernel* kernel) {
  constexpr uint64_t kLeastNs = 2'000;  // of a kernel, whatever little it does
  const auto grown = [&](uint64_t ns) {
    return std::max(std::min(ns, kLeastNs), uint64_t(double(ns) * factor));
  };
  kernel->block_ns = grown(kernel->block_ns);
  kernel->usual_block_ns = grown(kernel->usual_block_ns);
}

}  // namespace

uint64_t Kernel::solo_ns(uint32_t sm_count, uint32_t blocks) const {
  const uint32_t wave = wave_blocks(sm_count);
  if (blocks >= wave) return uint64_t((blocks + wave - 1) / wave) * block_ns;
  return uint64_t(double(block_ns) / block_speed(sm_count, blocks));
}

Kernel copy_kernel(uint64_t ns) {
  return {.block_ns = ns,
          .sms_per_block = 0.01,
          .resource_class = policy::ResourceClass::kLatency,
          .can_cut = false,
          .copy = true};
}

double Kernel::block_speed(uint32_t sm_count, double resident) const {
  if (occupancy_knee >= 1) return 1;
  const double wave = wave_blocks(sm_count);
  const double full = std::min(1.0, n_blocks / wave), now = std::min(full, resident / wave);
  return std::max(occupancy_knee, full) / std::max(occupancy_knee, now);
}

Kernel Kernel::usual() const {
  Kernel usual = *this;
  if (usual_block_ns != 0) usual.block_ns = usual_block_ns;
  return usual;
}

uint64_t Workload::alone_ns(uint32_t sm_count, const LaunchCosts& costs) const {
  double sum_ns = 0;
  const std::vector<double> each = lengths.empty() ? std::vector<double>{1} : lengths;
  for (const double length : each)
    for (const Step& step : steps)
      sum_ns += double(step.repeat * (step_alone_ns(step, length, sm_count, costs) + step.gap_ns));
  return uint64_t(sum_ns / double(each.size()));
}

policy::ResourceClass Workload::main_class(uint32_t sm_count) const {
  std::array<double, 4> time_ns{};
  for (const Step& step : steps)
    for (const Segment& s : step.segments)
      time_ns[size_t(s.kernel.resource_class)] +=
          double(step.repeat) * s.count * double(s.kernel.solo_ns(sm_count));
  return policy::ResourceClass(std::max_element(time_ns.begin(), time_ns.end()) - time_ns.begin());
}

void draw_steps(const std::vector<Step>& steps, double of_job, double length, Random* random,
                std::vector<Launch>* job) {
  for (const Step& step : steps) {
    for (uint32_t r = 0; r < step.repeat; ++r) {
      for (const Segment& segment : step.segments) {
        const uint32_t count = launches_of(segment, length);
        for (uint32_t n = 0; n < count; ++n) {
          const bool joined = in_call(segment, n);
          Launch launch{.kernel = segment.kernel, .in_call = joined, .host_ns = joined ? 0 : segment.host_ns};
          if (launch.kernel.usual_block_ns == 0) launch.kernel.usual_block_ns = segment.kernel.block_ns;
          double factor = of_job * random->lognormal(segment.cv);
          launch.kernel.block_ns = std::max<uint64_t>(200, uint64_t(double(launch.kernel.block_ns) * factor));
          job->push_back(launch);
        }
      }
      if (job->empty()) continue;
      job->back().last_of_step = true;
      job->back().gap_ns = uint64_t(double(step.gap_ns) * random->lognormal(step.gap_cv));
    }
  }
}

double draw_job(const Workload& workload, Random* random, std::vector<Launch>* job) {
  job->clear();
  const double of_job = random->lognormal(workload.cv);
  const size_t n_lengths = workload.lengths.size();
  const double length = n_lengths == 0 ? 1 : workload.lengths[random->next() % n_lengths];
  draw_steps(workload.steps, of_job, length, random, job);
  return length;
}

std::vector<Step> Serving::step(uint32_t tokens, uint64_t cached) const {
  const double of_prefill = double(tokens) / prefill_tokens;
  const double of_decode = double(cached) / (double(decode_batch) * decode_context);
  std::vector<Step> out = tokens != 0 ? prefill : decode;
  for (Step& step : out)
    for (Segment& s : step.segments) {
      if (tokens != 0 && s.kernel.collective)
        grow_time(of_prefill, &s.kernel);
      else if (tokens != 0)
        s.kernel.n_blocks = uint32_t(std::max(1.0, std::ceil(s.kernel.n_blocks * of_prefill)));
      else if (s.of_tokens)
        grow_time(of_decode, &s.kernel);
    }
  if (tokens == 0 || cached == 0) return out;
  // Attention of those that decode in the same step; the rest of their work is in the prefill's kernels.
  for (const Step& step : decode)
    for (const Segment& s : step.segments) {
      if (!s.of_tokens) continue;
      out.back().segments.push_back(s);
      grow_time(of_decode, &out.back().segments.back().kernel);
    }
  return out;
}

std::vector<Step> Serving::one_request() const {
  std::vector<Step> out;
  for (uint32_t left = mean.prompt; left != 0;) {
    const uint32_t now = std::min(left, step_tokens);
    for (const Step& s : step(now, 0)) out.push_back(s);
    left -= now;
  }
  std::vector<Step> further = step(0, mean.prompt + mean.output / 2);
  if (mean.output > 1 && further.size() == 1) further[0].repeat = mean.output - 1;
  for (uint32_t n = 1; n < mean.output && !further.empty(); n += further[0].repeat)
    out.insert(out.end(), further.begin(), further.end());
  return out;
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
    case ArrivalKind::kGamma:
      gap *= random_.gamma(arrivals_.burst_cv);
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

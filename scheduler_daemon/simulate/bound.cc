#include "scheduler_daemon/simulate/bound.h"

#include <algorithm>
#include <cstdio>
#include <limits>

namespace tessera::simulate {
namespace {

constexpr double kTail = 0.01;  // of the requests may take as long as they like

// The best-effort program as a fluid: GPU time of one step, then host time, and so on.
class Fluid {
 public:
  Fluid(const Workload& w, const GpuSpec& gpu) {
    for (const Step& step : w.steps)
      for (uint32_t r = 0; r < step.repeat; ++r) {
        double gpu_ns = 0;
        for (const Segment& s : step.segments)
          gpu_ns += s.count * double(s.kernel.solo_ns(gpu.sm_count) + gpu.kernel_gap_ns);
        phases_.push_back({gpu_ns, double(step.gap_ns)});
      }
    left_gpu_ns_ = phases_[0].gpu_ns;
  }
  // Lets `wall_ns` pass in which the GPU gives it at most `most_ns`; returns what it took.
  double run(double wall_ns, double most_ns) {
    double took = 0;
    while (wall_ns > 0) {
      if (left_gpu_ns_ > 0) {
        const double n = std::min({left_gpu_ns_, wall_ns, most_ns - took});
        if (n <= 0) break;  // nothing left to take; host work needs its kernels first
        left_gpu_ns_ -= n, wall_ns -= n, took += n;
        if (left_gpu_ns_ <= 0) left_host_ns_ = phases_[at_].host_ns;
        continue;
      }
      const double n = std::min(left_host_ns_, wall_ns);
      left_host_ns_ -= n, wall_ns -= n;
      if (left_host_ns_ > 0) break;
      at_ = (at_ + 1) % phases_.size();
      left_gpu_ns_ = phases_[at_].gpu_ns;
    }
    return took;
  }

 private:
  struct Phase {
    double gpu_ns, host_ns;
  };
  std::vector<Phase> phases_;
  size_t at_ = 0;
  double left_gpu_ns_ = 0, left_host_ns_ = 0;
};

double least_contention(const Workload& hp, const Workload& be, const GpuSpec& gpu) {
  double least = std::numeric_limits<double>::infinity();
  for (const Step& a : hp.steps)
    for (const Segment& x : a.segments)
      for (const Step& b : be.steps)
        for (const Segment& y : b.segments)
          least = std::min(least,
                           gpu.contention[size_t(x.kernel.resource_class)][size_t(y.kernel.resource_class)]);
  return std::max(least, 1e-3);
}

struct Alone {  // the protected client
  std::vector<std::pair<uint64_t, uint64_t>> bursts_ns;
  std::vector<uint64_t> latencies_ns;
  double busy_ns = 0;
};

Alone run_alone(const Scenario& s, const Cell& cell, size_t hp, uint64_t seed) {
  RunInput in{.gpu = s.gpu,
              .host = s.host,
              .clients = cell.clients,
              .run = {.name = "alone", .policy = "none", .regime = Regime::kMps},
              .duration_ns = s.duration_ns,
              .warmup_ns = s.warmup_ns,
              .seed = seed,
              .latency_from_arrival = false,
              .record_bursts = true};
  for (size_t i = 0; i < in.clients.size(); ++i)
    if (i != hp) in.clients[i].start_ns = UINT64_MAX;
  ClientResult r = std::move(simulate(in).clients[hp]);
  Alone a{.latencies_ns = std::move(r.latencies_ns)};
  for (auto [from, to] : r.bursts_ns) {
    if (to <= s.warmup_ns) continue;
    from = std::max(from, s.warmup_ns);
    a.busy_ns += double(to - from);
    a.bursts_ns.emplace_back(from, to);
  }
  return a;
}

double share(const Scenario& s, const Alone& alone, const Workload& be, double contention, double allowed) {
  const double p99 = double(percentile_ns(alone.latencies_ns, 0.99));
  double spare_ns = 0;
  for (uint64_t latency : alone.latencies_ns)
    spare_ns += std::max(0.0, (1 + allowed) * p99 - double(latency));
  const double per_busy_ns = alone.busy_ns > 0 ? spare_ns / alone.busy_ns : 0;
  Fluid fluid(be, s.gpu), undisturbed(be, s.gpu);
  double work_ns = 0, allowance_ns = 0;
  uint64_t at_ns = s.warmup_ns;
  for (auto [from, to] : alone.bursts_ns) {
    const double burst_ns = double(to - from), gap_ns = double(from - std::min(from, at_ns));
    at_ns = to;
    // A gap that costs more (as packed work not done) than it brings stays unused.
    const bool used = gap_ns > double(s.gpu.refill_ns) / contention && gap_ns > 50'000;
    if (used) work_ns += fluid.run(gap_ns, gap_ns);
    allowance_ns += burst_ns * per_busy_ns - (used ? double(s.gpu.refill_ns) : 0);
    const double most_ns = std::max(0.0, allowance_ns) / contention + kTail * burst_ns;
    const double took = fluid.run(burst_ns, std::min(burst_ns, most_ns));
    allowance_ns -= std::max(0.0, took - kTail * burst_ns) * contention;
    work_ns += took;
  }
  const double rest_ns = double(s.duration_ns - std::min(s.duration_ns, at_ns));
  work_ns += fluid.run(rest_ns, rest_ns);
  const double all_ns = double(s.duration_ns - s.warmup_ns);
  return work_ns / undisturbed.run(all_ns, all_ns);
}

}  // namespace

Bound bound(const Scenario& s, const std::vector<double>& allowed, uint32_t seeds, uint64_t first_seed) {
  Bound b{.allowed = allowed, .mean_be_shares = std::vector<double>(allowed.size())};
  for (size_t c = 0; c < s.cells.size(); ++c) {
    const Cell& cell = s.cells[c];
    auto is_protected = [](const ClientSpec& x) { return x.priority > 0; };
    if (cell.clients.size() != 2 ||
        std::count_if(cell.clients.begin(), cell.clients.end(), is_protected) != 1) {
      ++b.n_skipped;
      continue;
    }
    const size_t hp = is_protected(cell.clients[0]) ? 0 : 1;
    const Workload& best_effort = *cell.clients[1 - hp].workload;
    BoundRow row{.cell = c, .be_shares = std::vector<double>(allowed.size())};
    row.contention = least_contention(*cell.clients[hp].workload, best_effort, s.gpu);
    for (uint32_t k = 0; k < seeds; ++k) {
      const Alone alone = run_alone(s, cell, hp, first_seed + k);
      row.busy_share += alone.busy_ns / double(s.duration_ns - s.warmup_ns) / seeds;
      for (size_t i = 0; i < allowed.size(); ++i)
        row.be_shares[i] += share(s, alone, best_effort, row.contention, allowed[i]) / seeds;
    }
    b.rows.push_back(std::move(row));
  }
  for (const BoundRow& row : b.rows)
    for (size_t i = 0; i < allowed.size(); ++i)
      b.mean_be_shares[i] += row.be_shares[i] / double(b.rows.size());
  return b;
}

std::string bound_text(const Scenario& s, const Bound& b) {
  char line[256];
  std::string out;
  std::snprintf(line, sizeof line, "%-40s %6s %6s", "best-effort share at most, p99 over alone up to", "busy",
                "cont.");
  out += line;
  for (double a : b.allowed) std::snprintf(line, sizeof line, "  %5.2f", 1 + a), out += line;
  out += "\n";
  for (const BoundRow& row : b.rows) {
    std::snprintf(line, sizeof line, "%-47s %6.3f %6.2f", s.cells[row.cell].name.c_str(), row.busy_share,
                  row.contention);
    out += line;
    for (double v : row.be_shares) std::snprintf(line, sizeof line, "  %5.3f", v), out += line;
    out += "\n";
  }
  std::snprintf(line, sizeof line, "%-47s %6s %6s", "mean", "", "");
  out += line;
  for (double v : b.mean_be_shares) std::snprintf(line, sizeof line, "  %5.3f", v), out += line;
  out += "\n";
  if (b.n_skipped != 0)
    out += std::to_string(b.n_skipped) +
           " cells have no bound: it is for one protected and one best-effort program\n";
  return out;
}

}  // namespace tessera::simulate

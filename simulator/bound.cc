#include "simulator/bound.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace tessera::simulator {
namespace {

constexpr double kTail = 0.99;

// The best-effort program as it would run alone: a line of pieces, of which a scheduler decides only when
// they run. A piece of GPU work beside a protected kernel makes that take longer by `cost` per ns of it.
struct Piece {
  double ns = 0, cost = 0, work_ns = 0;
};

struct Position {
  size_t at = 0;
  double done_ns = 0;  // of that piece
  bool operator<(const Position& o) const { return at != o.at ? at < o.at : done_ns < o.done_ns; }
};

class Program {
 public:
  // Lets up to `wall_ns` pass in which work beside the protected client may lengthen it by `budget_ns`. As
  // early as possible is best: who is further along can do whatever the others could, later.
  Position run(Position p, double wall_ns, double budget_ns) const {
    while (wall_ns > 0 && p.at < pieces_.size()) {
      const Piece& piece = pieces_[p.at];
      double n = std::min(piece.ns - p.done_ns, wall_ns);
      if (piece.cost > 0) n = std::min(n, budget_ns / piece.cost);
      if (n <= 0 && piece.cost > 0) break;
      wall_ns -= n, budget_ns -= n * piece.cost, p.done_ns += n;
      if (p.done_ns >= piece.ns - 1e-6) p = {p.at + 1, 0};
    }
    return p;
  }
  double work_ns(Position p) const {
    double sum = 0;
    for (size_t i = 0; i < p.at; ++i) sum += pieces_[i].work_ns;
    if (p.at < pieces_.size()) sum += pieces_[p.at].work_ns * p.done_ns / pieces_[p.at].ns;
    return sum;
  }
  void add(const Piece& piece) {
    if (piece.ns <= 0) return;
    pieces_.push_back(piece);
    most_cost_ = std::max(most_cost_, piece.cost);
  }
  double most_cost() const { return most_cost_; }

 private:
  std::vector<Piece> pieces_;
  double most_cost_ = 0;
};

// Most of a time of at least `least_ns` that can fall between the kernels of the protected client, where
// nothing disturbs it: kernels of `kernel_ns` with gaps of `gap_ns`.
double most_between_kernels(double least_ns, double kernel_ns, double gap_ns) {
  auto share = [&](double ns) {
    const double periods = std::floor(ns / (kernel_ns + gap_ns));
    return (periods * gap_ns + std::min(gap_ns, ns - periods * (kernel_ns + gap_ns))) / ns;
  };
  // The worst is at the least, or where the next gap has just been covered.
  const double next_ns = (std::floor(least_ns / (kernel_ns + gap_ns)) + 1) * (kernel_ns + gap_ns) + gap_ns;
  return std::max(share(least_ns), share(next_ns));
}

// The same draws as in a run with this seed.
Program make_program(const Scenario& s, const Cell& cell, size_t hp, uint64_t seed) {
  const GpuSpec& gpu = s.gpu;
  double kernel_ns = std::numeric_limits<double>::infinity();
  for (const Step& step : cell.clients[hp].workload->steps)
    for (const Segment& segment : step.segments)
      kernel_ns = std::min(kernel_ns, double(segment.kernel.solo_ns(gpu.sm_count)));
  auto cost = [&](const Kernel& kernel) {
    double least = std::numeric_limits<double>::infinity();
    for (const Step& step : cell.clients[hp].workload->steps)
      for (const Segment& segment : step.segments)
        least = std::min(
            least, gpu.contention[size_t(segment.kernel.resource_class)][size_t(kernel.resource_class)]);
    const double width = std::min(1.0, kernel.n_blocks * kernel.sms_per_block / gpu.sm_count);
    const double shortest_ns = double(kernel.block_ns) * (1 - 2 * gpu.block_jitter);
    const double slower =
        least * width * (1 - most_between_kernels(shortest_ns, kernel_ns, double(gpu.kernel_gap_ns)));
    return std::max(1e-6, slower / (1 + slower));  // per ns of time, of which the slowdown makes more
  };
  const size_t be = 1 - hp;
  Random random(seed, 100 + be);
  Program program;
  std::vector<Launch> job;
  for (double ns = 0; ns < double(s.duration_ns);) {
    draw_job(*cell.clients[be].workload, &random, &job);
    for (const Launch& launch : job) {
      const Kernel& k = launch.kernel;
      const double solo_ns = double(k.solo_ns(gpu.sm_count));
      const double work_ns = double(k.block_ns) * k.n_blocks / k.wave_blocks(gpu.sm_count);
      program.add({.ns = solo_ns, .cost = cost(k), .work_ns = work_ns});
      program.add({.ns = double(gpu.kernel_gap_ns)});
      program.add({.ns = double(launch.gap_ns)});
      ns += solo_ns + double(gpu.kernel_gap_ns + launch.gap_ns);
    }
  }
  return program;
}

struct Request {
  double from_ns = 0, to_ns = 0, idle_ns = 0;  // idle: between its bursts
};

struct Alone {  // the protected client
  std::vector<Request> requests;
  double p99_ns = 0, least_ns = 0, busy_ns = 0;
  size_t n_unseen = 0;  // requests that are longer than the p99
};

Alone run_alone(const Scenario& s, const Cell& cell, size_t hp, uint64_t seed) {
  RunInput in{.gpu = s.gpu,
              .host = s.host,
              .clients = cell.clients,
              .run = {.name = "alone", .policy = "none", .regime = Regime::kMps},
              .duration_ns = s.duration_ns,
              .seed = seed,
              .latency_from_arrival = false,
              .record_bursts = true};
  for (size_t i = 0; i < in.clients.size(); ++i)
    if (i != hp) in.clients[i].start_ns = UINT64_MAX;
  const ClientResult r = std::move(simulate(in).clients[hp]);
  Alone a;
  size_t burst = 0;
  for (size_t i = 0; burst < r.bursts_ns.size(); ++i) {
    const uint64_t from_ns = r.bursts_ns[burst].first;
    // The last one may not have ended in the run.
    const uint64_t to_ns = i < r.latencies_ns.size() ? from_ns + r.latencies_ns[i] : s.duration_ns;
    Request request{.from_ns = double(from_ns), .to_ns = double(to_ns), .idle_ns = double(to_ns - from_ns)};
    // A burst begins with a launch and ends with a synchronise: no kernel runs then.
    for (; burst < r.bursts_ns.size() && r.bursts_ns[burst].second <= to_ns; ++burst)
      request.idle_ns -= double(r.bursts_ns[burst].second - r.bursts_ns[burst].first) -
                         double(s.host.launch_ns + s.host.sync_ns);
    a.busy_ns += request.to_ns - request.from_ns - request.idle_ns;
    a.requests.push_back(request);
  }
  a.p99_ns = double(percentile_ns(r.latencies_ns, kTail));
  a.least_ns = a.p99_ns;
  for (uint64_t latency : r.latencies_ns) a.least_ns = std::min(a.least_ns, double(latency));
  const size_t n = r.latencies_ns.size();
  a.n_unseen = n - std::min(n, size_t(kTail * double(n)) + 1);
  return a;
}

// Position of the program at the end, with the `n_unseen` requests that p99 does not see chosen at best.
double share(const Scenario& s, const Alone& alone, const Program& program, double allowed) {
  const double longer_ns = std::max(0.0, (1 + allowed) * alone.p99_ns - alone.least_ns);
  const double duration_ns = double(s.duration_ns), unbounded = std::numeric_limits<double>::infinity();
  std::vector<Position> best(alone.n_unseen + 1);  // by how many of them were overrun
  double at_ns = 0;
  for (size_t i = 0; i < alone.requests.size();) {
    const double from_ns = std::min(alone.requests[i].from_ns, duration_ns);
    for (Position& p : best) p = program.run(p, from_ns - at_ns, unbounded);
    // Requests that come while those before take longer share what they may be lengthened by: it does not
    // matter then where it is spent.
    double end_ns = from_ns, budget_ns = 0, longest_ns = 0;
    size_t n = 0;
    for (; i < alone.requests.size() && alone.requests[i].from_ns <= end_ns; ++i, ++n) {
      const Request& r = alone.requests[i];
      longest_ns = std::max(longest_ns, r.to_ns - r.from_ns);
      end_ns += r.to_ns - r.from_ns + longer_ns;
      budget_ns += longer_ns + r.idle_ns * program.most_cost();
    }
    at_ns = std::min(end_ns, duration_ns);
    for (size_t k = best.size(); k-- > 0;) {
      Position furthest = best[k];
      for (size_t m = 0; m <= std::min(n, k); ++m) {
        const double overrun_ns = double(m) * longest_ns * program.most_cost();
        furthest = std::max(furthest, program.run(best[k - m], at_ns - from_ns, budget_ns + overrun_ns));
      }
      best[k] = furthest;
    }
  }
  const Position end = program.run(best.back(), duration_ns - at_ns, unbounded);
  return program.work_ns(end) / program.work_ns(program.run({}, duration_ns, unbounded));
}

// Steps of allowance, all cells at 0 first, each to the cell where it buys most.
std::vector<double> split_at_best(const std::vector<BoundRow>& rows, size_t n_steps) {
  std::vector<size_t> step(rows.size(), 0);
  std::vector<double> means;
  double sum = 0;
  for (const BoundRow& row : rows) sum += row.be_shares[0];
  for (size_t spent = 0; spent < n_steps; ++spent) {
    means.push_back(sum / double(rows.size()));
    for (size_t n = 0; n < rows.size(); ++n) {
      size_t best = 0;
      double most = -1;
      for (size_t c = 0; c < rows.size(); ++c) {
        if (step[c] + 1 >= n_steps) continue;
        const double bought = rows[c].be_shares[step[c] + 1] - rows[c].be_shares[step[c]];
        if (bought > most) most = bought, best = c;
      }
      if (most < 0) break;
      sum += most;
      ++step[best];
    }
  }
  return means;
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
    BoundRow row{.cell = c, .be_shares = std::vector<double>(allowed.size())};
    for (uint32_t k = 0; k < seeds; ++k) {
      const Alone alone = run_alone(s, cell, hp, first_seed + k);
      const Program program = make_program(s, cell, hp, first_seed + k);
      row.busy_share += alone.busy_ns / double(s.duration_ns) / seeds;
      for (size_t i = 0; i < allowed.size(); ++i)
        row.be_shares[i] += share(s, alone, program, allowed[i]) / seeds;
    }
    b.rows.push_back(std::move(row));
  }
  for (const BoundRow& row : b.rows)
    for (size_t i = 0; i < allowed.size(); ++i)
      b.mean_be_shares[i] += row.be_shares[i] / double(b.rows.size());
  b.best_split_be_shares = split_at_best(b.rows, allowed.size());
  return b;
}

std::string bound_text(const Scenario& s, const Bound& b) {
  char line[256];
  std::string out;
  auto add_line = [&](const std::string& name, const std::vector<double>& values, double busy) {
    std::snprintf(line, sizeof line, "%-48s", name.c_str());
    out += line;
    if (busy > 0) std::snprintf(line, sizeof line, " %6.3f", busy);
    out += busy > 0 ? line : "       ";
    for (double v : values) std::snprintf(line, sizeof line, "  %5.3f", v), out += line;
    out += "\n";
  };
  std::vector<double> over_alone;
  for (double a : b.allowed) over_alone.push_back(1 + a);
  add_line("best-effort share at most, p99 over alone up to", over_alone, 0);
  for (const BoundRow& row : b.rows) add_line(s.cells[row.cell].name, row.be_shares, row.busy_share);
  add_line("mean", b.mean_be_shares, 0);
  add_line("mean, p99 a mean and spent where it buys most", b.best_split_be_shares, 0);
  if (b.n_skipped != 0)
    out += std::to_string(b.n_skipped) +
           " cells have no bound: it is for one protected and one best-effort program\n";
  return out;
}

}  // namespace tessera::simulator

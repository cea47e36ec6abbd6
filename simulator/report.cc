#include "simulator/report.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

namespace tessera::simulator {
namespace {

struct Task {
  size_t cell = 0, run = 0, perturbation = 0;
  uint64_t seed = 0;
  int alone = -1;  // index of the only client that runs, with its gang; -1: all
};

double mean_of(const std::vector<uint64_t>& values) {
  return values.empty()
             ? 0
             : double(std::accumulate(values.begin(), values.end(), uint64_t(0))) / double(values.size());
}

double over(double value, double alone) {
  return alone > 0 ? value / alone : 0;
}

// Returns the first rank of the client's gang, or the client itself.
size_t first_of_gang(const Cell& cell, size_t client) {
  const std::string& gang = cell.clients[client].gang;
  if (gang.empty()) return client;
  return size_t(std::find_if(cell.clients.begin(), cell.clients.end(),
                             [&](const ClientSpec& c) { return c.gang == gang; }) -
                cell.clients.begin());
}

// 1 for a client in no gang.
double ranks_of(const Cell& cell, size_t client) {
  const size_t first = first_of_gang(cell, client);
  double ranks = 0;
  for (size_t i = 0; i < cell.clients.size(); ++i) ranks += first_of_gang(cell, i) == first;
  return ranks;
}

RunResult run_task(const Scenario& s, const Task& task) {
  RunInput input{.gpu = s.gpu,
                 .host = s.host,
                 .gpus = s.cells[task.cell].gpus,
                 .clients = s.cells[task.cell].clients,
                 .run = s.runs[task.run],
                 .perturbation = s.perturbations[task.perturbation],
                 .duration_ns = s.duration_ns,
                 .warmup_ns = s.warmup_ns,
                 .seed = task.seed + s.cells[task.cell].gpu * 1'000'003ull,
                 .estimates = s.estimates,
                 .latency_from_arrival = s.latency_from_arrival,
                 .record_steps = s.report_steps};
  if (task.alone >= 0) {
    // The others never come: its place in the list, and so its random draws, stay the same.
    const size_t alone = size_t(task.alone);
    for (size_t i = 0; i < input.clients.size(); ++i)
      if (first_of_gang(s.cells[task.cell], i) != alone) input.clients[i].start_ns = UINT64_MAX;
    input.run = {.name = "alone",
                 .policy = "none",
                 .regime = Regime::kMps,
                 .regime_overhead = s.runs[task.run].regime_overhead};
    input.perturbation.churn = false;
  }
  return simulate(input);
}

// Alone, a client does the same under every run of equal `regime_overhead`; equal programs at the same place share one result, unless they are gangs.
std::string alone_key(const Scenario& s, const Task& task) {
  const ClientSpec& c = s.cells[task.cell].clients[size_t(task.alone)];
  const Arrivals& a = c.arrivals;
  const double trace = std::accumulate(a.gaps_ns.begin(), a.gaps_ns.end(), double(a.gaps_ns.size()));
  return c.name + "/" + std::to_string(task.alone) + "/" + std::to_string(a.load) + "/" +
         std::to_string(a.rate_per_s) + "/" + std::to_string(int(a.kind)) + "/" + std::to_string(a.users) +
         "/" + std::to_string(a.burst_cv) + "/" + std::to_string(a.on_ns) + "/" + std::to_string(a.off_ns) +
         "/" + std::to_string(a.period_ns) + "/" + std::to_string(trace) + "/" +
         std::to_string(s.cells[task.cell].gpu + c.gpu) + "/" +
         (c.gang.empty() ? "" : "cell " + std::to_string(task.cell)) + "/" + std::to_string(c.start_ns) +
         "/" + std::to_string(c.stop_ns) + "/" + std::to_string(task.perturbation) + "/" +
         std::to_string(s.runs[task.run].regime_overhead) + "/" + std::to_string(task.seed);
}

void count_lost(const Losses& l, double work_alone_ns, CellRow* row) {
  row->lost_to_pulse = over(double(l.pulse_ns), work_alone_ns);
  row->lost_to_lease = over(double(l.lease_ns), work_alone_ns);
  row->lost_to_window = over(double(l.window_ns), work_alone_ns);
  row->lost_to_launch = over(double(l.launch_ns), work_alone_ns);
  row->lost_to_free_sms = over(l.free_sms_ns, work_alone_ns);
}

double percentile_over(const std::vector<uint64_t>& now, const std::vector<uint64_t>& then, double p) {
  return over(double(percentile_ns(now, p)), double(percentile_ns(then, p)));
}

// Part of the requests in which both targets are met.
double attained(const std::vector<Answer>& answers, uint64_t first_ns, uint64_t per_token_ns) {
  const auto met = std::count_if(answers.begin(), answers.end(), [&](const Answer& a) {
    return a.to_first_ns() <= first_ns && a.per_token_ns() <= per_token_ns;
  });
  return over(double(met), double(answers.size()));
}

void add_steps(const ClientResult& now, const ClientResult& then, double seconds, ProtectedRow* p) {
  p->first_p50_over_alone = percentile_over(now.first_ns, then.first_ns, 0.5);
  p->first_p99_over_alone = percentile_over(now.first_ns, then.first_ns, 0.99);
  p->further_p50_over_alone = percentile_over(now.further_ns, then.further_ns, 0.5);
  p->further_p99_over_alone = percentile_over(now.further_ns, then.further_ns, 0.99);
  p->tokens = now.tokens;
  if (now.tokens == 0) return;
  const uint64_t first_ns = percentile_ns(then.first_ns, 0.99),
                 further_ns = percentile_ns(then.further_ns, 0.99);
  p->first_p50_ms = double(percentile_ns(now.first_ns, 0.5)) / 1e6;
  p->per_token_p50_ms = double(percentile_ns(now.further_ns, 0.5)) / 1e6;
  p->tokens_per_s = double(now.tokens) / seconds;
  p->throughput = over(double(now.tokens), double(then.tokens));
  p->attained = attained(now.answers, first_ns, further_ns);
  p->attainment = over(p->attained, attained(then.answers, first_ns, further_ns));
}

CellRow make_row(const Scenario& s, const Task& task, const RunResult& result,
                 const std::vector<const RunResult*>& alone) {
  CellRow row{.cell = task.cell, .run = task.run, .perturbation = task.perturbation, .seed = task.seed};
  const Cell& cell = s.cells[task.cell];
  for (size_t i = 0; i < cell.clients.size(); ++i) {
    const ClientResult &now = result.clients[i], &then = alone[i]->clients[i];
    if (cell.clients[i].priority > 0) {
      ProtectedRow p{.name = cell.clients[i].name};
      const double p99 = double(percentile_ns(now.latencies_ns, 0.99));
      const double p99_alone = double(percentile_ns(then.latencies_ns, 0.99));
      p.p50_ms = double(percentile_ns(now.latencies_ns, 0.5)) / 1e6;
      p.p99_ms = p99 / 1e6;
      p.p99_alone_ms = p99_alone / 1e6;
      p.p99_over_alone = over(p99, p99_alone);
      p.p50_over_alone = percentile_over(now.latencies_ns, then.latencies_ns, 0.5);
      p.mean_over_alone = over(mean_of(now.latencies_ns), mean_of(then.latencies_ns));
      p.throughput = over(double(now.latencies_ns.size()), double(then.latencies_ns.size()));
      p.n_requests = now.latencies_ns.size();
      p.short_p99_over_alone = percentile_over(now.short_latencies_ns, then.short_latencies_ns, 0.99);
      if (!cell.pool.empty()) p.first_ns = now.first_ns;
      if (s.report_steps || now.tokens != 0)
        add_steps(now, then, double(s.duration_ns - s.warmup_ns) / 1e9, &p);
      row.protected_clients.push_back(p);
    } else {
      row.be_shares.push_back(over(now.work_ns, then.work_ns));
      const double part = row.be_shares.back() / ranks_of(cell, i);
      row.be_share += part;
      if (!cell.clients[i].gang.empty()) row.gang_share += part;
      count_lost(result.losses, then.work_ns, &row);
      row.hold_expired += now.hold_expired;
      row.longest_hold_ns = std::max(row.longest_hold_ns, now.longest_hold_ns);
    }
  }
  row.model_loads = result.model_loads;
  row.audit = result.audit;
  row.n_events = result.n_events;
  return row;
}

// In the order of the tasks, whoever ran them.
std::vector<RunResult> run_all(const Scenario& s, const std::vector<Task>& tasks,
                               const ReportOptions& options) {
  std::vector<RunResult> results(tasks.size());
  std::atomic<size_t> next{0}, done{0};
  std::mutex progress_lock;  // guards calls of options.progress
  auto work = [&] {
    // relaxed: the results are read after the joins
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks.size();) {
      results[i] = run_task(s, tasks[i]);
      size_t n = done.fetch_add(1, std::memory_order_relaxed) + 1;
      if (!options.progress) continue;
      std::lock_guard lock(progress_lock);
      options.progress(n, tasks.size());
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < options.threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& t : threads) t.join();
  return results;
}

PoolRow pool_row(const Scenario& s, const std::vector<CellRow>& rows, const std::string& pool, size_t run,
                 size_t perturbation) {
  PoolRow sum{.pool = pool, .run = run, .perturbation = perturbation};
  std::vector<uint64_t> first_ns;
  std::set<size_t> cells;
  for (const CellRow& row : rows) {
    if (row.run != run || row.perturbation != perturbation || s.cells[row.cell].pool != pool) continue;
    cells.insert(row.cell);
    sum.model_loads += row.model_loads;
    for (const ProtectedRow& p : row.protected_clients)
      first_ns.insert(first_ns.end(), p.first_ns.begin(), p.first_ns.end());
  }
  sum.gpus = cells.size();
  sum.requests = first_ns.size();
  sum.p50_first_ms = double(percentile_ns(first_ns, 0.5)) / 1e6;
  sum.p99_first_ms = double(percentile_ns(first_ns, 0.99)) / 1e6;
  return sum;
}

std::vector<PoolRow> pool_rows(const Scenario& s, const std::vector<CellRow>& rows) {
  std::vector<std::string> pools;  // in the order of the file
  for (const Cell& cell : s.cells)
    if (!cell.pool.empty() && (pools.empty() || pools.back() != cell.pool)) pools.push_back(cell.pool);
  std::vector<PoolRow> out;
  for (const std::string& pool : pools)
    for (size_t p = 0; p < s.perturbations.size(); ++p)
      for (size_t run = 0; run < s.runs.size(); ++run) out.push_back(pool_row(s, rows, pool, run, p));
  return out;
}

// One run under one perturbation, over all cells; one value per seed.
Summary summarise(const std::vector<CellRow>& rows, size_t run, size_t perturbation, uint64_t first_seed,
                  uint32_t seeds) {
  std::vector<double> mean, worst, share, throughput;
  for (uint32_t k = 0; k < seeds; ++k) {
    double sum = 0, most = 0, be = 0, served = 0;
    size_t n = 0, n_be = 0;
    for (const CellRow& row : rows) {
      if (row.run != run || row.perturbation != perturbation || row.seed != first_seed + k) continue;
      for (const ProtectedRow& hp : row.protected_clients) {
        sum += hp.p99_over_alone;
        served += hp.throughput;
        most = std::max(most, hp.p99_over_alone);
        ++n;
      }
      if (row.be_shares.empty()) continue;
      be += row.be_share;
      ++n_be;
    }
    mean.push_back(over(sum, double(n)));
    throughput.push_back(over(served, double(n)));
    worst.push_back(most);
    share.push_back(over(be, double(n_be)));
  }
  return {run, perturbation, estimate(mean), estimate(worst), estimate(share), estimate(throughput)};
}

}  // namespace

Estimate estimate(const std::vector<double>& values) {
  static constexpr double kT[] = {0, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23};
  Estimate e;
  const size_t n = values.size();
  if (n == 0) return e;
  e.mean = std::accumulate(values.begin(), values.end(), 0.0) / double(n);
  if (n < 2) return e;
  double sum2 = 0;
  for (double v : values) sum2 += (v - e.mean) * (v - e.mean);
  const double t = n - 1 < std::size(kT) ? kT[n - 1] : 2.0;
  e.half_width = t * std::sqrt(sum2 / double(n - 1) / double(n));
  return e;
}

Report run_scenario(const Scenario& s, const ReportOptions& options) {
  const uint32_t seeds = options.seeds != 0 ? options.seeds : s.seeds;
  std::vector<Task> tasks, alone_tasks;
  std::map<std::string, size_t> alone_index;
  for (uint32_t k = 0; k < seeds; ++k)
    for (size_t p = 0; p < s.perturbations.size(); ++p)
      for (size_t cell = 0; cell < s.cells.size(); ++cell)
        for (size_t run = 0; run < s.runs.size(); ++run) {
          if (!s.cells[cell].has_run(s.runs[run].name)) continue;
          Task t{cell, run, p, options.first_seed + k, -1};
          tasks.push_back(t);
          for (size_t i = 0; i < s.cells[cell].clients.size(); ++i) {
            t.alone = int(first_of_gang(s.cells[cell], i));
            if (alone_index.emplace(alone_key(s, t), alone_tasks.size()).second) alone_tasks.push_back(t);
          }
        }
  std::vector<Task> all = alone_tasks;
  all.insert(all.end(), tasks.begin(), tasks.end());
  const std::vector<RunResult> results = run_all(s, all, options);

  Report report;
  for (const RunResult& r : results) report.n_events += r.n_events;
  for (size_t i = 0; i < tasks.size(); ++i) {
    std::vector<const RunResult*> alone;
    for (size_t c = 0; c < s.cells[tasks[i].cell].clients.size(); ++c) {
      Task t = tasks[i];
      t.alone = int(first_of_gang(s.cells[t.cell], c));
      alone.push_back(&results[alone_index.at(alone_key(s, t))]);
    }
    report.rows.push_back(make_row(s, tasks[i], results[alone_tasks.size() + i], alone));
  }
  for (size_t p = 0; p < s.perturbations.size(); ++p)
    for (size_t run = 0; run < s.runs.size(); ++run)
      report.summaries.push_back(summarise(report.rows, run, p, options.first_seed, seeds));
  report.pools = pool_rows(s, report.rows);
  return report;
}

}  // namespace tessera::simulator

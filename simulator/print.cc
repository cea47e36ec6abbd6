// A report as text, JSON and CSV.
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/json_text.h"
#include "simulator/report.h"

namespace tessera::simulator {
namespace {

template <class... Args>
std::string line(const char* format, Args... args) {
  char text[512];
  std::snprintf(text, sizeof text, format, args...);
  return text;
}

nlohmann::ordered_json to_json(const Estimate& e) {
  return {{"mean", e.mean}, {"ci95", {e.mean - e.half_width, e.mean + e.half_width}}};
}

std::string run_name(const Scenario& s, size_t run, size_t perturbation) {
  const std::string& p = s.perturbations[perturbation].name;
  return s.runs[run].name + (p == "nominal" ? "" : " / " + p);
}

}  // namespace

std::string table_text(const Scenario& s, const Report& report) {
  std::string out = line("%-40s %22s %18s %18s %8s\n", "policy", "p99 mean over alone", "p99 worst",
                         "best-effort share", "served");
  for (const Summary& m : report.summaries)
    out += line("%-40s %12.3f +- %6.3f %9.3f +- %5.3f %9.3f +- %5.3f %8.3f\n",
                run_name(s, m.run, m.perturbation).c_str(), m.p99_mean_over_alone.mean,
                m.p99_mean_over_alone.half_width, m.p99_worst_over_alone.mean,
                m.p99_worst_over_alone.half_width, m.be_share.mean, m.be_share.half_width, m.throughput.mean);
  return out;
}

std::string tokens_text(const Scenario& s, const Report& report) {
  struct Sum {
    double values[7] = {};
    size_t n = 0;
  };
  std::map<std::tuple<size_t, size_t, size_t, std::string>, Sum> sums;  // cell, perturbation, run, client
  for (const CellRow& row : report.rows)
    for (const ProtectedRow& p : row.protected_clients) {
      if (p.tokens == 0) continue;
      Sum& sum = sums[{row.cell, row.perturbation, row.run, p.name}];
      const double values[] = {p.first_p50_over_alone,
                               p.first_p99_over_alone,
                               p.further_p50_over_alone,
                               p.further_p99_over_alone,
                               p.attainment,
                               p.throughput,
                               row.be_share};
      for (size_t i = 0; i < std::size(values); ++i) sum.values[i] += values[i];
      ++sum.n;
    }
  if (sums.empty()) return {};
  std::string out =
      line("%-44s %-22s %9s %9s %9s %9s %10s %7s %7s\n", "language models, over alone", "policy", "TTFT p50",
           "TTFT p99", "TPOT p50", "TPOT p99", "attainment", "tokens", "be");
  for (const auto& [key, sum] : sums) {
    const auto& [cell, perturbation, run, client] = key;
    out += line("%-44s %-22s", s.cells[cell].name.c_str(), run_name(s, run, perturbation).c_str());
    static constexpr int kWidths[] = {9, 9, 9, 9, 10, 7, 7};
    for (size_t i = 0; i < std::size(kWidths); ++i)
      out += line(" %*.3f", kWidths[i], sum.values[i] / double(sum.n));
    out += "\n";
  }
  return out + "\n";
}

std::string pools_text(const Scenario& s, const Report& report) {
  if (report.pools.empty()) return {};
  std::string out = line("%-44s %-22s %5s %9s %13s %13s %12s\n", "pool", "policy", "GPUs", "requests",
                         "p50 first ms", "p99 first ms", "model loads");
  for (const PoolRow& p : report.pools)
    out +=
        line("%-44s %-22s %5zu %9llu %13.1f %13.1f %12llu\n", p.pool.c_str(),
             run_name(s, p.run, p.perturbation).c_str(), p.gpus, static_cast<unsigned long long>(p.requests),
             p.p50_first_ms, p.p99_first_ms, static_cast<unsigned long long>(p.model_loads));
  return out + "\n";
}

std::string cells_text(const Scenario& s, const Report& report) {
  std::string out =
      line("%-44s %-22s %5s %9s %9s %9s %7s %7s   lost: %6s %6s %6s %6s %6s\n", "cell", "policy", "seed",
           "p99 ms", "p99/alone", "mean/al.", "served", "be", "pulse", "lease", "window", "launch", "SMs");
  for (const CellRow& row : report.rows) {
    const std::string name = run_name(s, row.run, row.perturbation);
    if (row.protected_clients.empty())
      out += line("%-44s %-22s %5llu %37s %7.3f\n", s.cells[row.cell].name.c_str(), name.c_str(),
                  static_cast<unsigned long long>(row.seed), "", row.be_share);
    for (const ProtectedRow& p : row.protected_clients)
      out +=
          line("%-44s %-22s %5llu %9.3f %9.3f %9.3f %7.3f %7.3f         %6.3f %6.3f %6.3f %6.3f %6.3f\n",
               s.cells[row.cell].name.c_str(), name.c_str(), static_cast<unsigned long long>(row.seed),
               p.p99_ms, p.p99_over_alone, p.mean_over_alone, p.throughput, row.be_share, row.lost_to_pulse,
               row.lost_to_lease, row.lost_to_window, row.lost_to_launch, row.lost_to_free_sms);
    if (s.cells[row.cell].gpus > 1)
      out += line("%-44s %-22s %5llu   gangs %.3f, others %.3f\n", "", name.c_str(),
                  static_cast<unsigned long long>(row.seed), row.gang_share, row.be_share - row.gang_share);
  }
  return out;
}

std::string to_json(const Scenario& s, const Report& report) {
  nlohmann::ordered_json root;
  root["scenario"] = s.name;
  root["duration_ms"] = double(s.duration_ns) / 1e6;
  root["latency_from"] = s.latency_from_arrival ? "arrival" : "service";
  root["events"] = report.n_events;
  for (const Summary& m : report.summaries) {
    nlohmann::ordered_json row;
    row["policy"] = s.runs[m.run].policy;
    row["regime"] = regime_name(s.runs[m.run].regime);
    row["perturbation"] = s.perturbations[m.perturbation].name;
    row["p99_mean_over_alone"] = m.p99_mean_over_alone.mean;
    row["p99_worst_over_alone"] = m.p99_worst_over_alone.mean;
    row["be_share"] = m.be_share.mean;
    row["estimates"] = {{"p99_mean_over_alone", to_json(m.p99_mean_over_alone)},
                        {"p99_worst_over_alone", to_json(m.p99_worst_over_alone)},
                        {"be_share", to_json(m.be_share)},
                        {"served", to_json(m.throughput)}};
    nlohmann::ordered_json cells = nlohmann::ordered_json::array();
    for (const CellRow& r : report.rows) {
      if (r.run != m.run || r.perturbation != m.perturbation) continue;
      nlohmann::ordered_json cell{{"cell", s.cells[r.cell].name},
                                  {"seed", r.seed},
                                  {"be_share", r.be_share},
                                  {"be_shares", r.be_shares},
                                  {"gang_share", r.gang_share},
                                  {"hold_expired", r.hold_expired},
                                  {"longest_hold_ns", r.longest_hold_ns},
                                  {"lost_to",
                                   {{"pulse", r.lost_to_pulse},
                                    {"lease", r.lost_to_lease},
                                    {"window", r.lost_to_window},
                                    {"launch", r.lost_to_launch},
                                    {"free_sms", r.lost_to_free_sms}}}};
      for (const ProtectedRow& p : r.protected_clients) {
        nlohmann::ordered_json client{{"name", p.name},
                                      {"n_requests", p.n_requests},
                                      {"p99_ms", p.p99_ms},
                                      {"p99_alone_ms", p.p99_alone_ms},
                                      {"p99_over_alone", p.p99_over_alone},
                                      {"short_p99_over_alone", p.short_p99_over_alone},
                                      {"p50_over_alone", p.p50_over_alone},
                                      {"mean_over_alone", p.mean_over_alone},
                                      {"served", p.throughput}};
        if (s.report_steps || p.tokens != 0)
          client["steps_over_alone"] = {{"first_p50", p.first_p50_over_alone},
                                        {"first_p99", p.first_p99_over_alone},
                                        {"further_p50", p.further_p50_over_alone},
                                        {"further_p99", p.further_p99_over_alone}};
        if (p.tokens != 0)
          client["tokens"] = {{"n", p.tokens},
                              {"per_s", p.tokens_per_s},
                              {"first_p50_ms", p.first_p50_ms},
                              {"per_token_p50_ms", p.per_token_p50_ms},
                              {"attained", p.attained},
                              {"attainment", p.attainment}};
        cell["protected"].push_back(client);
      }
      cells.push_back(cell);
    }
    row["cells"] = cells;
    for (const PoolRow& p : report.pools)
      if (p.run == m.run && p.perturbation == m.perturbation)
        row["pools"].push_back({{"pool", p.pool},
                                {"gpus", p.gpus},
                                {"requests", p.requests},
                                {"p50_first_ms", p.p50_first_ms},
                                {"p99_first_ms", p.p99_first_ms},
                                {"model_loads", p.model_loads}});
    root["policies"][run_name(s, m.run, m.perturbation)] = row;
  }
  return base::json_text(root, 2) + "\n";
}

std::string to_csv(const Scenario& s, const Report& report) {
  std::string out =
      "run,policy,regime,perturbation,cell,seed,protected,n_requests,p99_ms,p99_over_alone,p50_over_alone,"
      "mean_over_alone,served,be_share\n";
  for (const CellRow& row : report.rows) {
    const RunSpec& run = s.runs[row.run];
    const std::string head = run.name + "," + run.policy + "," + regime_name(run.regime) + "," +
                             s.perturbations[row.perturbation].name + "," + s.cells[row.cell].name + "," +
                             std::to_string(row.seed);
    if (row.protected_clients.empty()) out += head + line(",,0,,,,,,%.6f\n", row.be_share);
    for (const ProtectedRow& p : row.protected_clients)
      out += head + line(",%s,%llu,%.6f,%.6f,%.6f,%.6f,%.6f,%.6f\n", p.name.c_str(),
                         static_cast<unsigned long long>(p.n_requests), p.p99_ms, p.p99_over_alone,
                         p.p50_over_alone, p.mean_over_alone, p.throughput, row.be_share);
  }
  return out;
}

}  // namespace tessera::simulator

#include "cli/measure/simulate_pair.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "base/json_text.h"
#include "base/user_file.h"
#include "cli/measure/simulate.h"
#include "cli/run/duration.h"
#include "cli/run/layout.h"
#include "simulator/contention_file.h"
#include "simulator/traces/device.h"
#include "simulator/traces/read.h"

namespace tessera::cli {
namespace {

using simulator::ProtectedRow;

constexpr double kRequests = 300;      // of each run: the p99 is the mean of three runs' third longest
constexpr double kUsualTarget = 1.05;  // p99 over alone that the daemon allows where nothing else is said
constexpr double kLeastMs = 5'000, kMostMs = 60'000;

// Contention that nobody measured for a pair lies between the first and the last (docs/simulator.md).
constexpr struct {
  const char* name;
  const char* file;  // of parts/, after the machine
} kRange[] = {{"placeless", "contention_placeless.toml"},
              {"shipped", ""},
              {"two thirds", "contention_two_thirds.toml"},
              {"disjoint", "contention_disjoint.toml"}};

constexpr char kRuns[] = R"(
[[run]]
name = "time slices"
policy = "none"
regime = "timesliced"

[[run]]
name = "MPS"
policy = "none"
regime = "mps"

[[run]]
name = "MPS with priority"
policy = "none"

[[run]]
name = "Tessera"
policy = "tessera"
confine = "dynamic"

[[run]]
name = "Tessera gated on the device"
policy = "tessera"
confine = "dynamic"
gate = "device"
)";

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename();
}

// A text of TOML.
base::Result<std::string> toml_text(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f)
      return base::error(base::Code::kInvalid,
                         "`" + text + "`: only ASCII characters may be in names and paths");
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

base::Result<std::string> workload_text(const char* name, const char* use, const std::string& file,
                                        const std::string& range, const std::string& recorded_on,
                                        const std::string& cuttable) {
  std::error_code ignored;
  const auto path = toml_text(std::filesystem::absolute(file, ignored));
  const auto iterations = toml_text(range), on = toml_text(recorded_on), cut = toml_text(cuttable);
  for (const auto* text : {&path, &iterations, &on, &cut})
    if (!text->ok()) return text->error();
  // Chakra's traces have no launches of the host, and are of the GPU that is simulated.
  if (file.ends_with(".et"))
    return std::string("\n[[workload]]\nname = \"") + name + "\"\nchakra = " + *path + "\n";
  return std::string("\n[[workload]]\nname = \"") + name + "\"\nuse = \"" + use + "\"\nrecorded = " + *path +
         "\nrange = " + *iterations + "\nrecorded_on = " + *on + "\ncuttable = " + *cut + "\n";
}

// The service as a language model's server.
base::Result<std::string> server_text(const PairOptions& options) {
  std::error_code ignored;
  const auto absolute = [&](const std::string& file) {
    return toml_text(std::filesystem::absolute(file, ignored));
  };
  const auto prefill = absolute(options.protected_file), decode = absolute(options.decode_file),
             requests = options.requests_file.empty() ? toml_text("") : absolute(options.requests_file),
             range = toml_text(options.protected_range), on = toml_text(options.protected_recorded_on);
  for (const auto* text : {&prefill, &decode, &requests, &range, &on})
    if (!text->ok()) return text->error();
  return "\n[[workload]]\nname = \"service\"\n[workload.server]\nprefill_tokens = " +
         std::to_string(options.prefill_tokens) +
         "\nprompt_tokens = " + std::to_string(options.prefill_tokens) +
         "\ndecode_batch = " + std::to_string(options.decode_batch) + "\nrequests = " + *requests +
         "\nprefill = { recorded = " + *prefill + ", range = " + *range + ", recorded_on = " + *on +
         " }\ndecode = { recorded = " + *decode + ", range = " + *range + ", recorded_on = " + *on + " }\n";
}

std::string scenario_path() {
  return find_layout().share + "/scenarios/pair.toml";
}

// Its tables alone.
base::Status take_contention(const std::string& file, simulator::GpuSpec* gpu) {
  const std::string text =
      "include = [\"parts/a100.toml\"" + (file.empty() ? "" : ", \"parts/" + file + "\"") +
      "]\nduration_ms = 1\n[[workload]]\nname = \"w\"\nstep = [{ segment = [{ us = 1 }] }]\n"
      "[[cell]]\nname = \"c\"\nclient = [{ workload = \"w\" }]\n[[run]]\nname = \"r\"\n";
  const auto read = simulator::read_scenario(text, scenario_path());
  if (!read.ok()) return read.error();
  gpu->contention = read->gpu.contention;
  gpu->contention_disjoint = read->gpu.contention_disjoint;
  return base::ok();
}

base::Result<simulator::Scenario> prepare_pair(const PairOptions& options) {
  const auto text = pair_scenario(options, "");
  if (!text.ok()) return text.error();
  auto loaded = simulator::read_scenario(*text, scenario_path());
  if (!loaded.ok()) return loaded.error();
  simulator::Scenario scenario = std::move(loaded).value();
  if (base::Status s = choose_runs(options.policies, options.tune, &scenario); !s.ok()) return s.error();
  const simulator::ClientSpec& service = scenario.cells[0].clients[0];
  const simulator::LaunchCosts costs{scenario.host.launch_ns, scenario.gpu.kernel_gap_ns,
                                     scenario.host.sync_ns};
  const double alone_s = double(service.workload->alone_ns(scenario.gpu.sm_count, costs)) / 1e9;
  const std::vector<double>& gaps_ns = service.arrivals.gaps_ns;
  double rate =
      service.arrivals.rate_per_s > 0 ? service.arrivals.rate_per_s : service.arrivals.load / alone_s;
  if (!gaps_ns.empty())
    rate = double(gaps_ns.size()) * 1e9 / std::accumulate(gaps_ns.begin(), gaps_ns.end(), 0.0);
  if (rate * alone_s >= 1 &&
      !service.workload->serving)  // a server of a language model answers several at once
    return base::error(base::Code::kInvalid, "--rate: a request takes " + std::to_string(alone_s * 1e3) +
                                                 " ms alone, so that the service " + "could answer " +
                                                 std::to_string(1 / alone_s) + " in a second at most");
  const double length_ms = std::clamp(kRequests / rate * 1e3, kLeastMs, kMostMs);
  scenario.duration_ns = uint64_t((options.duration_ms != 0 ? double(options.duration_ms) : length_ms) * 1e6);
  scenario.warmup_ns = scenario.duration_ns / 20;
  char line[200];
  std::snprintf(
      line, sizeof line,
      "service: a request takes %.3f ms alone; %.3f in a second keep it at work for %.2f of the time",
      alone_s * 1e3, rate, rate * alone_s);
  scenario.inferred.insert(scenario.inferred.begin(), line);
  return scenario;
}

double mean(const simulator::Report& report, size_t run, auto value) {
  double sum = 0;
  size_t n = 0;
  for (const simulator::CellRow& row : report.rows)
    if (row.run == run) sum += value(row), ++n;
  return n == 0 ? 0 : sum / double(n);
}

double over(double value, double ratio) {
  return ratio > 0 ? value / ratio : 0;
}

void print(const simulator::Scenario& scenario, const simulator::Report& shipped,
           const std::vector<PairRow>& rows) {
  const auto of = [&](auto value) {
    return mean(shipped, 0, [&](const auto& row) { return value(row.protected_clients[0]); });
  };
  std::printf("%-28s %10s %10s %18s %18s\n", "", "p50 ms", "p99 ms", "p99 over alone", "trainer keeps");
  std::printf("%-28s %10.3f %10.3f %18s %18s\n", "each alone",
              of([](const ProtectedRow& p) { return over(p.p50_ms, p.p50_over_alone); }),
              of([](const ProtectedRow& p) { return p.p99_alone_ms; }), "1", "1");
  for (const PairRow& row : rows)
    std::printf("%-28s %10.3f %10.3f     %6.3f - %6.3f     %6.3f - %6.3f\n", row.run.c_str(), row.p50_ms,
                row.p99_ms, row.least_tail, row.most_tail, row.least_share, row.most_share);
  const double n = of([](const ProtectedRow& p) { return double(p.n_requests); });
  std::printf("\n%.0f requests in each of %zu runs%s\n", n, shipped.rows.size() / scenario.runs.size(),
              n < 100 ? ": fewer than 100, so that p99 is the longest; --duration-ms gives more" : "");
}

std::string percent(double tail) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f", std::max(0.0, (tail - 1) * 100));
  return text;
}

std::string between(const std::string& least, const std::string& most, const char* unit) {
  return (least == most ? least : least + " to " + most) + unit;
}

std::string share(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

const PairRow* find(const std::vector<PairRow>& rows, const char* run) {
  const auto at = std::find_if(rows.begin(), rows.end(), [&](const PairRow& r) { return r.run == run; });
  return at == rows.end() ? nullptr : &*at;
}

bool write_text(const std::string& path, const std::string& text) {
  const base::Status written = base::write_user_file(path, text);
  if (!written.ok()) std::fprintf(stderr, "tessera: %s\n", written.error().text.c_str());
  return written.ok();
}

int refuse_pair(const base::Error& error) {
  std::fprintf(stderr, "tessera: %s\n", error.text.c_str());
  return 2;
}

}  // namespace

base::Result<double> parse_rate_per_s(const std::string& text) {
  const size_t slash = text.find('/');
  const std::string unit = slash == std::string::npos ? "s" : text.substr(slash + 1);
  const double per_s = unit == "s" ? 1 : unit == "min" ? 1 / 60.0 : unit == "h" ? 1 / 3600.0 : 0;
  if (per_s == 0) return base::error(base::Code::kInvalid, "`" + text + "` is no rate: 20/s, 90/min, 600/h");
  const auto number = parse_number(text.substr(0, slash), 1e-3, 1e6);
  if (!number.ok()) return number.error();
  return *number * per_s;
}

base::Result<std::string> pair_scenario(const PairOptions& options, const std::string& contention) {
  std::string gpu = options.gpu;
  if (gpu.empty() && !options.protected_recorded_on.empty()) gpu = options.protected_recorded_on;
  if (gpu.empty() && options.protected_file.ends_with(".et"))
    return base::error(base::Code::kInvalid,
                       "--gpu says which GPU to simulate: " + simulator::traces::device_keys());
  if (gpu.empty()) {
    const auto recording = simulator::traces::read_recording(options.protected_file);
    if (!recording.ok()) return recording.error();
    const simulator::traces::Device* device = nullptr;
    for (const auto& [number, name] : recording->devices)
      if (device == nullptr) device = simulator::traces::device_of_name(name);
    if (device == nullptr)
      return base::error(base::Code::kInvalid,
                         options.protected_file +
                             ": it names no known GPU; --gpu says which one to simulate, "
                             "--protected-on on which it was recorded: " +
                             simulator::traces::device_keys());
    gpu = device->path;
  }
  const auto device = toml_text(gpu), arrivals = toml_text(options.arrivals);
  for (const auto* text : {&device, &arrivals})
    if (!text->ok()) return text->error();
  const auto service = options.decode_file.empty()
                           ? workload_text("service", "request", options.protected_file,
                                           options.protected_range, options.protected_recorded_on, "none")
                           : server_text(options);
  if (!service.ok()) return service.error();
  const auto trainer = workload_text("trainer", "loop", options.best_effort_file, options.best_effort_range,
                                     options.best_effort_recorded_on, options.cuttable);
  if (!trainer.ok()) return trainer.error();
  std::string rate;
  if (!options.rate.empty()) {
    const auto per_s = parse_rate_per_s(options.rate);
    if (!per_s.ok()) return base::error(per_s.error().code, "--rate: " + per_s.error().text);
    rate = ", rate_per_s = " + std::to_string(*per_s);
  }
  return "include = [\"parts/a100.toml\"" + (contention.empty() ? "" : ", \"parts/" + contention + "\"") +
         "]\nname = \"pair\"\nduration_ms = 10000\nwarmup_ms = 500\nlatency_from = \"arrival\"\nestimates = "
         "\"shape\"\n"
         "[gpu]\ndevice = " +
         *device + "\n" + *service + *trainer +
         "\n[[cell]]\nname = \"pair\"\nclient = [{ workload = \"service\", priority = 7, load = 0.5, "
         "burst_cv = 4, arrivals = " +
         *arrivals + rate + " }, { workload = \"trainer\" }]\n" + kRuns;
}

std::string advice(const PairOptions& options, const std::vector<PairRow>& rows) {
  const PairRow *ours = find(rows, "Tessera"), *device = find(rows, "Tessera gated on the device"),
                *mps = find(rows, "MPS with priority");
  if (ours == nullptr) return {};
  const auto grows = [](const PairRow& row) {
    return "grows by " + between(percent(row.least_tail), percent(row.most_tail), " %");
  };
  const auto keeps = [](const PairRow& row) {
    return between(share(row.least_share), share(row.most_share), "");
  };
  std::string text = "Beside " + file_name(options.best_effort_file) + " the p99 of " +
                     file_name(options.protected_file) + " " + grows(*ours) +
                     " under Tessera; the trainer keeps " + keeps(*ours) + " of its speed alone.";
  if (device != nullptr)
    text +=
        " With the gate on the device it " + grows(*device) + ", for " + keeps(*device) + " of that speed.";
  if (mps != nullptr) {
    const bool enough = mps->most_tail <= kUsualTarget && mps->least_share >= ours->most_share;
    text += " Under MPS with priority it " + grows(*mps) + ", for " + keeps(*mps) +
            (enough ? ": that is enough for this pair." : ".");
  }
  if (options.contention.empty())
    text += " Nobody measured the contention of this pair: the figures cover what is published.";
  return text;
}

int simulate_pair(const PairOptions& options) {
  auto loaded = prepare_pair(options);
  if (!loaded.ok()) return refuse_pair(loaded.error());
  simulator::Scenario& scenario = *loaded;
  for (const std::string& line : scenario.inferred) std::printf("%s\n", line.c_str());
  std::printf(
      "host, time slices and contention: as calibrated for one A100 (docs/simulator.md); cuttable: %s\n\n",
      options.cuttable.c_str());
  simulator::ReportOptions how{.seeds = options.seeds, .first_seed = options.first_seed};
  how.threads = std::clamp(std::thread::hardware_concurrency(), 1u, 64u);
  std::vector<PairRow> rows(scenario.runs.size());
  simulator::Report shipped;
  nlohmann::ordered_json json{{"inferred", scenario.inferred}};
  for (const auto& [name, file] : kRange) {
    const bool measured = !options.contention.empty();
    const std::string called = measured ? "measured" : name;
    if (base::Status s = measured ? simulator::load_contention_answer(options.contention, &scenario.gpu)
                                  : take_contention(file, &scenario.gpu);
        !s.ok())
      return refuse_pair(s.error());
    const simulator::Report report = simulator::run_scenario(scenario, how);
    for (size_t run = 0; run < rows.size(); ++run) {
      const auto of = [&](auto value) {
        return mean(report, run, [&](const auto& r) { return value(r.protected_clients[0]); });
      };
      const double tail = of([](const ProtectedRow& p) { return p.p99_over_alone; });
      const double kept = mean(report, run, [](const simulator::CellRow& r) { return r.be_share; });
      PairRow& row = rows[run];
      const bool first = row.run.empty();
      row.run = scenario.runs[run].name;
      row.least_tail = first ? tail : std::min(row.least_tail, tail);
      row.most_tail = std::max(row.most_tail, tail);
      row.least_share = first ? kept : std::min(row.least_share, kept);
      row.most_share = std::max(row.most_share, kept);
      if (called != "shipped" && !measured) continue;
      row.p50_ms = of([](const ProtectedRow& p) { return p.p50_ms; });
      row.p99_ms = of([](const ProtectedRow& p) { return p.p99_ms; });
    }
    json["contention"][called] = nlohmann::ordered_json::parse(simulator::to_json(scenario, report));
    if (called == "shipped" || measured) shipped = report;
    if (measured) break;
  }
  print(scenario, shipped, rows);
  if (const std::string tokens = simulator::tokens_text(scenario, shipped); !tokens.empty())
    std::printf("\n%s", tokens.c_str());
  const std::string sentence = advice(options, rows);
  if (!sentence.empty()) std::printf("%s\n", sentence.c_str());
  json["advice"] = sentence;
  if (!options.json.empty() && !write_text(options.json, base::json_text(json, 2) + "\n")) return 1;
  if (options.plot.empty()) return 0;
  // The plain plot of a scenario, of the contention that is shipped or measured.
  std::error_code ignored;  // the write below says so if there is no folder
  std::filesystem::create_directories(options.plot, ignored);
  const std::string results = options.plot + "/simulation.json";
  if (!write_text(results, simulator::to_json(scenario, shipped))) return 1;
  return plot_simulation(results, options.plot);
}

}  // namespace tessera::cli

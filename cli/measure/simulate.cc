#include "cli/measure/simulate.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "base/user_file.h"
#include "cli/demo/process.h"
#include "cli/run/layout.h"
#include "simulator/bound.h"
#include "simulator/contention_file.h"
#include "simulator/report.h"
#include "simulator/tuning.h"

namespace tessera::cli {
namespace {

bool write_file(const std::string& path, const std::string& text) {
  const base::Status written = base::write_user_file(path, text);
  if (!written.ok()) std::fprintf(stderr, "tessera: %s\n", written.error().text.c_str());
  return written.ok();
}

}  // namespace

base::Status choose_runs(const std::vector<std::string>& policies, const std::vector<std::string>& tune,
                         simulator::Scenario* scenario) {
  if (base::Status s = simulator::select_runs(scenario, policies); !s.ok()) return s;
  for (simulator::RunSpec& run : scenario->runs)
    for (const std::string& tuned : tune)
      if (base::Status s = simulator::set_tuning(tuned, &run.tuning); !s.ok())
        return base::error(s.error().code, "--tune: " + s.error().text);
  return base::ok();
}

namespace {

// The scenario as the options want it.
base::Result<simulator::Scenario> prepare(const SimulateOptions& options) {
  auto loaded = simulator::load_scenario(options.scenario);
  if (!loaded.ok()) return loaded.error();
  simulator::Scenario scenario = std::move(loaded).value();
  if (base::Status s = choose_runs(options.policies, options.tune, &scenario); !s.ok()) return s.error();
  if (!options.contention.empty())
    if (base::Status s = simulator::load_contention_answer(options.contention, &scenario.gpu); !s.ok())
      return base::error(s.error().code, "--contention: " + s.error().text);
  if (options.duration_ms != 0) scenario.duration_ns = options.duration_ms * 1'000'000;
  if (scenario.duration_ns <= scenario.warmup_ns)
    return base::error(base::Code::kInvalid, "--duration-ms must be larger than the scenario's warm-up");
  return scenario;
}

}  // namespace

int simulate(const SimulateOptions& options) {
  auto loaded = prepare(options);
  if (!loaded.ok()) {
    std::fprintf(stderr, "tessera: %s\n", loaded.error().text.c_str());
    return 2;
  }
  const simulator::Scenario& scenario = *loaded;
  if (options.bound) {
    const simulator::Bound b =
        simulator::bound(scenario, {0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08},
                         options.seeds != 0 ? options.seeds : scenario.seeds, options.first_seed);
    std::printf("%s", simulator::bound_text(scenario, b).c_str());
    return 0;
  }
  simulator::ReportOptions how{.seeds = options.seeds, .first_seed = options.first_seed};
  how.threads = std::clamp(std::thread::hardware_concurrency(), 1u, 64u);
  auto started = std::chrono::steady_clock::now(), shown = started;
  const bool terminal = ::isatty(STDERR_FILENO) != 0;
  how.progress = [&](size_t done, size_t total) {
    auto now = std::chrono::steady_clock::now();
    const bool due = now - shown > std::chrono::seconds(terminal ? 1 : 10);
    if (!due) return;
    shown = now;
    std::fprintf(stderr, "%s%zu of %zu runs%s", terminal ? "\r" : "", done, total, terminal ? " " : "\n");
  };
  const simulator::Report report = simulator::run_scenario(scenario, how);
  if (terminal && shown != started) std::fprintf(stderr, "\n");
  if (options.cells) std::printf("%s\n", simulator::cells_text(scenario, report).c_str());
  std::printf("%s", simulator::tokens_text(scenario, report).c_str());
  std::printf("%s", simulator::pools_text(scenario, report).c_str());
  std::printf("%s", simulator::table_text(scenario, report).c_str());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  std::fprintf(stderr, "%.1f million events in %.1f s\n", double(report.n_events) / 1e6, seconds);

  std::string json = options.json, csv = options.csv;
  if (!options.plot.empty()) {
    std::error_code ignored;  // the write below says so if there is no folder
    std::filesystem::create_directories(options.plot, ignored);
  }
  if (!options.plot.empty() && json.empty()) json = options.plot + "/simulation.json";
  if (!json.empty() && !write_file(json, simulator::to_json(scenario, report))) return 1;
  if (!csv.empty() && !write_file(csv, simulator::to_csv(scenario, report))) return 1;
  if (options.plot.empty()) return 0;
  return plot_simulation(json, options.plot);
}

int plot_simulation(const std::string& json, const std::string& folder) {
  const std::string script = find_layout().share + "/plot_simulation.py";
  (void)std::fflush(stdout);  // what was printed is not the next program's to write
  ::execlp(python_that_plots(), "python3", script.c_str(), json.c_str(), folder.c_str(), nullptr);
  std::fprintf(stderr, "tessera: there is no python3 in PATH for the plots; the results are in %s\n",
               json.c_str());
  return 1;
}

}  // namespace tessera::cli

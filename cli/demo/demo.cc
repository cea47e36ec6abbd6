#include "cli/demo/demo.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/hash.h"
#include "base/json_text.h"
#include "base/scoped_fd.h"
#include "base/units.h"
#include "base/user_file.h"
#include "cli/demo/measure.h"
#include "cli/demo/process.h"
#include "cli/demo/regime.h"
#include "cli/demo/stretch.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kAroundPhaseS = 4;       // programs start, warm up and end; more where the machine is busy:
constexpr double kMostAroundPhaseS = 20;  // as long as the trials took, if that is not many of them
// A busy machine's phases are found by trials and repetitions for a multiple of what the demo takes. Then each phase is
// measured as slowly as there is, with the fewest requests, so that the demo ends.
constexpr double kPatience = 1.5;
constexpr double kAloneLimit = 1.25;  // over the queue of its requests; above it the machine itself was slow

// Every phase of the demo, in order. The two "alone" phases are the yardstick of the others.
const Phase kPhases[] = {
    {"alone", true, false, false, Sharing::kTimeSliced},
    {"trainer_alone", false, true, false, Sharing::kTimeSliced},
    {"unmanaged_timesliced", true, true, false, Sharing::kTimeSliced},
    {"unmanaged_mps", true, true, false, Sharing::kMps},
    {"tessera_timesliced", true, true, true, Sharing::kTimeSliced},
    {"tessera_mps", true, true, true, Sharing::kMps},
};

// Any text gives arrivals of its own, the same each time.
uint64_t seed_of(const std::string& nonce) {
  return base::fnv1a(nonce.data(), nonce.size()) % 1'000'000'007u;
}

std::string command_output(const std::vector<std::string>& argv, const std::string& scratch) {
  auto process = Process::start(argv, {}, scratch, "/dev/null");
  if (!process || !process->wait(10).ok()) return "";
  std::ifstream file(scratch);
  std::string line;
  std::getline(file, line);
  return line;
}

// The folder of the results, made if it is not there, and this run's alone for as long as the descriptor
// lives.
base::Result<base::ScopedFd> take_folder(const std::string& path, std::string* absolute) {
  std::error_code problem;
  *absolute = fs::absolute(path, problem).string();
  if (!problem) fs::create_directories(*absolute, problem);
  if (problem)
    return base::error(base::Code::kUnavailable, "cannot create " + path + ": " + problem.message());
  base::ScopedFd folder(open(absolute->c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid() || access(absolute->c_str(), W_OK | X_OK) != 0)
    return base::error(base::Code::kUnavailable, "cannot write into " + path + ": " + strerror(errno));
  if (flock(folder.get(), LOCK_EX | LOCK_NB) != 0)
    return base::error(base::Code::kUnavailable, "another demo writes into " + path);
  return folder;
}

// The kernels of the workload's programs are compiled once for all phases, and anew by each demo.
void keep_compiled(Setting* setting) {
  if (setting->workload.cache_variable.empty()) return;
  const std::string folder = setting->out + "/compiled";
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  setting->workload.environment.push_back(setting->workload.cache_variable + "=" + folder);
}

// Says why the demo ends early; its exit status.
int given_up(const std::string& where, const base::Error& error) {
  if (const int signal = interrupted_by()) {
    fprintf(stderr, "\ntessera demo: interrupted, its programs are ended\n");
    return 128 + signal;
  }
  fprintf(stderr, "\ntessera demo: %s: %s\n", where.c_str(), error.text.c_str());
  return 1;
}

// The service's p99 alone, over that of a queue of its requests; 0 if that cannot be said.
double alone_over_queue(const Figures& alone, const Setting& setting, double service_ms) {
  const auto queue = queue_ms(setting.out + "/" + alone.service_csv, service_ms);
  return queue && !queue->empty() ? quantile(alone.latency_ms, 0.99) / quantile(*queue, 0.99) : 0;
}

struct Outcome {
  std::map<std::string, Figures> phases;
  std::map<std::string, std::string> skipped;  // phase -> reason
};

nlohmann::ordered_json regime_json(const Phase& phase, const Outcome& outcome) {
  nlohmann::ordered_json out;
  if (const auto skipped = outcome.skipped.find(phase.name); skipped != outcome.skipped.end()) {
    out["skipped"] = skipped->second;
    return out;
  }
  const Figures& figures = outcome.phases.at(phase.name);
  const Figures& service_alone = outcome.phases.at("alone");
  const Figures& trainer_alone = outcome.phases.at("trainer_alone");
  const double p99 = quantile(figures.latency_ms, 0.99);
  out["p50_ms"] = quantile(figures.latency_ms, 0.50);
  out["p95_ms"] = quantile(figures.latency_ms, 0.95);
  out["p99_ms"] = p99;
  out["p50_over_alone"] = quantile(figures.latency_ms, 0.50) / quantile(service_alone.latency_ms, 0.50);
  out["p95_over_alone"] = quantile(figures.latency_ms, 0.95) / quantile(service_alone.latency_ms, 0.95);
  out["p99_over_alone"] = p99 / quantile(service_alone.latency_ms, 0.99);
  const bool is_alone = !phase.trainer;
  out["trainer_share"] = is_alone ? 1.0 : figures.steps_per_s / trainer_alone.steps_per_s;
  out["trainer_steps_per_s"] = is_alone ? trainer_alone.steps_per_s : figures.steps_per_s;
  out["checksums_equal"] =
      !figures.service_checksum.empty() && figures.service_checksum == service_alone.service_checksum &&
      (is_alone ||
       (!figures.trainer_checksum.empty() && figures.trainer_checksum == trainer_alone.trainer_checksum));
  out["csv"] = figures.service_csv;
  out["requests"] = figures.latency_ms.size();
  out["lost"] = figures.lost;
  out["stretch"] = figures.stretch;
  out["lag_p99"] = figures.lag.p99;
  out["lag_share"] = figures.lag.share;
  out["p99_over_p99_without_lag"] = figures.lag.service_p99;
  if (!figures.turnaround_us.empty()) {
    out["turnaround_p50_us"] = quantile(figures.turnaround_us, 0.50);
    out["turnaround_p99_us"] = quantile(figures.turnaround_us, 0.99);
  } else {
    out["turnaround_p50_us"] = nullptr;  // on a real GPU: tests/device/h9, not measurable from here
    out["turnaround_p99_us"] = nullptr;
  }
  if (phase.tessera) out["preemptions"] = figures.preemptions;
  return out;
}

std::string number(const nlohmann::ordered_json& regime, const char* key, const char* format) {
  const auto found = regime.find(key);
  if (found == regime.end() || !found->is_number()) return "-";
  return fmt::format(fmt::runtime(format), found->get<double>());
}

void print_table(const nlohmann::ordered_json& regimes) {
  struct Column {
    const char* heading;
    const char* key;
    const char* format;
  };
  static constexpr Column kColumns[] = {
      {"p50 ms", "p50_ms", "{:.2f}"},
      {"x alone", "p50_over_alone", "{:.2f}"},
      {"p95 ms", "p95_ms", "{:.2f}"},
      {"x alone", "p95_over_alone", "{:.2f}"},
      {"p99 ms", "p99_ms", "{:.2f}"},
      {"x alone", "p99_over_alone", "{:.2f}"},
      {"lost", "lost", "{:.0f}"},
      {"trainer", "trainer_share", "{:.2f}"},
      {"preempt.", "preemptions", "{:.0f}"},
      {"turn p50 us", "turnaround_p50_us", "{:.0f}"},
      {"p99 us", "turnaround_p99_us", "{:.0f}"},
      {"lag share", "lag_share", "{:.4f}"},
  };
  std::string line = fmt::format("\n{:<22}", "regime");
  for (const Column& column : kColumns) line += fmt::format("{:>12}", column.heading);
  puts((line + "  checksums").c_str());
  for (const auto& [name, regime] : regimes.items()) {
    line = fmt::format("{:<22}", name);
    if (regime.contains("skipped")) {
      puts((line + "  skipped: " + regime["skipped"].get<std::string>()).c_str());
      continue;
    }
    for (const Column& column : kColumns)
      line += fmt::format("{:>12}", number(regime, column.key, column.format));
    puts((line + (regime["checksums_equal"].get<bool>() ? "  equal" : "  DIFFERENT")).c_str());
  }
}

// How far a phase is: a bar on a terminal, else a line now and then.
class ProgressLine {
 public:
  ProgressLine(size_t index, size_t count, std::string name) : terminal_(isatty(STDERR_FILENO)) {
    head_ = fmt::format("[{}/{}] {:<22}", index, count, name);
    fprintf(stderr, terminal_ ? "%s" : "%s ...\n", head_.c_str());
  }
  void update(double done_s, double whole_s) {
    if (terminal_) {
      const int width = 30, filled = int(width * done_s / whole_s);
      fprintf(stderr, "\r%s [%s%s] %2.0f/%2.0f s", head_.c_str(), std::string(size_t(filled), '#').c_str(),
              std::string(size_t(width - filled), '.').c_str(), done_s, whole_s);
    } else if (done_s >= next_line_s_) {
      fprintf(stderr, "%s %.0f of %.0f s\n", head_.c_str(), done_s, whole_s);
      next_line_s_ += kLineEveryS;
    }
  }
  ~ProgressLine() {
    if (terminal_) fputc('\n', stderr);
  }

 private:
  static constexpr double kLineEveryS = 15;
  std::string head_;
  bool terminal_;
  double next_line_s_ = kLineEveryS;
};

base::Result<Figures> run_with_progress(size_t index, const Phase& phase, const Setting& setting) {
  ProgressLine line(index, std::size(kPhases), phase.name);
  return run_phase(phase, setting, [&](double done, double whole) { line.update(done, whole); });
}

// All phases; 0, or the exit status of a demo that ends early.
int run_phases(Setting setting, Outcome* outcome) {
  size_t index = 0;
  for (const Phase& phase : kPhases) {
    ++index;
    auto figures = measure_until_kept_up(
        &setting, [&](const Setting& present) { return run_with_progress(index, phase, present); },
        [&](const Setting& slower) {
          fprintf(stderr,
                  "%s: this machine is too busy or too slow to execute its GPU work in time, which would "
                  "change the figures.\n"
                  "      It is measured again, and so are later phases, with all clocks slowed down %.3g "
                  "times: about "
                  "%.0f s, %.0f requests.\n",
                  phase.name.c_str(), slower.stretch, slower.seconds * slower.stretch,
                  slower.seconds * slower.rate_per_s);
        });
    if (figures) {
      outcome->phases.emplace(phase.name, std::move(*figures));
    } else if (!setting.soft && phase.sharing == Sharing::kMps && !interrupted_by()) {
      outcome->skipped[phase.name] = figures.error().text;
    } else {
      return given_up(phase.name, figures.error());
    }
  }
  return 0;
}

}  // namespace

int demo(const DemoOptions& options) {
  Setting setting;
  setting.layout = find_layout();
  setting.seed = seed_of(options.nonce);
  setting.wall_seconds = options.seconds;
  std::string why_soft = "asked for";
  setting.soft = options.gpu == "soft" || !real_gpu_present(&why_soft);
  const std::string pair = options.workload == "auto" ? standard_workload(setting.soft) : options.workload;
  const auto workload = find_workload(pair, setting.layout);
  if (!workload) {
    fprintf(stderr, "tessera demo: %s\n", workload.error().text.c_str());
    return 1;
  }
  setting.workload = *workload;
  setting.workload.trainer_environment.push_back("TESSERA_GATE=" + options.gate);
  setting.soft |= workload->soft_only;
  if (setting.soft && workload->hard_only) {
    fprintf(stderr, "tessera demo: --workload %s needs a GPU; here is the software GPU (%s)\n", pair.c_str(),
            why_soft.c_str());
    return 1;
  }
  const auto folder = take_folder(options.out, &setting.out);
  if (!folder) {
    fprintf(stderr, "tessera demo: %s (choose another folder with --out)\n", folder.error().text.c_str());
    return 1;
  }
  keep_compiled(&setting);
  catch_interrupts();
  std::string gpu = fmt::format("software GPU ({})", why_soft);
  if (!setting.soft)
    gpu = command_output({"nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"},
                         setting.out + "/gpu.txt");
  fprintf(stderr, "GPU: %s\n", gpu.c_str());

  const double takes_s = double(std::size(kPhases)) * (options.seconds + kAroundPhaseS);
  setting.patience_ends_ns = base::now_ns() + uint64_t(takes_s * kPatience * double(base::kNsPerS));
  fprintf(stderr, "this takes about %.0f min, and up to three times as long where the machine is busy\n",
          std::ceil(takes_s / 60));
  if (setting.soft)
    fprintf(stderr,
            "first, some trials of seconds: how fast does this machine execute GPU work in software?\n");
  const uint64_t begin_ns = base::now_ns();
  const auto service_ms = choose_tempo(options.load, &setting);
  if (!service_ms) return given_up("calibration", service_ms.error());
  if (setting.stretch != 1)
    fprintf(stderr,
            "stretch: %.3g (all clocks of GPU, programs and reports are slowed down by this factor, for this "
            "machine to keep up; ratios stay)\n",
            setting.stretch);
  fprintf(stderr, "service: %.2f ms per request alone, %.1f requests/s for %.0f %% load\n", *service_ms,
          setting.rate_per_s, options.load * 100);
  const double around_s =
      std::min(kMostAroundPhaseS, double(base::now_ns() - begin_ns) / double(base::kNsPerS));
  const double phase_s = setting.seconds * setting.stretch;
  fprintf(stderr,
          "%zu phases of about %.0f s and %.0f requests each, and some seconds around each: %.0f min\n",
          std::size(kPhases), phase_s, setting.seconds * setting.rate_per_s,
          std::ceil(double(std::size(kPhases)) * (phase_s + around_s) / 60));

  Outcome outcome;
  if (const int status = run_phases(setting, &outcome)) return status;

  nlohmann::ordered_json result;
  result["gpu"] = gpu;
  result["commit"] = TESSERA_COMMIT;
  result["workload"] = setting.workload.name;
  result["gate"] = options.gate;
  result["nonce"] = options.nonce;
  result["load"] = options.load;
  result["seconds"] = options.seconds;
  result["stretch"] = setting.stretch;
  result["service_ms"] = *service_ms;
  result["rate_per_s"] = setting.rate_per_s;
  double lag_p99 = 0;
  bool checksums_equal = true;
  std::string lagged;  // phases whose figures lag has changed
  for (const auto& [name, figures] : outcome.phases) {
    lag_p99 = std::max(lag_p99, figures.lag.p99);
    if (lag_matters(figures.lag)) lagged += (lagged.empty() ? "" : ", ") + name;
  }
  for (const Phase& phase : kPhases) {
    if (!phase.service) continue;
    result["regimes"][phase.name] = regime_json(phase, outcome);
    checksums_equal &= result["regimes"][phase.name].value("checksums_equal", true);
  }
  const uint64_t lost_alone = outcome.phases.at("alone").lost;
  const bool valid = lagged.empty() && checksums_equal && lost_alone == 0;
  const double over_queue = alone_over_queue(outcome.phases.at("alone"), setting, *service_ms);
  result["lag_p99"] = lag_p99;
  result["alone_over_queue"] = over_queue;
  result["valid"] = valid;
  print_table(result["regimes"]);

  const std::string json_path = setting.out + "/demo.json", plot_path = setting.out + "/demo.png";
  if (const base::Status written = base::write_user_file(json_path, base::json_text(result, 2) + "\n");
      !written) {
    fprintf(stderr, "tessera demo: %s\n", written.error().text.c_str());
    return 1;
  }
  auto plot =
      Process::start({python_that_plots(), setting.layout.share + "/plot_demo.py", json_path, plot_path}, {},
                     setting.out + "/plot.out", setting.out + "/plot.err");
  const bool plotted = plot && plot->wait(60).ok() && file_exists(plot_path);
  printf("\n%s\n", json_path.c_str());
  if (plotted)
    printf("%s\n", plot_path.c_str());
  else
    fprintf(stderr,
            "no plot: see %s/plot.err (`python3` needs matplotlib: Debian's python3-matplotlib, or pip's)\n",
            setting.out.c_str());
  if (over_queue > kAloneLimit)
    fprintf(
        stderr,
        "NOTE: alone, the service's p99 was %.2f times what its queue of requests explains: this machine was "
        "busy with something else, so figures \"x alone\" look better than they are; run again when it is "
        "idle\n",
        over_queue);
  if (!lagged.empty())
    fprintf(
        stderr,
        "INVALID: the software GPU lagged by more than %.0f %% of a figure, also with a larger stretch (%s): "
        "this machine was too busy; run again when it is idle\n",
        kLagLimit * 100, lagged.c_str());
  if (lost_alone != 0)
    fprintf(stderr,
            "INVALID: alone, the service did not keep up: %llu requests were lost, and figures are of the "
            "others. "
            "Choose a smaller --load\n",
            (unsigned long long)lost_alone);
  if (!checksums_equal)
    fprintf(stderr, "INVALID: a program computed something else when it shared the GPU\n");
  return valid ? 0 : 3;
}

}  // namespace tessera::cli

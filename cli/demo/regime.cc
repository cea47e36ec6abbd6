#include "cli/demo/regime.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/units.h"
#include "base/user_file.h"
#include "cli/demo/measure.h"
#include "cli/demo/process.h"
#include "ipc/channel/client.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using base::Code;

constexpr int kWarmupRequests = 20;
constexpr uint64_t kMostOutput = 64 * base::kMiB;  // of a program of the demo
constexpr int kCalibrateRequests = 60;
constexpr int kChecksumSteps = 3;
// Both programs run before the measured window opens: for a second, or less where phases are as short.
constexpr double kLeadInS = 1, kLeadInShare = 0.1;
// The largest loss of a trial's phase by lag and late news of ends. News alone cost 2 % on an idle machine, where a
// slice takes 0.7 ms. During other work they cost 20 % and more, which is the trainer's loss.
constexpr double kSmallLateShare = 0.05;

// A program's start-up on a machine that is busy with other things too: compilation of its kernels, and its
// first GPU work, which takes longer where the GPU's clock is stretched.
double start_patience_s(const Setting& setting) {
  constexpr double kHungS = 240;  // a machine that also builds took more than a minute
  return setting.workload.compile_s + kHungS + 60 * std::max(setting.stretch, 1.0);
}

struct Window {
  uint64_t from_ns = 0, to_ns = 0;
};

// Short path for sockets (108 bytes at most), removed at the end.
class ScratchFolder {
 public:
  ScratchFolder() { ok_ = mkdtemp(path_) != nullptr; }
  ~ScratchFolder() {
    std::error_code ignored;
    if (ok_) fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  std::string path() const { return path_; }

 private:
  char path_[32] = "/tmp/tessera-demo-XXXXXX";
  bool ok_ = false;
};

std::string read_file(const std::string& path) {
  const auto text = base::read_user_file(path, kMostOutput);
  return text.ok() ? *text : "";
}

// VALUE of a word "key=VALUE" that a sample printed; "" if there is none.
std::string printed(const std::string& text, const std::string& key) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    const size_t found = (" " + line).find(" " + key + "=");
    if (found != std::string::npos) {
      const size_t value = found + key.size() + 1;
      return line.substr(value, line.find(' ', value) - value);
    }
    at = end + 1;
  }
  return "";
}

base::Status fresh_folder(const std::string& path) {
  std::error_code problem;
  fs::remove_all(path, problem);
  if (!problem) fs::create_directories(path, problem);
  if (!problem) return base::ok();
  return base::error(Code::kUnavailable, fmt::format("cannot write {}: {} (choose another folder with --out)",
                                                     path, problem.message()));
}

bool wait_until(double patience_s, const std::function<bool()>& condition) {
  const uint64_t deadline = base::now_ns() + uint64_t(patience_s * double(base::kNsPerS));
  while (!condition()) {
    if (base::now_ns() > deadline || interrupted_by()) return false;
    usleep(20'000);
  }
  return true;
}

void append(std::vector<std::string>* words, const std::vector<std::string>& more) {
  words->insert(words->end(), more.begin(), more.end());
}

std::vector<std::string> gpu_environment(const Setting& setting, Sharing sharing, const std::string& scratch,
                                         const std::string& trace) {
  std::vector<std::string> out = setting.workload.environment;
  if (!setting.soft) return out;
  append(&out,
         {"TESSERA_SOFTGPU_DIR=" + scratch + "/gpu",
          std::string("TESSERA_SOFTGPU_MODE=") + (sharing == Sharing::kMps ? "mps" : "timesliced"),
          "TESSERA_SOFTGPU_TRACE=" + trace, fmt::format("TESSERA_SOFTGPU_STRETCH={}", setting.stretch)});
  return out;
}

// `how`: "ended with status 1".
base::Error failed(const std::string& what, const std::string& how, const std::string& stderr_path) {
  std::string text = read_file(stderr_path);
  if (text.size() > 600) text = "..." + text.substr(text.size() - 600);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return base::error(Code::kUnavailable, fmt::format("{} {} ({}): {}", what, how, stderr_path,
                                                     text.empty() ? "no message" : text));
}

base::Error ended(const std::string& what, int status, const std::string& stderr_path) {
  return failed(what, fmt::format("ended with status {}", status), stderr_path);
}

// Until `program` did what shows that it is ready.
base::Status wait_until_ready(const std::string& what, Process* program, double patience_s,
                              const std::string& stderr_path, const std::function<bool()>& ready) {
  const bool over = wait_until(patience_s, [&] { return !program->running() || ready(); });
  if (!program->running()) return ended(what, *program->wait(0), stderr_path);
  if (over) return base::ok();
  return failed(what, fmt::format("was not ready within {:.0f} s", patience_s), stderr_path);
}

// NVIDIA's own sharing engine on a real GPU, in a private folder; stopped with the phase. Never touches
// settings.
base::Result<Process> start_mps(const std::string& scratch, const std::string& folder,
                                std::vector<std::string>* environment) {
  for (const char* variable : {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"}) {
    environment->push_back(std::string(variable) + "=" + scratch + "/mps");
  }
  mkdir((scratch + "/mps").c_str(), 0700);
  auto control = Process::start({"nvidia-cuda-mps-control", "-f"}, *environment, folder + "/mps.out",
                                folder + "/mps.err");
  if (!control) return control.error();
  if (!wait_until(10, [&] { return file_exists(scratch + "/mps/control") || !control->running(); }) ||
      !control->running())
    return base::error(Code::kUnavailable,
                       "nvidia-cuda-mps-control does not start: " + read_file(folder + "/mps.err"));
  return control;
}

// Times, but not how long a CPU watches: that is the wall's clock.
bool follows_the_device(const std::string& key) {
  return (key.ends_with("_us") || key.ends_with("_ms")) && key != "watch_spin_us";
}

// tesserad's own times follow the clock of what it schedules: the [policy] of a stretched device.
std::string stretched_policy(double stretch) {
  std::string text = "[policy]\n";
#define TS_NUMBER(section, key, initial, least, most, description)                                  \
  if (const std::string name = #key; std::string(#section) == "policy" && follows_the_device(name)) \
    text += fmt::format("{} = {}\n", name, uint64_t(std::min(initial * stretch, double(most))));
#include "scheduler_daemon/config/options.def"
  return text;
}

base::Result<Process> start_daemon(const Setting& setting, const std::string& socket,
                                   const std::string& folder) {
  std::vector<std::string> words = {setting.layout.bin + "/tesserad", "--socket", socket};
  if (setting.stretch != 1) {
    const std::string configuration = folder + "/tesserad.toml";
    if (!(std::ofstream(configuration) << stretched_policy(setting.stretch)).flush())
      return base::error(Code::kUnavailable, "cannot write " + configuration);
    words.insert(words.end(), {"--config", configuration});
  }
  auto daemon =
      Process::start(words, {"TESSERA_PROFILES=off"}, folder + "/tesserad.out", folder + "/tesserad.err");
  if (!daemon) return daemon.error();
  auto ready = wait_until_ready("tesserad", &*daemon, 10, folder + "/tesserad.err",
                                [&] { return ipc::query(socket).ok(); });
  if (!ready) return ready.error();
  return daemon;
}

// With Tessera a program is started by the very command that users type. Without it, as it is; one that needs
// options of `tessera run` gets them, and no more.
std::vector<std::string> command(const Setting& setting, bool tessera, const std::string& socket,
                                 const std::string& priority, std::vector<std::string> program,
                                 const std::vector<std::string>& options) {
  append(&program, options);
  append(&program, {"--stretch", fmt::format("{}", setting.stretch)});
  const std::vector<std::string>& run_options = setting.workload.run_options;
  if (!tessera && run_options.empty()) return program;
  std::vector<std::string> words = {setting.layout.bin + "/tessera", "run", "--gpu",
                                    setting.soft ? "soft" : "auto"};
  if (tessera)
    append(&words, {"--socket", socket, "--priority", priority});
  else
    words.push_back("--passthrough");
  append(&words, run_options);
  words.push_back("--");
  append(&words, program);
  return words;
}

// For messages: the program's words, without folders.
std::string name_of(const std::vector<std::string>& program) {
  std::string name;
  for (const std::string& word : program)
    name += (name.empty() ? "" : " ") + fs::path(word).filename().string();
  return name;
}

void add_library_path(const Setting& setting, std::vector<std::string>* environment) {
  if (!setting.soft) return;
  const char* present = getenv("LD_LIBRARY_PATH");
  environment->push_back("LD_LIBRARY_PATH=" + setting.layout.softgpu +
                         (present ? std::string(":") + present : ""));
}

// From tesserad's state; an error if the process was not its client: the phase would have measured something
// else.
base::Result<uint64_t> preemptions_of(const std::string& daemon_state, pid_t pid) {
  const auto state = nlohmann::json::parse(daemon_state, nullptr, /*allow_exceptions=*/false);
  if (state.is_object())
    for (const auto& client : state.value("clients", nlohmann::json::array()))
      if (client.value("pid", 0) == pid) return client.value("preemptions", uint64_t(0));
  return base::error(Code::kUnavailable,
                     fmt::format("process {} is not a client of tesserad; is lib/libtessera.so there?", pid));
}

// Lag of one process of the phase, within [from, to].
base::Status add_lag(const std::string& trace, pid_t pid, uint64_t from_ns, uint64_t to_ns, Lag* lag) {
  const std::string base = fmt::format("{}/softgpu-{}", trace, pid);
  const auto summary = nlohmann::json::parse(read_file(base + ".json"), nullptr, /*allow_exceptions=*/false);
  if (!summary.is_object() || !summary.contains("lag_p99"))
    return base::error(Code::kNotFound, "the software GPU left no lag report at " + base + ".json");
  lag->p99 = std::max(lag->p99, summary["lag_p99"].get<double>());
  const auto share = lag_share(base + ".csv", from_ns, to_ns);
  if (!share) return share.error();
  lag->share += *share;
  const auto factor = slowdown_needed(base + ".csv", from_ns, to_ns, kSmallLateShare);
  if (!factor) return factor.error();
  lag->stretch = std::max(lag->stretch, *factor);
  return base::ok();
}

// The service's files, when it has ended.
base::Status read_service(const Setting& setting, const Phase& phase, const std::string& trace, pid_t pid,
                          Window* window, Figures* figures) {
  const std::string folder = setting.out + "/" + phase.name, csv = folder + "/service.csv";
  auto measured = service_figures(csv);
  if (!measured) return measured.error();
  figures->latency_ms = std::move(measured->latency_ms);
  figures->service_csv = phase.name + "/service.csv";
  *window = {measured->first_ns, measured->last_ns};
  const std::string report = read_file(folder + "/service.out");
  figures->service_checksum = printed(report, "checksum");
  figures->lost = strtoull(printed(report, "lost").c_str(), nullptr, 10);
  if (!setting.soft) return base::ok();
  if (auto lag = add_lag(trace, pid, window->from_ns, window->to_ns, &figures->lag); !lag) return lag;
  const std::string operations = fmt::format("{}/softgpu-{}.csv", trace, pid);
  const auto without = latency_without_lag_ms(csv, operations);
  if (!without) return without.error();
  figures->lag.service_p99 = quantile(figures->latency_ms, 0.99) / quantile(*without, 0.99);
  auto turnaround = turnarounds_us(operations);
  if (!turnaround) return turnaround.error();
  figures->turnaround_us = std::move(*turnaround);
  return base::ok();
}

// The trainer's files, when it has ended.
base::Status read_trainer(const Setting& setting, const Phase& phase, const std::string& trace, pid_t pid,
                          const Window& window, Figures* figures) {
  const std::string folder = setting.out + "/" + phase.name;
  auto steps = steps_within(folder + "/trainer.csv", window.from_ns, window.to_ns);
  if (!steps) return steps.error();
  figures->steps_per_s = *steps / (double(window.to_ns - window.from_ns) / double(base::kNsPerS));
  figures->trainer_checksum = printed(read_file(folder + "/trainer.out"), "checksum");
  return setting.soft ? add_lag(trace, pid, window.from_ns, window.to_ns, &figures->lag) : base::ok();
}

}  // namespace

base::Result<double> calibrate_service(const Setting& setting) {
  const ScratchFolder scratch;
  const std::string folder = setting.out + "/calibrate";
  if (auto made = fresh_folder(folder); !made) return made.error();
  auto environment = gpu_environment(setting, Sharing::kTimeSliced, scratch.path(), folder);
  add_library_path(setting, &environment);
  auto service = Process::start(command(setting, false, "", "", setting.workload.service,
                                        {"--calibrate", std::to_string(kCalibrateRequests)}),
                                environment, folder + "/service.out", folder + "/service.err");
  if (!service) return service.error();
  auto status = service->wait(start_patience_s(setting));
  if (!status) return status.error();
  if (*status != 0)
    return ended(name_of(setting.workload.service) + " --calibrate", *status, folder + "/service.err");
  const double ms = strtod(printed(read_file(folder + "/service.out"), "service_p50_ms").c_str(), nullptr);
  if (!(ms > 0))
    return base::error(Code::kInvalid,
                       name_of(setting.workload.service) + " --calibrate printed no service_p50_ms");
  return ms;
}

base::Result<Figures> run_phase(const Phase& phase, const Setting& setting,
                                const std::function<void(double, double)>& progress) {
  const ScratchFolder scratch;
  const std::string folder = setting.out + "/" + phase.name;
  const std::string trace = folder + "/trace";
  const std::string socket = scratch.path() + "/tesserad.sock";
  for (const std::string& path : {folder, trace})
    if (auto made = fresh_folder(path); !made) return made.error();
  auto environment = gpu_environment(setting, phase.sharing, scratch.path(), trace);

  Process mps, daemon, trainer, service;  // destroyed in reverse order: programs first, then what serves them
  if (!setting.soft && phase.sharing == Sharing::kMps) {
    auto started = start_mps(scratch.path(), folder, &environment);
    if (!started) return started.error();
    mps = std::move(*started);
  }
  if (phase.tessera) {
    auto started = start_daemon(setting, socket, folder);
    if (!started) return started.error();
    daemon = std::move(*started);
  } else {
    add_library_path(setting, &environment);
  }

  Figures figures;
  figures.stretch = setting.stretch;
  const std::string trainer_csv = folder + "/trainer.csv", service_csv = folder + "/service.csv";
  if (phase.trainer) {
    auto trainer_environment = environment;
    append(&trainer_environment, setting.workload.trainer_environment);
    // Design D14: best-effort clients of an MPS that Tessera runs are its low-priority clients.
    if (phase.tessera && phase.sharing == Sharing::kMps)
      trainer_environment.push_back("CUDA_MPS_CLIENT_PRIORITY=1");
    auto started =
        Process::start(command(setting, phase.tessera, socket, "best-effort", setting.workload.trainer,
                               {"--seconds", fmt::format("{}", setting.seconds * 4 + 60), "--checksum-steps",
                                std::to_string(kChecksumSteps), "--csv", trainer_csv}),
                       trainer_environment, folder + "/trainer.out", folder + "/trainer.err");
    if (!started) return started.error();
    trainer = std::move(*started);
    auto training = wait_until_ready(name_of(setting.workload.trainer), &trainer, start_patience_s(setting),
                                     folder + "/trainer.err", [&] {
                                       auto steps = read_csv(trainer_csv);
                                       return steps.ok() && !steps->rows.empty();
                                     });
    if (!training) return training.error();
  }

  const uint64_t begin = base::now_ns();
  const double lead_in_s = std::min(kLeadInS, kLeadInShare * setting.seconds);
  const double whole_s = (lead_in_s + setting.seconds) * setting.stretch;
  Window window;  // what is measured, by the programs' clock
  const auto elapsed_s = [&] { return double(base::now_ns() - begin) / double(base::kNsPerS); };
  if (phase.service) {
    auto started =
        Process::start(command(setting, phase.tessera, socket, "high", setting.workload.service,
                               {"--rate", fmt::format("{:.4f}", setting.rate_per_s), "--seconds",
                                fmt::format("{}", setting.seconds), "--seed", std::to_string(setting.seed),
                                "--warmup", std::to_string(kWarmupRequests), "--csv", service_csv}),
                       environment, folder + "/service.out", folder + "/service.err");
    if (!started) return started.error();
    service = std::move(*started);
    const pid_t pid = service.pid();
    // An overloaded service gives up a quarter of the phase after the last arrival (kernels/samples/request_loop.h).
    while (service.running() && !interrupted_by() && elapsed_s() < 2 * whole_s + start_patience_s(setting)) {
      progress(std::min(elapsed_s(), whole_s), whole_s);
      auto ignored = service.wait(0.5);
      (void)ignored;
    }
    auto status = service.wait(0.1);
    if (!status) return status.error();
    if (*status != 0) return ended(name_of(setting.workload.service), *status, folder + "/service.err");
    auto read = read_service(setting, phase, trace, pid, &window, &figures);
    if (!read) return read.error();
  } else {
    const auto by_clock = [&](double s) {
      return uint64_t((double(begin) / setting.stretch) + s * double(base::kNsPerS));
    };
    window = {by_clock(lead_in_s), by_clock(lead_in_s + setting.seconds)};
    while (elapsed_s() < whole_s && trainer.running() && !interrupted_by()) {
      progress(elapsed_s(), whole_s);
      usleep(200'000);
    }
  }

  if (phase.tessera) {
    auto state = ipc::query(socket);
    if (!state) return state.error();
    figures.daemon_state = *state;
    auto preemptions = preemptions_of(*state, trainer.pid());
    if (!preemptions) return preemptions.error();
    figures.preemptions = *preemptions;
  }
  if (phase.trainer) {
    const pid_t pid = trainer.pid();
    auto status = trainer.stop(start_patience_s(setting));
    if (!status) return status.error();
    if (*status != 0) return ended(name_of(setting.workload.trainer), *status, folder + "/trainer.err");
    auto read = read_trainer(setting, phase, trace, pid, window, &figures);
    if (!read) return read.error();
  }
  if (phase.tessera) {
    auto status = daemon.stop(5);
    if (!status) return status.error();
  }
  return figures;
}

}  // namespace tessera::cli

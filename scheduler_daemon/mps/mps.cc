#include "scheduler_daemon/mps/mps.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/clock.h"
#include "base/own_folder.h"
#include "base/units.h"
#include "scheduler_daemon/programs/spawn.h"

namespace tessera::mps {
namespace {

using programs::open_process;
using programs::reap;

constexpr int kQuitWaitMs = 3000, kTermWaitMs = 1000, kLookMs = 10;
constexpr uint64_t kReadyWaitNs = base::ms(2000), kCheckNs = base::ms(kLookMs);
constexpr uint64_t kMostRestarts = 3;

// True if the process ended within the time.
bool ends_within(int process, int ms) {
  const uint64_t until_ns = base::now_ns() + base::ms(uint64_t(ms));
  pollfd p{process, POLLIN, 0};
  for (;;) {
    const uint64_t now_ns = base::now_ns();
    const int left_ms = now_ns >= until_ns ? 0 : int((until_ns - now_ns) / base::kNsPerMs + 1);
    const int ended = process < 0 ? 1 : ::poll(&p, 1, left_ms);
    if (ended >= 0 || errno != EINTR) return ended == 1;  // EINTR: the watchdog looked
  }
}

// A number in a file may have become another process's, as after a restart of the machine: what a daemon of
// ours started has our folder in its environment.
bool serves(pid_t pid, const std::string& pipe_directory) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
  for (std::string variable; std::getline(in, variable, '\0');)
    if (variable == "CUDA_MPS_PIPE_DIRECTORY=" + pipe_directory) return true;
  return false;
}

// For one that others started: their environment cannot be read, its name can. The kernel keeps 15 letters of it.
bool is_called(pid_t pid, const std::string& program) {
  std::string name;
  std::ifstream("/proc/" + std::to_string(pid) + "/comm") >> name;
  return name == program.substr(program.rfind('/') + 1).substr(0, 15);
}

std::string parent(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos || slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

Mps::Mps(Options options) : options_(std::move(options)) {
  state_.mode = options_.mode;
  state_.pipe_directory = options_.pipe_directory;
  state_.log_directory = options_.log_directory;
  state_.control_program = options_.program;
}

Mps::~Mps() {
  stop();
}

void Mps::inactive(const std::string& reason) {
  state_.active = false;
  state_.reason = reason;
}

void Mps::start() {
  if (options_.mode == "adopt") adopt();
  if (options_.mode == "manage") launch();
  while (ready_by_ns_ != 0 && !settled(base::now_ns())) ends_within(process_.get(), kLookMs);
}

bool Mps::find() {
  pid_t pid = 0;
  std::ifstream(options_.pipe_directory + "/nvidia-cuda-mps-control.pid") >> pid;
  if (pid > 0) process_ = open_process(pid);
  // The file outlives its writer, whose number may be another process's. What is ours would be ended by stop().
  if (!(ours_ ? serves(pid, options_.pipe_directory) : is_called(pid, options_.program))) process_.reset();
  if (!process_.valid()) return false;
  state_.active = true;
  state_.reason.clear();
  return true;
}

void Mps::adopt() {
  if (!find())
    inactive("no MPS control daemon runs in " + options_.pipe_directory +
             ": start one, or set mps.pipe_directory or mps.mode = \"manage\"");
}

void Mps::launch() {
  using base::FolderOf;
  for (const auto& [folder, whose] : {std::pair(parent(options_.pipe_directory), FolderOf::kUserOrSystem),
                                      std::pair(options_.pipe_directory, FolderOf::kUser),
                                      std::pair(options_.log_directory, FolderOf::kUser)})
    if (auto made = base::make_own_folder(folder, whose); !made.ok()) return inactive(made.error().text);
  ours_ = true;
  if (find()) return;  // a daemon before us was killed; its MPS still serves
  ::unlink((options_.pipe_directory + "/nvidia-cuda-mps-control.pid").c_str());
  ::unlink((options_.pipe_directory + "/control").c_str());  // of a dead one: it would pass for readiness
  child_ = spawn({options_.program, "-f"}, -1);
  if (child_ < 0)
    return inactive("cannot start " + options_.program + ": " + std::strerror(errno) +
                    "; it comes with NVIDIA's driver, mps.control_program names another place");
  process_ = open_process(child_);
  inactive("the MPS control daemon is starting");
  next_check_ns_ = base::now_ns() + kCheckNs;
  ready_by_ns_ = base::now_ns() + kReadyWaitNs;
}

bool Mps::check(uint64_t now_ns) {
  if (!base::is_due(next_check_ns(), now_ns)) return false;
  next_check_ns_ = now_ns + kCheckNs;
  return settled(now_ns);
}

bool Mps::settled(uint64_t now_ns) {
  if (::access((options_.pipe_directory + "/control").c_str(), F_OK) == 0) {
    state_.active = true;
    state_.reason.clear();
  } else if (ends_within(process_.get(), 0)) {
    int status = 0;
    ::waitpid(child_, &status, WNOHANG);  // it has ended
    child_ = -1;
    process_.reset();
    inactive(options_.program + " ended at once (status " + std::to_string(WEXITSTATUS(status)) + "), see " +
             options_.log_directory);
  } else if (now_ns >= ready_by_ns_) {
    inactive(options_.program + " did not get ready in time");
    kill();
  } else {
    return false;
  }
  ready_by_ns_ = 0;
  return true;
}

pid_t Mps::spawn(const std::vector<std::string>& arguments, int standard_input) const {
  std::vector<std::string> variables = programs::environment_without({"CUDA_MPS_", "LD_PRELOAD="});
  variables.push_back("CUDA_MPS_PIPE_DIRECTORY=" + options_.pipe_directory);
  variables.push_back("CUDA_MPS_LOG_DIRECTORY=" + options_.log_directory);
  return programs::spawn(
      arguments, variables,
      {.input = standard_input, .output = options_.log_directory + "/tesserad-started.log"});
}

void Mps::ended() {
  if (ready_by_ns_ != 0 && settled(base::now_ns()) && !state_.active) return;
  process_.reset();
  if (!ours_) return inactive("the MPS control daemon that was adopted has ended");
  if (child_ > 0) reap(child_);
  child_ = -1;
  if (state_.restarts == kMostRestarts)
    return inactive("the MPS control daemon ended " + std::to_string(kMostRestarts + 1) + " times, see " +
                    options_.log_directory);
  ++state_.restarts;
  launch();
}

void Mps::stop() {
  if (!ours_ || !process_.valid()) return;
  int input[2];
  if (::pipe2(input, O_CLOEXEC) == 0) {
    const pid_t quitter = spawn({options_.program}, input[0]);
    ::close(input[0]);
    (void)!::write(input[1], "quit\n", 5);
    ::close(input[1]);
    const base::ScopedFd watched = quitter > 0 ? open_process(quitter) : base::ScopedFd();
    if (quitter > 0) {
      if (!ends_within(watched.get(), kTermWaitMs)) ::kill(quitter, SIGKILL);
      reap(quitter);
    }
  }
  if (!ends_within(process_.get(), kQuitWaitMs))
    ::syscall(SYS_pidfd_send_signal, process_.get(), SIGTERM, nullptr, 0);
  ends_within(process_.get(), kTermWaitMs);
  kill();
  state_.active = false;
}

void Mps::kill() {
  ::syscall(SYS_pidfd_send_signal, process_.get(), SIGKILL, nullptr, 0);
  if (child_ > 0) reap(child_);
  child_ = -1;
  process_.reset();
}

}  // namespace tessera::mps

#include "cli/demo/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/scoped_fd.h"

namespace tessera::cli {
namespace {

using base::Code;

void redirect(const std::string& path, int fd) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file < 0) _exit(125);
  dup2(file, fd);
  if (file != fd) close(file);
}

volatile sig_atomic_t g_interrupt = 0;

int exit_status(int raw) {
  return WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
}

}  // namespace

void catch_interrupts() {
  struct sigaction action {};  // no SA_RESTART: whatever waits shall look
  action.sa_handler = [](int signal) { g_interrupt = signal; };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction present {};
    sigaction(signal, nullptr, &present);
    if (present.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);  // nohup stays nohup
  }
}

int interrupted_by() {
  return g_interrupt;
}

void set_variables(const std::vector<std::string>& environment) {
  for (const std::string& variable : environment) {
    const size_t equals = variable.find('=');
    if (equals == std::string::npos)
      unsetenv(variable.c_str());
    else
      setenv(variable.substr(0, equals).c_str(), variable.c_str() + equals + 1, 1);
  }
}

base::Result<Process> Process::start(const std::vector<std::string>& argv,
                                     const std::vector<std::string>& environment,
                                     const std::string& stdout_path, const std::string& stderr_path) {
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const pid_t child = fork();
  if (child < 0) return base::error(Code::kUnavailable, std::string("fork: ") + strerror(errno));
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    redirect(stdout_path, STDOUT_FILENO);
    redirect(stderr_path, STDERR_FILENO);
    set_variables(environment);
    execvp(words[0], words.data());
    _exit(127);
  }
  Process process;
  process.pid_ = child;
  process.what_ = argv[0];
  return process;
}

Process& Process::operator=(Process&& other) noexcept {
  if (this != &other) {
    kill_now();
    pid_ = std::exchange(other.pid_, -1);
    what_ = std::move(other.what_);
    status_ = other.status_;
  }
  return *this;
}

bool Process::running() {
  if (pid_ < 0) return false;
  int raw = 0;
  if (waitpid(pid_, &raw, WNOHANG) != pid_) return true;
  status_ = exit_status(raw);
  pid_ = -1;
  return false;
}

base::Result<int> Process::wait(double timeout_s) {
  if (pid_ < 0) return status_;
  const base::ScopedFd exit_notice(int(syscall(SYS_pidfd_open, pid_, 0)));
  pollfd poller{exit_notice.get(), POLLIN, 0};
  if (exit_notice.valid()) poll(&poller, 1, int(timeout_s * 1000));
  if (running()) return base::error(Code::kUnavailable, what_ + " did not end in time");
  return status_;
}

base::Result<int> Process::stop(double patience_s) {
  if (pid_ >= 0) kill(pid_, SIGTERM);
  auto status = wait(patience_s);
  if (!status) kill_now();
  return status;
}

void Process::kill_now() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  int raw = 0;
  waitpid(pid_, &raw, 0);
  status_ = exit_status(raw);
  pid_ = -1;
}

bool python_runs(const char* python, const char* code, double patience_s) {
  auto process = Process::start({python, "-c", code}, {}, "/dev/null", "/dev/null");
  const auto status = process ? process->wait(patience_s) : process.error();
  return status && *status == 0;
}

const char* python_that_plots() {
  constexpr double kPatienceS = 60;  // matplotlib makes a cache of fonts the first time
  for (const char* python : {"python3", "/usr/bin/python3"})
    if (python_runs(python, "import matplotlib", kPatienceS)) return python;
  return "python3";
}

}  // namespace tessera::cli

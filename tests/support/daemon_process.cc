#include "tests/support/daemon_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "admission/lease.h"
#include "base/clock.h"
#include "base/units.h"
#include "ipc/channel/lease.h"

namespace tessera::test {

void die_with(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);
}

DaemonProcess::DaemonProcess(std::string socket, std::vector<std::string> arguments,
                             const std::function<void()>& before_exec)
    : log_(socket + ".log") {
  int ready[2];
  if (pipe2(ready, O_CLOEXEC) != 0) return;
  arguments.insert(arguments.begin(), {TESSERAD_PATH, "--socket", socket, "--ready-fd", "9"});
  std::vector<char*> argv;
  for (std::string& a : arguments) argv.push_back(a.data());
  argv.push_back(nullptr);
  int log = open(log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    die_with(parent);
    dup2(log, 2);
    if (ready[1] == 9)
      fcntl(9, F_SETFD, 0);
    else
      dup2(ready[1], 9);
    before_exec();
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(log);
  close(ready[1]);
  char line;
  listens_ = read(ready[0], &line, 1) == 1;  // end of file if it exits first
  close(ready[0]);
}

DaemonProcess::~DaemonProcess() {
  if (exited()) return;
  signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void DaemonProcess::signal(int number) const {
  if (pid_ > 0) kill(pid_, number);
}

bool DaemonProcess::exited() {
  if (pid_ <= 0) return true;  // never started
  if (!reaped_) reaped_ = waitpid(pid_, &status_, WNOHANG) == pid_;
  return reaped_;
}

int DaemonProcess::wait() {
  return eventually([this] { return exited(); }) ? status_ : -1;
}

std::string DaemonProcess::errors() const {
  std::ostringstream text;
  text << std::ifstream(log_).rdbuf();
  return text.str();
}

uint32_t lease_state(const ipc::Attachment& a) {
  return uint32_t(admission::grant_at(admission::decode(ipc::lease_copy(*a.lease())), base::now_ns()));
}

size_t open_descriptors(pid_t pid) {
  size_t n = 0;
  DIR* folder = opendir(("/proc/" + std::to_string(pid) + "/fd").c_str());
  while (folder != nullptr && readdir(folder) != nullptr) ++n;
  if (folder != nullptr) closedir(folder);
  return n;
}

uint64_t resident_kib(pid_t pid) {
#ifdef __SANITIZE_ADDRESS__
  constexpr bool kMeasurable = false;  // what is freed stays in its quarantine
#else
  constexpr bool kMeasurable = true;
#endif
  std::ifstream in("/proc/" + std::to_string(pid) + "/status");
  for (std::string key; in >> key;)
    if (uint64_t n = 0; key == "VmRSS:" && in >> n) return kMeasurable ? n : 0;
  return 0;
}

void Worker::step() {
  constexpr auto seq_cst = std::memory_order_seq_cst;
  uint32_t word = ipc::load(a.lease()->word, std::memory_order_acquire);
  bool may_run = lease_state(a) != ipc::abi::kLeaseHold;
  if (may_run && !working) {
    ipc::store(a.usage()->in_flight_ns, uint64_t(500'000), seq_cst);
    ipc::store(a.usage()->waiting, 0u, seq_cst);
    working = true;
    ++turns;
  } else if (!may_run && working) {
    ipc::store(a.usage()->in_flight_ns, uint64_t(0), seq_cst);
    ipc::store(a.usage()->drained_word, word, seq_cst);
    ipc::store(a.usage()->waiting, 1u, seq_cst);
    working = false;
    ipc::notify(a);
  } else if (!may_run && ipc::load(a.usage()->waiting, seq_cst) == 0) {
    ipc::store(a.usage()->waiting, 1u, seq_cst);
    ipc::notify(a);
  }
}

ipc::PeerEvent await_event(const ipc::Attachment& a, int limit_ms) {
  ipc::PeerEvent event;
  eventually(
      [&] {
        event = ipc::next_event(a);
        return event.kind != ipc::PeerEvent::Kind::kNothing;
      },
      limit_ms);
  return event;
}

}  // namespace tessera::test

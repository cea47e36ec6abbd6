// Start, stop, death and rebirth of the daemon; death of clients.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "base/units.h"
#include "daemon_test.h"
#include "ipc/channel/pulse.h"
#include "tests/support/shell.h"

namespace tessera::test {
namespace {

using Kind = ipc::PeerEvent::Kind;
using namespace ipc::abi;  // NOLINT: lease states

bool exists(const std::string& path) {
  struct stat st;
  return lstat(path.c_str(), &st) == 0;
}

// Runs f in a child process and keeps that child alive until it is killed; returns once f is done.
pid_t in_child(const std::function<void()>& f) {
  int done[2];
  EXPECT_EQ(pipe2(done, O_CLOEXEC), 0);
  pid_t child = fork();
  if (child == 0) {
    f();
    (void)!write(done[1], "x", 1);
    for (;;) pause();
  }
  close(done[1]);
  char c;
  EXPECT_EQ(read(done[0], &c, 1), 1);
  close(done[0]);
  return child;
}

TEST_F(DaemonTest, SigtermLeavesEveryoneFreeAndNoFiles) {
  start();
  auto a = on_gpu(0), b = on_gpu(0);
  ASSERT_TRUE(eventually([&] { return lease_state(a) == kLeaseGranted && lease_state(b) == kLeaseHold; }));
  daemon_->signal(SIGTERM);
  EXPECT_EQ(daemon_->wait(), 0) << daemon_->errors();
  EXPECT_EQ(lease_state(a), uint32_t(kLeaseFree));
  EXPECT_EQ(lease_state(b), uint32_t(kLeaseFree));
  EXPECT_EQ(await_event(a).kind, Kind::kLost);
  EXPECT_FALSE(exists(socket_));
  EXPECT_FALSE(exists(socket_ + ".lock"));
}

TEST_F(DaemonTest, ASecondDaemonOnTheSameSocketIsRefused) {
  start();
  DaemonProcess second(socket_);
  EXPECT_FALSE(second.listens());
  EXPECT_NE(second.wait(), 0);
  EXPECT_NE(second.errors().find("another tesserad"), std::string::npos);
  EXPECT_EQ(stats()["daemon"]["socket"], socket_);  // the first is unharmed
}

// Root may open a file without rights, and this test may be root: so the rights are looked at.
TEST_F(DaemonTest, ItsFilesAreItsOwnWhateverTheUmask) {
  const mode_t before = umask(0777);
  start();
  umask(before);
  struct stat lock;
  ASSERT_EQ(stat((socket_ + ".lock").c_str(), &lock), 0);
  EXPECT_EQ(lock.st_mode & 0777, 0600u);
}

TEST_F(DaemonTest, AfterSigkillTheNextDaemonTakesOverWithANewEpoch) {
  start();
  auto a = on_gpu(0);
  daemon_->signal(SIGKILL);
  EXPECT_EQ(await_event(a).kind, Kind::kLost);
  daemon_->wait();
  ASSERT_TRUE(exists(socket_));
  EXPECT_EQ(ipc::attach(socket_, {}).error().code, base::Code::kUnavailable);
  start();
  auto again = on_gpu(0);
  EXPECT_NE(again.daemon_epoch, a.daemon_epoch);
}

TEST_F(DaemonTest, AKilledClientIsGoneAlthoughItsForkedChildHoldsTheSocket) {
  start();
  auto watcher = on_gpu(0);
  int grandchild[2];
  ASSERT_EQ(pipe2(grandchild, O_CLOEXEC), 0);
  pid_t service = in_child([&] {
    auto* a = new ipc::Attachment(on_gpu(7));
    ipc::pulse_set_busy(*a->pulse(), 1, 0, 1, base::now_ns());
    pid_t sleeper = fork();  // never executes: socket, eventfd and all stay open there
    if (sleeper == 0)
      for (;;) pause();
    (void)!write(grandchild[1], &sleeper, sizeof sleeper);
  });
  pid_t sleeper;
  ASSERT_EQ(read(grandchild[0], &sleeper, sizeof sleeper), ssize_t(sizeof sleeper));
  ipc::PeerEvent pulse = await_event(watcher);
  ASSERT_EQ(pulse.kind, Kind::kPeerPulse);
  EXPECT_TRUE(ipc::pulse_is_busy(*pulse.page.as<PulsePage>(), base::now_ns()));
  ASSERT_TRUE(eventually([&] { return lease_state(watcher) == kLeaseGranted; }));

  kill(service, SIGKILL);
  ipc::PeerEvent gone = await_event(watcher);
  EXPECT_EQ(gone.kind, Kind::kPeerGone);
  EXPECT_EQ(gone.client_id, pulse.client_id);
  EXPECT_TRUE(eventually([&] { return lease_state(watcher) == kLeaseFree; }));
  EXPECT_EQ(kill(sleeper, 0), 0);  // it lived on
  kill(sleeper, SIGKILL);
  waitpid(service, nullptr, 0);
}

// Nothing but the death can pass this turn on: neither its length, nor a drain, nor the lease's end.
TEST_F(DaemonTest, AClientKilledHoldingTheTurnPassesItOn) {
  std::ofstream(folder_ + "/c.toml") << "[policy]\nquantum_us = 10000000\nmax_hold_ms = 60000\n"
                                        "drain_timeout_ms = 60000\nlease_ms = 60000\n";
  start({"--config", folder_ + "/c.toml"});
  pid_t holder = in_child([&] {
    auto* a = new ipc::Attachment(on_gpu(0));
    a->usage()->in_flight_ns = 1'000'000;  // and it will never drain
  });
  auto b = on_gpu(0);
  ASSERT_TRUE(eventually([&] { return lease_state(b) == kLeaseHold; }));
  auto c = on_gpu(0);
  b.usage()->waiting = 1;
  ipc::notify(b);
  ASSERT_TRUE(counts("notifications", 1));
  EXPECT_EQ(lease_state(b), uint32_t(kLeaseHold));
  kill(holder, SIGKILL);
  EXPECT_TRUE(eventually([&] { return lease_state(b) == kLeaseGranted; }));
  EXPECT_EQ(lease_state(c), uint32_t(kLeaseHold));  // did not wait for it
  EXPECT_EQ(counter("revocations"), counter("early_deaths"));
  waitpid(holder, nullptr, 0);
}

// A process that is killed stays where the kernel begins to end it, as with a large memory to free: sockets
// open, nothing reported.
class DyingClient {
 public:
  explicit DyingClient(pid_t pid)
      : pid_(pid), traced_(ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACEEXIT) == 0) {}
  bool die_half() {  // false: this machine allows no ptrace
    if (!traced_) return false;
    kill(pid_, SIGKILL);
    int status = 0;
    return waitpid(pid_, &status, __WALL) == pid_ && WIFSTOPPED(status);
  }
  ~DyingClient() {
    kill(pid_, SIGKILL);
    if (traced_) ptrace(PTRACE_CONT, pid_, 0, 0);
    while (waitpid(pid_, nullptr, __WALL) == pid_) {
    }
  }

 private:
  pid_t pid_;
  bool traced_;
};

TEST_F(DaemonTest, ADyingClientPassesTheTurnOnBeforeItsProcessHasEnded) {
  std::ofstream(folder_ + "/c.toml") << "[policy]\nquantum_us = 10000000\nmax_hold_ms = 60000\n"
                                        "drain_timeout_ms = 60000\nlease_ms = 60000\n";
  start({"--config", folder_ + "/c.toml"});
  DyingClient holder(in_child([&] {
    auto* a = new ipc::Attachment(on_gpu(0));
    a->usage()->in_flight_ns = 1'000'000;  // and it will never drain
  }));
  auto heir = on_gpu(0), other = on_gpu(0);
  ASSERT_TRUE(eventually([&] { return lease_state(heir) == kLeaseHold; }));
  heir.usage()->waiting = 1;
  ipc::notify(heir);
  if (!holder.die_half()) GTEST_SKIP() << "ptrace is not allowed here";
  EXPECT_TRUE(eventually([&] { return lease_state(heir) == kLeaseGranted; }));
  const auto s = stats();
  EXPECT_EQ(s["daemon"]["early_deaths"], 1);
  EXPECT_EQ(s["daemon"]["detached"], 0);
  EXPECT_EQ(s["clients"][0]["state"], "dying");
}

TEST_F(DaemonTest, ADyingBusyProtectedClientHoldsNobody) {
  start();
  DyingClient service(in_child([&] {
    auto* a = new ipc::Attachment(on_gpu(7));
    ipc::pulse_set_busy(*a->pulse(), 1, 0, 1, base::now_ns());
    std::thread([a] {
      for (;; poll(nullptr, 0, 10)) ipc::pulse_beat(*a->pulse(), base::now_ns() + base::ms(900));
    }).detach();
  }));
  auto trainer = on_gpu(0);
  ipc::PeerEvent pulse = await_event(trainer);
  ASSERT_EQ(pulse.kind, Kind::kPeerPulse);
  trainer.usage()->waiting = 1;
  ipc::notify(trainer);
  if (!service.die_half()) GTEST_SKIP() << "ptrace is not allowed here";
  EXPECT_EQ(await_event(trainer).kind, Kind::kPeerGone);
  EXPECT_EQ(counter("early_deaths"), 1u);
  EXPECT_EQ(counter("detached"), 0u);
}

TEST_F(DaemonTest, AStoppedProtectedClientStarvesNobody) {
  start();
  auto watcher = on_gpu(0);
  pid_t service = in_child([&] {
    auto* a = new ipc::Attachment(on_gpu(7));
    ipc::pulse_set_busy(*a->pulse(), 1, 0, 1, base::now_ns());
  });
  ipc::PeerEvent pulse = await_event(watcher);
  ASSERT_EQ(pulse.kind, Kind::kPeerPulse);
  const auto& page = *pulse.page.as<PulsePage>();
  ASSERT_TRUE(ipc::pulse_is_busy(page, base::now_ns()));
  kill(service, SIGSTOP);  // no beat any more
  EXPECT_TRUE(eventually([&] { return !ipc::pulse_is_busy(page, base::now_ns()); }));
  EXPECT_EQ(stats()["clients"][1]["state"], "idle");
  kill(service, SIGKILL);
  EXPECT_EQ(await_event(watcher).kind, Kind::kPeerGone);
  waitpid(service, nullptr, 0);
}

TEST_F(DaemonTest, AClientWithoutAProcessToWatchStillLeavesByClosing) {
  start();
  {
    auto a = on_gpu(3);
    ASSERT_EQ(stats()["clients"].size(), 1u);
  }
  EXPECT_TRUE(eventually([&] { return stats()["clients"].empty(); }));
}

uint64_t context_switches(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/status");
  uint64_t sum = 0;
  for (std::string key; in >> key;) {
    uint64_t n;
    if (key.find("voluntary_ctxt_switches") != std::string::npos && in >> n) sum += key[0] == 'v' ? n : 0;
  }
  return sum;
}

TEST_F(DaemonTest, SleepsWhenNothingHappens) {
  start();
  { auto a = on_gpu(0); }
  ASSERT_TRUE(counts("detached", 1));
  uint64_t wakes = counter("wakes");
  poll(nullptr, 0, 300);                    // the thing measured is that nothing happens in this time
  EXPECT_LE(counter("wakes") - wakes, 3u);  // our own two questions, and their ends

  // Idle clients: renewals only.
  auto service = on_gpu(7), trainer = on_gpu(0);
  ASSERT_TRUE(eventually([&] { return lease_state(trainer) == kLeaseGranted; }));
  uint64_t before = context_switches(daemon_->pid());
  poll(nullptr, 0, 1000);
  EXPECT_LE(context_switches(daemon_->pid()) - before, 20u);
}

TEST_F(DaemonTest, TheLeaseOfAnIdleClientIsRenewedBeforeItEnds) {
  std::ofstream(folder_ + "/c.toml") << "[policy]\nlease_ms = 50\n";
  start({"--config", folder_ + "/c.toml"});
  auto service = on_gpu(7), trainer = on_gpu(0);
  ASSERT_TRUE(eventually([&] { return lease_state(trainer) == kLeaseGranted; }));
  uint64_t end_ns = trainer.lease()->expires_ns;
  uint32_t word = trainer.lease()->word;
  EXPECT_TRUE(
      eventually([&] { return ipc::load(trainer.lease()->expires_ns, std::memory_order_relaxed) > end_ns; }));
  EXPECT_EQ(ipc::load(trainer.lease()->word, std::memory_order_relaxed), word);
}

int run_tesserad(const std::string& arguments, std::string* output) {
  const Ended ended = shell(std::string(TESSERAD_PATH) + " " + arguments);
  output->append(ended.text);
  return WEXITSTATUS(ended.status);
}

TEST_F(DaemonTest, BadConfigurationAndArgumentsEndWithAClearMessage) {
  std::string file = folder_ + "/c.toml", out;
  std::ofstream(file) << "[policy]\nname = \"best\"\n";
  EXPECT_EQ(run_tesserad("--check --config " + file, &out), 1);
  EXPECT_NE(out.find("c.toml:2:8: `policy.name` must be one of"), std::string::npos) << out;
  out.clear();
  EXPECT_EQ(run_tesserad("--config " + file, &out), 1)
      << "a daemon must not start with a wrong configuration";
  out.clear();
  EXPECT_EQ(run_tesserad("--config " + folder_ + "/missing.toml", &out), 1);
  EXPECT_NE(out.find("the configuration: cannot read"), std::string::npos) << out;
  out.clear();
  EXPECT_NE(run_tesserad("--log-level loud", &out), 0);
  EXPECT_NE(out.find("log-level"), std::string::npos) << out;
  out.clear();
  std::ofstream(file) << "[policy]\nname = \"none\"\n";
  EXPECT_EQ(run_tesserad("--check --config " + file, &out), 0) << out;
  out.clear();
  EXPECT_EQ(run_tesserad("--socket /proc/tessera/x.sock", &out), 1);
  EXPECT_NE(out.find("--socket"), std::string::npos) << out;
}

// ---- a sandbox that refuses calls of the daemon's

// From now on, also across exec, each of these system calls has EPERM.
void refuse(std::initializer_list<long> calls) {
  std::vector<sock_filter> filter = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (long call : calls) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, uint32_t(call), 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    _exit(126);
}

TEST_F(DaemonTest, ThatMayNotWaitForEventsEndsAndSaysWhy) {
  start({}, [] {
#ifdef SYS_epoll_wait
    refuse({SYS_epoll_wait, SYS_epoll_pwait});
#else
    refuse({SYS_epoll_pwait});
#endif
  });
  const int status = daemon_->wait();
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_NE(daemon_->errors().find("epoll_wait: Operation not permitted"), std::string::npos)
      << daemon_->errors();
}

// Each time: said once, and no processor burnt.
TEST_F(DaemonTest, ThatMayNotAcceptOrKnowItsPeersSaysSo) {
  for (const auto& [call, name] :
       {std::pair{long(SYS_accept4), "accept"}, {long(SYS_getsockopt), "SO_PEERCRED"}}) {
    SCOPED_TRACE(name);
    start({}, [call = call] { refuse({call}); });
    const std::string line = std::string("no connection can be taken: ") + name + ": Operation not permitted";
    EXPECT_FALSE(ipc::attach(socket_, {}, 300).ok());
    EXPECT_TRUE(eventually([&] { return daemon_->errors().find(line) != std::string::npos; }))
        << daemon_->errors();
    const uint64_t before = processor_ns();
    EXPECT_FALSE(ipc::attach(socket_, {}, 500).ok());
    poll(nullptr, 0, 500);  // a daemon that tried without end would do nothing else now
    EXPECT_LT(processor_ns() - before, 150'000'000u);
    const std::string log = daemon_->errors();
    EXPECT_EQ(log.find(line), log.rfind(line)) << log;
  }
}

}  // namespace
}  // namespace tessera::test

// What tesserad itself costs and how soon it answers: a real daemon, clients that speak the protocol without
// a driver.
//   daemon.idle_*              voluntary context switches of the daemon per second while nothing happens
//   lease.ask_N_clients_*      a client without the turn asks (waiting, eventfd) until its lease word says
//                              granted; N clients ask in turn, the holder has been idle for longer than its
//                              grace; the daemon is awake (spin_us), the asking client spins, each on a CPU
//                              of its own
//   daemon.leave_to_grant_*    the holder of the turn closes its socket until the waiting client has it
//   daemon.death_to_grant_*    the same from SIGKILL to the holder: the kernel ends it first
// Argument: only "idle", "ask" or "death".
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "base/clock.h"
#include "base/futex.h"
#include "base/units.h"
#include "ipc/channel/atomic.h"
#include "ipc/channel/client.h"
#include "ipc/channel/lease.h"
#include "tests/bench/timing.h"

namespace {

using namespace tessera;
namespace abi = ipc::abi;

[[noreturn]] void fail(const std::string& what) {
  fprintf(stderr, "bench_daemon: %s\n", what.c_str());
  exit(1);
}

// Two sides that both spin must not share a CPU: one would wait until the other has had enough.
class Cpus {
 public:
  Cpus() {
    CPU_ZERO(&all_);
    (void)sched_getaffinity(0, sizeof all_, &all_);
  }
  void only_first() const { set(true); }
  void all_but_first() const { set(false); }
  void all() const { (void)sched_setaffinity(0, sizeof all_, &all_); }

 private:
  void set(bool first) const {
    if (CPU_COUNT(&all_) < 2) return;
    cpu_set_t chosen;
    CPU_ZERO(&chosen);
    bool seen = false;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
      if (!CPU_ISSET(cpu, &all_)) continue;
      if (first != seen) CPU_SET(cpu, &chosen);
      seen = true;
    }
    (void)sched_setaffinity(0, sizeof chosen, &chosen);
  }
  cpu_set_t all_;
};

class Daemon {
 public:
  // `awake`: it spins after an event, on a CPU of its own. Else as it is by default.
  Daemon(const Cpus& cpus, bool awake) {
    char folder[] = "/tmp/tessera-bench-XXXXXX";
    if (mkdtemp(folder) == nullptr) fail("mkdtemp");
    folder_ = folder;
    socket_ = folder_ + "/tesserad.sock";
    std::ofstream(folder_ + "/c.toml")
        << "[daemon]\nprofiles = \"off\"\n"
        << (awake ? "spin_us = 1000\n" : "") << "[policy]\nname = \"temporal\"\nidle_grace_us = 100\n";
    int ready[2];
    if (pipe(ready) != 0) fail("pipe");
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ready[1], 9);
      if (awake) cpus.all_but_first();
      const int nowhere = open("/dev/null", O_RDWR);
      dup2(nowhere, 2);
      execl(TS_DAEMON, TS_DAEMON, "--socket", socket_.c_str(), "--config", (folder_ + "/c.toml").c_str(),
            "--ready-fd", "9", nullptr);
      _exit(127);
    }
    close(ready[1]);
    char line;
    if (read(ready[0], &line, 1) != 1) fail("tesserad does not start");
    close(ready[0]);
  }
  ~Daemon() {
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
    (void)!system(("rm -rf " + folder_).c_str());
  }

  ipc::Attachment on_gpu(uint32_t priority) const {
    auto a = ipc::attach(socket_, {.priority = priority, .name = "bench"}, 5'000);
    if (!a.ok()) fail(a.error().text);
    const uint8_t uuid[16] = {1};
    if (!ipc::announce_device(*a, uuid, 100, false).ok()) fail("no device announced");
    return std::move(*a);
  }

  double wakeups_per_s(unsigned seconds) const {
    usleep(300'000);  // what came before has settled, the daemon's spinning has ended
    const uint64_t before = switches();
    const uint64_t start_ns = base::now_ns();
    sleep(seconds);
    return double(switches() - before) * 1e9 / double(base::now_ns() - start_ns);
  }

 private:
  uint64_t switches() const {
    std::ifstream in("/proc/" + std::to_string(pid_) + "/status");
    for (std::string key; in >> key;)
      if (uint64_t n = 0; key == "voluntary_ctxt_switches:" && in >> n) return n;
    fail("no voluntary_ctxt_switches in /proc");
  }

  pid_t pid_ = -1;
  std::string folder_, socket_;
};

bool granted(const ipc::Attachment& a) {
  const uint32_t state = ipc::lease_state(*a.lease(), ipc::lease_snapshot(*a.lease()).word, base::now_ns());
  return state == abi::kLeaseGranted;
}

void wait_for_turn(const ipc::Attachment& a) {
  const uint64_t until_ns = base::now_ns() + base::ms(5'000);
  while (!granted(a)) {
    if (base::now_ns() > until_ns) fail("a client that waits was not granted a lease");
    base::cpu_relax();
  }
}

void want(const ipc::Attachment& a) {
  ipc::store(a.usage()->waiting_since_ns, base::now_ns(), std::memory_order_relaxed);
  ipc::store(a.usage()->waiting, 1u, std::memory_order_release);
  if (!ipc::notify(a)) fail("the daemon has gone");
}

void ask(const ipc::Attachment& a) {
  want(a);
  wait_for_turn(a);
  ipc::store(a.usage()->waiting, 0u, std::memory_order_release);
}

void spin_us(uint64_t us) {
  const uint64_t until_ns = base::now_ns() + base::us(us);
  while (base::now_ns() < until_ns) base::cpu_relax();
}

std::vector<double> round_trips_us(const Daemon& daemon, size_t n_clients, int rounds) {
  std::vector<ipc::Attachment> clients;
  // One more than asks, so that somebody else has the turn whenever one asks.
  for (size_t i = 0; i < std::max<size_t>(n_clients, 2); i++) clients.push_back(daemon.on_gpu(0));
  for (const auto& c : clients)
    if (n_clients > 1) ask(c);
  std::vector<double> us;
  for (int i = 0; i < rounds; i++) {
    ipc::Attachment& next = clients[size_t(i) % clients.size()];
    spin_us(300);  // longer than the holder's idle grace
    if (granted(next)) continue;
    const uint64_t start_ns = base::now_ns();
    ask(next);
    us.push_back(double(base::now_ns() - start_ns) / 1e3);
  }
  return us;
}

// As a held launch waits: awake for a moment, then asleep on its lease word.
void sleep_until_turn(const ipc::Attachment& a) {
  const uint64_t start_ns = base::now_ns();
  while (!granted(a)) {
    const uint32_t word = ipc::load(a.lease()->word, std::memory_order_acquire);
    const uint64_t passed_ns = base::now_ns() - start_ns;
    if (passed_ns > base::ms(5'000)) fail("a client that waits was not granted a lease");
    if (passed_ns < base::us(20))
      base::cpu_relax();
    else if (!granted(a))
      base::futex_wait(&a.lease()->word, word, base::ms(1));
  }
}

void never_drain(const ipc::Attachment& a) {
  ipc::store(a.usage()->in_flight_ns, uint64_t(1'000'000), std::memory_order_release);
}

// From `end` of a holder of the turn until the client that waits for it has it.
template <class F>
double until_turn_us(const Daemon& daemon, F&& end) {
  const ipc::Attachment heir = daemon.on_gpu(0), other = daemon.on_gpu(0);
  want(heir);
  usleep(5'000);  // the daemon and the holder are asleep
  const uint64_t start_ns = base::now_ns();
  end();
  sleep_until_turn(heir);
  return double(base::now_ns() - start_ns) / 1e3;
}

// The holder's process is killed: the kernel ends it before anybody is told. `mib` of memory take it longer.
double death_to_turn_us(const Daemon& daemon, size_t mib) {
  int ready[2];
  if (pipe(ready) != 0) fail("pipe");
  const pid_t holder = fork();
  if (holder == 0) {
    const ipc::Attachment a = daemon.on_gpu(0);
    never_drain(a);
    std::vector<char> memory(mib << 20, 1);
    (void)!write(ready[1], memory.data(), 1);
    for (;;) pause();
  }
  char c;
  close(ready[1]);
  if (read(ready[0], &c, 1) != 1) fail("the client to be killed did not start");
  close(ready[0]);
  const double us = until_turn_us(daemon, [&] { kill(holder, SIGKILL); });
  waitpid(holder, nullptr, 0);
  return us;
}

// The holder closes its socket: what the daemon itself and the waiting client's wake-up take.
double leave_to_turn_us(const Daemon& daemon) {
  ipc::Attachment holder = daemon.on_gpu(0);
  never_drain(holder);
  return until_turn_us(daemon, [&] { holder.socket.reset(); });
}

void add_quantiles(bench::Report& report, const std::string& name, const std::vector<double>& us) {
  report.add(name + "_p50_us", bench::quantile(us, 0.5));
  report.add(name + "_p99_us", bench::quantile(us, 0.99));
  report.add(name + "_max_us", bench::quantile(us, 1.0));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string only = argc > 1 ? argv[1] : "";
  const auto wanted = [&](const char* part) { return only.empty() || only == part; };
  const Cpus cpus;
  bench::Report report;
  if (wanted("idle")) {
    const Daemon daemon(cpus, false);
    report.add("daemon.idle_wakeups_per_s", daemon.wakeups_per_s(2));
    std::vector<ipc::Attachment> idle;
    for (int i = 0; i < 8; i++) idle.push_back(daemon.on_gpu(i == 0 ? 5 : 0));
    report.add("daemon.idle_clients_wakeups_per_s", daemon.wakeups_per_s(4));
  }
  if (wanted("ask")) {
    const Daemon daemon(cpus, true);
    cpus.only_first();
    for (const size_t n : {1, 8, 64}) {
      const std::vector<double> us = round_trips_us(daemon, n, 3'000);
      const std::string name = "lease.ask_" + std::to_string(n) + (n == 1 ? "_client" : "_clients");
      report.add(name + "_p50_us", bench::quantile(us, 0.5));
      report.add(name + "_p99_us", bench::quantile(us, 0.99));
    }
    cpus.all();
  }
  if (wanted("death")) {
    const Daemon daemon(cpus, false);
    std::vector<double> left, killed, large;
    for (int i = 0; i < 200; i++) left.push_back(leave_to_turn_us(daemon));
    for (int i = 0; i < 200; i++) killed.push_back(death_to_turn_us(daemon, 1));
    for (int i = 0; i < 5; i++) large.push_back(death_to_turn_us(daemon, 1024));
    add_quantiles(report, "daemon.leave_to_grant", left);
    add_quantiles(report, "daemon.death_to_grant", killed);
    report.add("daemon.death_with_1_gib_to_grant_p50_us", bench::quantile(large, 0.5));
  }
  report.print();
  return 0;
}

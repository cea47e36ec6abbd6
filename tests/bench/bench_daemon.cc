// Measures the cost of tesserad, how soon it answers, and the cost of failures: a real daemon, clients that speak the
// protocol without a driver, programs under the preload library on the null driver.
//   daemon.idle_*              voluntary context switches of the daemon per second while nothing happens
//   lease.ask_N_clients_*      a client without the turn asks (waiting, eventfd) until its lease word says
//                              granted; N clients ask in turn, the holder has been idle for longer than its
//                              grace; the daemon is awake (spin_us), the asking client spins, each on a CPU
//                              of its own
//   daemon.leave_to_grant_*    the holder of the turn closes its socket until the waiting client has it
//   daemon.death_to_grant_*    the same from SIGKILL to the holder: the kernel ends it first
//   daemon.death_with_1_gib_*, daemon.busy_death_with_1_gib_*  likewise of the holder of the turn, of a busy
//                              protected client, each with 1 GiB resident, which the kernel frees first
//   daemon.loss_to_launch_*    SIGKILL to the daemon until a held launch of a program has proceeded
//   daemon.restart_to_managed_* start of the next daemon until both programs are managed again
//   daemon.hung_holder_to_grant_ms  a holder that never drains: until the client that waits has the turn
//   daemon.reload_*            `tessera reload`, eight clients
// Argument: only "idle", "ask", "death" or "failure".
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "admission/lease.h"
#include "base/clock.h"
#include "base/futex.h"
#include "base/machine.h"
#include "base/units.h"
#include "driver_api/cuda.h"
#include "ipc/channel/atomic.h"
#include "ipc/channel/client.h"
#include "ipc/channel/lease.h"
#include "ipc/channel/pulse.h"
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
  // With `cpus` it has CPUs of its own; else it is as by default.
  explicit Daemon(const std::string& options, const Cpus* cpus = nullptr) : cpus_(cpus) {
    char folder[] = "/tmp/tessera-bench-XXXXXX";
    if (mkdtemp(folder) == nullptr) fail("mkdtemp");
    folder_ = folder;
    socket_ = folder_ + "/tesserad.sock";
    std::ofstream(folder_ + "/c.toml") << "[daemon]\nprofiles = \"off\"\n" << options;
    start();
  }
  void start() {
    int ready[2];
    if (pipe(ready) != 0) fail("pipe");
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ready[1], 9);
      if (cpus_) cpus_->all_but_first();
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
  void end(int signal) {
    kill(pid_, signal);
    waitpid(pid_, nullptr, 0);
  }
  ~Daemon() {
    end(SIGTERM);
    (void)!system(("rm -rf " + folder_).c_str());
  }

  ipc::Attachment on_gpu(uint32_t priority) const {
    auto a = ipc::attach(socket_, {.priority = priority, .name = "bench"}, 5'000);
    if (!a.ok()) fail(a.error().text);
    const uint8_t uuid[16] = {1};
    if (!ipc::announce_device(*a, uuid, 100, false).ok()) fail("no device announced");
    return std::move(*a);
  }

  const std::string& socket() const { return socket_; }

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

  const Cpus* cpus_;
  pid_t pid_ = -1;
  std::string folder_, socket_;
};

bool granted(const ipc::Attachment& a) {
  return admission::grant_at(admission::decode(ipc::lease_copy(*a.lease())), base::now_ns()) ==
         admission::Grant::kGranted;
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

template <class F>
void until(const char* what, F&& condition) {
  for (int i = 0; !condition(); i++) {
    if (i > 20'000) fail(std::string("never: ") + what);
    usleep(500);
  }
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

// The next client to come has the GPU alone, and with it the first turn.
void nobody_there(const Daemon& daemon) {
  const auto empty = [&] {
    const auto text = ipc::query(daemon.socket());
    return text.ok() && text->find("\"clients\":[]") != std::string::npos;
  };
  until("the daemon has no clients", empty);
}

// The daemon and the holder are asleep then; the end is anywhere between two of the daemon's looks.
void sleep_a_while() {
  usleep(useconds_t(5'000 + base::now_ns() / 1'000 % 3'000));
}

// From `end` of a holder of the turn until the client that waits for it has it.
template <class F>
double until_turn_us(const Daemon& daemon, F&& end) {
  const ipc::Attachment heir = daemon.on_gpu(0), other = daemon.on_gpu(0);
  want(heir);
  sleep_a_while();
  if (granted(heir)) fail("the turn was passed on before its holder ended");
  const uint64_t start_ns = base::now_ns();
  end();
  sleep_until_turn(heir);
  return double(base::now_ns() - start_ns) / 1e3;
}

// A process with `mib` of memory that runs `begin` and then waits for its death.
template <class F>
pid_t doomed(size_t mib, F&& begin) {
  int ready[2];
  if (pipe(ready) != 0) fail("pipe");
  const pid_t pid = fork();
  if (pid == 0) {
    std::vector<char> memory(mib << 20, 1);
    begin();
    (void)!write(ready[1], memory.data(), 1);
    for (;;) pause();
  }
  char c;
  close(ready[1]);
  if (read(ready[0], &c, 1) != 1) fail("the client to be killed did not start");
  close(ready[0]);
  return pid;
}

// The holder's process is killed: the kernel ends it before anybody is told. `mib` of memory take it longer.
double death_to_turn_us(const Daemon& daemon, size_t mib) {
  nobody_there(daemon);
  const pid_t holder = doomed(mib, [&] { never_drain(*new ipc::Attachment(daemon.on_gpu(0))); });
  const double us = until_turn_us(daemon, [&] { kill(holder, SIGKILL); });
  waitpid(holder, nullptr, 0);
  return us;
}

// A protected client is killed while busy, a best-effort one waits for it: until that one is told.
double busy_death_to_news_us(const Daemon& daemon, size_t mib) {
  nobody_there(daemon);
  const pid_t service = doomed(mib, [&] {
    const auto* a = new ipc::Attachment(daemon.on_gpu(5));
    ipc::pulse_set_busy(*a->pulse(), 1, 0, 1, base::now_ns());
  });
  const ipc::Attachment heir = daemon.on_gpu(0);
  const auto hears = [&](ipc::PeerEvent::Kind kind) {
    pollfd socket{heir.socket.get(), POLLIN, 0};
    while (poll(&socket, 1, 5'000) == 1)
      if (ipc::next_event(heir).kind == kind) return;
    fail("a client that waits was told nothing");
  };
  hears(ipc::PeerEvent::Kind::kPeerPulse);
  want(heir);
  sleep_a_while();
  const uint64_t start_ns = base::now_ns();
  kill(service, SIGKILL);
  hears(ipc::PeerEvent::Kind::kPeerGone);
  const double us = double(base::now_ns() - start_ns) / 1e3;
  waitpid(service, nullptr, 0);
  return us;
}

// The holder closes its socket: what the daemon itself and the waiting client's wake-up take.
double leave_to_turn_us(const Daemon& daemon) {
  nobody_there(daemon);
  ipc::Attachment holder = daemon.on_gpu(0);
  never_drain(holder);
  return until_turn_us(daemon, [&] { holder.socket.reset(); });
}

void add_quantiles(bench::Report& report, const std::string& name, const std::vector<double>& us) {
  report.add(name + "_p50_us", bench::quantile(us, 0.5));
  report.add(name + "_p99_us", bench::quantile(us, 0.99));
  report.add(name + "_max_us", bench::quantile(us, 1.0));
}

// ---- programs under the preload library, on the null driver

struct Launches {  // shared with the program
  uint64_t last_ns;
};

// Launches every 0.2 ms for ever, and says when the latest one was.
int launch_for_ever(const char* memory) {
  auto* out = static_cast<Launches*>(
      mmap(nullptr, sizeof(Launches), PROT_READ | PROT_WRITE, MAP_SHARED, atoi(memory), 0));
  void* driver = dlopen(TS_SHIM, RTLD_NOW);
  if (out == MAP_FAILED || driver == nullptr) return 1;
  const auto init = reinterpret_cast<decltype(&cuInit)>(dlsym(driver, "cuInit"));
  const auto retain =
      reinterpret_cast<decltype(&cuDevicePrimaryCtxRetain)>(dlsym(driver, "cuDevicePrimaryCtxRetain"));
  const auto set = reinterpret_cast<decltype(&cuCtxSetCurrent)>(dlsym(driver, "cuCtxSetCurrent"));
  const auto launch = reinterpret_cast<decltype(&cuLaunchKernel)>(dlsym(driver, "cuLaunchKernel"));
  CUcontext context = nullptr;
  if (init(0) != CUDA_SUCCESS || retain(&context, 0) != CUDA_SUCCESS) return 1;
  set(context);
  const auto function = reinterpret_cast<CUfunction>(uintptr_t{0x5000});
  for (;;) {
    launch(function, 64, 1, 1, 128, 1, 1, 0, nullptr, nullptr, nullptr);
    ipc::store(out->last_ns, base::now_ns(), std::memory_order_release);
    usleep(200);
  }
}

class Program {
 public:
  explicit Program(const Daemon& daemon) : memory_(memfd_create("bench", 0)) {
    if (ftruncate(memory_, sizeof(Launches)) != 0) fail("ftruncate");
    launches_ = static_cast<Launches*>(
        mmap(nullptr, sizeof(Launches), PROT_READ | PROT_WRITE, MAP_SHARED, memory_, 0));
    pid_ = fork();
    if (pid_ != 0) return;
    setenv("TESSERA_DRIVER", TS_NULL_DRIVER, 1);
    setenv("TESSERA_SOCKET", daemon.socket().c_str(), 1);
    setenv("TESSERA_PRIORITY", "best-effort", 1);
    execl("/proc/self/exe", "bench_daemon", "--launch", std::to_string(memory_).c_str(), nullptr);
    _exit(127);
  }
  ~Program() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    munmap(launches_, sizeof(Launches));
    close(memory_);
  }
  uint64_t last_ns() const { return ipc::load(launches_->last_ns, std::memory_order_acquire); }
  bool held() const { return last_ns() != 0 && base::now_ns() - last_ns() > base::ms(30); }

 private:
  int memory_;
  Launches* launches_ = nullptr;
  pid_t pid_ = -1;
};

// One of two programs holds the turn, the other one's launch is held: what the daemon's death costs it, and
// when both are managed again once another daemon is there.
void loss_of_the_daemon(bench::Report& report) {
  Daemon daemon("[policy]\nname = \"temporal\"\nquantum_us = 10000000\nmax_hold_ms = 60000\n");
  const Program one(daemon), two(daemon);
  const auto one_is_held = [&] { return one.held() != two.held(); };
  std::vector<double> proceeds_ms, again_ms;
  until("a launch is held", one_is_held);
  for (int i = 0; i < 20; i++) {
    const Program& held = one.held() ? one : two;
    usleep(useconds_t(i) * 2'500);  // the library looks every 50 ms at first, then every 10
    const uint64_t killed_ns = base::now_ns();
    daemon.end(SIGKILL);
    until("the held launch proceeds", [&] { return held.last_ns() > killed_ns; });
    // The first launch that went through: it launches every 0.2 ms, which is how exact this is.
    proceeds_ms.push_back(double(held.last_ns() - killed_ns) / 1e6);
    usleep(100'000);
    const uint64_t started_ns = base::now_ns();
    daemon.start();
    until("a launch is held again", one_is_held);
    again_ms.push_back(double(base::now_ns() - started_ns) / 1e6 - 30);
  }
  report.add("daemon.loss_to_launch_p50_ms", bench::quantile(proceeds_ms, 0.5));
  report.add("daemon.loss_to_launch_max_ms", bench::quantile(proceeds_ms, 1.0));
  report.add("daemon.restart_to_managed_p50_ms", bench::quantile(again_ms, 0.5));
  report.add("daemon.restart_to_managed_max_ms", bench::quantile(again_ms, 1.0));
}

// A holder that neither drains nor dies; then `tessera reload` with eight clients.
void hang_and_reload(bench::Report& report) {
  const Daemon daemon("");
  std::vector<double> hung_ms, reload_us;
  for (int i = 0; i < 3; i++) {
    const ipc::Attachment holder = daemon.on_gpu(0), heir = daemon.on_gpu(0);
    never_drain(holder);
    const uint64_t start_ns = base::now_ns();
    want(heir);
    sleep_until_turn(heir);
    hung_ms.push_back(double(base::now_ns() - start_ns) / 1e6);
  }
  std::vector<ipc::Attachment> clients;
  for (int i = 0; i < 8; i++) clients.push_back(daemon.on_gpu(0));
  for (int i = 0; i < 100; i++) {
    abi::Control request{};
    request.action = abi::kControlReload;
    const uint64_t start_ns = base::now_ns();
    if (!ipc::control(ipc::control_socket_path(daemon.socket()), request).ok()) fail("no reload");
    reload_us.push_back(double(base::now_ns() - start_ns) / 1e3);
  }
  report.add("daemon.hung_holder_to_grant_ms", bench::quantile(hung_ms, 0.5));
  add_quantiles(report, "daemon.reload", reload_us);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--launch") return launch_for_ever(argv[2]);
  const std::string only = argc > 1 ? argv[1] : "";
  const auto wanted = [&](const char* part) { return only.empty() || only == part; };
  const Cpus cpus;
  const std::string quick = "[policy]\nname = \"temporal\"\nidle_grace_us = 100\n";
  bench::Report report;
  if (wanted("idle")) {
    const Daemon daemon(quick);
    report.add("daemon.idle_wakeups_per_s", daemon.wakeups_per_s(2));
    std::vector<ipc::Attachment> idle;
    for (int i = 0; i < 8; i++) idle.push_back(daemon.on_gpu(i == 0 ? 5 : 0));
    report.add("daemon.idle_clients_wakeups_per_s", daemon.wakeups_per_s(4));
  }
  if (wanted("ask")) {
    const Daemon daemon("spin_us = 1000\n" + quick, &cpus);
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
    const Daemon daemon(quick);
    std::vector<double> left, killed, large, busy;
    for (int i = 0; i < 200; i++) left.push_back(leave_to_turn_us(daemon));
    for (int i = 0; i < 200; i++) killed.push_back(death_to_turn_us(daemon, 1));
    for (int i = 0; i < 10; i++) large.push_back(death_to_turn_us(daemon, 1024));
    for (int i = 0; i < 10; i++) busy.push_back(busy_death_to_news_us(daemon, 1024));
    add_quantiles(report, "daemon.leave_to_grant", left);
    add_quantiles(report, "daemon.death_to_grant", killed);
    report.add("daemon.death_with_1_gib_to_grant_p50_us", bench::quantile(large, 0.5));
    report.add("daemon.death_with_1_gib_to_grant_max_us", bench::quantile(large, 1.0));
    report.add("daemon.busy_death_with_1_gib_to_news_p50_us", bench::quantile(busy, 0.5));
    report.add("daemon.busy_death_with_1_gib_to_news_max_us", bench::quantile(busy, 1.0));
  }
  if (wanted("failure")) {
    loss_of_the_daemon(report);
    hang_and_reload(report);
  }
  report.print();
  return 0;
}

// Hostile clients, of this user and of another, do what they can to one daemon, several at a time, while two
// honest neighbours take turns. Found: a daemon that ends, does not answer, grows, or does not end on
// SIGTERM; a neighbour that is not served or loses its connection.
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "tests/attack/attack.h"
#include "tests/support/daemon_process.h"
#include "tests/support/hostile.h"

namespace tessera::attack {
namespace {

using namespace test;  // NOLINT: the players

constexpr uid_t kNobody = 65534;
constexpr int kPatienceMs = 20'000;  // for a machine that does much else

struct Neighbours {
  std::vector<Worker> workers;
  bool connected = true;  // all the time

  explicit Neighbours(const std::string& socket) {
    const uint8_t gpu[16] = {1};
    for (int i = 0; i < 2; ++i) {
      auto a = ipc::attach(socket, {.name = "neighbour"}, kPatienceMs);
      if (!a.ok() || !ipc::announce_device(*a, gpu, 100, false).ok()) continue;
      workers.push_back({std::move(*a)});
    }
  }
  void step() {
    for (Worker& w : workers) {
      w.step();
      for (auto event = ipc::next_event(w.a); event.kind != ipc::PeerEvent::Kind::kNothing && connected;
           event = ipc::next_event(w.a))
        connected = event.kind != ipc::PeerEvent::Kind::kLost;  // pulses come and go
    }
  }
  // Each has one turn more.
  bool served() {
    std::vector<uint64_t> before;
    for (const Worker& w : workers) before.push_back(w.turns);
    return eventually(
        [&] {
          step();
          bool all = workers.size() == 2;
          for (size_t i = 0; i < workers.size(); ++i) all &= workers[i].turns > before[i];
          return all || !connected;
        },
        kPatienceMs);
  }
};

// Behaves until it is killed. What it finds is in its exit status and its words on standard output.
[[noreturn]] void behave(const Behaviour& what, const std::string& socket, uint64_t seed, pid_t parent,
                         bool other_user) {
  if (other_user && (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0)) ::_exit(0);
  die_with(parent);
  Hostile hostile;
  hostile.socket = socket;
  hostile.random.seed(uint32_t(seed));
  hostile.found = [&](const std::string& text) {
    std::printf("hostile client: %s: %s\n", what.name, text.c_str());
    std::fflush(stdout);
    hostile.end_child();
    ::_exit(3);
  };
  for (;;) {
    what.act(hostile);
    ::poll(nullptr, 0, 1);
  }
}

std::string with_names(const std::string& text, const std::vector<const Behaviour*>& what) {
  std::string out = text + " while";
  for (const Behaviour* b : what) out += std::string(" ") + b->name;
  return out;
}

// A few hostile clients at once, until the neighbours had a few turns beside them.
void one_round(Run& run, const std::string& socket, DaemonProcess& daemon, Neighbours& neighbours) {
  const auto all = behaviours();
  std::vector<const Behaviour*> chosen;
  std::vector<pid_t> children;
  const pid_t parent = ::getpid();
  for (size_t n = 1 + run.random()() % 3; n > 0; --n) {
    chosen.push_back(&all[run.random()() % all.size()]);
    const uint64_t seed = run.random()();
    const pid_t child = ::fork();
    if (child == 0) behave(*chosen.back(), socket, seed, parent, ::geteuid() == 0 && seed % 2 == 0);
    if (child > 0) children.push_back(child);
    run.ran();
  }
  for (int turn = 0; turn < 3; ++turn)
    if (!neighbours.served()) {
      run.found(with_names("neighbours are not served", chosen));
      break;
    }
  for (pid_t child : children) {
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
      run.found(with_names("a promise to a client is broken", chosen));
  }
  if (daemon.exited()) run.found(with_names("the daemon ended: " + daemon.errors(), chosen));
  if (!neighbours.connected) run.found(with_names("a neighbour lost the daemon", chosen));
}

// Its honest neighbours alone are left.
bool quiet(const std::string& socket, Neighbours& neighbours) {
  return eventually(
      [&] {
        neighbours.step();
        auto text = ipc::query(socket, 0, kPatienceMs);
        return text.ok() && text->find("\"hostile\"") == std::string::npos;
      },
      kPatienceMs);
}

void attack_one_daemon(Run& run) {
  Folder folder;
  const std::string socket = folder.path("d.sock");
  std::ofstream(folder.path("d.toml")) << "[daemon]\nsocket_mode = \"0666\"\n"
                                          "[policy]\nquantum_us = 1000\nmax_hold_ms = 10\ndrain_timeout_ms = "
                                          "10\nlease_ms = 50\nidle_grace_us = 500\n"
                                          "min_share_percent = 20\n";
  DaemonProcess daemon(socket, {"--config", folder.path("d.toml"), "--log-level", "error"});
  if (!daemon.listens()) return run.found("the daemon does not start: " + daemon.errors());
  Neighbours neighbours(socket);
  size_t descriptors = 0;
  uint64_t kib = 0;
  for (int round = 0; round < 20 && run.goes_on() && neighbours.connected; ++round) {
    one_round(run, socket, daemon, neighbours);
    if (!quiet(socket, neighbours)) run.found("the daemon does not forget its hostile clients");
    if (round != 5) continue;  // what is allocated once has been
    descriptors = open_descriptors(daemon.pid());
    kib = resident_kib(daemon.pid());
  }
  if (descriptors != 0 && !eventually([&] { return open_descriptors(daemon.pid()) <= descriptors + 2; }))
    run.found("the daemon keeps descriptors");
  if (kib != 0 && resident_kib(daemon.pid()) > kib + 4096)
    run.found("the daemon grew from " + std::to_string(kib) + " to " +
              std::to_string(resident_kib(daemon.pid())) + " KiB");
  daemon.signal(SIGTERM);
  if (daemon.wait() != 0) run.found("SIGTERM does not end the daemon: " + daemon.errors());
}

}  // namespace
}  // namespace tessera::attack

int main(int argc, char** argv) {
  tessera::attack::Run run("hostile_clients", argc, argv);
  if (::geteuid() != 0) std::printf("attack_hostile_clients: none of another user, that needs root\n");
  while (run.goes_on()) tessera::attack::attack_one_daemon(run);
  return run.finish();
}

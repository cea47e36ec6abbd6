// How fast a held launch starts once another process grants the lease, against what the machine can do.
//   awake   the launch still spins when the grant comes (watch_spin_us); the granting process spins too
//   asleep  the launch sleeps in its futex wait; compared with a bare futex wake of the same run, one way each
// The granting process stands for the daemon: it writes the lease with the daemon's code (ipc/channel/lease.h).
#include <dlfcn.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "base/futex.h"
#include "base/machine.h"
#include "interpose/gate/ask.h"
#include "interpose/gate/pulse.h"
#include "interpose/hooks/hooks.h"
#include "interpose/lifecycle/lifecycle.h"
#include "interpose/state/clock.h"
#include "ipc/channel/lease.h"
#include "tests/bench/timing.h"

namespace {

using namespace tessera;
namespace abi = ipc::abi;

struct Shared {
  abi::LeaseLine lease;
  abi::UsageLine usage;
  abi::PulsePage pulse;
  alignas(64) uint32_t round;       // client: starts round n
  alignas(64) uint32_t word;        // bare futex
  alignas(64) uint32_t asleep;      // client: about to wait in the bare futex
  alignas(64) uint64_t granted_ns;  // waker: just before the grant
  uint32_t stop, awake;
};

abi::RecordRing g_no_ring;

void grant(Shared& s, uint32_t& word, uint32_t state, uint32_t spin_us) {
  ipc::LeaseTerms terms;
  terms.state = state;
  terms.window_ns = 1'000'000'000;
  terms.marker_spacing_ns = 1'000'000'000;
  terms.expires_ns = base::now_ns() + 10'000'000'000;
  terms.max_hold_ms = 1'000;
  terms.watch_spin_us = spin_us;
  ipc::lease_publish(s.lease, word, terms);
}

template <class T>
T get(const T& word) {
  return ipc::load(word, std::memory_order_seq_cst);
}
template <class T>
void put(T& word, T value) {
  ipc::store(word, value, std::memory_order_seq_cst);
}

// The two processes on two CPUs: a wake on one CPU is a context switch, another thing.
void pin(int nth) {
  cpu_set_t allowed, one;
  CPU_ZERO(&one);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &allowed) || nth-- > 0) continue;
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

void waker(Shared& s) {
  pin(1);
  uint32_t word = s.lease.word, seen = 0;
  for (;;) {
    while (get(s.round) == seen && !get(s.stop)) base::cpu_relax();
    if (get(s.stop)) _exit(0);
    seen = get(s.round);
    const bool awake = get(s.awake) != 0;
    if (get(s.asleep) == 2) {  // bare futex round
      usleep(300);
      put(s.granted_ns, base::now_ns());
      put(s.word, seen);
      base::futex_wake_all(&s.word);
      continue;
    }
    while (ipc::load(s.usage.waiting, std::memory_order_acquire) == 0) base::cpu_relax();
    if (!awake) usleep(300);  // by now it sleeps
    put(s.granted_ns, base::now_ns());
    grant(s, word, abi::kLeaseGranted, 0);
    while (ipc::load(s.usage.waiting, std::memory_order_acquire) != 0) base::cpu_relax();
    grant(s, word, abi::kLeaseHold, awake ? 1'000 : 0);
    put(s.round, seen + 1);
    seen++;
  }
}

}  // namespace

int main() {
  void* handle = dlopen(TS_NULL_DRIVER, RTLD_NOW);
  if (!handle) {
    fprintf(stderr, "bench_lease: %s\n", dlerror());
    return 1;
  }
  auto* slots = reinterpret_cast<void**>(&driver_api::mutable_real_for_tests());
  for (uint16_t i = 0; i < driver_api::kEntryCount; i++)
    if (void* at = dlsym(handle, driver_api::kEntryInfo[i].symbol)) slots[i] = at;
  auto* s = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  uint32_t word = 0;
  grant(*s, word, abi::kLeaseHold, 1'000);
  const pid_t child = fork();
  if (child == 0) waker(*s);

  pin(0);
  setenv("TESSERA_PRIORITY", "0", 1);
  lifecycle::first_call(true, false);
  driver_api::real().cuInit(0);
  CUcontext context = nullptr;
  driver_api::real().cuDevicePrimaryCtxRetain(&context, 0);
  hook_cuCtxSetCurrent(context);
  static state::DaemonLink link;
  link = {&s->lease, &s->usage, &g_no_ring, 0, &s->pulse, 0, 0};
  gate::g_slow.notify_daemon = []() noexcept {};  // the peer watches the usage line
  state::set_link(&link);
  state::g_state.role.store(state::Role::kBestEffort);

  const auto f = reinterpret_cast<CUfunction>(uintptr_t{0x5000});
  const auto launch = [&] { hook_cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr); };
  const auto rounds = [&](bool awake, int n) {
    std::vector<double> total, wake;
    for (int i = 0; i < n; i++) {
      put(s->awake, awake ? 1u : 0u);
      const uint32_t round = get(s->round) + 1;
      put(s->round, round);
      const uint64_t start = base::now_ns();
      launch();
      const uint64_t end = base::now_ns();
      total.push_back(double(end - start));
      wake.push_back(double(end - get(s->granted_ns)));
      hook_cuCtxSynchronize();
      while (get(s->round) == round) base::cpu_relax();
    }
    return std::pair(total, wake);
  };
  const auto bare_round = [&] {
    put(s->asleep, 2u);
    const uint32_t before = get(s->word), round = get(s->round) + 1;
    put(s->round, round);
    while (get(s->word) == before) base::futex_wait(&s->word, before, 1'000'000'000);
    const double ns = double(base::now_ns() - get(s->granted_ns));
    put(s->asleep, 0u);
    return ns;
  };
  rounds(true, 200);
  const auto awake = rounds(true, 4'000);
  std::vector<double> asleep, floor;
  rounds(false, 20);
  for (int i = 0; i < 1'500; i++) {  // in turn, so that both see the same machine
    asleep.push_back(rounds(false, 1).second[0]);
    floor.push_back(bare_round());
  }
  put(s->stop, 1u);
  waitpid(child, nullptr, 0);

  using bench::quantile;
  bench::Report report;
  report.add("lease.awake_round_trip_p50_us", quantile(awake.first, 0.5) / 1e3);
  report.add("lease.awake_round_trip_p99_us", quantile(awake.first, 0.99) / 1e3);
  report.add("lease.asleep_wake_p50_us", quantile(asleep, 0.5) / 1e3);
  report.add("lease.futex_floor_p50_us", quantile(floor, 0.5) / 1e3);
  report.add("lease.asleep_over_futex_floor", quantile(asleep, 0.5) / quantile(floor, 0.5));
  report.print();
  return 0;
}

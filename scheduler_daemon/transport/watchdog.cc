#include "scheduler_daemon/transport/watchdog.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "base/errno_guard.h"

namespace tessera::transport {
namespace {

// A client runs unmanaged after a second without a beat; half of that is enough for anything that the daemon
// does.
constexpr long kLookNs = 250'000'000;
constexpr uint64_t kLooksUntilAnInterruptionCounts = 2;
constexpr uint64_t kLooksUntilItObeys = 8;  // 2 s after SIGTERM or SIGINT came
constexpr uint64_t kLooksUntilItEnds = 60;  // 15 s: longer than ending MPS takes

// Written by the one thread, in and out of its signal handler.
struct State {
  timer_t timer{};
  std::atomic<bool> resting{true}, armed{false};
  std::atomic<uint64_t> stretch{0};                 // counts works()
  std::atomic<uint64_t> seen_stretch{0}, looks{0};  // of the same stretch
  std::atomic<uint64_t> interruptions{0};
};
State g_state;
constexpr auto kRelaxed = std::memory_order_relaxed;  // one thread

void set_timer(long every_ns) {
  itimerspec when{};
  when.it_value.tv_nsec = when.it_interval.tv_nsec = every_ns;
  ::timer_settime(g_state.timer, 0, &when, nullptr);
  g_state.armed.store(every_ns != 0, kRelaxed);
}

bool told_to_end() {
  sigset_t pending;
  return ::sigpending(&pending) == 0 &&
         (::sigismember(&pending, SIGTERM) == 1 || ::sigismember(&pending, SIGINT) == 1);
}

[[noreturn]] void end(const char* why) {
  pollfd room{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&room, 1, 0) == 1) (void)!::write(STDERR_FILENO, why, std::strlen(why));
  ::_exit(1);
}

// Whatever system call this interrupts returns. A process that was stopped for long is looked at once.
void check_progress(int) {
  const base::ErrnoGuard keep_errno;
  State& s = g_state;
  if (s.resting.load(kRelaxed)) {
    s.looks.store(0, kRelaxed);
    return set_timer(0);
  }
  const uint64_t stretch = s.stretch.load(kRelaxed);
  if (stretch != s.seen_stretch.load(kRelaxed)) {
    s.seen_stretch.store(stretch, kRelaxed);
    s.looks.store(0, kRelaxed);
    return;
  }
  const uint64_t looks = s.looks.load(kRelaxed) + 1;
  s.looks.store(looks, kRelaxed);
  if (looks == kLooksUntilAnInterruptionCounts) s.interruptions.fetch_add(1, kRelaxed);
  if (looks >= kLooksUntilItEnds) end("tesserad: hangs, and ends itself\n");
  if (looks >= kLooksUntilItObeys && told_to_end()) end("tesserad: hangs, and ends as it was told to\n");
}

}  // namespace

Watchdog::Watchdog() {
  struct sigaction action {};
  action.sa_handler = check_progress;  // without SA_RESTART
  ::sigaction(SIGALRM, &action, nullptr);
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGALRM;
  if (::timer_create(CLOCK_MONOTONIC, &event, &g_state.timer) != 0) g_state.timer = {};
  works();
}

Watchdog::~Watchdog() {
  rests();
  ::timer_delete(g_state.timer);
  ::signal(SIGALRM, SIG_IGN);
}

void Watchdog::works() {
  g_state.stretch.fetch_add(1, kRelaxed);
  g_state.resting.store(false, kRelaxed);
  // Off: the handler cannot come between.
  if (!g_state.armed.load(kRelaxed)) set_timer(kLookNs);
}

void Watchdog::rests() {
  g_state.resting.store(true, kRelaxed);
}

uint64_t Watchdog::interruptions() const {
  return g_state.interruptions.load(kRelaxed);
}

}  // namespace tessera::transport

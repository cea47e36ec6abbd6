// Shared futex on a word in memory that several processes map: the wait of a held launch, the wake of a
// grant. Raw syscalls (no cancellation point, errno untouched by the caller's contract: use under
// ErrnoGuard). Any thread. Source: futex(2); shared (not FUTEX_PRIVATE_FLAG) because the peers are different
// processes.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <ctime>

namespace tessera::base {

// Sleeps while *word == expected, at most timeout_ns (relative). Spurious returns are possible: look again.
inline void futex_wait(const uint32_t* word, uint32_t expected, uint64_t timeout_ns) {
  timespec t{time_t(timeout_ns / 1'000'000'000u), long(timeout_ns % 1'000'000'000u)};
  syscall(SYS_futex, word, FUTEX_WAIT, expected, &t, nullptr, 0);
}

// Wakes every sleeper on the word. Returns how many slept.
inline long futex_wake_all(const uint32_t* word) {
  return syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

// Lets another thread that is ready run on this CPU first. For loops that watch for longer than a few
// microseconds: who they wait for may need this very CPU.
inline void yield_cpu() {
  syscall(SYS_sched_yield);
}

}  // namespace tessera::base

// Watches the daemon's one thread. A system call that does not return is interrupted (EINTR), again and
// again; a thread that gets nowhere all the same ends the process, at once if it was told to end. Where
// SIGTERM is read by an event loop, nothing else would end a daemon that hangs: its clients would wait, and
// no other daemon could take its place.
//
// A timer's signal to this thread looks whether it has got on since the last look. While the thread sleeps in
// its event loop the timer is off, so that an idle daemon is not woken. One per process; all methods from the
// thread that made it; SIGALRM is its own and must be blocked in every other thread.
#pragma once

#include <cstdint>

namespace tessera::transport {

class Watchdog {
 public:
  Watchdog();
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void works();  // it got on; from here on it is expected to do so again soon
  void rests();  // it is about to wait for events, for as long as that takes
  // How often something that took long was interrupted.
  uint64_t interruptions() const;
};

}  // namespace tessera::transport

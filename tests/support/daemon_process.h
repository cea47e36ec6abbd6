// Starts and ends a real tesserad, plays clients of it, and waits for conditions without sleeping blindly.
// For tests and attacks; one thread.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "ipc/channel/client.h"
#include "tests/support/eventually.h"

namespace tessera::test {

// In a forked child: it is killed when its parent ends, also if that has ended already. Not across setuid and
// exec of privileged programs.
void die_with(pid_t parent);

class DaemonProcess {
 public:
  // `before_exec` is called in the child that becomes the daemon.
  explicit DaemonProcess(
      std::string socket, std::vector<std::string> arguments = {},
      const std::function<void()>& before_exec = [] {});
  ~DaemonProcess();  // SIGKILL if it still runs
  DaemonProcess(const DaemonProcess&) = delete;

  bool listens() const { return listens_; }
  pid_t pid() const { return pid_; }
  void signal(int number) const;
  int wait();                  // exit status as waitpid gives it; -1 after ten seconds
  bool exited();               // without waiting
  std::string errors() const;  // what it wrote to standard error

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  bool listens_ = false, reaped_ = false;
  std::string log_;
};

uint32_t lease_state(const ipc::Attachment& a);
size_t open_descriptors(pid_t pid);
uint64_t resident_kib(pid_t pid);  // 0 under AddressSanitizer

// A best-effort client that always wants the GPU, as the gate plays it: in flight while granted, drained when
// held.
struct Worker {
  ipc::Attachment a;
  uint64_t turns = 0;
  bool working = false;

  void step();
};

// The next event that is not kNothing.
ipc::PeerEvent await_event(const ipc::Attachment& a, int limit_ms = 10'000);

}  // namespace tessera::test

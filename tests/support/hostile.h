// Deeds of a hostile client against the daemon, each as a function that does it once: for tests and for tests/attack.
// Blocking; one thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/scoped_fd.h"
#include "ipc/channel/client.h"
#include "ipc/channel/packet.h"

namespace tessera::test {

base::ScopedFd raw_connection(const std::string& path);  // connected, nothing sent
// The daemon closed this connection. What it may have sent before is skipped.
bool is_closed(int fd);

struct Hostile {
  std::string socket;
  std::mt19937 random{1};
  std::function<void()> meanwhile = [] {};             // lets the others go on
  std::function<void(const std::string& what)> found;  // a promise that the daemon does not keep
  // The state that a behaviour left for its next time.
  std::vector<base::ScopedFd> fds;
  std::optional<ipc::Attachment> a;
  uint64_t head = 0;
  pid_t child = -1;

  ~Hostile() { end_child(); }
  void end_child();
  bool attach(uint32_t priority);
  // Greets without the library: what the daemon gave comes as it was sent.
  ipc::Packet welcome(int fd, uint32_t priority);
};

struct Behaviour {
  const char* name;
  void (*act)(Hostile&);
};
std::span<const Behaviour> behaviours();

}  // namespace tessera::test

// The services that the core asks of the transport. Tests play it.
#pragma once

#include <cstdint>
#include <string>

#include "ipc/channel/packet.h"
#include "scheduler_daemon/parker/protocol.h"

namespace tessera::core {

using Connection = uint64_t;  // given by the transport, never reused

enum class Severity { kInfo, kWarning };

// Called from within the core's methods; must not call back.
class Peers {
 public:
  virtual ~Peers() = default;
  // kFull: the peer does not read fast enough, nothing was sent; Core::writable is called when it has read.
  virtual ipc::Send send(Connection to, const void* message, size_t bytes, const int* fds,
                         unsigned n_fds) = 0;
  // Calls Core::notified when this eventfd is written. The core owns the descriptor until close(). Nobody may
  // read it: the client shares its file description, can take the count and make the read wait for ever.
  virtual void watch_wake(Connection of, int wake_fd) = 0;
  virtual void close(Connection connection) = 0;
  // Its program will run no more instruction, although its end is not reported yet. Asked only of clients
  // that others wait for, every few milliseconds. False: not known.
  virtual bool is_dying(Connection) { return false; }
  // Asks an engine by HTTP (engines.h), and does not wait: Core::engine_answered is called later, with that number.
  virtual void ask_engine(uint64_t /*request*/, const std::string& /*url*/, uint64_t /*within_ns*/) {}
  // Has the parker process make a call, and does not wait: Core::parker_answered is called later.
  virtual void ask_parker(const parker::Request&) {}
  // For people. Clients can cause these: whoever writes them down limits their rate.
  virtual void log(Severity, const std::string& /*line*/) {}
};

}  // namespace tessera::core

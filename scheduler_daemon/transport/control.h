// Carries what operators ask for on the control socket: changes of clients, a reload of the configuration. Whoever
// can connect may ask: the socket file's owner, group and mode are the permission (tesserad's control_mode
// and control_group). One thread, the server's. Requests are untrusted in form: checked field by field.
#pragma once

#include <functional>
#include <string>

#include "ipc/channel/packet.h"
#include "ipc/channel/server.h"
#include "scheduler_daemon/core/core.h"

namespace tessera::transport {

struct Reloaded {
  core::Settings settings;
  std::string needs_restart;  // keys that were changed and cannot be while the daemon runs
};
// Reads the configuration again; the error says what is wrong with it, and the old one stays.
using Reload = std::function<base::Result<Reloaded>()>;

class Control {
 public:
  Control(core::Core& core, Reload reload) : core_(core), reload_(std::move(reload)) {}

  // The line to answer with, or why not. `core.run()` must follow.
  base::Result<std::string> answer(const ipc::PeerIdentity& who, const ipc::Packet& packet, uint64_t now_ns);
  base::Result<std::string> reload(uint64_t now_ns);

 private:
  base::Result<std::string> set(const ipc::abi::Control& request);
  base::Result<std::string> park(const ipc::abi::Control& request, bool parked);
  base::Result<std::string> move(const ipc::abi::Control& request);
  base::Result<std::vector<uint32_t>> named(const ipc::abi::Control& request) const;

  core::Core& core_;
  Reload reload_;
};

}  // namespace tessera::transport

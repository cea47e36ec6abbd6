#include "scheduler_daemon/transport/control.h"

#include <spdlog/spdlog.h>

#include <cstring>

#include "base/printable.h"

namespace tessera::transport {

namespace abi = ipc::abi;
using base::Code;

base::Result<std::string> Control::answer(const ipc::PeerIdentity& who, const ipc::Packet& packet,
                                          uint64_t now_ns) {
  const auto* request = ipc::packet_as<abi::Control>(packet);
  if (packet.header().type != abi::kControl || request == nullptr)
    return base::error(Code::kInvalid, "this socket takes control requests only");
  if (!ipc::versions_agree(packet.header().version, packet.header().compat_version))
    return base::error(Code::kVersion,
                       "tessera and tesserad are of different versions: update the older one");
  base::Result<std::string> done = base::error(Code::kUnsupported, "unknown request: update tesserad");
  if (request->action == abi::kControlSet) done = set(*request);
  if (request->action == abi::kControlPark || request->action == abi::kControlUnpark)
    done = park(*request, request->action == abi::kControlPark);
  if (request->action == abi::kControlMove) done = move(*request);
  if (request->action == abi::kControlReload) done = reload(now_ns);
  spdlog::info("control by uid {} (pid {}): {}", who.uid, who.pid, done.ok() ? *done : done.error().text);
  return done;
}

// Several clients may have one name.
base::Result<std::vector<uint32_t>> Control::named(const abi::Control& request) const {
  const std::string name(request.name, ::strnlen(request.name, sizeof request.name));
  if (request.pid == 0 && name.empty())
    return base::error(Code::kInvalid, "name a client by process id or name");
  std::vector<uint32_t> ids = core_.find_clients(pid_t(request.pid), name);
  if (ids.empty())
    return base::error(Code::kNotFound, "no client " +
                                            (name.empty() ? "with process id " + std::to_string(request.pid)
                                                          : "named '" + base::printable(name) + "'") +
                                            ": `tessera ps` lists them");
  return ids;
}

base::Result<std::string> Control::park(const abi::Control& request, bool parked) {
  const auto ids = named(request);
  if (!ids.ok()) return ids.error();
  for (uint32_t id : *ids)
    if (base::Status asked = core_.park_client(id, parked); !asked.ok()) return asked.error();
  return std::to_string(ids->size()) + (ids->size() == 1 ? " client" : " clients") + " asked to " +
         (parked ? "leave" : "return");
}

base::Result<std::string> Control::move(const abi::Control& request) {
  const auto ids = named(request);
  if (!ids.ok()) return ids.error();
  core::Uuid gpu;
  std::memcpy(gpu.data(), request.gpu, sizeof request.gpu);
  if (ids->size() != 1) return base::error(Code::kInvalid, "several clients have that name");
  if (gpu == core::Uuid{}) return base::error(Code::kInvalid, "no GPU is named");
  if (base::Status asked = core_.park_client(ids->front(), true, gpu); !asked.ok()) return asked.error();
  return std::string("1 client asked to move");
}

base::Result<std::string> Control::set(const abi::Control& request) {
  constexpr uint32_t kKnown = abi::kSetsPriority | abi::kSetsWeight | abi::kSetsSlo | abi::kSetsPassthrough;
  if (request.fields == 0 || (request.fields & ~kKnown) != 0)
    return base::error(Code::kInvalid, "nothing to set, or something that this daemon does not know");
  core::ClientChange change;
  if (request.fields & abi::kSetsPriority) change.priority = request.priority;
  if (request.fields & abi::kSetsWeight) change.weight = request.weight;
  if (request.fields & abi::kSetsSlo) change.slo_ns = request.slo_ns;
  if (request.fields & abi::kSetsPassthrough) change.passthrough = request.passthrough != 0;
  const auto ids = named(request);
  if (!ids.ok()) return ids.error();
  size_t n_changed = 0;
  for (uint32_t id : *ids) {
    base::Status set = core_.set_client(id, change);
    if (!set.ok())
      return base::error(set.error().code, set.error().text + " (" + std::to_string(n_changed) + " of " +
                                               std::to_string(ids->size()) + " clients changed before)");
    ++n_changed;
  }
  return std::to_string(n_changed) + (n_changed == 1 ? " client changed" : " clients changed");
}

base::Result<std::string> Control::reload(uint64_t now_ns) {
  base::Result<Reloaded> reloaded = reload_();
  if (!reloaded.ok()) return reloaded.error();
  core_.reconfigure(reloaded->settings, now_ns);
  std::string done = "configuration reloaded";
  if (!reloaded->needs_restart.empty())
    done += "; these change when tesserad is started again: " + reloaded->needs_restart;
  return done;
}

}  // namespace tessera::transport

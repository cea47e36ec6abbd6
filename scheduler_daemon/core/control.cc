// Carries out what an operator changes while the daemon runs: one client's terms, or the configuration.
#include <algorithm>

#include "admission/limits.h"
#include "scheduler_daemon/core/core.h"

namespace tessera::core {

namespace abi = ipc::abi;
using base::Code;

std::vector<uint32_t> Core::find_clients(pid_t pid, const std::string& name) const {
  std::vector<uint32_t> ids;
  for (const auto& [connection, client] : common_.clients)
    if (!client->dying && (pid == 0 || client->identity.pid == pid) && (name.empty() || client->name == name))
      ids.push_back(client->id);
  return ids;
}

base::Result<Client*> Core::find_client(uint32_t id) const {
  const auto found = std::ranges::find_if(
      common_.clients, [&](const auto& row) { return row.second->id == id && !row.second->dying; });
  if (found == common_.clients.end())
    return base::error(Code::kNotFound, "no client " + std::to_string(id) + ": see `tessera ps`");
  return found->second.get();
}

base::Status Core::park_client(uint32_t client_id, bool parked, const Uuid& gpu) {
  const base::Result<Client*> client = find_client(client_id);
  if (!client.ok()) return client.error();
  return parking_.park(**client, parked, gpu);
}

base::Status Core::set_client(uint32_t client_id, const ClientChange& change) {
  const base::Result<Client*> found = find_client(client_id);
  if (!found.ok()) return found.error();
  Client& client = **found;
  if (change.weight && (*change.weight < 1 || *change.weight > admission::kMostWeight))
    return base::error(Code::kInvalid, "weight must be 1.." + std::to_string(admission::kMostWeight));
  if (change.priority && *change.priority > abi::kMaxPriority)
    return base::error(Code::kInvalid, "priority must be 0..7");
  if (change.slo_ns && !admission::is_slo(*change.slo_ns))
    return base::error(Code::kInvalid, "slo must be whole milliseconds, at most an hour");
  if (change.priority && *change.priority != client.priority) {
    base::Status changed = change_priority(client, *change.priority);
    if (!changed.ok()) return changed;
  }
  if (change.weight) client.weight = *change.weight;
  if (change.slo_ns) client.slo_ns = *change.slo_ns;
  if (change.passthrough) client.passthrough = *change.passthrough;
  if (client.gpus.empty()) apply(common_, client, {.grant = policy::Grant::kFree}, 0);
  pages_.share_on_gpus_of(client);
  common_.peers.log(Severity::kInfo, "client " + std::to_string(client.id) + " set: priority " +
                                         std::to_string(client.priority) + ", weight " +
                                         std::to_string(client.weight) + ", slo " +
                                         std::to_string(client.slo_ns) + " ns, passthrough " +
                                         (client.passthrough ? "on" : "off"));
  drop_unreachable();
  return base::ok();
}

// Between two protected levels the watchers are told. Across the border the client itself changes its ways:
// it gets a page of its own, or gives it up and watches those of others.
base::Status Core::change_priority(Client& client, uint32_t priority) {
  const bool crosses = client.is_protected() != (priority > 0);
  if (!crosses) {
    client.priority = priority;
    return base::ok();
  }
  if (priority > 0) {
    base::Status page = ipc::create_pulse(&client.memory, client.id, priority);
    if (!page.ok()) return page;
    client.watching.clear();  // it forgets them by itself
  } else {
    client.memory.pulse.reset();
    client.memory.pulse_fd.reset();
  }
  client.pulse_sealed = false;  // nobody may have its page until it says that it is mapped
  client.priority = priority;
  abi::SetPriority m{ipc::make_header(abi::kSetPriority, sizeof m), priority, 0};
  common_.tell(client.connection, m, client.memory.pulse_fd.get());
  return base::ok();
}

void Core::reconfigure(const Settings& settings, uint64_t now_ns) {
  Settings next = settings;
  next.version = common_.settings.version;
  next.socket_path = common_.settings.socket_path;
  next.epoch = common_.settings.epoch;
  next.learning = common_.settings.learning;
  next.user = common_.settings.user;
  const bool new_policy =
      next.policy_name != common_.settings.policy_name || !(next.parameters == common_.settings.parameters);
  common_.settings = std::move(next);
  parking_.configure();
  memory_.tell_limits();
  for (auto& [uuid, gpu] : gpus_.all()) {
    if (new_policy) gpu.replace_policy(now_ns);
    pages_.share(gpu);
  }
}

}  // namespace tessera::core

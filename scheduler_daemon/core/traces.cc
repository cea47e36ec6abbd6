#include "scheduler_daemon/core/traces.h"

#include <algorithm>
#include <cstring>

#include "ipc/channel/trace_ring.h"

namespace tessera::core {

namespace abi = ipc::abi;

namespace {
constexpr size_t kMaxTracers = 8;
}

bool Traces::is_full() const {
  return tracers_.size() >= kMaxTracers;
}

bool Traces::may_trace(const Tracer& tracer, const Client& client) const {
  if (tracer.pid != 0 && uint32_t(client.identity.pid) != tracer.pid) return false;
  const uid_t uid = tracer.identity.uid;
  return uid == 0 || uid == common_.settings.user || uid == client.identity.uid;
}

void Traces::begin(Connection connection, const ipc::PeerIdentity& identity, uint32_t pid) {
  const Tracer& tracer = tracers_[connection] = {identity, pid};
  for (auto& [of, client] : common_.clients)
    if (may_trace(tracer, *client)) trace_for(connection, *client);
}

static abi::Traced traced(const Client& client, bool gone) {
  abi::Traced m{};
  m.header = ipc::make_header(abi::kTraced, sizeof m);
  m.client_id = client.id;
  m.pid = uint32_t(client.identity.pid);
  m.priority = client.priority;
  m.gone = gone ? 1 : 0;
  if (!client.gpus.empty()) std::memcpy(m.uuid, client.gpus.front().uuid.data(), sizeof m.uuid);
  std::strncpy(m.name, client.name.c_str(), sizeof m.name - 1);
  return m;
}

void Traces::trace_for(Connection tracer, Client& client) {
  if (!client.trace.memory.valid()) {
    base::Result<ipc::TraceMemory> memory = ipc::create_trace_memory(client.id);
    if (!memory.ok()) {
      common_.peers.log(Severity::kWarning, who(client.identity) + " is not traced: " + memory.error().text);
      return;
    }
    client.trace = std::move(*memory);
    const abi::TraceMemory on{ipc::make_header(abi::kTraceMemory, sizeof on)};
    if (common_.send(client.connection, on, client.trace.fd.get()) != ipc::Send::kSent) {
      client.trace = {};  // it does not read just now, and shall not be lost for that
      return;
    }
    trace_lease(client, common_.now_ns);
  }
  const abi::Traced m = traced(client, false);
  common_.tell(tracer, m, client.trace.fd.get());
}

void Traces::add(Client& client) {
  for (const auto& [connection, tracer] : tracers_)
    if (may_trace(tracer, client)) trace_for(connection, client);
}

void Traces::tell(const Client& client, bool gone) {
  if (!client.trace.memory.valid()) return;
  const abi::Traced m = traced(client, gone);
  for (const auto& [connection, tracer] : tracers_)
    if (may_trace(tracer, client)) common_.tell(connection, m);
}

void Traces::end(Connection gone) {
  tracers_.erase(gone);
  const abi::TraceMemory off{ipc::make_header(abi::kTraceMemory, sizeof off)};
  for (auto& [connection, client] : common_.clients) {
    const bool wanted = std::any_of(tracers_.begin(), tracers_.end(),
                                    [&, &c = *client](const auto& row) { return may_trace(row.second, c); });
    if (!client->trace.memory.valid() || wanted) continue;
    client->trace = {};
    // One that does not hear it goes on writing where nobody reads.
    (void)common_.send(connection, off);
  }
}

void trace_lease(const Client& client, uint64_t now_ns) {
  abi::TraceEvent e{};
  e.kind = abi::kTraceLease;
  e.a = client.lease_word;
  e.at = {now_ns, now_ns, 0, client.terms.window_ns, client.terms.slice_ns};
  ipc::trace_write(client.trace.memory.as<abi::TraceHeader>(), e);
}

}  // namespace tessera::core

// Keeps who traces whom: the daemon makes the memory, hands it to the client and to who traces, and writes the leases into it.
// It never reads it.
#include <algorithm>
#include <cstring>

#include "ipc/channel/trace_ring.h"
#include "scheduler_daemon/core/core.h"

namespace tessera::core {

namespace abi = ipc::abi;
using base::Code;

namespace {
constexpr size_t kMaxTracers = 8;
}

bool Core::may_trace(const ipc::PeerIdentity& tracer, uint32_t pid, const Client& client) const {
  if (pid != 0 && uint32_t(client.identity.pid) != pid) return false;
  return tracer.uid == 0 || tracer.uid == common_.settings.user || tracer.uid == client.identity.uid;
}

void Core::on_trace(Connection connection, const ipc::Packet& packet) {
  const auto* trace = ipc::packet_as<abi::Trace>(packet);
  if (trace == nullptr) return malformed(connection);
  if (tracers_.size() >= kMaxTracers)
    return refuse(connection, Code::kExhausted,
                  "enough traces are being taken: wait until one of them has ended");
  const Tracer tracer{fresh_[connection].identity, trace->pid};
  ++common_.counters.queries;
  fresh_.erase(connection);
  tracers_[connection] = tracer;
  for (auto& [of, client] : common_.clients)
    if (may_trace(tracer.identity, tracer.pid, *client)) trace_for(connection, *client);
  drop_unreachable();
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

void Core::trace_for(Connection tracer, Client& client) {
  if (!client.trace.memory.valid()) {
    base::Result<ipc::TraceMemory> memory = ipc::create_trace_memory(client.id);
    if (!memory.ok()) {
      common_.peers.log(Severity::kWarning,
                        who(client.connection) + " is not traced: " + memory.error().text);
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

void Core::begin_traces(Client& client) {
  for (const auto& [connection, tracer] : tracers_)
    if (may_trace(tracer.identity, tracer.pid, client)) trace_for(connection, client);
}

// Tells what changed of a client that is traced: its GPU is known, or it is gone.
void Core::tell_tracers(const Client& client, bool gone) {
  if (!client.trace.memory.valid()) return;
  const abi::Traced m = traced(client, gone);
  for (const auto& [connection, tracer] : tracers_)
    if (may_trace(tracer.identity, tracer.pid, client)) common_.tell(connection, m);
}

void Core::end_trace_of(Connection gone) {
  tracers_.erase(gone);
  const abi::TraceMemory off{ipc::make_header(abi::kTraceMemory, sizeof off)};
  for (auto& [connection, client] : common_.clients) {
    const bool wanted = std::any_of(tracers_.begin(), tracers_.end(), [&, &c = *client](const auto& row) {
      return may_trace(row.second.identity, row.second.pid, c);
    });
    if (!client->trace.memory.valid() || wanted) continue;
    client->trace = {};
    // One that does not hear it goes on writing where nobody reads.
    (void)common_.send(connection, off);
  }
}

void Core::trace_lease(const Client& client, uint64_t now_ns) {
  abi::TraceEvent e{};
  e.kind = abi::kTraceLease;
  e.a = client.lease_word;
  e.at = {now_ns, now_ns, 0, client.terms.window_ns, client.terms.slice_ns};
  ipc::trace_write(client.trace.memory.as<abi::TraceHeader>(), e);
}

}  // namespace tessera::core

#include "scheduler_daemon/core/peer_pages.h"

#include <algorithm>
#include <set>

namespace tessera::core {

namespace abi = ipc::abi;

namespace {

// Does it watch the pulse of that client, which is on this GPU? Best-effort ones watch all that are shared, protected ones
// those that go first.
bool watches(const Client& watcher, const Client& owner, const Uuid& gpu) {
  if (&watcher == &owner || !owner.on(gpu).watched) return false;
  if (!watcher.is_protected()) return true;
  return owner.priority > watcher.priority ||
         (owner.priority == watcher.priority && owner.slo_ns != 0 && watcher.slo_ns != 0);
}

}  // namespace

void PeerPages::share(Gpu& gpu) {
  gpu.assign_places();
  for (Client* client : gpu.clients()) bring_up_to_date(*client);
  // Members of its gangs on other GPUs watch its protected clients, too.
  std::set<const Gang*> gangs;
  for (const Client* client : gpu.clients())
    if (client->gang != nullptr) gangs.insert(client->gang);
  for (const Gang* gang : gangs) share_in_gang(*gang);
  gpu.decide_soon();
}

void PeerPages::share_on_gpus_of(const Client& client) {
  for (Gpu* gpu : gpus_.of(client)) share(*gpu);
}

void PeerPages::share_in_gang(const Gang& gang) {
  for (Client* member : gang.members) {
    bring_up_to_date(*member);
    for (Gpu* gpu : gpus_.of(*member)) gpu->decide_soon();
  }
}

void PeerPages::bring_up_to_date(Client& watcher) {
  const ipc::Send pulses = tell_pulses(watcher);
  switch (pulses == ipc::Send::kSent ? tell_gates(watcher) : pulses) {
    case ipc::Send::kSent:
      watcher.behind_since_ns = 0;
      break;
    case ipc::Send::kFull:
      if (watcher.behind_since_ns == 0) watcher.behind_since_ns = common_.now_ns;
      break;
    case ipc::Send::kClosed:
      common_.unreachable.push_back(watcher.connection);
      break;
  }
}

ipc::Send PeerPages::tell_pulses(Client& watcher) {
  using ipc::Send;
  std::vector<const Client*> owners;
  for (const Gpu* gpu : gangs_.may_watch_on(watcher))
    for (const Client* owner : gpu->clients())
      if (watches(watcher, *owner, gpu->uuid()) && std::ranges::find(owners, owner) == owners.end())
        owners.push_back(owner);
  if (owners.size() > abi::kMaxWatchedPulses) owners.resize(abi::kMaxWatchedPulses);
  for (auto it = watcher.watching.begin(); it != watcher.watching.end();) {
    const bool kept = std::any_of(owners.begin(), owners.end(),
                                  [&](const Client* owner) { return owner->id == it->first; });
    if (kept) {
      ++it;
      continue;
    }
    abi::PeerGone m{ipc::make_header(abi::kPeerGone, sizeof m), it->first, 0};
    const Send sent = common_.send(watcher.connection, m);
    if (sent != Send::kSent) return sent;
    it = watcher.watching.erase(it);
  }
  for (const Client* owner : owners) {
    const Client::Watching now{owner->priority, owner->slo_ns};
    const auto told = watcher.watching.find(owner->id);
    if (told != watcher.watching.end() && told->second == now) continue;
    abi::PeerPulse m{ipc::make_header(abi::kPeerPulse, sizeof m), owner->id, owner->priority, owner->slo_ns};
    const Send sent = common_.send(watcher.connection, m, owner->memory.pulse_fd.get());
    if (sent != Send::kSent) return sent;
    watcher.watching[owner->id] = now;
  }
  return Send::kSent;
}

ipc::Send PeerPages::tell_gates(Client& client) {
  using ipc::Send;
  const std::vector<Gpu*> gpus = gpus_.of(client);
  if (client.gate_page() != nullptr && !client.gate_told) {
    const abi::GateMemory m{ipc::make_header(abi::kGateMemory, sizeof m)};
    const Send sent = common_.send(client.connection, m, client.gate.fd.get());
    if (sent != Send::kSent) return sent;
    client.gate_told = true;
  }
  for (auto it = client.closing.begin(); it != client.closing.end();) {
    const bool kept = std::ranges::any_of(gpus, [&](const Gpu* gpu) {
      return client.on(gpu->uuid()).gate_byte == it->second &&
             std::ranges::any_of(gpu->clients(), [&](const Client* c) {
               return c->id == it->first && c->gate_page() != nullptr;
             });
    });
    if (kept) {
      ++it;
      continue;
    }
    const abi::PeerGone m{ipc::make_header(abi::kPeerGone, sizeof m), it->first, 0};
    const Send sent = common_.send(client.connection, m);
    if (sent != Send::kSent) return sent;
    it = client.closing.erase(it);
  }
  for (const Gpu* gpu : gpus) {
    const uint32_t byte = client.on(gpu->uuid()).gate_byte;
    if (byte == 0) continue;
    for (const Client* owner : gpu->clients()) {
      if (owner->gate_page() == nullptr || !owner->gate_ready || client.closing.contains(owner->id)) continue;
      const abi::PeerGate m{ipc::make_header(abi::kPeerGate, sizeof m), owner->id, byte};
      const Send sent = common_.send(client.connection, m, owner->gate.fd.get());
      if (sent != Send::kSent) return sent;
      client.closing[owner->id] = byte;
    }
  }
  return Send::kSent;
}

}  // namespace tessera::core

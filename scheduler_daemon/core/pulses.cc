// Pulse pages: sealing them, and telling the clients of a GPU whose pages they are to watch.
#include <algorithm>

#include "scheduler_daemon/core/core.h"

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

bool Core::on_pulse_mapped(Client& client) {
  if (!client.is_protected() || client.pulse_sealed) return false;
  if (!ipc::seal_pulse(client.memory).ok()) return false;
  client.pulse_sealed = true;
  for (Gpu* gpu : gpus_of(client)) share_pulses(*gpu);
  return true;
}

// The first that came, as many as every best-effort client has places for: a policy asks only whether all of them watch.
void Core::share_pulses(Gpu& gpu) {
  uint32_t places = abi::kMaxWatchedPulses;
  for (Client* owner : gpu.clients) {
    OnGpu& on = owner->on(gpu.uuid);
    on.watched = owner->pulse_sealed && !owner->passthrough && places != 0;
    places -= on.watched;
  }
  assign_gates(gpu);
  for (Client* watcher : gpu.clients) bring_up_to_date(*watcher);
  note_gangs_of(gpu);
  gpu.dirty = true;
}

// A client that reads slowly is told the rest when it has read, and then what is so by that time: however
// fast others come and go, the daemon keeps nothing for it but the moment since when it is behind.
void Core::bring_up_to_date(Client& watcher) {
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

ipc::Send Core::tell_pulses(Client& watcher) {
  using ipc::Send;
  std::vector<const Client*> owners;
  for (const Gpu* gpu : may_watch_on(watcher))
    for (const Client* owner : gpu->clients)
      if (watches(watcher, *owner, gpu->uuid) && std::ranges::find(owners, owner) == owners.end())
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

void Core::has_room(Connection connection) {
  const auto found = common_.clients.find(connection);
  if (found == common_.clients.end() || found->second->behind_since_ns == 0) return;
  bring_up_to_date(*found->second);
  for (Gpu* gpu : gpus_of(*found->second)) gpu->dirty = true;
  drop_unreachable();
}

}  // namespace tessera::core

// A client that others wait for and that is dying: it leaves its GPU at once, its connection when its process
// has ended. It can start nothing more; what it had in flight, its window at most, may meet the next one's
// first work.
#include <algorithm>

#include "base/units.h"
#include "scheduler_daemon/core/core.h"

namespace tessera::core {
namespace {

// With the 2 ms after which a launch that waits for a pulse tells the daemon, a death costs less than 10 ms.
constexpr uint64_t kLookNs = base::ms(3);
constexpr uint64_t kEarlyNs = base::ms(1);  // rather in a wake-up that happens anyway
constexpr int kMostLooksPerWake = 64;       // each reads a file of /proc

// May others be waiting for what this client has?
bool in_the_way(const Client& client, bool exclusive, uint64_t now_ns) {
  if (client.passthrough) return false;
  if (client.is_protected()) return client.busy(now_ns);
  return exclusive && (client.terms.state != ipc::abi::kLeaseHold || !client.drained(now_ns));
}

}  // namespace

// While nobody waits for another there is nothing to look at, and nothing wakes the daemon.
void Core::plan_death_look(Gpu& gpu, uint64_t now_ns) const {
  const auto n_waiting =
      std::count_if(gpu.clients.begin(), gpu.clients.end(), [](const Client* c) { return c->waiting(); });
  const bool exclusive = n_waiting != 0 && !overlapping(gpu);
  const bool wanted =
      n_waiting != 0 && std::any_of(gpu.clients.begin(), gpu.clients.end(), [&](const Client* c) {
        return n_waiting > (c->waiting() ? 1 : 0) && in_the_way(*c, exclusive, now_ns);
      });
  if (!wanted)
    gpu.death_look_ns = 0;
  else if (gpu.death_look_ns == 0)
    gpu.death_look_ns = now_ns + kLookNs;
}

void Core::take_off_dying(uint64_t now_ns) {
  std::vector<Connection> dying;
  int looks = 0;
  for (auto& [uuid, gpu] : gpus_) {
    if (gpu.death_look_ns == 0 || now_ns + kEarlyNs < gpu.death_look_ns) continue;
    gpu.death_look_ns = 0;
    const bool exclusive = !overlapping(gpu);
    for (const Client* client : gpu.clients)
      if (in_the_way(*client, exclusive, now_ns) && looks++ < kMostLooksPerWake &&
          common_.peers.is_dying(client->connection))
        dying.push_back(client->connection);
  }
  for (Connection connection : dying) {
    Client& client = *common_.clients.at(connection);
    if (client.dying) continue;  // it is on several GPUs
    ++common_.counters.early_deaths;
    if (!client.is_protected()) apply(client, {.grant = policy::Grant::kHold}, now_ns);
    leave_gpu(client);
    client.dying = true;
    common_.peers.log(Severity::kInfo, "client " + std::to_string(client.id) + " is dying: its GPU is free");
  }
  drop_unreachable();
}

}  // namespace tessera::core

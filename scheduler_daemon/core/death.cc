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
bool delays_others(const Client& client, bool exclusive, uint64_t now_ns) {
  if (client.passthrough) return false;
  if (client.is_protected()) return client.busy(now_ns);
  return exclusive && (client.terms.state != ipc::abi::kLeaseHold || !client.drained(now_ns));
}

}  // namespace

// While nobody waits for another there is nothing to look at, and nothing wakes the daemon.
void Gpu::plan_death_look(uint64_t now_ns) {
  const auto n_waiting =
      std::count_if(clients_.begin(), clients_.end(), [](const Client* c) { return c->waiting(); });
  const bool exclusive = n_waiting != 0 && !overlapping();
  const bool wanted = n_waiting != 0 && std::any_of(clients_.begin(), clients_.end(), [&](const Client* c) {
                        return n_waiting > (c->waiting() ? 1 : 0) && delays_others(*c, exclusive, now_ns);
                      });
  if (!wanted)
    death_look_ns_ = 0;
  else if (death_look_ns_ == 0)
    death_look_ns_ = now_ns + kLookNs;
}

void Gpu::find_dying(uint64_t now_ns, int* looks, std::vector<Connection>* dying) {
  if (death_look_ns_ == 0 || now_ns + kEarlyNs < death_look_ns_) return;
  death_look_ns_ = 0;
  const bool exclusive = !overlapping();
  for (const Client* client : clients_)
    if (delays_others(*client, exclusive, now_ns) && (*looks)++ < kMostLooksPerWake &&
        common_.peers.is_dying(client->connection))
      dying->push_back(client->connection);
}

void Core::take_off_dying(uint64_t now_ns) {
  std::vector<Connection> dying;
  int looks = 0;
  for (auto& [uuid, gpu] : gpus_.all()) gpu.find_dying(now_ns, &looks, &dying);
  for (Connection connection : dying) {
    Client& client = *common_.clients.at(connection);
    if (client.dying) continue;  // it is on several GPUs
    ++common_.counters.early_deaths;
    if (!client.is_protected()) apply(common_, client, {.grant = policy::Grant::kHold}, now_ns);
    leave_gpu(client);
    client.dying = true;
    common_.peers.log(Severity::kInfo, "client " + std::to_string(client.id) + " is dying: its GPU is free");
  }
  drop_unreachable();
}

}  // namespace tessera::core

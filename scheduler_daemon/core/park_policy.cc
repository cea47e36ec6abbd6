// Parks programs that nobody asked to be parked (`[park]`): somebody needs room, and an idle program that may be parked has it.
// Who cannot be parked says why, as for `tessera park`, and is left alone for a while.
#include <algorithm>

#include "base/units.h"
#include "scheduler_daemon/core/park.h"
#include "scheduler_daemon/core/parking.h"

namespace tessera::core {
namespace {

namespace abi = ipc::abi;
constexpr uint64_t kLookForWorkNs = base::ms(500);    // at who works
constexpr uint64_t kAnswerWithinNs = base::ms(1000);  // an order, by a helper thread that runs

bool is_at_work(const Client& client, uint64_t now_ns) {
  if (client.is_protected()) return client.busy(now_ns);
  const policy::InFlight f = client.in_flight();
  return client.waiting() || (f.measured && f.any);
}

void note_work(Client& client, uint64_t now_ns) {
  const abi::UsageLine& u = client.usage_untrusted();
  const uint64_t work =
      ipc::load(u.launches, std::memory_order_relaxed) + ipc::load(u.completed_ns, std::memory_order_relaxed);
  if (work == client.work_seen && park_state(client) == abi::kParkRuns && !is_at_work(client, now_ns)) return;
  client.work_seen = work;
  client.worked_ns = now_ns;
}

}  // namespace

// The longest wait first.
std::vector<MemoryNeed> Parking::memory_needs() const {
  std::vector<MemoryNeed> needs;
  for (const auto& [connection, client] : common_.clients) {
    const uint32_t state = park_state(*client);
    if (state == abi::kParkWaits && is_away(*client)) {
      needs.push_back({client.get(), true,
                       ipc::load(client->park_untrusted().report.since_ns, std::memory_order_relaxed)});
    } else if (state == abi::kParkRuns) {
      const uint64_t since_ns =
          ipc::load(client->memory_untrusted().totals.waits_since_ns, std::memory_order_relaxed);
      if (since_ns != 0) needs.push_back({client.get(), false, since_ns});
    }
    if (const Engine* engine = engines_.of(*client);
        engine != nullptr && engine->task == Engine::Task::kWaitForMemory)
      needs.push_back({client.get(), false, engine->since_ns, true});
  }
  std::ranges::stable_sort(needs, {}, &MemoryNeed::since_ns);
  return needs;
}

// Its order to leave is under way: what it has counts as free already.
bool Parking::is_leaving(const Client& client, uint64_t now_ns) const {
  return engines_.falls_asleep(client) || park_state(client) == abi::kParkParking ||
         (client.park_asked_ns != 0 && now_ns < client.park_asked_ns + kAnswerWithinNs &&
          ipc::load(client.park_untrusted().report.answered, std::memory_order_relaxed) !=
              client.park_orders);
}

// For one that needs room: of those of its level or below that were idle for long enough, the lowest level first, then who
// was idle for longest. All that are needed, or nobody. `before`: needed room earlier, and is not taken away from.
std::vector<Client*> Parking::whom_to_park(const MemoryNeed& need, std::map<Uuid, uint64_t> taken,
                                           const std::set<const Client*>& before, uint64_t now_ns) const {
  std::vector<Client*> idle, chosen;
  const uint64_t idle_ns = common_.settings.park_idle_ns + kToldLateNs;
  for (const auto& [connection, client] : common_.clients)
    if (client.get() != need.client && !before.contains(client.get()) && !client->dying &&
        park_state(*client) == abi::kParkRuns && !is_leaving(*client, now_ns) &&
        !engines_.is_waking(*client) && client->priority <= need.client->priority &&
        now_ns >= std::max(client->worked_ns, client->park_asked_ns) + idle_ns)
      idle.push_back(client.get());
  std::ranges::stable_sort(idle, [](const Client* a, const Client* b) {
    return std::pair(a->priority, a->worked_ns) < std::pair(b->priority, b->worked_ns);
  });
  const auto short_of = [&](const Uuid& wanted) {
    uint64_t bytes = 0;
    for_each_device(*need.client, [&](const abi::MemoryDevice& row, const Uuid& d) {
      if (d == wanted) bytes = missing_bytes(row, taken[d], need.bytes(row));
    });
    return bytes;
  };
  for (Client* client : idle) {
    bool helps = false;
    for_each_device(*client, [&](const abi::MemoryDevice& row, const Uuid& d) {
      helps = helps || (bytes_of(row.used_bytes) != 0 && short_of(d) != 0);
    });
    if (!helps) continue;
    chosen.push_back(client);
    for_each_device(*client, [&](const abi::MemoryDevice& row, const Uuid& d) {
      taken[d] -= std::min(taken[d], bytes_of(row.used_bytes));
    });
  }
  const auto suffices = [&] {
    bool all = true;
    for_each_device(*need.client,
                    [&](const abi::MemoryDevice&, const Uuid& d) { all = all && short_of(d) == 0; });
    return all;
  };
  if (!suffices()) return {};
  // Later ones may have so much that an earlier one need not leave: each transfer keeps the other one waiting.
  for (size_t i = chosen.size(); i-- > 0;) {
    const std::map<Uuid, uint64_t> without = taken;
    for_each_device(*chosen[i], [&](const abi::MemoryDevice& row, const Uuid& d) {
      taken[d] += bytes_of(row.used_bytes);
    });
    if (suffices())
      chosen.erase(chosen.begin() + ptrdiff_t(i));
    else
      taken = without;
  }
  return chosen;
}

uint64_t Parking::park_idle(uint64_t now_ns) {
  if (common_.settings.park_idle_ns == 0 || common_.clients.empty()) return 0;
  std::map<Uuid, uint64_t> taken;
  for (const auto& [connection, client] : common_.clients) {
    note_work(*client, now_ns);
    if (!is_away(*client) && !is_leaving(*client, now_ns))
      for_each_device(*client, [&](const abi::MemoryDevice& row, const Uuid& d) {
        taken[d] += bytes_of(row.used_bytes);
      });
  }
  std::set<const Client*> before;
  for (const MemoryNeed& need : memory_needs()) {
    if (need.client->priority >= common_.settings.park_for_priority)
      for (Client* client : whom_to_park(need, taken, before, now_ns)) {
        client->park_asked_ns = now_ns;
        if (!park(*client, true, {}).ok()) continue;  // it is stopped
        common_.peers.log(Severity::kInfo, "parking " + who(client->identity) + ", which is idle: " +
                                               who(need.client->identity) + " needs its memory");
        for_each_device(*client, [&](const abi::MemoryDevice& row, const Uuid& d) {
          taken[d] -= std::min(taken[d], bytes_of(row.used_bytes));
        });
      }
    for_each_device(*need.client,
                    [&](const abi::MemoryDevice& row, const Uuid& d) { taken[d] += need.bytes(row); });
    before.insert(need.client);
  }
  return now_ns + kLookForWorkNs;
}

}  // namespace tessera::core

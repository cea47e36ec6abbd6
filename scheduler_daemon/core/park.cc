// Parking and return: orders, and who has room.
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/clock.h"
#include "base/futex.h"
#include "base/scoped_fd.h"
#include "base/units.h"
#include "ipc/channel/atomic.h"
#include "scheduler_daemon/core/park.h"
#include "scheduler_daemon/core/parking.h"

namespace tessera::core {
namespace {

namespace abi = ipc::abi;
using base::Code;
constexpr auto relaxed = std::memory_order_relaxed;
constexpr uint64_t kLookNs = base::ms(10);  // while somebody waits for room
// Programs of an earlier daemon find this one so soon: an idle one looks for it every second (interpose/lifecycle).
constexpr uint64_t kAllHereWithinNs = base::ms(5000);
constexpr uint64_t kAnswerWithinNs = base::ms(1000);  // whose allocation is under way; it may be stopped

// All its threads have: only then are its files closed.
bool has_ended(pid_t pid) {
  const base::ScopedFd process(int(syscall(SYS_pidfd_open, pid, 0)));
  if (!process.valid()) return true;
  pollfd ended{process.get(), POLLIN, 0};
  return poll(&ended, 1, 0) > 0;
}

// As /proc has it, in lower case; 0: there is no such process.
char state_of_process(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  return name_end != text.npos && name_end + 2 < text.size() ? char(text[name_end + 2] | 0x20) : '\0';
}

}  // namespace

// Sums what clients use that are not away, and what departed ones used.
std::map<Uuid, uint64_t> Parking::memory_in_use() {
  forget_ended();
  std::map<Uuid, uint64_t> used;
  for (const auto& [connection, client] : common_.clients)
    if (!is_away(*client))
      for_each_device(
          *client, [&](const abi::MemoryDevice& row, const Uuid& d) { used[d] += bytes_of(row.used_bytes); });
  for (const Departed& one : departed_)
    for (const auto& [d, bytes] : one.used) used[d] += bytes;
  return used;
}

// Bytes that are missing on that device for the client, which is on another one.
uint64_t Parking::missing_on(const Uuid& device, const Client& moving) {
  const uint64_t used = memory_in_use()[device];
  uint64_t missing = 0;
  for_each_device(moving, [&](const abi::MemoryDevice& row, const Uuid& d) {
    if (d != device) missing = std::max(missing, missing_bytes(row, used, bytes_of(row.used_bytes)));
  });
  return missing;
}

base::Status Parking::park(Client& client, bool parked, const Uuid& gpu) {
  if (parked && state_of_process(client.identity.pid) == 't')
    return base::error(Code::kUnavailable, "process " + std::to_string(client.identity.pid) + " is stopped");
  if (const uint64_t missing = gpu == Uuid{} ? 0 : missing_on(gpu, client); missing != 0)
    return base::error(Code::kExhausted, "that GPU has too little room: " +
                                             std::to_string(missing / base::kMiB + 1) + " MiB are missing");
  if (gpu == Uuid{})
    if (const auto asked = engines_.ask(client, parked)) return *asked;
  order(client, parked, gpu);
  return base::ok();
}

uint64_t Parking::run(uint64_t now_ns) {
  engines_.note_changes();
  const uint64_t made_ns = park_idle(now_ns);
  return base::earlier_due(made_ns, grant_returns(now_ns));
}

void Parking::engine_answered(uint64_t request, const std::string& failure) {
  for (Client* client : engines_.answered(request, failure)) order(*client, true);
}

void Parking::order(Client& client, bool parked, const Uuid& gpu) {
  client.parked_here = client.parked_here || parked;
  abi::ParkOrder& order = client.park_untrusted().order;
  ipc::store(order.parked, parked ? 1u : 0u, relaxed);
  ipc::store(order.by_parker, parked_by_parker(client) ? 1u : 0u, relaxed);
  std::memcpy(order.gpu, gpu.data(), sizeof order.gpu);
  ipc::store(order.number, ++client.park_orders,
             std::memory_order_release);            // pairs with the client's acquire
  base::futex_wake_all(&client.lease_line().word);  // where a helper may sleep
}

// Whoever waits longest has the room first: nobody who came later takes it away. And before a return is tried, nobody on
// its devices allocates any more until it is over: a driver that finds no room then may lose the process.
uint64_t Parking::grant_returns(uint64_t now_ns) {
  const std::vector<MemoryNeed> needs = memory_needs();
  std::set<Uuid>
      returning;  // devices on which somebody has room, or is to have it as soon as nobody allocates
  for (const auto& [connection, client] : common_.clients) {
    const uint32_t state = park_state(*client);
    if (!is_away(*client) && (state == abi::kParkWaits || state == abi::kParkReturning))
      for_each_device(*client, [&](abi::MemoryDevice&, const Uuid& d) { returning.insert(d); });
  }
  const bool any_comes =
      std::ranges::any_of(needs, [](const MemoryNeed& need) { return need.returns || need.wakes; });
  if (!any_comes && keeps_.empty() && returning.empty()) return 0;
  std::map<Uuid, uint64_t> used = memory_in_use(), kept;
  std::map<const Engine*, bool> wakes;  // true: there is room for all its clients
  for (const MemoryNeed& need : needs) {
    // A program that was parked under an earlier daemon may be here before those who have its place.
    const bool all_here = need.client->parked_here || now_ns >= common_.started_ns + kAllHereWithinNs;
    // The client looked at its devices itself: programs that are no clients may have its place.
    const bool found_none =
        need.returns && ipc::load(need.client->park_untrusted().report.lacks_bytes, relaxed) != 0;
    bool fits = (all_here || !need.returns) && !found_none, alone = true;
    for_each_device(*need.client, [&](abi::MemoryDevice& row, const Uuid& d) {
      fits = fits && missing_bytes(row, used[d] + kept[d], need.bytes(row)) == 0;
    });
    // Room on some of its devices is kept for who returns and waits on the others, too. An allocation that fits takes its
    // room at its next attempt; one that does not holds nobody up.
    if (fits || need.returns)
      for_each_device(*need.client,
                      [&](abi::MemoryDevice& row, const Uuid& d) { kept[d] += need.bytes(row); });
    if (need.wakes) {
      bool& all_fit = wakes.try_emplace(engines_.of(*need.client), true).first->second;
      all_fit = all_fit && fits;
    }
    if (!fits || !need.returns) continue;
    for_each_device(*need.client, [&](abi::MemoryDevice&, const Uuid& d) {
      returning.insert(d);
      alone = keep_allocations_out(d, now_ns) && alone;
    });
    if (!alone) continue;
    Client& client = *need.client;
    client.granted_return = ipc::load(client.park_untrusted().report.need, relaxed);
    ipc::store(client.park_untrusted().order.room_for, client.granted_return,
               std::memory_order_release);  // pairs with the client's acquire
    base::futex_wake_all(&client.lease_line().word);
  }
  for (const auto& [engine, all_fit] : wakes)
    if (all_fit) engines_.wake(*engine);
  std::erase_if(keeps_, [&](const auto& keep) {
    if (returning.contains(keep.first)) return false;
    store_kept(keep.first, 0);
    return true;
  });
  return now_ns + kLookNs;
}

// A killed process closes its socket to us before the driver's files, or after: its memory is gone when all are closed.
void Parking::note_departed(const Client& client) {
  forget_ended();
  Departed one{.pid = client.identity.pid};
  if (is_away(client)) {
    one.parked_here = client.parked_here;
    if (one.parked_here) departed_.push_back(std::move(one));
    return;
  }
  for_each_device(client, [&](const abi::MemoryDevice& row, const Uuid& d) {
    if (const uint64_t bytes = bytes_of(row.used_bytes)) one.used.emplace_back(d, bytes);
  });
  if (!one.used.empty()) departed_.push_back(std::move(one));
}

// A client that moves attaches anew. The daemon may see that before the end of its old connection.
bool Parking::was_parked_here(pid_t pid) const {
  const auto is_it = [&](const Departed& one) { return one.pid == pid && one.parked_here; };
  return std::ranges::any_of(departed_, is_it) || std::ranges::any_of(common_.clients, [&](const auto& row) {
           return row.second->identity.pid == pid && row.second->parked_here && is_away(*row.second);
         });
}

// A process that has ended has closed its files; one that is a client again is counted as that.
void Parking::forget_ended() {
  std::erase_if(departed_, [&](const Departed& one) {
    return has_ended(one.pid) || std::ranges::any_of(common_.clients, [&](const auto& row) {
             return row.second->identity.pid == one.pid && !row.second->dying;
           });
  });
}

void Parking::store_kept(const Uuid& device, uint32_t number) {
  for (const auto& [connection, client] : common_.clients)
    for_each_device(*client, [&, &client = client](abi::MemoryDevice& row, const Uuid& d) {
      if (d != device || ipc::load(row.kept, relaxed) == number) return;
      ipc::store(row.kept, number, std::memory_order_seq_cst);  // pairs with UnderWay of the client
      base::futex_wake_all(number == 0 ? &row.kept : &client->lease_line().word);
    });
}

// True: no allocation on the device is under way, or whose it is does not answer.
bool Parking::keep_allocations_out(const Uuid& device, uint64_t now_ns) {
  const auto [keep, is_new] = keeps_.try_emplace(device, Keep{0, now_ns});
  if (is_new) keep->second.number = ++n_keeps_;
  const uint32_t number = keep->second.number;
  store_kept(device, number);
  bool all = true;
  for (const auto& [connection, client] : common_.clients)
    if (!is_away(*client))
      for_each_device(*client, [&](const abi::MemoryDevice& row, const Uuid& d) {
        // Pairs with acknowledge_kept of the client.
        if (d == device && ipc::load(row.kept_seen, std::memory_order_seq_cst) != number) all = false;
      });
  return all || now_ns >= keep->second.since_ns + kAnswerWithinNs;
}

uint32_t Parking::kept_on(const Uuid& device) const {
  const auto keep = keeps_.find(device);
  return keep == keeps_.end() ? 0 : keep->second.number;
}

stats::ParkRow Parking::row(const Client& client) const {
  const abi::ParkReport& report = client.park_untrusted().report;
  stats::ParkRow row;
  row.state = abi::kParkStateNames[park_state(client)];
  row.answered = ipc::load(report.answered, relaxed) == client.park_orders;
  const uint32_t refusal = ipc::load(report.refusal, relaxed);
  static constexpr const char* kWhy[] = {"",
#define TS_ROW(name, text) text,
                                         TS_PARK_REFUSALS(TS_ROW)
#undef TS_ROW
  };
  row.refusal = refusal < abi::kParkRefusals ? kWhy[refusal] : "";
  row.bytes = ipc::load(report.bytes, relaxed);
  const uint64_t since_ns = ipc::load(report.since_ns, relaxed);
  row.for_ns = since_ns == 0 ? 0 : common_.now_ns - std::min(since_ns, common_.now_ns);
  row.park_ns = ipc::load(report.park_ns, relaxed);
  row.return_ns = ipc::load(report.return_ns, relaxed);
  row.parks = ipc::load(report.parks, relaxed);
  row.lacks_bytes = ipc::load(report.lacks_bytes, relaxed);
  engines_.add_to(client, &row);
  return row;
}

}  // namespace tessera::core

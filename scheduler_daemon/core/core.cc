#include "scheduler_daemon/core/core.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "admission/limits.h"
#include "base/clock.h"
#include "base/printable.h"
#include "base/units.h"
#include "ipc/abi/placement.h"
#include "scheduler_daemon/core/learnt.h"
#include "scheduler_daemon/core/limits.h"
#include "scheduler_daemon/core/park.h"
#include "scheduler_daemon/learning/store.h"

namespace tessera::core {
namespace {

namespace abi = ipc::abi;
using base::Code;

constexpr uint64_t kGreetWithinNs = base::ms(5000);  // a connection that says nothing holds a descriptor
constexpr uint64_t kReadWithinNs = base::ms(5000);   // what was sent; its library reads every 50 ms
// Not greeted yet, of everybody and of one user; apart from max_clients, so that `ps` works on a full daemon.
constexpr size_t kMaxFresh = 64, kMaxFreshOfAUser = 16;
// Parts of max_clients: the most for one user, and what is left to those whose seats are kept.
constexpr size_t kPartOfAUser = 2, kKeptPart = 8;
constexpr size_t kMaxOffendingUsers = 1024;
constexpr uint64_t kSettleLookNs = base::us(500);
// Somebody looks: a client that is alone gets a lease that measures and limits nothing, for this time after the latest
// question. Each lease of it is good for twice the time between two decisions.
constexpr uint64_t kMeasuredNs = base::ms(5000), kMeasuringLookNs = base::ms(1000);
constexpr policy::Lease kMeasuringLease{.grant = policy::Grant::kGranted,
                                        .duration_ns = 2 * kMeasuringLookNs,
                                        .window_ns = 3600 * base::kNsPerS,  // never full
                                        .slice_ns = 0,                      // nothing is cut
                                        .marker_spacing_ns = uint32_t(base::ms(2))};
constexpr uint32_t kMaxRecordsPerWake = 2048;  // per client: nobody keeps the daemon busy

}  // namespace

Core::Core(Settings settings, Peers& peers, uint64_t now_ns)
    : common_{std::move(settings), peers, now_ns, now_ns} {}

Core::~Core() = default;

// ---- connections and messages

void Core::connected(Connection connection, const ipc::PeerIdentity& identity, uint64_t now_ns) {
  common_.now_ns = now_ns;
  ++common_.counters.connections;
  evict_silent(identity);
  fresh_[connection] = {identity, now_ns};
}

// The daemon's own user and root, and processes that are attached already: nobody else can
// take the last places from them.
bool Core::keeps_a_seat(const ipc::PeerIdentity& who) const {
  return who.uid == 0 || who.uid == common_.settings.user ||
         std::any_of(common_.clients.begin(), common_.clients.end(), [&](const auto& row) {
           // 0: of a process that cannot be named from here (another pid namespace).
           return who.pid != 0 && row.second->identity.pid == who.pid && row.second->identity.uid == who.uid;
         });
}

// Whoever says nothing gives way to whoever comes: the oldest of the newcomer's user if that has its share,
// else the oldest of all. What a client says first arrives with its connection, so that an honest one is
// hardly ever among them.
void Core::evict_silent(const ipc::PeerIdentity& newcomer) {
  const auto is_same_user = [&](const auto& row) { return row.second.identity.uid == newcomer.uid; };
  const auto is_anybody = [&](const auto& row) { return !keeps_a_seat(row.second.identity); };
  auto leaves = fresh_.end();
  if (!keeps_a_seat(newcomer) &&
      size_t(std::count_if(fresh_.begin(), fresh_.end(), is_same_user)) >= kMaxFreshOfAUser)
    leaves = std::find_if(fresh_.begin(), fresh_.end(), is_same_user);
  else if (fresh_.size() >= kMaxFresh)
    leaves = std::find_if(fresh_.begin(), fresh_.end(), is_anybody);
  else
    return;
  if (leaves == fresh_.end()) leaves = fresh_.begin();
  ++common_.counters.silent_peers;
  common_.peers.log(Severity::kWarning, "closing " + who(leaves->first) + ": says nothing, and others come");
  drop(leaves->first);
}

bool Core::has_seat_for(const ipc::PeerIdentity& who) const {
  const size_t most = common_.settings.max_clients;
  if (common_.clients.size() >= most || keeps_a_seat(who)) return common_.clients.size() < most;
  const auto of_user = std::count_if(common_.clients.begin(), common_.clients.end(),
                                     [&](const auto& row) { return row.second->identity.uid == who.uid; });
  return common_.clients.size() < most - most / kKeptPart &&
         size_t(of_user) < std::max<size_t>(1, most / kPartOfAUser);
}

void Core::received(Connection connection, const ipc::Packet& packet, uint64_t now_ns) {
  common_.now_ns = now_ns;
  auto client = common_.clients.find(connection);
  if (client != common_.clients.end()) {
    if (!on_client_message(*client->second, packet)) malformed(connection);
    drop_unreachable();
    return;
  }
  if (!fresh_.contains(connection)) return;  // closed in this very wake
  if (!ipc::versions_agree(packet.header().version, packet.header().compat_version))
    return refuse(
        connection, Code::kVersion,
        "this daemon speaks another version: update Tessera, then restart tesserad and the program");
  switch (packet.header().type) {
    case abi::kHello:
      return on_hello(connection, packet, now_ns);
    case abi::kQuery:
      return on_query(connection, packet, now_ns);
    case abi::kTrace:
      return on_trace(connection, packet);
    default:
      return malformed(connection);
  }
}

void Core::malformed(Connection connection) {
  ++common_.counters.malformed;
  common_.peers.log(Severity::kWarning, "closing " + who(connection) + ": malformed message");
  drop(connection);
}

void Core::on_trace(Connection connection, const ipc::Packet& packet) {
  const auto* trace = ipc::packet_as<abi::Trace>(packet);
  if (trace == nullptr) return malformed(connection);
  if (traces_.is_full())
    return refuse(connection, Code::kExhausted,
                  "enough traces are being taken: wait until one of them has ended");
  const ipc::PeerIdentity identity = fresh_[connection].identity;
  ++common_.counters.queries;
  fresh_.erase(connection);
  traces_.begin(connection, identity, trace->pid);
  drop_unreachable();
}

void Core::engine_answered(uint64_t request, const std::string& failure, uint64_t now_ns) {
  common_.now_ns = now_ns;
  parking_.engine_answered(request, failure);
}

std::string Core::who(Connection connection) const {
  const ipc::PeerIdentity* identity = nullptr;
  if (auto fresh = fresh_.find(connection); fresh != fresh_.end()) identity = &fresh->second.identity;
  if (auto client = common_.clients.find(connection); client != common_.clients.end())
    identity = &client->second->identity;
  if (identity == nullptr) return "a connection";
  return core::who(*identity);
}

void Core::refuse(Connection connection, Code code, const std::string& text) {
  ++common_.counters.refused;
  common_.peers.log(Severity::kWarning, "refusing " + who(connection) + ": " + text);
  abi::Refused m{};
  m.header = ipc::make_header(abi::kRefused, sizeof m);
  m.code = uint32_t(code);
  std::strncpy(m.text, text.c_str(), sizeof m.text - 1);
  (void)common_.send(connection, m);
  drop(connection);
}

// How long a watched pulse must be idle before gates start by themselves; a client is told when it attaches.
uint64_t Core::gate_guard_ns() const {
  const auto policy = policy::make_policy(common_.settings.policy_name, common_.settings.parameters);
  return policy == nullptr ? common_.settings.parameters.guard_ns
                           : policy->gate_guard_ns(common_.settings.parameters);
}

void Core::on_hello(Connection connection, const ipc::Packet& packet, uint64_t now_ns) {
  const auto* hello = ipc::packet_as<abi::Hello>(packet);
  if (hello == nullptr || hello->priority > abi::kMaxPriority) return malformed(connection);
  ipc::PeerIdentity identity = fresh_[connection].identity;
  if (!has_seat_for(identity))
    return refuse(
        connection, Code::kExhausted,
        "this daemon has its maximum of clients: raise max_clients in [daemon] of its configuration");

  auto client = std::make_unique<Client>();
  client->connection = connection;
  client->id = next_client_id_++;
  if (next_client_id_ == 0) next_client_id_ = 1;
  client->identity = identity;
  client->name.assign(hello->name, ::strnlen(hello->name, sizeof hello->name));
  client->claimed_priority = hello->priority;
  client->priority = allowed_priority(common_.settings, identity, hello->priority);
  client->weight = hello->weight == 0 ? 100 : std::min(hello->weight, admission::kMostWeight);
  client->slo_ns = hello->slo_ns;
  client->memory_limit_bytes = hello->memory_limit_bytes;
  client->memory_group = hello->memory_group;
  const std::string gang(hello->gang, ::strnlen(hello->gang, sizeof hello->gang));
  client->attached_ns = client->worked_ns = now_ns;
  if (const auto known = overdue_of_users_.find(identity.uid); known != overdue_of_users_.end())
    client->overdue = known->second;

  base::Result<ipc::ClientMemory> memory =
      ipc::create_client_memory(common_.settings.epoch, client->id, client->priority,
                                {common_.settings.on_daemon_loss, gate_guard_ns(),
                                 common_.settings.learning != nullptr, common_.settings.answer_within_ms});
  if (!memory.ok())
    return refuse(connection, memory.error().code, "out of resources: " + memory.error().text);
  client->memory = std::move(*memory);
  client->ring = ipc::RingReader(&client->shared().ring, abi::kRingSlots);
  apply(*client, {.grant = policy::Grant::kFree}, now_ns);  // until it says which GPU

  abi::Welcome welcome{};
  welcome.header = ipc::make_header(abi::kWelcome, sizeof welcome);
  welcome.client_id = client->id;
  welcome.priority = client->priority;
  welcome.daemon_epoch = common_.settings.epoch;
  int fds[] = {client->memory.region_fd.get(), client->memory.wake.get(), client->memory.pulse_fd.get()};
  const unsigned n_fds = client->is_protected() ? 3 : 2;
  if (common_.peers.send(connection, &welcome, sizeof welcome, fds, n_fds) != ipc::Send::kSent)
    return drop(connection);
  client->memory.region_fd.reset();
  ++common_.counters.attached;
  common_.peers.log(Severity::kInfo,
                    "client " + std::to_string(client->id) + " attached: " + quoted(client->name) + ", pid " +
                        std::to_string(identity.pid) + ", uid " + std::to_string(identity.uid) +
                        ", priority " + std::to_string(client->priority) +
                        (client->priority < client->claimed_priority ? " (claimed more)" : ""));
  if (client->priority < client->claimed_priority) ++common_.counters.lowered_priorities;
  common_.peers.watch_wake(connection, client->memory.wake.get());
  fresh_.erase(connection);
  Client& attached = *client;
  attached.parked_here = parking_.was_parked_here(identity.pid);
  common_.clients[connection] = std::move(client);
  if (!gang.empty()) {
    join_gang(attached, gang);
    send_gang_page(attached);
  }
  traces_.add(attached);
  drop_unreachable();
}

void Core::on_query(Connection connection, const ipc::Packet& packet, uint64_t now_ns) {
  const auto* query = ipc::packet_as<abi::Query>(packet);
  if (query == nullptr) return malformed(connection);
  ++common_.counters.queries;
  std::string text;
  Code code{};
  switch (query->what) {
    case abi::kQueryStateMeasured:
      measure_until_ns_ = now_ns + kMeasuredNs;
      for (auto& [uuid, gpu] : gpus_) gpu.dirty = true;
      [[fallthrough]];
    case 0:
      consume_all_records(now_ns);  // of quiet clients
      text = stats::to_json(snapshot(now_ns));
      break;
    case 1:
      text = stats::schema_json();
      break;
    case 2: {
      stats::Mps mps = mps_;
      if (const auto* limit = first_that_fits(common_.settings.memory_limits, fresh_[connection].identity))
        mps.memory_limit_bytes = limit->bytes;
      text = stats::mps_json(mps);
      break;
    }
    case abi::kQueryPlace: {
      const auto placement = placement_.answer(fresh_[connection].identity, packet);
      if (!placement) return malformed(connection);
      text = stats::placement_json(*placement);
      break;
    }
    case abi::kQueryReserve: {
      auto refusal = memory_.reserve(fresh_[connection].identity, packet);
      if (!refusal) return malformed(connection);
      if (!refusal->empty()) code = Code::kExhausted;
      text = std::move(*refusal);
      break;
    }
    default:
      return refuse(connection, Code::kUnsupported, "this daemon does not know that question: update it");
  }
  constexpr size_t kTextPerPacket = abi::kMaxMessageBytes - sizeof(abi::Reply);
  alignas(8) unsigned char buffer[abi::kMaxMessageBytes];
  for (size_t at = 0;;) {
    size_t n = std::min(kTextPerPacket, text.size() - at);
    abi::Reply reply{ipc::make_header(abi::kReply, sizeof reply + n), at + n == text.size() ? 1u : 0u,
                     uint32_t(code)};
    std::memcpy(buffer, &reply, sizeof reply);
    std::memcpy(buffer + sizeof reply, text.data() + at, n);
    at += n;
    if (common_.peers.send(connection, buffer, sizeof reply + n, nullptr, 0) != ipc::Send::kSent) {
      ++common_.counters.slow_peers;
      return drop(connection);
    }
    if (reply.last != 0) break;
  }
  drop(connection);  // one question per connection
}

bool Core::on_client_message(Client& client, const ipc::Packet& packet) {
  switch (packet.header().type) {
    case abi::kPulseMapped:
      return on_pulse_mapped(client);
    case abi::kDevice:
      return on_device(client, packet);
    case abi::kProfileWanted:
      return on_profile_wanted(common_, client, packet);
    case abi::kKernelSeen:
      return on_kernel_seen(common_, client, packet);
    case abi::kGateReady:
      return on_gate_ready(client, packet);
    default:
      return false;
  }
}

bool Core::on_device(Client& client, const ipc::Packet& packet) {
  const auto* device = ipc::packet_as<abi::Device>(packet);
  if (device == nullptr || device->mps > 1 || client.gpus.size() >= abi::kMemoryDevices) return false;
  const Uuid uuid = std::to_array(device->uuid);
  if (client.find_on(uuid) != nullptr) return false;
  if (client.dying) return true;  // sent before, and its place is free already
  const bool confines = (device->confines & 1u) != 0;
  if (client.gpus.empty()) {
    client.counters.unmanaged_launches = device->unmanaged_launches;
    client.mps = device->mps == 1;
    client.confines = confines;
    client.gate_choice = abi::GateChoice(std::min<uint32_t>(device->gate, abi::kGateDevice));
    client.gpus.push_back({.uuid = uuid});
  } else {
    // It runs on all its GPUs or on none: a gang, by itself if no other one is named (docs/gangs.md).
    client.confines = client.confines && confines;
    client.gpus.push_back({.uuid = uuid, .bursts = client.gpus.front().bursts});
    take_gate(client);
    if (client.gang == nullptr) join_gang(client, "process:" + std::to_string(client.id));
  }
  Gpu& gpu = gpus_[uuid];
  if (gpu.policy == nullptr) {
    gpu.uuid = uuid;
    gpu.sm_count = std::min(device->sm_count, 4096u);
    gpu.policy = policy::make_policy(common_.settings.policy_name, common_.settings.parameters);
  }
  gpu.clients.push_back(&client);
  gpu.dirty = true;
  placement_.arrived(client, client.gpus.back());
  for (Gpu* each : gpus_of(client)) share_pulses(*each);
  traces_.tell(client, false);
  return true;
}

void Core::notified(Connection connection) {
  auto it = common_.clients.find(connection);
  if (it == common_.clients.end()) return;
  ++common_.counters.notifications;
  it->second->answer();
  memory_.answer(*it->second);
  parking_.take_call(*it->second);
  for (Gpu* gpu : gpus_of(*it->second)) gpu->dirty = true;
  if (it->second->gang == nullptr) return;
  for (const Client* member : it->second->gang->members)
    for (Gpu* gpu : gpus_of(*member)) gpu->dirty = true;
}

void Core::disconnected(Connection connection) {
  drop(connection);
}

void Core::drop(Connection connection) {
  // Closed first: the client holds the wake eventfd too, so the transport must stop watching it before our
  // descriptor, by which it would be unregistered, is gone.
  common_.peers.close(connection);
  forget(connection);
  drop_unreachable();
}

void Core::forget(Connection connection) {
  fresh_.erase(connection);
  if (traces_.has(connection)) return traces_.end(connection);
  auto it = common_.clients.find(connection);
  if (it == common_.clients.end()) return;
  std::unique_ptr<Client> client = std::move(it->second);
  common_.clients.erase(it);
  parking_.note_departed(*client);
  // Reads what it timed last; bursts say nothing any more. At most once round, if somebody still fills it.
  consume_records(*client, abi::kRingSlots, 0);
  traces_.tell(*client, true);
  ++common_.counters.detached;
  common_.peers.log(Severity::kInfo, "client " + std::to_string(client->id) +
                                         " left: " + quoted(client->name) + ", pid " +
                                         std::to_string(client->identity.pid));
  leave_gpu(*client);
}

void Core::leave_gpu(Client& client) {
  leave_gang(client);
  std::vector<Gpu*> left = gpus_of(client);
  for (Gpu* gpu : left) std::erase(gpu->clients, &client);
  std::erase_if(left,
                [&](const Gpu* gpu) { return gpu->clients.empty() && gpus_.erase(Uuid(gpu->uuid)) != 0; });
  for (Gpu* gpu : left) share_pulses(*gpu);
}

void Core::drop_unreachable() {
  while (!common_.unreachable.empty()) {
    Connection connection = common_.unreachable.back();
    common_.unreachable.pop_back();
    if (!common_.clients.contains(connection) && !traces_.has(connection)) continue;
    ++common_.counters.slow_peers;
    common_.peers.close(connection);
    forget(connection);
  }
}

std::vector<Core::Gpu*> Core::gpus_of(const Client& client) {
  std::vector<Gpu*> gpus;
  if (client.dying) return gpus;
  for (const OnGpu& on : client.gpus) gpus.push_back(&gpus_.at(on.uuid));
  return gpus;
}

// ---- decisions

void Core::consume_all_records(uint64_t now_ns) {
  std::vector<Connection> bad_rings;
  for (auto& [connection, client] : common_.clients)
    if (!consume_records(*client, kMaxRecordsPerWake, now_ns)) bad_rings.push_back(connection);
  for (Connection connection : bad_rings) {
    ++common_.counters.bad_rings;
    common_.peers.log(Severity::kWarning, "closing " + who(connection) + ": impossible ring head");
    drop(connection);
  }
}

uint64_t Core::run(uint64_t now_ns) {
  common_.now_ns = now_ns;
  consume_all_records(now_ns);
  take_off_dying(now_ns);

  uint64_t next_ns = base::earlier_due(close_silent(now_ns), close_deaf(now_ns));
  next_ns = base::earlier_due(next_ns, parking_.run(now_ns));
  for (auto& [uuid, gpu] : gpus_) {
    const bool decides = gpu.dirty || base::is_due(gpu.next_look_ns, now_ns);
    // Twice at most: a revocation that had drained already, then the grant that it makes possible.
    if (decides && decide(gpu, now_ns)) decide(gpu, now_ns);
    plan_death_look(gpu, now_ns);
  }
  for (const auto& [uuid, gpu] : gpus_)  // decisions about a gang concern several
    next_ns = base::earlier_due(next_ns, base::earlier_due(gpu.next_look_ns, gpu.death_look_ns));
  return next_ns;
}

uint64_t Core::close_silent(uint64_t now_ns) {
  uint64_t next_ns = 0;
  std::vector<Connection> silent;
  for (const auto& [connection, fresh] : fresh_) {
    uint64_t until_ns = fresh.connected_ns + kGreetWithinNs;
    if (now_ns >= until_ns)
      silent.push_back(connection);
    else
      next_ns = base::earlier_due(next_ns, until_ns);
  }
  for (Connection connection : silent) {
    ++common_.counters.silent_peers;
    drop(connection);
  }
  return next_ns;
}

// A client that does not read what it is told is lost.
uint64_t Core::close_deaf(uint64_t now_ns) {
  uint64_t next_ns = 0;
  for (const auto& [connection, client] : common_.clients) {
    if (client->behind_since_ns == 0) continue;
    const uint64_t until_ns = client->behind_since_ns + kReadWithinNs;
    if (now_ns >= until_ns)
      common_.unreachable.push_back(connection);
    else
      next_ns = base::earlier_due(next_ns, until_ns);
  }
  drop_unreachable();
  return next_ns;
}

bool Core::overlapping(const Gpu& gpu) const {
  // Leases overlap only if every best-effort client shares in space: one that does not would be time-sliced
  // against the rest anyway.
  return std::all_of(gpu.clients.begin(), gpu.clients.end(),
                     [](const Client* c) { return c->is_protected() || c->mps || c->passthrough; });
}

// Everything in its place is lost to others, so it is named. Programs of one user could take its place in
// turns; therefore the user's next ones inherit it.
void Core::note_overdue_drain(Client& client, uint64_t now_ns) {
  ++client.counters.overdue_drains;
  client.overdue.add(now_ns);
  std::erase_if(overdue_of_users_, [&](const auto& row) { return row.second.count(now_ns) == 0; });
  if (overdue_of_users_.size() < kMaxOffendingUsers || overdue_of_users_.contains(client.identity.uid))
    overdue_of_users_[client.identity.uid] = client.overdue;
  common_.peers.log(Severity::kWarning,
                    name_of(client) +
                        ": its turn is over, what it had in flight does not end or is not "
                        "reported; others go on beside it, and the time is charged to it");
}

// A client whose holds expire again and again stops cutting its kernels: whoever runs the machine should
// know.
void Core::report_cutting(const Gpu& gpu, Client& client, uint64_t now_ns) {
  const bool off = ipc::load(client.signals_untrusted().cutting_off, std::memory_order_relaxed) != 0;
  if (off && !client.cutting_off) {
    const auto offender = std::find_if(gpu.clients.begin(), gpu.clients.end(), [&](const Client* c) {
      return c != &client && c->overdue.count(now_ns) != 0;
    });
    common_.peers.log(
        Severity::kWarning,
        name_of(client) +
            ": its launches reach the hold limit again and again, its kernels are not cut for now; " +
            (offender != gpu.clients.end()
                 ? "that is due to " + name_of(**offender) + ", which does not drain"
                 : "a minimum share (policy.min_share_percent) avoids that"));
  }
  client.cutting_off = off;
}

void Core::note_packing(Gpu& gpu, uint64_t now_ns) {
  for (const Client* client : gpu.clients) {
    if (!client->packed()) continue;
    gpu.packed_until_ns = now_ns;
    if (client->terms.packed && !client->together) gpu.minimum_share_until_ns = now_ns;
  }
}

bool Core::settling(Gpu& gpu, uint64_t now_ns) {
  if (gpu.settle_since_ns == 0) return false;
  const uint64_t end_ns = gpu.settle_since_ns + common_.settings.parameters.drain_timeout_ns;
  auto is_best_effort = [](const Client* c) { return !c->is_protected() && !c->passthrough; };
  if (overlapping(gpu) || now_ns >= end_ns ||
      std::count_if(gpu.clients.begin(), gpu.clients.end(), is_best_effort) < 2) {
    gpu.settle_since_ns = 0;
    return false;
  }
  bool drained = true;
  for (Client* client : gpu.clients) {
    if (!is_best_effort(client)) continue;
    if (client->terms.state != abi::kLeaseHold) apply(*client, {.grant = policy::Grant::kHold}, now_ns);
    drained = drained && client->drained(now_ns);
  }
  if (drained) gpu.settle_since_ns = 0;
  gpu.dirty = false;
  gpu.next_look_ns = std::min(now_ns + kSettleLookNs, end_ns);
  return !drained;
}

bool Core::decide(Gpu& gpu, uint64_t now_ns) {
  if (settling(gpu, now_ns)) return false;
  policy::Observation o;
  o.now_ns = now_ns;
  o.mps = overlapping(gpu);
  o.sm_count = gpu.sm_count;
  std::vector<Client*> managed;
  for (Client* client : gpu.clients) {
    if (client->passthrough) {
      apply(*client, {.grant = policy::Grant::kFree}, now_ns);
      continue;
    }
    report_cutting(gpu, *client, now_ns);
    client->measured_alone = false;
    managed.push_back(client);
    client->on_device = no_device_gate(gpu, *client) == nullptr;
    o.clients.push_back(client->view(client->on(gpu.uuid), now_ns));
    add_gang_wishes(gpu, *client, &o.clients.back());
  }
  note_packing(gpu, now_ns);
  policy::Decision d = gpu.policy->decide(o);
  ++common_.counters.decisions;
  gpu.dirty = false;
  gpu.next_look_ns = d.next_look_ns;
  share_leases(gpu, managed, &d.leases);
  if (managed.size() == 1 && gpu.clients.size() == 1 && d.leases.size() == 1)
    measure_alone(gpu, *managed[0], d.leases[0], now_ns);
  uint64_t revocations = common_.counters.revocations;
  bool drained = true;
  uint64_t services_busy_ns = 0;
  for (const Client* client : gpu.clients)
    if (client->is_protected()) services_busy_ns += client->busy_ns(now_ns);
  for (size_t i = 0; i < managed.size() && i < d.leases.size(); ++i) {
    uint64_t before = common_.counters.revocations;
    apply(*managed[i], d.leases[i], now_ns, d.tell_busy);
    if (d.leases[i].opens_gates) open_gates(gpu, *managed[i], now_ns);
    if (!managed[i]->set_quiet(d.leases[i].quiet, o.clients[i]))
      for (Gpu* each : gpus_of(*managed[i])) each->next_look_ns = now_ns;
    if (d.leases[i].overdue) note_overdue_drain(*managed[i], now_ns);
    if (common_.counters.revocations != before) drained &= managed[i]->drained(now_ns);
    watch_starvation(managed[i]->on(gpu.uuid), o.clients[i], d.leases[i], services_busy_ns, now_ns);
  }
  note_gates(gpu, now_ns);
  note_packing(gpu, now_ns);
  return common_.counters.revocations != revocations && drained;
}

// A client that runs free is not measured, so it costs nothing. While somebody looks, its use is known.
void Core::measure_alone(Gpu& gpu, Client& client, policy::Lease& lease, uint64_t now_ns) {
  client.measured_alone =
      lease.grant == policy::Grant::kFree && !client.is_protected() && now_ns < measure_until_ns_;
  if (!client.measured_alone) return;
  const uint64_t id = lease.client_id;
  lease = kMeasuringLease;
  lease.client_id = id;
  gpu.next_look_ns =
      base::earlier_due(gpu.next_look_ns, std::min(now_ns + kMeasuringLookNs, measure_until_ns_));
}

// Whole steps, more rather than less.
uint32_t Core::reserved_sms(const Client& client, const policy::Lease& lease) {
  const std::vector<Gpu*> gpus = gpus_of(client);
  if (gpus.empty() || lease.sm_limit == 0 || lease.sm_limit >= gpus.front()->sm_count) return 0;
  return (gpus.front()->sm_count - lease.sm_limit + abi::kReserveStep - 1) / abi::kReserveStep *
         abi::kReserveStep;
}

void Core::apply(Client& client, const policy::Lease& lease, uint64_t now_ns, bool tell_busy) {
  static constexpr uint32_t kStates[] = {abi::kLeaseHold, abi::kLeaseGranted, abi::kLeaseFree};
  ipc::LeaseTerms terms;
  terms.state = kStates[size_t(lease.grant)];
  terms.packed = lease.packed;
  client.together = lease.together;
  terms.apart = lease.apart;
  terms.apart_classes = lease.apart_classes;
  terms.window_ns = lease.window_ns;
  terms.slice_ns = lease.slice_ns;
  terms.marker_spacing_ns = lease.marker_spacing_ns;
  terms.max_hold_ms = uint32_t(common_.settings.parameters.max_hold_ns / base::kNsPerMs);
  terms.priority = client.priority;
  terms.defers = client.is_protected() && !client.watching.empty();
  terms.tell_busy = tell_busy && !client.is_protected();
  terms.slo_us = uint32_t(std::min<uint64_t>(client.slo_ns / 1000, UINT32_MAX));
  terms.watch_spin_us = lease.spin_ns == 0 ? common_.settings.watch_spin_us : lease.spin_ns / 1000;
  // If every kernel fills waves, there is nothing to say about long blocks.
  if (lease.long_block_ns != 0) {
    terms.long_width_percent = std::clamp(lease.long_width_percent, 1u, 100u);
    terms.long_block_us = uint32_t(std::clamp<uint64_t>(lease.long_block_ns / base::kNsPerUs, 1, UINT16_MAX));
  }
  terms.reserved_sms = reserved_sms(client, lease);
  terms.quantum_us = uint32_t(std::min<uint64_t>(lease.quantum_ns / base::kNsPerUs, UINT16_MAX));
  terms.ends_by_us = lease.ends_by_ns == 0 ? 0 : admission::ends_by_us(lease.ends_by_ns);
  terms.keeps_closed = lease.keeps_closed;
  terms.passthrough = client.passthrough;
  terms.expires_ns = client.terms.expires_ns;  // not part of the comparison
  bool granted = terms.state == abi::kLeaseGranted;
  bool first = client.lease_word == 0;
  // A grant tells what may be started. Each new window before it would wake threads that wait, and they would ask again.
  if (!first && terms.state == abi::kLeaseHold && client.terms.state == abi::kLeaseHold) {
    terms.window_ns = client.terms.window_ns;
    terms.slice_ns = client.terms.slice_ns;
    terms.marker_spacing_ns = client.terms.marker_spacing_ns;
  }
  bool changed = first || !(terms == client.terms);
  if (granted) terms.expires_ns = now_ns + lease.duration_ns;
  bool was_granted = !first && client.terms.state == abi::kLeaseGranted;
  bool was_packed = client.packed();
  bool is_held = terms.state == abi::kLeaseHold;
  if (is_held && (first || client.terms.state != abi::kLeaseHold)) client.held_since_ns = now_ns;
  client.terms = terms;
  const bool other_class = std::exchange(client.length_class, lease.length_class) != lease.length_class;
  if (changed || lease.nudge) {
    if (lease.nudge && !changed) ++common_.counters.nudges;
    if (granted && !was_granted) ++common_.counters.grants, ++client.counters.grants;
    if (client.packed() && !was_packed) ++client.counters.packed_grants;
    if (is_held && was_granted) ++common_.counters.revocations, ++client.counters.revocations;
    ipc::lease_publish(client.lease_line(), client.lease_word, terms);
    set_gate(client);
    if (client.trace.memory.valid()) trace_lease(client, now_ns);
    return;
  }
  if (granted) ipc::lease_renew(client.lease_line(), terms.expires_ns);
  if (other_class) set_gate(client);
}

// The daemon knows which lower leases were at work, the record does not.
void Core::on_burst(Client& client, const abi::Record& record, uint64_t now_ns) {
  const std::vector<Gpu*> gpus = gpus_of(client);
  if (gpus.empty() || !client.is_protected() || record.end_ns > now_ns) return;
  const uint64_t start_ns = record.end_ns - std::min(record.end_ns, record.duration_ns);
  policy::Burst burst{.signature = record.key,
                      .length_ns = record.duration_ns,
                      .end_ns = record.end_ns,
                      .solo = true,
                      .kind = record.request_kind,
                      .slo_ns = ipc::load(client.requests_untrusted().kinds[record.request_kind].slo_ns,
                                          std::memory_order_relaxed)};
  for (const Gpu* gpu : gpus) {
    burst.packed |= gpu->packed_until_ns >= start_ns;
    burst.minimum_share |= gpu->minimum_share_until_ns >= start_ns;
    for (const Client* other : gpu->clients) {
      if (other->priority >= client.priority) continue;
      burst.packed |= other->packed();
      if (other->is_protected()) {
        burst.solo = burst.solo && !other->active_since(start_ns, now_ns);
        continue;
      }
      burst.after_work |= !overlapping(*gpu) && !other->nothing_passed(client.last_burst_end_ns()) &&
                          policy::ran_since(client.last_burst_end_ns(), other->in_flight());
      if (other->nothing_passed(start_ns)) continue;
      policy::ClosedGate closed;
      if (const abi::GatePage* gate = other->gate_page(); gate != nullptr && !burst.packed)
        closed = {other->terms.quantum_us * base::kNsPerUs,
                  ipc::load(gate->longest_ns, std::memory_order_relaxed)};
      burst.overlap_ns =
          std::max(burst.overlap_ns, policy::overlap_ns(start_ns, record.end_ns, other->in_flight(), closed));
    }
  }
  burst.solo = burst.solo && burst.overlap_ns == 0;
  for (OnGpu& on : client.gpus) on.bursts.add(burst);
}

bool Core::consume_records(Client& client, uint32_t most, uint64_t now_ns) {
  abi::Record record;
  for (uint32_t i = 0; i < most; ++i) {
    switch (client.ring.read(&record)) {
      case ipc::RingRead::kEmpty:
        return true;
      case ipc::RingRead::kBadHead:
        return false;
      case ipc::RingRead::kBadRecord:
        ++common_.counters.bad_records;
        break;
      case ipc::RingRead::kRecord:
        if (record.kind == abi::kRecordBurst) {
          client.counters.busy_ns += record.duration_ns;
          on_burst(client, record, now_ns);
        }
        if (record.kind == abi::kRecordKernel && common_.settings.learning != nullptr)
          common_.settings.learning->record(client.user_gpu, record);
        ++(record.kind == abi::kRecordKernel ? client.counters.kernels_recorded
                                             : client.counters.bursts_recorded);
        break;
    }
  }
  return true;
}

void Core::release_all() {
  for (auto& [connection, client] : common_.clients) apply(*client, {.grant = policy::Grant::kFree}, 0);
}

stats::Snapshot Core::snapshot(uint64_t now_ns) const {
  stats::Snapshot s;
  s.version = common_.settings.version;
  s.policy = common_.settings.policy_name;
  s.socket = common_.settings.socket_path;
  s.min_share_percent = uint64_t(std::lround(common_.settings.parameters.min_share * 100));
  s.pid = ::getpid();
  s.epoch = common_.settings.epoch;
  s.uptime_ns = now_ns - std::min(now_ns, common_.started_ns);
  s.counters = common_.counters;
  s.mps = mps_;
  count_learning(common_.settings, s.counters);
  for (const auto& [uuid, gpu] : gpus_) {
    s.gpus.push_back(
        {uuid_text(uuid), gpu.policy->name(), overlapping(gpu), gpu.sm_count, gpu.clients.size()});
  }
  for (const auto& [connection, client] : common_.clients) {
    s.clients.push_back(client->row(now_ns));
    s.clients.back().starved = starved(*client, now_ns);
    s.clients.back().gang = gang_row(*client);
    s.clients.back().gate = gate_of(*client);
    memory_.add_limits(*client, s.clients.back());
    s.clients.back().park = parking_.row(*client);
    if (is_away(*client)) s.clients.back().counters.memory_parked_bytes = s.clients.back().park.bytes;
  }
  return s;
}

}  // namespace tessera::core

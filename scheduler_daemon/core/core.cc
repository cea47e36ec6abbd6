#include "scheduler_daemon/core/core.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "admission/limits.h"
#include "base/clock.h"
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
constexpr size_t kMaxPending = 64, kMaxPendingOfAUser = 16;
// Parts of max_clients: the most for one user, and what is left to those whose seats are kept.
constexpr size_t kPartOfAUser = 2, kKeptPart = 8;
constexpr uint64_t kMeasuredNs = base::ms(5000);  // after somebody looked at who uses the GPUs
constexpr uint32_t kMaxRecordsPerWake = 2048;     // per client: nobody keeps the daemon busy

}  // namespace

Core::Core(Settings settings, Peers& peers, uint64_t now_ns)
    : common_{std::move(settings), peers, now_ns, now_ns} {}

// ---- connections and messages

void Core::connected(Connection connection, const ipc::PeerIdentity& identity, uint64_t now_ns) {
  common_.now_ns = now_ns;
  ++common_.counters.connections;
  evict_silent(identity);
  pending_[connection] = {identity, now_ns};
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
  auto leaves = pending_.end();
  if (!keeps_a_seat(newcomer) &&
      size_t(std::count_if(pending_.begin(), pending_.end(), is_same_user)) >= kMaxPendingOfAUser)
    leaves = std::find_if(pending_.begin(), pending_.end(), is_same_user);
  else if (pending_.size() >= kMaxPending)
    leaves = std::find_if(pending_.begin(), pending_.end(), is_anybody);
  else
    return;
  if (leaves == pending_.end()) leaves = pending_.begin();
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
  if (!pending_.contains(connection)) return;  // closed in this very wake
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
  const ipc::PeerIdentity identity = pending_[connection].identity;
  ++common_.counters.queries;
  pending_.erase(connection);
  traces_.begin(connection, identity, trace->pid);
  drop_unreachable();
}

void Core::engine_answered(uint64_t request, const std::string& failure, uint64_t now_ns) {
  common_.now_ns = now_ns;
  parking_.engine_answered(request, failure);
}

std::string Core::who(Connection connection) const {
  const ipc::PeerIdentity* identity = nullptr;
  if (auto pending = pending_.find(connection); pending != pending_.end())
    identity = &pending->second.identity;
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
  ipc::PeerIdentity identity = pending_[connection].identity;
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
  if (const auto known = common_.overdue_of_users.find(identity.uid); known != common_.overdue_of_users.end())
    client->overdue = known->second;

  base::Result<ipc::ClientMemory> memory =
      ipc::create_client_memory(common_.settings.epoch, client->id, client->priority,
                                {common_.settings.on_daemon_loss, gate_guard_ns(),
                                 common_.settings.learning != nullptr, common_.settings.answer_within_ms});
  if (!memory.ok())
    return refuse(connection, memory.error().code, "out of resources: " + memory.error().text);
  client->memory = std::move(*memory);
  client->ring = ipc::RingReader(&client->shared().ring, abi::kRingSlots);
  apply(common_, *client, {.grant = policy::Grant::kFree}, now_ns);  // until it says which GPU

  abi::Welcome welcome{};
  welcome.header = ipc::make_header(abi::kWelcome, sizeof welcome);
  welcome.client_id = client->id;
  welcome.priority = client->priority;
  welcome.daemon_epoch = common_.settings.epoch;
  welcome.now_ns = now_ns;
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
  pending_.erase(connection);
  Client& attached = *client;
  attached.parked_here = parking_.was_parked_here(identity.pid);
  common_.clients[connection] = std::move(client);
  if (!gang.empty()) {
    gangs_.join(attached, gang);
    gangs_.send_page(attached);
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
      common_.measure_until_ns = now_ns + kMeasuredNs;
      for (auto& [uuid, gpu] : gpus_.all()) gpu.decide_soon();
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
      if (const auto* limit = first_that_fits(common_.settings.memory_limits, pending_[connection].identity))
        mps.memory_limit_bytes = limit->bytes;
      text = stats::mps_json(mps);
      break;
    }
    case abi::kQueryPlace: {
      const auto placement = placement_.answer(pending_[connection].identity, packet);
      if (!placement) return malformed(connection);
      text = stats::placement_json(*placement);
      break;
    }
    case abi::kQueryReserve: {
      auto refusal = memory_.reserve(pending_[connection].identity, packet);
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

bool Core::on_pulse_mapped(Client& client) {
  if (!client.is_protected() || client.pulse_sealed) return false;
  if (!ipc::seal_pulse(client.memory).ok()) return false;
  client.pulse_sealed = true;
  pages_.share_on_gpus_of(client);
  return true;
}

bool Core::on_gate_ready(Client& client, const ipc::Packet& packet) {
  const auto* ready = ipc::packet_as<abi::GateReady>(packet);
  if (ready == nullptr) return false;
  if (client.gate_page() == nullptr) return client.gpus.size() > 1;  // it was taken meanwhile
  client.gate_ready = ready->usable == 1;
  if (!client.gate_ready) client.gate_choice = abi::kGateThread;  // for good
  pages_.share_on_gpus_of(client);
  return true;
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
    if (client.gang == nullptr) gangs_.join(client, "process:" + std::to_string(client.id));
  }
  gpus_.join(client, device->sm_count);
  placement_.arrived(client, client.gpus.back());
  pages_.share_on_gpus_of(client);
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
  for (Gpu* gpu : gpus_.of(*it->second)) gpu->decide_soon();
  if (it->second->gang == nullptr) return;
  for (const Client* member : it->second->gang->members)
    for (Gpu* gpu : gpus_.of(*member)) gpu->decide_soon();
}

void Core::writable(Connection connection) {
  const auto found = common_.clients.find(connection);
  if (found == common_.clients.end() || found->second->behind_since_ns == 0) return;
  pages_.bring_up_to_date(*found->second);
  for (Gpu* gpu : gpus_.of(*found->second)) gpu->decide_soon();
  drop_unreachable();
}

void Core::drop(Connection connection) {
  // Closed first: the client holds the wake eventfd too, so the transport must stop watching it before our
  // descriptor, by which it would be unregistered, is gone.
  common_.peers.close(connection);
  forget(connection);
  drop_unreachable();
}

void Core::forget(Connection connection) {
  pending_.erase(connection);
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

void Core::leave_gpu(Client& client) {
  if (const Gang* left = gangs_.leave(client)) pages_.share_in_gang(*left);
  for (Gpu* gpu : gpus_.leave(client)) pages_.share(*gpu);
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
  for (auto& [uuid, gpu] : gpus_.all()) gpu.run(gangs_, now_ns);
  for (const auto& [uuid, gpu] : gpus_.all())  // decisions about a gang concern several
    next_ns = base::earlier_due(next_ns, gpu.next_ns());
  return next_ns;
}

uint64_t Core::close_silent(uint64_t now_ns) {
  uint64_t next_ns = 0;
  std::vector<Connection> silent;
  for (const auto& [connection, pending] : pending_) {
    uint64_t until_ns = pending.connected_ns + kGreetWithinNs;
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
          gpus_.add_burst(client, record, now_ns);
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
  for (auto& [connection, client] : common_.clients)
    apply(common_, *client, {.grant = policy::Grant::kFree}, 0);
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
  for (const auto& [uuid, gpu] : gpus_.all())
    s.gpus.push_back(
        {uuid_text(uuid), gpu.policy_name(), gpu.overlapping(), gpu.sm_count(), gpu.clients().size()});
  for (const auto& [connection, client] : common_.clients) {
    s.clients.push_back(client->row(now_ns));
    s.clients.back().starved = gpus_.starved(*client, now_ns);
    s.clients.back().gang = gang_row(*client);
    s.clients.back().gate = gpus_.gate_of(*client);
    memory_.add_limits(*client, s.clients.back());
    s.clients.back().park = parking_.row(*client);
    if (is_away(*client)) s.clients.back().counters.memory_parked_bytes = s.clients.back().park.bytes;
  }
  return s;
}

}  // namespace tessera::core

// Gangs (docs/gangs.md): members get one decision over all their GPUs (policy/gang.h), watch each other's protected
// neighbours, and ask for turns as one.
//
// A gang's turns on several GPUs must meet, where best-effort clients take turns. Its first GPU, in the order of UUIDs, decides:
// members on the others want a turn only while the gang has it there, and are then the next. On GPUs that it shares with other
// gangs it takes turns one after another, in that order, so that no gangs wait for each other in a circle.
#include "scheduler_daemon/core/gangs.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "scheduler_daemon/core/core.h"
#include "scheduler_daemon/policy/gang.h"

namespace tessera::core {

namespace abi = ipc::abi;

namespace {

bool same_gpu(const Client& a, const Client& b) {
  return std::memcmp(a.uuid, b.uuid, sizeof a.uuid) == 0;
}

// Is its GPU before the other's in the order in which gangs take turns?
bool comes_before(const Client& a, const Client& b) {
  return std::memcmp(a.uuid, b.uuid, sizeof a.uuid) < 0;
}

// Is it held with its gang? Protected members run when they like.
bool is_paced(const Client& c) {
  return c.has_gpu && !c.dying && !c.is_protected() && !c.passthrough;
}

// Each text stands for the policy::HeldBy of its place.
constexpr const char* kWhyHeld[policy::kHeldBys] = {
    "work of an earlier lease is still in flight", "it is the turn of others",
    "the gaps between bursts are too short", "they are ahead of their share", "others fill the GPU"};

bool is_offered(const Client& c) {
  return c.offered && c.offered->grant != policy::Grant::kHold;
}

bool agrees(const ipc::LeaseTerms& terms, const policy::Lease& lease) {
  static constexpr uint32_t kStates[] = {abi::kLeaseHold, abi::kLeaseGranted, abi::kLeaseFree};
  return terms.state == kStates[size_t(lease.grant)] && terms.packed == lease.packed;
}

// The first member in that order.
const Client& leader(const Gang& gang) {
  const Client* first = nullptr;
  for (const Client* member : gang.members)
    if (is_paced(*member) && (first == nullptr || comes_before(*member, *first))) first = member;
  return *first;
}

// Does the gang have a turn on this member's GPU?
bool has_turn(const Gang& gang, const Client& member) {
  return std::any_of(gang.members.begin(), gang.members.end(), [&](const Client* other) {
    return is_paced(*other) && same_gpu(*other, member) && is_offered(*other);
  });
}

// Is a member of another gang on its GPU?
bool meets_another_gang(const Client& client, const std::vector<Client*>& on_its_gpu) {
  return std::any_of(on_its_gpu.begin(), on_its_gpu.end(), [&](const Client* other) {
    return other->gang != nullptr && other->gang != client.gang && is_paced(*other);
  });
}

}  // namespace

void Core::join_gang(Client& client, const std::string& name) {
  if (name.empty()) return;
  GangKey key{client.identity.uid, name};
  Gang& gang = gangs_[key];
  gang.key = std::move(key);
  gang.members.push_back(&client);
  client.gang = &gang;
  if (gang.members.size() == 1)
    if (base::Result<base::ScopedFd> page = ipc::create_gang(); page.ok()) gang.page = std::move(*page);
  if (!gang.page.valid()) return;
  const abi::GangMemory m{ipc::make_header(abi::kGangMemory, sizeof m)};
  const int fd = gang.page.get();
  if (peers_.send(client.connection, &m, sizeof m, &fd, 1) != ipc::Send::kSent)
    unreachable_.push_back(client.connection);
}

void Core::leave_gang(Client& client) {
  Gang* gang = client.gang;
  if (gang == nullptr) return;
  std::erase(gang->members, &client);
  client.gang = nullptr;
  if (gang->members.empty()) {
    gangs_.erase(GangKey(gang->key));
    return;
  }
  note_gang(*gang);
}

// Members come, leave or change: all are told whom to watch, and decided about.
void Core::note_gang(const Gang& gang) {
  for (Client* member : gang.members) {
    Gpu* gpu = gpu_of(*member);
    if (gpu == nullptr) continue;
    bring_up_to_date(*gpu, *member);
    gpu->dirty = true;
  }
}

// The protected clients of a GPU changed: members of its gangs on other GPUs watch them, too.
void Core::note_gangs_of(const Gpu& gpu) {
  std::set<const Gang*> gangs;
  for (const Client* client : gpu.clients)
    if (client->gang != nullptr) gangs.insert(client->gang);
  for (const Gang* gang : gangs) note_gang(*gang);
}

// Those of its own GPU come first: their policy relies on them.
std::vector<const Client*> Core::may_watch(const Gpu& gpu, const Client& watcher) {
  std::vector<const Client*> owners(gpu.clients.begin(), gpu.clients.end());
  if (watcher.gang == nullptr || !is_paced(watcher)) return owners;
  std::set<const Gpu*> seen{&gpu};
  for (const Client* member : watcher.gang->members) {
    if (!is_paced(*member)) continue;
    const Gpu* other = gpu_of(*member);
    if (seen.insert(other).second) owners.insert(owners.end(), other->clients.begin(), other->clients.end());
  }
  return owners;
}

// A gang wants its turns as one, if clients take turns.
void Core::add_gang_wishes(const Client& client, policy::ClientView* view) {
  if (client.gang == nullptr || !is_paced(client)) return;
  const Gpu* gpu = gpu_of(client);
  if (!takes_turns(*gpu)) return;
  for (const Client* member : client.gang->members) {
    if (!is_paced(*member) || member == &client) continue;
    const abi::UsageLine& usage = member->usage_untrusted();
    view->in_flight_ns =
        std::max(view->in_flight_ns, ipc::load(usage.in_flight_ns, std::memory_order_seq_cst));
    if (!member->waiting()) continue;
    const uint64_t since_ns = std::clamp(ipc::load(usage.waiting_since_ns, std::memory_order_relaxed),
                                         member->attached_ns, now_ns_);
    view->waiting_since_ns = view->waiting ? std::min(view->waiting_since_ns, since_ns) : since_ns;
    view->waiting = true;
  }
  const bool wanted = may_take_turn(client);
  const Gpu* first = gpu_of(leader(*client.gang));
  view->waiting = view->waiting && wanted;
  view->withheld = wanted && is_offered(client) && client.terms.state == abi::kLeaseHold;
  view->goes_first = wanted && first != gpu && takes_turns(*first);
}

// Has its gang the turns that come before this one?
bool Core::may_take_turn(const Client& client) {
  const Gang& gang = *client.gang;
  const Client& first = leader(gang);
  const bool is_in_order = meets_another_gang(client, gpu_of(client)->clients);
  return std::all_of(gang.members.begin(), gang.members.end(), [&](const Client* member) {
    if (!is_paced(*member) || !comes_before(*member, client) || has_turn(gang, *member)) return true;
    return !same_gpu(*member, first) &&
           !(is_in_order && meets_another_gang(*member, gpu_of(*member)->clients));
  });
}

stats::ClientRow::Gang Core::gang_row(const Client& client) {
  stats::ClientRow::Gang row;
  if (client.gang == nullptr) return row;
  const std::vector<Client*>& members = client.gang->members;
  row.name = client.gang->key.second;
  row.members = members.size();
  row.member = uint64_t(std::find(members.begin(), members.end(), &client) - members.begin()) + 1;
  if (!is_paced(client)) return row;
  for (const Client* member : members) {
    if (!is_paced(*member) || !member->offered) continue;
    const bool may_start = std::any_of(members.begin(), members.end(), [&](const Client* other) {
      return is_paced(*other) && same_gpu(*other, *member) && is_offered(*other);
    });
    if (may_start) continue;
    row.held_at = uuid_text(member->uuid);
    row.why = kWhyHeld[size_t(member->offered->held_by)];
    return row;
  }
  return row;
}

bool Core::takes_turns(const Gpu& gpu) const {
  return !overlapping(gpu) && std::count_if(gpu.clients.begin(), gpu.clients.end(), [](const Client* c) {
                                return !c->is_protected() && !c->passthrough;
                              }) > 1;
}

// Members get what the policies of all their GPUs offer. Members on other GPUs follow at once.
void Core::share_with_gangs(const std::vector<Client*>& managed, std::vector<policy::Lease>* leases) {
  std::vector<bool> was_offered;
  for (size_t i = 0; i < leases->size(); ++i) {
    was_offered.push_back(is_offered(*managed[i]));
    managed[i]->offered = (*leases)[i];
  }
  for (size_t i = 0; i < leases->size(); ++i) {
    const Client& client = *managed[i];
    if (client.gang == nullptr || !is_paced(client)) continue;
    std::vector<Client*> members;
    std::vector<policy::GangMember> offers;
    for (Client* member : client.gang->members) {
      if (!is_paced(*member) || !member->offered) continue;
      const Client& first = **std::find_if(client.gang->members.begin(), client.gang->members.end(),
                                           [&](const Client* c) { return same_gpu(*c, *member); });
      members.push_back(member);
      offers.push_back({first.id, *member->offered});
    }
    const std::vector<policy::Lease> together = policy::leases_of(offers);
    for (size_t k = 0; k < members.size(); ++k) {
      Client& member = *members[k];
      Gpu& gpu = *gpu_of(member);
      if (&member == &client) (*leases)[i] = together[k];
      if (member.offered->grant == policy::Grant::kFree && together[k].grant == policy::Grant::kGranted)
        gpu.next_look_ns = base::earlier_due(gpu.next_look_ns, now_ns_ + policy::kRenewGangNs);
      if (same_gpu(member, client)) continue;
      // Whether it wants a turn there.
      if (was_offered[i] != is_offered(client) && comes_before(client, member)) gpu.dirty = true;
      if (!agrees(member.terms, together[k])) apply(member, together[k], now_ns_);
    }
  }
}

}  // namespace tessera::core

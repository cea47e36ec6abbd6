#include "scheduler_daemon/core/gangs.h"

#include <algorithm>

#include "base/clock.h"
#include "scheduler_daemon/core/common.h"
#include "scheduler_daemon/core/gpu.h"
#include "scheduler_daemon/policy/gang.h"

namespace tessera::core {

namespace abi = ipc::abi;

namespace {

// Is it held with its gang? Protected members run when they like.
bool is_paced(const Client& c) {
  return !c.gpus.empty() && !c.dying && !c.is_protected() && !c.passthrough;
}

// Each text stands for the policy::HeldBy of its place.
constexpr const char* kWhyHeld[policy::kHeldBys] = {
    "work of an earlier lease is still in flight", "it is the turn of others",
    "the gaps between bursts are too short", "they are ahead of their share", "others fill the GPU"};

bool is_offered(const OnGpu& on) {
  return on.offered && on.offered->grant != policy::Grant::kHold;
}

bool agrees(const ipc::LeaseTerms& terms, const policy::Lease& lease) {
  static constexpr uint32_t kStates[] = {abi::kLeaseHold, abi::kLeaseGranted, abi::kLeaseFree};
  return terms.state == kStates[size_t(lease.grant)] && terms.packed == lease.packed;
}

struct Place {  // of a member on one of its GPUs
  Client* member;
  const OnGpu* on;
};

std::vector<Place> paced_places(const Gang& gang) {
  std::vector<Place> places;
  for (Client* member : gang.members)
    if (is_paced(*member))
      for (const OnGpu& on : member->gpus) places.push_back({member, &on});
  return places;
}

// Does the gang have a turn on this GPU?
bool has_turn(const std::vector<Place>& gang, const Uuid& gpu) {
  return std::ranges::any_of(gang, [&](const Place& p) { return p.on->uuid == gpu && is_offered(*p.on); });
}

const Uuid& first_gpu(const std::vector<Place>& gang) {
  return std::ranges::min_element(gang, {}, [](const Place& p) { return p.on->uuid; })->on->uuid;
}

// Is a member of another gang on this GPU?
bool meets_another_gang(const Gang& gang, const std::vector<Client*>& on_its_gpu) {
  return std::ranges::any_of(on_its_gpu, [&](const Client* other) {
    return other->gang != nullptr && other->gang != &gang && is_paced(*other);
  });
}

}  // namespace

void Gangs::join(Client& client, const std::string& name) {
  GangKey key{client.identity.uid, name};
  Gang& gang = gangs_[key];
  gang.key = std::move(key);
  gang.members.push_back(&client);
  client.gang = &gang;
}

// Members count collectives by it. A process on several GPUs that is a gang by itself has none, so that its collectives are
// never held: one thread may launch them on all its GPUs.
void Gangs::send_page(const Client& client) {
  Gang& gang = *client.gang;
  if (gang.members.size() == 1)
    if (base::Result<base::ScopedFd> page = ipc::create_gang(); page.ok()) gang.page = std::move(*page);
  if (!gang.page.valid()) return;
  const abi::GangMemory m{ipc::make_header(abi::kGangMemory, sizeof m)};
  common_.tell(client.connection, m, gang.page.get());
}

const Gang* Gangs::leave(Client& client) {
  Gang* gang = client.gang;
  if (gang == nullptr) return nullptr;
  std::erase(gang->members, &client);
  client.gang = nullptr;
  if (gang->members.empty()) {
    gangs_.erase(GangKey(gang->key));
    return nullptr;
  }
  return gang;
}

// The GPUs whose protected clients it may watch. Its own come first: their policies rely on it.
std::vector<Gpu*> Gangs::may_watch_on(const Client& watcher) {
  std::vector<Gpu*> gpus = gpus_.of(watcher);
  if (watcher.gang == nullptr || !is_paced(watcher)) return gpus;
  for (const Place& place : paced_places(*watcher.gang)) {
    Gpu* gpu = &gpus_.at(place.on->uuid);
    if (std::ranges::find(gpus, gpu) == gpus.end()) gpus.push_back(gpu);
  }
  return gpus;
}

// A gang wants its turns as one, if clients take turns.
void Gangs::add_wishes(const Gpu& gpu, const Client& client, policy::ClientView* view) {
  if (client.gang == nullptr || !is_paced(client) || !gpu.takes_turns()) return;
  for (const Client* member : client.gang->members) {
    if (!is_paced(*member) || member == &client) continue;
    const abi::UsageLine& usage = member->usage_untrusted();
    view->in_flight_ns =
        std::max(view->in_flight_ns, ipc::load(usage.in_flight_ns, std::memory_order_seq_cst));
    if (!member->waiting()) continue;
    const uint64_t since_ns = std::clamp(ipc::load(usage.waiting_since_ns, std::memory_order_relaxed),
                                         member->attached_ns, common_.now_ns);
    view->waiting_since_ns = view->waiting ? std::min(view->waiting_since_ns, since_ns) : since_ns;
    view->waiting = true;
  }
  const bool wanted = may_take_turn(gpu, client);
  const Gpu& first = gpus_.at(first_gpu(paced_places(*client.gang)));
  view->waiting = view->waiting && wanted;
  view->withheld = wanted && is_offered(client.on(gpu.uuid())) && client.terms.state == abi::kLeaseHold;
  view->goes_first = wanted && &first != &gpu && first.takes_turns();
}

// Has its gang the turns that come before the one on this GPU?
bool Gangs::may_take_turn(const Gpu& gpu, const Client& client) {
  const Gang& gang = *client.gang;
  const std::vector<Place> places = paced_places(gang);
  const bool is_in_order = meets_another_gang(gang, gpu.clients());
  return std::ranges::all_of(places, [&](const Place& p) {
    if (p.on->uuid >= gpu.uuid() || has_turn(places, p.on->uuid)) return true;
    return p.on->uuid != first_gpu(places) &&
           !(is_in_order && meets_another_gang(gang, gpus_.at(p.on->uuid).clients()));
  });
}

stats::ClientRow::Gang gang_row(const Client& client) {
  stats::ClientRow::Gang row;
  if (client.gang == nullptr) return row;
  const std::vector<Client*>& members = client.gang->members;
  row.name = client.gang->key.second;
  row.members = members.size();
  row.member = uint64_t(std::find(members.begin(), members.end(), &client) - members.begin()) + 1;
  if (!is_paced(client)) return row;
  const std::vector<Place> places = paced_places(*client.gang);
  for (const Place& p : places) {
    if (!p.on->offered || has_turn(places, p.on->uuid)) continue;
    row.held_at = uuid_text(p.on->uuid);
    row.why = kWhyHeld[size_t(p.on->offered->held_by)];
    return row;
  }
  return row;
}

// Members of gangs get what the policies of all their GPUs offer, and those on other GPUs follow at once. A client on several
// GPUs has one lease, the least of those that it gets there.
void Gangs::share_leases(const Gpu& gpu, const std::vector<Client*>& managed,
                         std::vector<policy::Lease>* leases) {
  std::vector<bool> was_offered;
  for (size_t i = 0; i < leases->size(); ++i) {
    OnGpu& on = managed[i]->on(gpu.uuid());
    was_offered.push_back(is_offered(on));
    on.offered = (*leases)[i];
  }
  for (size_t i = 0; i < leases->size(); ++i) {
    const Client& client = *managed[i];
    if (client.gang == nullptr || !is_paced(client)) {
      for (const OnGpu& on : client.gpus)
        if (on.offered) policy::cut_down_to(*on.offered, &(*leases)[i]);
      continue;
    }
    std::vector<Place> places = paced_places(*client.gang);
    std::erase_if(places, [](const Place& p) { return !p.on->offered; });
    std::vector<policy::GangMember> offers;
    for (const Place& p : places) {
      const auto first =
          std::ranges::find(places, p.on->uuid, [](const Place& other) { return other.on->uuid; });
      offers.push_back({size_t(first - places.begin()), *p.on->offered});
    }
    const std::vector<policy::Lease> together = policy::leases_of(offers);
    std::map<Client*, policy::Lease> others;  // whom this GPU does not decide about
    for (size_t k = 0; k < places.size(); ++k) {
      const auto& [member, on] = places[k];
      if (member == &client && on->uuid == gpu.uuid()) (*leases)[i] = together[k];
      if (member->find_on(gpu.uuid()) == nullptr) others.try_emplace(member, together[k]);
    }
    for (size_t k = 0; k < places.size(); ++k) {
      const auto& [member, on] = places[k];
      Gpu& its = gpus_.at(on->uuid);
      if (on->offered->grant == policy::Grant::kFree && together[k].grant == policy::Grant::kGranted)
        its.look_by(common_.now_ns + policy::kRenewGangNs);
      // Whether it wants a turn there.
      if (was_offered[i] != is_offered(client.on(gpu.uuid())) && gpu.uuid() < on->uuid) its.decide_soon();
      if (member == &client) policy::cut_down_to(together[k], &(*leases)[i]);
      if (const auto other = others.find(member); other != others.end())
        policy::cut_down_to(together[k], &other->second);
    }
    for (const auto& [member, lease] : others)
      if (!agrees(member->terms, lease)) apply(common_, *member, lease, common_.now_ns);
  }
}

}  // namespace tessera::core

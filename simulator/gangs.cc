#include "simulator/gangs.h"

#include <deque>
#include <map>

#include "scheduler_daemon/policy/gang.h"
#include "simulator/world.h"

namespace tessera::simulator {
namespace {

constexpr uint64_t kSeedsApart = 1'000'003;  // between the draws of two GPUs

struct Place {  // of a client
  uint32_t gpu = 0, client = 0;
};

class SimNode {
 public:
  explicit SimNode(const RunInput& input) : input_(input), inputs_(input.gpus, input) {
    for (uint32_t gpu = 0; gpu < input.gpus; ++gpu) {
      inputs_[gpu].clients.clear();
      inputs_[gpu].seed += gpu * kSeedsApart;
    }
    for (const ClientSpec& spec : input.clients) {
      std::vector<ClientSpec>& there = inputs_[spec.gpu].clients;
      places_.push_back({spec.gpu, uint32_t(there.size())});
      there.push_back(spec);
    }
    for (const RunInput& one : inputs_) worlds_.emplace_back(one);
    for (size_t i = 0; i < places_.size(); ++i) {
      const auto [gpu, client] = places_[i];
      if (input.clients[i].gang.empty()) continue;
      Gang& gang = gangs_[input.clients[i].gang];
      gang.add(&worlds_[gpu], client);
      worlds_[gpu].join(client, &gang);
    }
  }

  RunResult run() {
    for (;;) {
      uint64_t now_ns = UINT64_MAX;
      for (World& world : worlds_) now_ns = std::min(now_ns, world.next_ns());
      if (now_ns >= input_.duration_ns) return take_result();
      for (World& world : worlds_)
        if (world.next_ns() <= now_ns) world.step(now_ns);
      for (auto& [name, gang] : gangs_) gang.meet(now_ns);
    }
  }

 private:
  RunResult take_result() {
    std::vector<RunResult> of_gpus;
    RunResult all;
    for (World& world : worlds_) {
      world.warm_up(input_.duration_ns);
      RunResult one = world.take_result();
      all.audit.starts_under_pulse += one.audit.starts_under_pulse;
      all.audit.overlaps += one.audit.overlaps;
      all.audit.starts_without_lease += one.audit.starts_without_lease;
      all.n_events += one.n_events;
      all.n_decisions += one.n_decisions;
      all.model_loads += one.model_loads;
      of_gpus.push_back(std::move(one));
    }
    for (const auto& [gpu, client] : places_) all.clients.push_back(std::move(of_gpus[gpu].clients[client]));
    return all;
  }

  const RunInput& input_;
  std::vector<RunInput> inputs_;  // one per GPU, at its place for good
  std::deque<World> worlds_;      // likewise
  std::vector<Place> places_;     // of the input's clients
  std::map<std::string, Gang> gangs_;
};

}  // namespace

void Gang::leave(const World& world) {
  for (Rank& rank : ranks_)
    if (rank.world == &world) rank.offered.reset();
  begun_ = 0;
}

policy::Lease Gang::share(const World& world, const policy::Lease& offered, uint64_t now_ns) {
  std::vector<Rank*> ranks;
  std::vector<policy::GangMember> offers;
  for (Rank& rank : ranks_) {
    if (rank.world == &world) rank.offered = offered;
    if (!rank.offered) continue;
    offers.push_back({ranks.size(), *rank.offered});
    ranks.push_back(&rank);
  }
  const std::vector<policy::Lease> together = policy::leases_of(offers);
  policy::Lease own = offered;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto& [peer, client, its_offer] = *ranks[i];
    const policy::Lease& has = peer->lease(client);
    if (peer == &world) {
      own = together[i];
    } else if (has.grant != together[i].grant || has.packed != together[i].packed) {
      peer->come_to(now_ns);
      peer->take_lease(client, together[i]);
    }
  }
  return own;
}

void Gang::add_pulses(const World& besides, std::vector<admission::PulseView>* pulses) const {
  for (const Rank& rank : ranks_)
    if (rank.world != &besides && rank.world->attached(rank.client)) rank.world->add_pulses(pulses);
}

void Gang::wake_watchers(const World& world, uint64_t now_ns) {
  for (const Rank& rank : ranks_) {
    if (rank.world == &world) continue;
    rank.world->come_to(now_ns);
    rank.world->wake_watcher(rank.client);
  }
}

void Gang::meet(uint64_t now_ns) {
  bool any = false;
  for (const Rank& rank : ranks_) {
    if (!rank.world->attached(rank.client)) continue;
    if (!rank.world->waits_for_peers(rank.client)) return;
    any = true;
  }
  if (!any) return;
  for (const Rank& rank : ranks_)
    if (rank.world->attached(rank.client)) rank.world->meet(rank.client, now_ns);
}

RunResult simulate_gpus(const RunInput& input) {
  SimNode node(input);
  return node.run();
}

}  // namespace tessera::simulator

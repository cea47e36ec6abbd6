// The urgent run, then those furthest behind, each until it is a turn ahead of the next in line.
#include <functional>

#include "scheduler_daemon/policy/levels.h"
#include "scheduler_daemon/policy/parts/parts.h"

namespace tessera::policy {
namespace {

constexpr double kUrgentLeadNs = 1e9;  // of virtual time: before everybody who is not

}  // namespace

void choose_runners(const Facts& f, PolicyState* learnt) {
  if (!f.o.mps || !f.both_kinds || !f.tuning.crowd) return;
  auto& line = learnt->line;
  line.clear();
  size_t n_present = 0;
  for (size_t i = 0; i < f.o.clients.size(); ++i) {
    ClientState& c = learnt->clients[i];
    if (is_protected(f.o.clients[i]) || !c.share.had_demand) continue;
    ++n_present;
    if (c.held_back)
      c.runs = false;  // or the others would wait for one that may not start
    else
      line.emplace_back(c.share.virtual_ns, i);
  }
  if (n_present <= f.tuning.few || f.undisturbed_until_ns != 0) return;
  for (auto& [place_ns, i] : line) {
    const ClientState& c = learnt->clients[i];
    place_ns -= c.share.urgent ? kUrgentLeadNs : c.runs ? learnt->turn_ns : 0;
  }
  std::make_heap(line.begin(), line.end(), std::greater<>());
  double sms = 0;
  auto end = line.end();
  for (; end != line.begin() && sms < f.o.sm_count; --end) {
    std::pop_heap(line.begin(), end, std::greater<>());
    const size_t i = std::prev(end)->second;
    learnt->clients[i].runs = true;
    sms += f.o.clients[i].launch_sms == 0 ? f.o.sm_count : f.o.clients[i].launch_sms;
  }
  for (auto it = line.begin(); it != end; ++it) {
    learnt->clients[it->second].runs = false;
    learnt->clients[it->second].crowded_out = true;
  }
}

Constraint Crowd::of(size_t client) const {
  return {.start = f_.learnt.clients[client].crowded_out ? Constraint::Start::kHeld
                                                         : Constraint::Start::kAsGranted,
          .held_by = HeldBy::kCrowd};
}

}  // namespace tessera::policy

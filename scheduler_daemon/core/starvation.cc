// Tells which best-effort client starves, for `tessera ps`: measured by policy::StarvationWatch, told with the reason, the remedy
// and its price.
#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>

#include "base/printable.h"
#include "scheduler_daemon/core/gpu.h"
#include "scheduler_daemon/policy/levels.h"

namespace tessera::core {
namespace {

using policy::StarvedBy;

constexpr double kUsefulMinimum = 0.05, kMostMinimum = 0.9;  // the minimum share that is proposed

std::string named(const Client& client) {
  return "'" + base::printable(client.name) + "' (" + std::to_string(client.identity.pid) + ")";
}

__attribute__((format(printf, 1, 2))) std::string text(const char* format, ...) {
  char line[400];
  va_list values;
  va_start(values, format);
  std::vsnprintf(line, sizeof line, format, values);
  va_end(values);
  return line;
}

const char* name_of(StarvedBy by) {
  switch (by) {
    case StarvedBy::kNothing:
      return "";
    case StarvedBy::kServices:
      return "services";
    case StarvedBy::kGaps:
      return "gaps";
    case StarvedBy::kTurns:
      return "turns";
    case StarvedBy::kShares:
      return "shares";
    case StarvedBy::kLongBlocks:
      return "long_blocks";
  }
  return "";
}

// The minimum is taken at the end of its window, in one piece at worst.
std::string minimum_remedy(const policy::Parameters& p, const Client* service) {
  const uint64_t burst_ns = service == nullptr ? 0 : service->gpus.front().bursts.baseline_ns();
  const policy::Tuning tuning;
  const double share = std::clamp(p.min_share * 2, kUsefulMinimum, kMostMinimum);
  const std::string price =
      burst_ns == 0 ? std::string("a burst")
                    : text("a burst of %s (%.1f ms)", named(*service).c_str(), double(burst_ns) / 1e6);
  return text("policy.min_share_percent = %.0f (now %.0f); its price: %s may take up to %.0f ms longer",
              share * 100, p.min_share * 100, price.c_str(), share * double(tuning.recent_ns) / 1e6);
}

}  // namespace

void watch_starvation(OnGpu& on, const policy::ClientView& view, const policy::Lease& lease,
                      uint64_t services_busy_ns, uint64_t now_ns) {
  if (view.priority > 0) return;
  on.starvation.look({.now_ns = now_ns,
                      .wants = policy::has_demand(view),
                      .used_ns = view.used_ns,
                      .services_busy_ns = services_busy_ns,
                      .held_by = lease.held_by,
                      .confined = lease.long_block_ns != 0 && lease.long_width_percent < 100});
}

stats::ClientRow::Starved Gpus::starved(const Client& client, uint64_t now_ns) const {
  stats::ClientRow::Starved s;
  const auto starves = std::ranges::find_if(client.gpus, [&](const OnGpu& on) {
    return on.starvation.latest(now_ns).by != StarvedBy::kNothing && gpus_.contains(on.uuid);
  });
  if (client.is_protected() || starves == client.gpus.end()) return s;
  const policy::Starvation found = starves->starvation.latest(now_ns);
  s = {.by = name_of(found.by), .share = found.share, .services_busy = found.services_busy};
  const Client *busiest = nullptr, *offender = nullptr;
  for (const Client* other : gpus_.at(starves->uuid).clients()) {
    if (other->is_protected() && (busiest == nullptr || other->counters.busy_ns > busiest->counters.busy_ns))
      busiest = other;
    if (other != &client && other->overdue.count(now_ns) != 0) offender = other;
  }
  const policy::Parameters& p = common_.settings.parameters;
  switch (found.by) {
    case StarvedBy::kNothing:
      break;
    case StarvedBy::kServices:
      s.why =
          text("protected programs work %.0f %% of the time%s%s", found.services_busy * 100,
               busiest == nullptr ? "" : ", most of it ", busiest == nullptr ? "" : named(*busiest).c_str());
      s.remedy = minimum_remedy(p, busiest);
      break;
    case StarvedBy::kGaps:
      s.why = "the gaps between bursts of protected programs are too short to start in";
      s.remedy = minimum_remedy(p, busiest);
      break;
    case StarvedBy::kTurns:
      s.why = offender == nullptr ? "other programs have the turns"
                                  : "it waits for " + named(*offender) + ", which does not drain";
      s.remedy = offender == nullptr ? text("a larger weight: tessera set %d --weight %u",
                                            client.identity.pid, std::min(10000u, client.weight * 2))
                                     : text("end it: tessera stop %d", offender->identity.pid);
      break;
    case StarvedBy::kShares:
      s.why = "others of its level are owed more, or fill the GPU";
      s.remedy = text("a larger weight: tessera set %d --weight %u", client.identity.pid,
                      std::min(10000u, client.weight * 2));
      break;
    case StarvedBy::kLongBlocks:
      s.why = "its blocks outlast what a burst may wait for, so they get little of the GPU";
      s.remedy =
          text("policy.slowdown_target_percent (now %.0f): the slow bursts may then be as much longer%s",
               p.slowdown_target * 100, client.confines ? "" : "; or a driver with green contexts (12.5)");
      break;
  }
  return s;
}

}  // namespace tessera::core

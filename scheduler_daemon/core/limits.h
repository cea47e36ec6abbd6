// Limits that the configuration sets by user, group or control group.
#pragma once

#include <fnmatch.h>

#include <algorithm>

#include "ipc/channel/server.h"
#include "scheduler_daemon/core/settings.h"

namespace tessera::core {

// The first limit that names the process; null: none.
template <class Limit>
const Limit* first_that_fits(const std::vector<Limit>& limits, const ipc::PeerIdentity& identity) {
  const auto fits = [&](const Limit& limit) {
    if (limit.cgroup.empty()) return limit.id == (limit.by_gid ? identity.gid : identity.uid);
    // FNM_LEADING_DIR: what is below a group belongs to it.
    return !identity.cgroup.empty() &&
           ::fnmatch(limit.cgroup.c_str(), identity.cgroup.c_str(), FNM_PATHNAME | FNM_LEADING_DIR) == 0;
  };
  const auto found = std::find_if(limits.begin(), limits.end(), fits);
  return found != limits.end() ? &*found : nullptr;
}

inline uint32_t allowed_priority(const Settings& settings, const ipc::PeerIdentity& identity,
                                 uint32_t claimed) {
  const PriorityLimit* limit = first_that_fits(settings.priority_limits, identity);
  return std::min(claimed, limit ? limit->max_priority : settings.default_max_priority);
}

}  // namespace tessera::core

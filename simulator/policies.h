// Every policy that a scenario may name: those of the daemon, and the baselines.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "scheduler_daemon/policy/policy.h"

namespace tessera::simulator {

// nullptr for an unknown name.
std::unique_ptr<policy::Policy> make_any_policy(const std::string& name, const policy::Parameters& parameters,
                                                const policy::Tuning& tuning = {});
std::vector<std::string> any_policy_names();

}  // namespace tessera::simulator

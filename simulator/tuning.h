// Constants of the daemon's policies (scheduler_daemon/policy/tuning.def) by name, to try other values.
#pragma once

#include <string>

#include "base/result.h"
#include "scheduler_daemon/policy/tuning.h"

namespace tessera::simulator {

// Says what is wrong with the name or the value. Parts take 0 (off) or 1.
base::Status set_tuning(const std::string& name, double value, policy::Tuning* tuning);
base::Status set_tuning(const std::string& name_and_value, policy::Tuning* tuning);  // "name=value"

}  // namespace tessera::simulator

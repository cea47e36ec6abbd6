// The constants of the policies as one value, so that the simulator can try others. The daemon uses what
// tuning.def says. Pure.
#pragma once

#include <cstdint>

namespace tessera::policy {

struct Tuning {
#define TS_TUNE(type, name, value, unit, why) type name = value;
#define TS_PART(name, on, what) bool name = on;
#include "scheduler_daemon/policy/tuning.def"

  bool operator==(const Tuning&) const = default;
};

}  // namespace tessera::policy

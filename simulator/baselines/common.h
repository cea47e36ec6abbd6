// Helpers that every baseline needs, for the policies' plain data and the questions that they ask.
#pragma once

#include "scheduler_daemon/policy/levels.h"
#include "scheduler_daemon/policy/policy.h"

namespace tessera::simulator::baselines {

using policy::busiest;
using policy::ClientView;
using policy::Decision;
using policy::Grant;
using policy::granted;
using policy::has_demand;
using policy::is_protected;
using policy::Lease;
using policy::look_at;
using policy::Observation;
using policy::Parameters;
using policy::Policy;
using policy::ResourceClass;

}  // namespace tessera::simulator::baselines

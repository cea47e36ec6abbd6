#include "scheduler_daemon/policy/none.h"
#include "scheduler_daemon/policy/policy.h"
#include "scheduler_daemon/policy/temporal.h"
#include "scheduler_daemon/policy/tessera.h"

namespace tessera::policy {

std::unique_ptr<Policy> make_policy(const std::string& name, const Parameters& parameters,
                                    const Tuning& tuning) {
#define TS_POLICY(row, type, summary) \
  if (name == #row) return std::make_unique<type>(parameters, tuning);
#include "scheduler_daemon/policy/policies.def"
  return nullptr;
}

std::vector<std::string> policy_names() {
  return {
#define TS_POLICY(row, type, summary) #row,
#include "scheduler_daemon/policy/policies.def"
  };
}

}  // namespace tessera::policy

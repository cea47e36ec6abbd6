#include "simulator/policies.h"

#include "simulator/baselines/hummingbird.h"
#include "simulator/baselines/orion.h"
#include "simulator/baselines/reef_n.h"
#include "simulator/baselines/tally.h"
#include "simulator/baselines/vitamin_e.h"

namespace tessera::simulator {

std::unique_ptr<policy::Policy> make_any_policy(const std::string& name, const policy::Parameters& parameters,
                                                const policy::Tuning& tuning) {
#define TS_BASELINE(row, type, whose, summary) \
  if (name == #row) return std::make_unique<baselines::type>(parameters);
#include "simulator/baselines/baselines.def"
  return policy::make_policy(name, parameters, tuning);
}

std::vector<std::string> any_policy_names() {
  std::vector<std::string> names = policy::policy_names();
  names.insert(names.end(), {
#define TS_BASELINE(row, type, whose, summary) #row,
#include "simulator/baselines/baselines.def"
                            });
  return names;
}

}  // namespace tessera::simulator

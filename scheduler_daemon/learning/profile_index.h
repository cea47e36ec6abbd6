// Holds what profile files say, in the form that a client is handed: per GPU, launch keys with their time per block
// and kernels with their class. Pure; built by the store's thread, read by the daemon's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ipc/abi/learnt.h"
#include "profiles/kernel_profile.h"

namespace tessera::learning {

struct Known {
  uint64_t launch_key = 0, kernel_hash = 0;
  uint64_t block_ps = 0;  // 0 = no duration
  double total_ns = 0;    // its weight
  profiles::Class bound = profiles::Class::kUnknown;
  bool online = false;  // measured while sharing, by this machine's programs
};
using ByGpu = std::map<std::string, std::vector<Known>>;

ByGpu known_of(const profiles::Profile& profile);

// Files in order of precedence. What several say of one key: durations of the first file that has them,
// online ones before others of the same file; class: of the first file that has one, of the shape with most
// time.
class ProfileIndex {
 public:
  struct Source {
    std::optional<uint32_t> uid;  // learnt from this user's programs: for nobody else
    const ByGpu* known;           // must outlive the call that uses it
  };
  static std::vector<ipc::abi::LearntSlot> slots(const std::vector<Source>& sources, uint32_t uid,
                                                 const std::string& gpu, size_t most);
};

}  // namespace tessera::learning

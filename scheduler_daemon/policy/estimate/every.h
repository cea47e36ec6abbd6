// Something that is due once in a number of bursts, of which a look does not see each: requests of two bursts show only even
// numbers. It stays due until the number of bursts changes. Pure value.
#pragma once

#include <cstdint>

namespace tessera::policy {

class Every {
 public:
  explicit Every(uint64_t first = 0) : latest_(first) {}

  bool due(uint64_t bursts, uint64_t every) const {
    return every != 0 && (bursts == latest_ || bursts >= latest_ + every);
  }
  bool note(uint64_t bursts, uint64_t every) {  // true: it was due for the first time
    if (bursts < latest_ + every) return false;
    latest_ = bursts;
    return true;
  }

 private:
  uint64_t latest_;  // bursts, when it was due last
};

}  // namespace tessera::policy

// Iterations of a recording without marks: the same launches, again and again, with a wait of the host in each. Layers of a
// model repeat, too, but nobody waits between them. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::simulator::traces {

struct Launched {      // in order of the host's calls
  uint64_t shape = 0;  // what was launched: equal for equal name and grid
  int64_t call_ns = 0;
  bool behind_a_wait = false;  // the host waited since the launch before
};

// Returns where iterations begin, three or more, and where the last one ends; empty: nothing repeats. They begin behind the longest
// pause of the host, on average.
std::vector<size_t> repeated_pattern(const std::vector<Launched>& launches);

}  // namespace tessera::simulator::traces

// The environment of a client: the variables that the preload library reads. All that start programs share it: `tessera
// run` and the plugins of schedulers (integrations/). Pure but for looking whether files are there.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/run/layout.h"

namespace tessera::cli {

struct RunOptions {
  std::string priority = "best-effort";  // high | best-effort | 0..7
  std::string name;                      // for people, in `tessera ps`; default: the command's file name
  std::string weight;                    // "" = the daemon's usual share; 1..10000
  std::string slo;                       // "" = none; durations, as in 20ms,ttft=200ms (docs/requests.md)
  std::string gpu = "auto";              // auto: the machine's driver; soft: the software GPU
  std::string socket;                    // "" = default
  std::string bit_stability;             // "" = the environment's, else strict | relaxed
  std::string gate;                      // "" = the environment's, else auto | device | thread
  std::string gang;                      // "" = as its launcher says (docs/gangs.md), else a name | none
  bool allow_order_dependent = false;    // false = as the environment says
  bool keep_ptx = false;                 // have what compiles for itself keep its PTX (cli/run/keep_ptx.h)
  bool operations = true;         // libtessera_ops.so too: what library calls say (docs/library-calls.md)
  bool split_operations = false;  // its long library calls go out in pieces (docs/library-calls.md)
  // libtessera_audit.so too: who looks libraries up is served (docs/driver_api.md). Not said: tessera run decides by the
  // program (cli/run/lookups.h), elsewhere no.
  std::optional<bool> audit;
  std::vector<std::string> request_ranges;  // ranges of NVTX that are requests (docs/requests.md)
  std::vector<std::string> yield_ranges;    // and those whose work begins no burst
  std::string newer_names;          // library to preload in front of ours; "" = none (cli/run/newer_names.h)
  bool preload = true;              // false: something else loads the libraries (cli/run/cdi.h)
  bool passthrough = false;         // load nothing, gate nothing
  std::string trace;                // file; "" = none
  bool place = false;               // on the GPU of several that costs least (cli/run/place.h)
  uint64_t memory_bytes = 0;        // that it is going to need, for place; 0 = not known
  uint64_t memory_limit_bytes = 0;  // of each GPU, most that it may have; 0 = no limit
  uint64_t memory_reserve_bytes = 0;  // of each GPU, for it alone; 0 = none
  std::string memory_wait;            // how long an allocation waits for room, e.g. 10m; empty: not at all
  bool parkable = false;              // its memory may leave its GPUs (docs/memory.md)
  uint64_t memory_group = 0;  // number of this run: its processes share the limit; 0 = each has its own
  std::vector<std::string> command;
};

// "high" -> 5, "best-effort" -> 0, "0".."7" -> itself.
base::Result<unsigned> parse_priority(const std::string& text);

// Weight of a client among those of its level.
base::Result<unsigned> parse_weight(const std::string& text);

// Latency objective in nanoseconds.
base::Result<uint64_t> parse_slo_ns(const std::string& text);

// The variables to set for a client, as NAME=VALUE. `old`: the program's environment so far, of which LD_PRELOAD and
// LD_LIBRARY_PATH are kept and appended to.
using Lookup = std::string (*)(const char* name, void* of);
std::string own_environment(const char* name, void* = nullptr);
base::Result<std::vector<std::string>> client_environment(const RunOptions& options, const Layout& layout,
                                                          Lookup old = own_environment, void* of = nullptr);

// The folder of Tessera's caches, as the preload library finds it (TESSERA_CACHE_DIR); "" = none.
std::string cache_folder(Lookup look = own_environment, void* of = nullptr);

}  // namespace tessera::cli

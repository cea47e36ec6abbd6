// `tessera run`: sets the environment that makes a program a Tessera client, then replaces itself by the
// program, so that exit code, signals, terminal and process id are the program's own.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/layout.h"

namespace tessera::cli {

struct RunOptions {
  std::string priority = "best-effort";  // high | best-effort | 0..7
  std::string name;                      // for people, in `tessera ps`; default: the command's file name
  std::string weight;                    // "" = the daemon's usual share; 1..10000
  std::string slo;                       // "" = none; a duration
  std::string gpu = "auto";              // auto: the machine's driver; soft: the software GPU
  std::string socket;                    // "" = default
  std::string bit_stability;             // "" = the environment's, else strict | relaxed
  bool allow_order_dependent = false;    // false = as the environment says
  bool passthrough = false;              // load nothing, gate nothing
  std::vector<std::string> command;
};

// `given`, or the default socket of this user if it is empty.
base::Result<std::string> resolve_socket(const std::string& given);

// "high" -> 5, "best-effort" -> 0, "0".."7" -> itself.
base::Result<unsigned> parse_priority(const std::string& text);

// The variables to set for a client, as NAME=VALUE; existing LD_PRELOAD and LD_LIBRARY_PATH are kept and
// appended to.
base::Result<std::vector<std::string>> client_environment(const RunOptions& options, const Layout& layout);

// Returns only on failure, with the exit status a shell would give: 127 not found, 126 not executable, 2 bad
// usage.
int run(const RunOptions& options);

}  // namespace tessera::cli

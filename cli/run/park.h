// `tessera park` and `tessera unpark`: a client leaves its GPU, or comes back (docs/memory.md), through the daemon's control
// socket, whose file says who may.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace tessera::cli {

struct ParkOptions {
  std::string target;   // process id, or the name that `tessera ps` shows
  double seconds = 60;  // how long it is waited for
  std::string socket;   // "" = this user's default
};

int park(const ParkOptions& options, bool parked);   // exit status
std::string ps_parked(const nlohmann::json& state);  // who is parked, or was not: lines of `tessera ps`

}  // namespace tessera::cli

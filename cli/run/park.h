// `tessera park`, `unpark` and `move`: a client leaves its GPU, comes back, or does so on another one (docs/memory.md), through the daemon's control
// socket, whose file says who may.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace tessera::cli {

struct ParkOptions {
  std::string target;   // process id, or the name that `tessera ps` shows
  std::string gpu;      // `move`: a UUID, or a number as programs see it
  double seconds = 60;  // how long it is waited for
  std::string socket;   // "" = this user's default
};

enum class ParkCommand { kPark, kUnpark, kMove };
int park(const ParkOptions& options, ParkCommand command);  // exit status
std::string ps_parked(const nlohmann::json& state);  // who is parked, or was not: lines of `tessera ps`

}  // namespace tessera::cli

// NVIDIA's Multi-Process Service, as this user's tesserad runs or found it: what a program needs to become
// its client, and `tessera stop`, which ends one client without hurting the others.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace tessera::cli {

struct MpsInfo {
  bool active = false;
  std::string mode, reason, pipe_directory, log_directory, control_program;
};

// Asks the daemon at `socket_path`.
base::Result<MpsInfo> ask_mps(const std::string& socket_path);

// Process ids of its servers, as its control daemon says.
base::Result<std::vector<long>> mps_servers(const MpsInfo& mps);

// Variables that make a program a client of it, NAME=VALUE; best-effort ones get the lower client priority.
std::vector<std::string> mps_environment(const MpsInfo& mps, bool best_effort);

// A client that is ended by a signal may hang the others (the vendor's documentation calls it undefined):
// terminate_client of the control daemon instead. Exit status.
int stop(long pid, const std::string& socket);

}  // namespace tessera::cli

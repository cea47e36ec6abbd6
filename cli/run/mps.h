// NVIDIA's Multi-Process Service, as this user's tesserad runs or found it: what a program needs to become
// its client, and `tessera stop`, which ends one client without hurting the others.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace tessera::cli {

// "0=2048M,1=512M", by the program's own numbers of GPUs: bytes that MPS lets each process have.
inline constexpr char kMpsMemoryLimit[] = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

struct MpsInfo {
  bool active = false;
  std::string mode, reason, pipe_directory, log_directory, control_program;
  uint64_t memory_limit_bytes = 0;  // that the daemon's configuration has for who asks; 0: none
};

// Asks the daemon at `socket_path`.
base::Result<MpsInfo> ask_mps(const std::string& socket_path);

// Process ids of its servers, as its control daemon says.
base::Result<std::vector<long>> mps_servers(const MpsInfo& mps);

// Variables that make a program a client of it, NAME=VALUE; best-effort ones get the lower client priority. MPS limits each process
// that sees `gpus` GPUs to `memory_limit_bytes` of each of them (0: it does not), also where the process runs without Tessera.
std::vector<std::string> mps_environment(const MpsInfo& mps, bool best_effort, uint64_t memory_limit_bytes,
                                         size_t gpus);

// A client that is ended by a signal may hang the others (the vendor's documentation calls it undefined):
// terminate_client of the control daemon instead. Exit status.
int stop(long pid, const std::string& socket);

}  // namespace tessera::cli

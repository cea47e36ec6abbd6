// Asks the GPUs' management library (NVML) for the memory of processes. Its figure less that of our books is memory
// that the books do not see: contexts, code and local memory. The library is opened for each question. Main thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

namespace tessera::cli {

// Bytes by GPU ("GPU-...") and process; nothing: the library knows the process, and has no figure of it (GPUs that share the
// host's memory). Empty without the library.
using ProcessBytes = std::map<std::pair<std::string, uint64_t>, std::optional<uint64_t>>;
ProcessBytes process_memory();

// Adds `residual` to each row of `memory` of each client in the daemon's state, and `memory_residual_bytes` to the client,
// where there is a figure: what NVML says less what the books say. A row whose figure is missing has `residual` null.
void add_residuals(const ProcessBytes& bytes, nlohmann::json* state);

}  // namespace tessera::cli

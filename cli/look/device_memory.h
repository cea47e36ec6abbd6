// Asks the GPUs' management library (NVML) for the memory of processes. Its figure less that of our books is memory
// that the books do not see: contexts, code and local memory. The library is opened for each question. Main thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

namespace tessera::cli {

// Bytes by GPU ("GPU-...") and process. What the library does not say is not there; empty without the library.
using ProcessBytes = std::map<std::pair<std::string, uint64_t>, uint64_t>;
ProcessBytes process_memory();

// Adds `residual` to each row of `memory` of each client in the daemon's state, and `memory_residual_bytes` to the client,
// where there is a figure: what NVML says less what the books say.
void add_residuals(const ProcessBytes& bytes, nlohmann::json* state);

}  // namespace tessera::cli

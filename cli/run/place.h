// `tessera run --place` and --memory-reserve: on which of the node's GPUs a program starts, and what of their memory is its own. The driver says which there are (asked in a child,
// which ends before the program starts), the daemon which of them costs the program and those on it least.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/run/client_environment.h"
#include "ipc/abi/placement.h"

namespace tessera::cli {

struct VisibleGpu : ipc::abi::PlaceGpu {
  bool shares_host_memory = false;
  bool holds_host_pages = false;  // it has memory of its own, to which the host's page tables lead (Grace)
};
// The GPUs that a program would see through this driver library, in its order; CUDA_VISIBLE_DEVICES counts.
base::Result<std::vector<VisibleGpu>> visible_gpus(const std::string& driver);

// The name of the GPU with this index among those that a program sees, in the words of its CUDA_VISIBLE_DEVICES
// (`list`). These are numbers, UUIDs or beginnings of them. A number is given if the list has none. Programs read back
// their own words: a number by int().
std::string device_of(const std::string& list, size_t index);

// CUDA_VISIBLE_DEVICES=... for the program, and a line for people in `note`. Empty where there is nothing to choose.
base::Result<std::string> place(const RunOptions& options, const std::string& driver,
                                const std::string& socket_path, std::string* note);

// place() calls this with the answer of tesserad: `text` is JSON, and chooses one of `gpus`.
base::Result<std::string> placement(const RunOptions& options, const std::vector<VisibleGpu>& gpus,
                                    const std::string& text, std::string* note);

// Has the daemon keep options.memory_reserve_bytes of each GPU that the program would see for its run, which this process
// becomes. Error: too little is free, and who has it.
base::Status reserve(const RunOptions& options, const std::string& driver, const std::string& socket_path);

}  // namespace tessera::cli

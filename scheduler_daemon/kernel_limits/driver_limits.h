// Limits of GPU memory for control groups that NVIDIA's driver keeps itself, as `nvidia-smi memory-limits` sets them: the way where
// the kernel has no dmem controller. NVML sets them, in a process that lives for one request: the daemon never loads the driver, and
// does not wait for it.
//
// Facts: NVML API Reference Guide, nvmlDeviceSetMemoryLimits_v1 and nvmlDeviceGetMemoryLimits_v1 (driver 615 and later, root, not
// with MIG): a soft and a hard limit in bytes for the path of a control group. A hard limit with all bits set is none. Not seen on
// hardware.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/scoped_fd.h"

namespace tessera::kernel_limits {

struct DriverLimit {
  std::string folder;  // of the control group, absolute; without a line break
  uint64_t bytes = 0;  // of each GPU; 0: no limit any more
  uint64_t ours = 0;   // what this daemon has set there; 0: nothing. Limits of others stay
};

// An answer where the driver, or NVML, is too old or not there.
inline constexpr char kNoDriverLimits[] = "the driver has no limits of its own (615 and later have)";

// The daemon's end. One thread; never waits.
class DriverLimits {
 public:
  // Whole command of the process; its standard input will be the socket. Empty: nobody is asked.
  explicit DriverLimits(std::vector<std::string> command) : command_(std::move(command)) {}

  bool can_ask() const { return !command_.empty() && !socket_.valid(); }
  void ask(const std::vector<DriverLimit>& limits);  // only if can_ask()
  int fd() const { return socket_.get(); }           // readable: call answers(); -1: nobody was asked
  // For each limit, in order: why it is not as wanted; empty: it is. No value: the process is not ready yet.
  std::optional<std::vector<std::string>> answers();

 private:
  std::vector<std::string> command_;
  base::ScopedFd socket_;
  pid_t child_ = -1;
  size_t asked_ = 0;
  std::string text_;  // read so far
};

// The process: answers what stands in `socket`, and returns its exit status. It ends itself if the driver hangs.
int serve_driver_limits(int socket);

}  // namespace tessera::kernel_limits

// Writes the daemon's log lines to standard error, which it shares with who started it, and which nobody may
// read. A line that would wait is lost, and counted in the next one that is not. Used by tesserad's main; any
// thread writes.
#pragma once

#include <memory>

namespace spdlog {
class logger;
}

namespace tessera::transport {

// Writes to `fd` as it is now; its status flags are left alone.
std::shared_ptr<spdlog::logger> make_logger(int fd);

}  // namespace tessera::transport

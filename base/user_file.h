// The one place where a file is opened whose name a user gave: an argument, a variable, a line of a scenario.
// Only a regular file is read. A FIFO would stop the program until somebody writes, a device never ends, and
// a folder has no bytes. What is written may also go to a device, or to a pipe that somebody reads. Nothing here blocks. Errors name the path and say why. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/scoped_fd.h"

namespace tessera::base {

// kNotFound: there is no such file. kInvalid: it is no regular file. kPermission, kUnavailable: as the kernel says.
Result<ScopedFd> open_to_read(const std::string& path);
// Made if it is not there, emptied if it is.
Result<ScopedFd> open_to_write(const std::string& path);

// kExhausted: it is larger than `most_bytes`.
Result<std::string> read_user_file(const std::string& path, uint64_t most_bytes);
Status write_user_file(const std::string& path, std::string_view text);

}  // namespace tessera::base

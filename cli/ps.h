// `tessera ps`: asks the daemon who is on its GPUs. The daemon's JSON is printed as it is (--json) or as a table.
#pragma once

#include <string>

#include "base/result.h"

namespace tessera::cli {

// One Query to the daemon at `socket_path`; its JSON text. Waits at most two seconds.
base::Result<std::string> query_daemon(const std::string& socket_path);

// `socket`: "" = this user's default. Exit status.
int ps(const std::string& socket, bool json);

}  // namespace tessera::cli

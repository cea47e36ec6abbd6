// `tessera run`: sets the environment that makes a program a Tessera client, then replaces itself by the
// program, so that exit code, signals, terminal and process id are the program's own.
#pragma once

#include <string>

#include "base/result.h"
#include "cli/run/client_environment.h"
#include "cli/run/layout.h"

namespace tessera::cli {

// `given`, or the default socket of this user if it is empty.
base::Result<std::string> resolve_socket(const std::string& given);

// Returns only on failure, with the exit status a shell would give: 127 not found, 126 not executable, 2 bad
// usage.
int run(const RunOptions& options);

}  // namespace tessera::cli

// `tessera ps`: asks the daemon who is on its GPUs. The daemon's JSON is printed as it is (--json) or as a
// table.
#pragma once

#include <string>

namespace tessera::cli {

// `socket`: "" = this user's default. Exit status.
// `operations`: and what they ask of libraries.
int ps(const std::string& socket, bool json, bool operations = false);

}  // namespace tessera::cli

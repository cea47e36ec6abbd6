// `tessera ps`: asks the daemon who is on its GPUs. The daemon's JSON is printed as it is (--json) or as a
// table.
#pragma once

#include <string>

namespace tessera::cli {

// `socket`: "" = this user's default. Exit status.
struct PsOptions {
  bool json = false;
  bool operations = false;  // and what best-effort clients ask of libraries
  bool requests = false;    // and how long requests of protected clients took
};
int ps(const std::string& socket, const PsOptions& options);

}  // namespace tessera::cli

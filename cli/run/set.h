// `tessera set`: changes a client while it runs, through the daemon's control socket, whose file says who
// may.
#pragma once

#include <string>

#include "base/result.h"
#include "ipc/abi/messages.h"

namespace tessera::cli {

struct SetOptions {
  std::string target;                              // process id, or the name that `tessera ps` shows
  std::string priority, weight, slo, passthrough;  // "" = stays as it is
  std::string socket;                              // "" = this user's default
};

base::Result<ipc::abi::Control> set_request(const SetOptions& options);
int set(const SetOptions& options);     // exit status
int reload(const std::string& socket);  // the daemon reads its configuration again; exit status

}  // namespace tessera::cli

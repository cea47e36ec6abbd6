// The gangs that the daemon knows (docs/gangs.md): clients of one user that name the same gang, whatever GPUs they are on.
// Owned by Core; core/gangs.cc says what the members get.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/scoped_fd.h"

namespace tessera::core {

struct Client;

using GangKey = std::pair<uid_t, std::string>;

struct Gang {
  GangKey key;
  std::vector<Client*> members;  // in order of arrival
  base::ScopedFd page;           // ipc/abi/gang.h; invalid: out of descriptors, so that no collective is held
};

}  // namespace tessera::core

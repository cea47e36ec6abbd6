// A URL of this machine, as `http://127.0.0.1:8000/sleep?level=1`: what the daemon asks must not leave it. Pure, any thread;
// used by the configuration, which refuses others, and by Request.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "base/result.h"

namespace tessera::engines {

struct LocalUrl {
  std::string host;  // as the URL has it, with its port: what the request names
  std::string path;  // with its query; at least "/"
  union {            // of the host: a loopback address
    sockaddr any;
    sockaddr_in v4;
    sockaddr_in6 v6;
  } address{};
  socklen_t address_bytes = 0;
};

// Error kInvalid: what is wrong with it.
base::Result<LocalUrl> parse_local_url(const std::string& text);

}  // namespace tessera::engines

// Reads what a descriptor has until its end, as bytes; what was read before an error, if there is one. Blocks. Any thread.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <string>

namespace tessera::base {

inline std::string read_to_end(int fd) {
  std::string text;
  char chunk[4096];
  for (ssize_t n; (n = ::read(fd, chunk, sizeof chunk)) != 0;)
    if (n > 0)
      text.append(chunk, size_t(n));
    else if (errno != EINTR)
      break;
  return text;
}

}  // namespace tessera::base

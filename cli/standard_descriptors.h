// First in main() of `tessera` and `tessera-ptxas`.
#pragma once

#include <fcntl.h>
#include <unistd.h>

namespace tessera::cli {

// Closed standard descriptors are occupied, so that a file opened later cannot become standard output, input or errors.
// The substitute cannot be written, and a program started from here does not see it.
inline void keep_standard_descriptors() {
  int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (fd >= 0) close(fd);
}

}  // namespace tessera::cli

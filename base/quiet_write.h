// write(2) that raises no signal: SIGXFSZ (a file over the limit of the process) and SIGPIPE (nobody reads)
// are errors only, EFBIG and EPIPE. For what runs inside other people's programs. Any thread; a few system
// calls.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace tessera::base {

ssize_t quiet_write(int fd, const void* bytes, size_t n);

}  // namespace tessera::base

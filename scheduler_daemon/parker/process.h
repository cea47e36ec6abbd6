// The parker process (tesserad --parker): loads the driver, and makes its checkpoint calls on processes that the daemon names. Its
// standard input is its end of the socket pair. Each request has a thread, because one may take minutes.
#pragma once

namespace tessera::parker {

// Returns when the daemon is gone and every call that was begun has ended. The process's exit status.
int serve_requests(int socket);

}  // namespace tessera::parker

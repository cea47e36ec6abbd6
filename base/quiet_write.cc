#include "base/quiet_write.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

namespace tessera::base {

ssize_t quiet_write(int fd, const void* bytes, size_t n) {
  sigset_t raised, before, pending;
  sigemptyset(&raised);
  sigaddset(&raised, SIGXFSZ);
  sigaddset(&raised, SIGPIPE);
  if (pthread_sigmask(SIG_BLOCK, &raised, &before) != 0) return errno = EPERM, -1;
  sigpending(&pending);
  const ssize_t written = write(fd, bytes, n);
  const int error = errno;
  // A signal that this write raised waits for this thread and is taken back; one that waited before is the program's.
  const int signal = written >= 0 ? 0 : error == EFBIG ? SIGXFSZ : error == EPIPE ? SIGPIPE : 0;
  if (signal != 0 && sigismember(&pending, signal) == 0) {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, signal);
    const timespec at_once{0, 0};
    while (sigtimedwait(&one, nullptr, &at_once) < 0 && errno == EINTR) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return written;
}

}  // namespace tessera::base

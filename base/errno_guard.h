// Keeps errno as the host program had it across a hook that does more than forward. Stack only.
#pragma once

#include <cerrno>

namespace tessera::base {

class ErrnoGuard {
 public:
  ErrnoGuard() : saved_(errno) {}
  ~ErrnoGuard() { errno = saved_; }
  ErrnoGuard(const ErrnoGuard&) = delete;
  ErrnoGuard& operator=(const ErrnoGuard&) = delete;

 private:
  int saved_;
};

}  // namespace tessera::base

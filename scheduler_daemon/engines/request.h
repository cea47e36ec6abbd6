// One POST without a body to this machine, made without ever waiting: the owner calls on_ready() when fd() is readable or
// writable, and looks whether it has ended. Of the answer only the status counts. One thread; owned by transport::Server.
#pragma once

#include <cstdint>
#include <string>

#include "base/scoped_fd.h"
#include "scheduler_daemon/engines/local_url.h"

namespace tessera::engines {

class Request {
 public:
  // Begins it. `until_ns` (CLOCK_MONOTONIC): it has failed then.
  Request(const LocalUrl& url, uint64_t until_ns);

  int fd() const { return socket_.get(); }  // -1: it has ended
  void on_ready();
  // When to ask ended() at the latest.
  uint64_t due_ns() const { return until_ns_; }
  bool ended(uint64_t now_ns);
  const std::string& failure() const { return failure_; }  // once it has ended; empty: a status 2xx came

 private:
  void send_rest();
  void read_some();
  void end(const std::string& failure);

  uint64_t until_ns_;
  base::ScopedFd socket_;
  std::string to_send_, answer_, failure_;
};

}  // namespace tessera::engines

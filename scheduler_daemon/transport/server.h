// The daemon's loop: sockets, process descriptors, eventfds and one timer on one epoll, one thread. Feeds
// core::Core and carries out what it asks. Sleeps without a timeout when nothing is due; after activity it
// looks again without sleeping for spin_us. Work per wake is bounded per connection.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "base/scoped_fd.h"
#include "ipc/channel/server.h"
#include "scheduler_daemon/core/core.h"

namespace tessera::transport {

class Server final : public core::Peers {
 public:
  // stop_fd becomes readable when the server shall end (a signalfd); it is not read and not closed here.
  static base::Result<std::unique_ptr<Server>> create(ipc::ListenSocket listen, int stop_fd,
                                                      const core::Settings& settings, uint32_t spin_us);
  ~Server() override;
  void run();  // returns when stop_fd is readable; clients are free-running then

  bool send(core::Connection to, const void* message, size_t bytes, const int* fds, unsigned n_fds) override;
  void watch_wake(core::Connection of, int wake_fd) override;
  void close(core::Connection connection) override;
  void log(core::Severity severity, const std::string& line) override;

 private:
  struct Link {
    base::ScopedFd socket, process;
    int wake_fd = -1;  // owned by the core
  };

  Server(ipc::ListenSocket listen, int stop_fd, const core::Settings& settings, uint32_t spin_us);
  bool watch(int fd, uint64_t tag, uint32_t events);
  bool handle(uint64_t tag);  // false: stop
  void accept_some();
  void read_some(core::Connection connection);
  void pause_accepting(bool pause);
  void arm_timer(uint64_t at_ns);

  ipc::ListenSocket listen_;
  int stop_fd_;
  uint32_t spin_us_;
  base::ScopedFd epoll_, timer_;
  std::unordered_map<core::Connection, Link> links_;
  core::Connection next_connection_ = 1;
  bool accepting_ = true;
  uint64_t accept_again_ns_ = 0;
  uint64_t log_second_ = 0;  // lines are limited per second
  unsigned logged_ = 0, suppressed_ = 0;
  uint64_t armed_ns_ = 0;  // what the timer is set to, 0 = off
  core::Core core_;        // last: its destructor still closes eventfds that are watched above
};

}  // namespace tessera::transport

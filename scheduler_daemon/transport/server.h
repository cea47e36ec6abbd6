// The daemon's loop: sockets, process descriptors, eventfds and one timer on one epoll, one thread. Feeds
// core::Core and carries out what it asks. Sleeps without a timeout when nothing is due; after activity it
// looks again without sleeping for spin_us. Work per wake is bounded per connection.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/scoped_fd.h"
#include "ipc/channel/server.h"
#include "scheduler_daemon/core/core.h"
#include "scheduler_daemon/engines/request.h"
#include "scheduler_daemon/kernel_limits/kernel_limits.h"
#include "scheduler_daemon/mps/mps.h"
#include "scheduler_daemon/parker/parker.h"
#include "scheduler_daemon/transport/control.h"
#include "scheduler_daemon/transport/watchdog.h"

namespace tessera::transport {

struct Sources {  // what the server serves
  ipc::ListenSocket clients;
  std::optional<ipc::ListenSocket> control;  // operators; absent: nobody can change anything
  base::ScopedFd signals;                    // a signalfd: SIGHUP reloads, anything else ends the server
  Reload reload;
  std::unique_ptr<mps::Mps> mps;                   // started; never null
  std::vector<std::string> parker, driver_limits;  // commands of the processes that load the driver for it
};

class Server final : public core::Peers {
 public:
  static base::Result<std::unique_ptr<Server>> create(Sources sources, const core::Settings& settings,
                                                      uint32_t spin_us);
  ~Server() override;
  // Until a signal ends it, or the kernel refuses to wait for events; clients are free-running then.
  base::Status run(Watchdog& watchdog);

  ipc::Send send(core::Connection to, const void* message, size_t bytes, const int* fds,
                 unsigned n_fds) override;
  void watch_wake(core::Connection of, int wake_fd) override;
  void close(core::Connection connection) override;
  bool is_dying(core::Connection of) override;
  void ask_engine(uint64_t request, const std::string& url, uint64_t within_ns) override;
  void ask_parker(const parker::Request& request) override;
  void log(core::Severity severity, const std::string& line) override;

 private:
  struct Answer {  // what did not fit into the socket's buffer; closed once it is read
    ipc::PeerSocket socket;
    std::deque<std::string> packets;
    uint64_t since_ns = 0;
  };
  struct ClientSocket {
    ipc::PeerSocket socket;
    base::ScopedFd process;
    base::ScopedFd stat;  // of the process; opened when somebody first waits for it
    bool stat_tried = false;
    int wake_fd = -1;                 // owned by the core
    bool waits_writable = false;      // a message did not fit: the core is told when it has read
    std::deque<std::string> packets;  // of an answer, not sent yet
  };
  struct Operator {  // one request on the control socket
    ipc::PeerSocket socket;
    ipc::PeerIdentity identity;
    uint64_t connected_ns = 0;
  };

  Server(Sources sources, const core::Settings& settings, uint32_t spin_us);
  bool watch(int fd, uint64_t tag, uint32_t events);
  bool handle(uint64_t tag);  // false: stop
  bool on_signal();           // false: stop
  void accept_some();
  void read_some(core::Connection connection, int most);
  void watch_writable(core::Connection connection, ClientSocket& link, bool watched);
  void watch_mps();
  void tell_mps();
  void on_mps_ended();
  void send_rest(core::Connection connection);
  void close_slow_readers(uint64_t now_ns);
  void accept_operators();
  void read_operator(core::Connection connection);
  void close_silent_operators(uint64_t now_ns);
  void set_kernel_limits();
  void tell_of_engines();
  void watch_parker();
  void tell_of_parker();
  uint64_t engines_due_ns() const;  // when to look at them again; 0: only on events
  void accept_failed(const base::Error& error);
  void pause_accepting(bool pause);  // of clients and operators
  void arm_timer(uint64_t at_ns);
  void report_hangs(uint64_t interruptions);
  void begin_log_second();  // says how many lines the one before it left out

  Sources sources_;
  uint32_t spin_us_;
  base::ScopedFd epoll_, timer_;
  std::unordered_map<core::Connection, ClientSocket> links_;
  std::unordered_map<core::Connection, Answer> answers_;
  std::unordered_map<core::Connection, Operator> operators_;
  std::map<uint64_t, engines::Request> engine_requests_;  // by the core's number
  parker::Parker parker_;
  uint64_t parker_starts_ = 0;  // of the one that is watched
  bool parker_said_ = false;
  kernel_limits::KernelLimits kernel_limits_;
  core::Connection next_connection_ = 1;
  bool accepting_ = true;
  uint64_t accept_again_ns_ = 0;
  std::string accept_error_;  // the last one, said already; empty once a connection was taken
  uint64_t log_second_ = 0;   // lines are limited per second
  unsigned logged_ = 0, suppressed_ = 0;
  uint64_t armed_ns_ = 0;  // what the timer is set to, 0 = off
  core::Core core_;        // its destructor still closes eventfds that are watched above
  Control control_;
};

}  // namespace tessera::transport

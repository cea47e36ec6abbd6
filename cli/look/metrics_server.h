// One page over HTTP, for who scrapes it. Nobody can keep others from it by connections that say nothing: each has
// a time limit to ask and to take the answer, and there is a limit of connections for each peer and for all. A connection
// beyond that takes the place of the oldest. A connection is closed after its answer. Single-threaded; never blocks but
// in turn().
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/scoped_fd.h"

namespace tessera::cli {

class MetricsServer {
 public:
  static constexpr uint64_t kLimitNs = 5'000'000'000;  // of a connection: Prometheus gives a scrape 10 s
  // Prometheus has one connection open, two of them that scrape in turn have two; others make one by hand.
  static constexpr size_t kMostOfPeer = 8, kMost = 64;
  static constexpr size_t kMostRequestBytes = 8192;

  using Page = std::function<std::string()>;
  using Clock = std::function<uint64_t()>;  // ns
  MetricsServer(Page page, Clock clock = base::now_ns) : page_(std::move(page)), clock_(std::move(clock)) {}

  // "127.0.0.1:9478", "[::1]:9478", or a port alone: of all addresses. Port 0: one that is free.
  base::Status listen(const std::string& address);
  uint16_t port() const { return port_; }

  // Waits until something comes, at most `most_ms` (-1: no limit), and does what can be done at once. False: there is
  // something to read from `stop_fd` (-1: none).
  bool turn(int stop_fd, int most_ms);
  size_t connections() const { return connections_.size(); }

 private:
  struct Connection {
    base::ScopedFd fd;
    std::string peer;  // bytes of its address; of IPv6 those of its network
    uint64_t late_ns = 0;
    std::string request = {}, answer = {};
    bool over = false;
  };
  void accept_all();
  void make_room_for(const std::string& peer);
  void read_request(Connection* connection);
  void send_answer(Connection* connection);
  std::string answer_to(const std::string& request) const;

  Page page_;
  Clock clock_;
  base::ScopedFd listener_;
  uint16_t port_ = 0;
  std::vector<Connection> connections_;  // oldest first
};

}  // namespace tessera::cli

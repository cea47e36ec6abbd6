#include "cli/look/metrics_server.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>

#include "base/units.h"
#include "cli/run/duration.h"

namespace tessera::cli {
namespace {

using base::Code;

constexpr int kBacklog = 64;

std::string peer_of(const sockaddr_storage& address) {
  const auto bytes = [](const auto& field, size_t n) {
    return std::string(reinterpret_cast<const char*>(&field), n);
  };
  if (address.ss_family != AF_INET6)
    return bytes(reinterpret_cast<const sockaddr_in&>(address).sin_addr, sizeof(in_addr));
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  return bytes(v6, IN6_IS_ADDR_V4MAPPED(&v6) ? sizeof v6 : sizeof v6 / 2);
}

std::string response(const char* status, const std::string& body) {
  return std::string("HTTP/1.1 ") + status +
         "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nConnection: "
         "close\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

}  // namespace

base::Status MetricsServer::listen(const std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = colon == address.npos ? "" : address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const std::string service = address.substr(colon + 1);  // npos + 1 is 0
  if (const auto port = parse_number(service, 0, UINT16_MAX); !port)
    return base::error(Code::kInvalid, "the port: " + port.error().text);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  if (const int why = getaddrinfo(host.empty() ? nullptr : host.c_str(), service.c_str(), &hints, &found))
    return base::error(Code::kInvalid, gai_strerror(why));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, freeaddrinfo);
  const int on = 1;
  base::ScopedFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (!fd.valid() || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(fd.get(), kBacklog) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0)
    return base::error(Code::kUnavailable, strerror(errno));
  port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                            : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  listener_ = std::move(fd);
  return base::ok();
}

bool MetricsServer::turn(int stop_fd, int most_ms) {
  std::vector<pollfd> wanted = {{stop_fd, POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  int wait_ms = most_ms;
  for (const Connection& c : connections_) {
    wanted.push_back({c.fd.get(), short(c.answer.empty() ? POLLIN : POLLOUT), 0});
    const uint64_t now_ns = clock_();
    const int left_ms = c.late_ns > now_ns ? int((c.late_ns - now_ns) / base::kNsPerMs) + 1 : 0;
    wait_ms = wait_ms < 0 ? left_ms : std::min(wait_ms, left_ms);
  }
  poll(wanted.data(), wanted.size(), wait_ms);
  const uint64_t now_ns = clock_();
  for (size_t i = 0; i < connections_.size(); ++i) {
    Connection& c = connections_[i];
    if (wanted[i + 2].revents != 0 && c.answer.empty()) read_request(&c);
    if (!c.answer.empty()) send_answer(&c);
    c.over |= now_ns >= c.late_ns;
  }
  std::erase_if(connections_, [](const Connection& c) { return c.over; });
  if (wanted[1].revents != 0) accept_all();
  return wanted[0].revents == 0;
}

void MetricsServer::accept_all() {
  for (size_t n = 0; n < kMost; ++n) {  // what comes meanwhile waits for the next turn
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    base::ScopedFd fd(
        accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) return;
    const std::string peer = peer_of(from);
    make_room_for(peer);
    connections_.push_back({std::move(fd), peer, clock_() + kLimitNs});
    read_request(&connections_.back());  // who asks at once is answered at once
    if (!connections_.back().answer.empty()) send_answer(&connections_.back());
    if (connections_.back().over) connections_.pop_back();
  }
}

void MetricsServer::make_room_for(const std::string& peer) {
  const auto of_peer = [&](const Connection& c) { return c.peer == peer; };
  if (size_t(std::ranges::count_if(connections_, of_peer)) >= kMostOfPeer)
    connections_.erase(std::ranges::find_if(connections_, of_peer));
  else if (connections_.size() >= kMost)
    connections_.erase(connections_.begin());
}

void MetricsServer::read_request(Connection* connection) {
  char chunk[2048];
  const ssize_t n = recv(connection->fd.get(), chunk, sizeof chunk, 0);
  if (n < 0 && would_block()) return;
  if (n <= 0) connection->over = true;
  connection->request.append(chunk, size_t(std::max<ssize_t>(n, 0)));
  if (connection->request.find("\r\n\r\n") != std::string::npos)
    connection->answer = answer_to(connection->request);
  else if (connection->request.size() > kMostRequestBytes)
    connection->answer = response("431 Request Header Fields Too Large", "");
}

std::string MetricsServer::answer_to(const std::string& request) const {
  const std::string target = request.substr(0, request.find_first_of("?\r", 0));
  if (!request.starts_with("GET ")) return response("405 Method Not Allowed", "");
  if (target == "GET /metrics" || target.starts_with("GET /metrics ")) return response("200 OK", page_());
  return response("404 Not Found", "only /metrics is here\n");
}

void MetricsServer::send_answer(Connection* connection) {
  const ssize_t n =
      send(connection->fd.get(), connection->answer.data(), connection->answer.size(), MSG_NOSIGNAL);
  if (n < 0 && would_block()) return;
  if (n > 0) connection->answer.erase(0, size_t(n));
  connection->over = n < 0 || connection->answer.empty();
}

}  // namespace tessera::cli

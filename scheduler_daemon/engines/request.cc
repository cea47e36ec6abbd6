#include "scheduler_daemon/engines/request.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tessera::engines {
namespace {

constexpr size_t kMostLine = 256;  // bytes of an answer's first line; ours is of some twenty

bool would_block(int error) {
  return error == EAGAIN || error == EINPROGRESS || error == ENOTCONN || error == EINTR;
}

// "HTTP/1.1 200 OK": 200; 0: it is no such line.
int status_of(const std::string& line) {
  constexpr size_t kVersionBytes = sizeof "HTTP/1.1 " - 1;
  if (!line.starts_with("HTTP/1.") || line.size() < kVersionBytes + 3 || line[kVersionBytes - 1] != ' ')
    return 0;
  int status = 0;
  for (size_t i = kVersionBytes; i < kVersionBytes + 3; ++i) {
    if (line[i] < '0' || line[i] > '9') return 0;
    status = status * 10 + (line[i] - '0');
  }
  return status;
}

}  // namespace

Request::Request(const LocalUrl& url, uint64_t until_ns)
    : until_ns_(until_ns),
      socket_(::socket(url.address.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)),
      to_send_("POST " + url.path + " HTTP/1.1\r\nHost: " + url.host +
               "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n") {
  if (!socket_.valid() ||
      (::connect(socket_.get(), &url.address.any, url.address_bytes) != 0 && errno != EINPROGRESS))
    end(std::strerror(errno));
}

void Request::on_ready() {
  if (!to_send_.empty()) send_rest();
  if (to_send_.empty()) read_some();
}

void Request::send_rest() {
  int error = 0;
  socklen_t bytes = sizeof error;
  if (::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 && error != 0)
    return end(std::strerror(error));
  const ssize_t sent = ::send(socket_.get(), to_send_.data(), to_send_.size(), MSG_NOSIGNAL);
  if (sent >= 0)
    to_send_.erase(0, size_t(sent));
  else if (!would_block(errno))
    end(std::strerror(errno));
}

void Request::read_some() {
  char some[kMostLine];
  while (socket_.valid()) {
    const ssize_t got = ::recv(socket_.get(), some, sizeof some, 0);
    if (got < 0 && would_block(errno)) return;
    if (got < 0) return end(std::strerror(errno));
    answer_.append(some, size_t(got));
    const size_t line_end = answer_.find('\n');
    if (got == 0) return end("the connection was closed without an answer");
    if (line_end == answer_.npos && answer_.size() < kMostLine) continue;
    const std::string line = answer_.substr(0, std::min(line_end, kMostLine));
    const int status = status_of(line);
    return end(status == 0                      ? "the answer is not HTTP"
               : status >= 200 && status <= 299 ? ""
                                                : "HTTP status " + std::to_string(status));
  }
}

bool Request::ended(uint64_t now_ns) {
  if (socket_.valid() && now_ns >= until_ns_) end("no answer in time");
  return !socket_.valid();
}

void Request::end(const std::string& failure) {
  failure_ = failure;
  socket_.reset();
  to_send_.clear();
  until_ns_ = 1;  // long ago
}

}  // namespace tessera::engines

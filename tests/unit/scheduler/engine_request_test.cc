// Tests of the request that puts an engine to sleep (scheduler_daemon/engines): URLs, and servers that do not do as they should.
// The servers are sockets of the test.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/scoped_fd.h"
#include "base/units.h"
#include "scheduler_daemon/engines/local_url.h"
#include "scheduler_daemon/engines/request.h"

namespace tessera::engines {
namespace {

constexpr uint64_t kLongNs = base::ms(600'000);

TEST(LocalUrl, NamesThisMachineOnly) {
  const auto url = parse_local_url("http://127.0.0.1:8000/sleep?level=1");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url->host, "127.0.0.1:8000");
  EXPECT_EQ(url->path, "/sleep?level=1");
  EXPECT_EQ(ntohs(url->address.v4.sin_port), 8000);
  EXPECT_EQ(parse_local_url("http://localhost")->path, "/");
  EXPECT_EQ(ntohs(parse_local_url("http://[::1]:81/x")->address.v6.sin6_port), 81);
  EXPECT_EQ(ntohs(parse_local_url("http://[::1]/x")->address.v6.sin6_port), 80);
  for (const char* text :
       {"", "127.0.0.1:8000/sleep", "https://127.0.0.1/", "http://10.0.0.1/", "http://example.org/",
        "http:///", "http://127.0.0.1:0/", "http://127.0.0.1:x/", "http://127.0.0.1:99999/",
        "http://127.0.0.1:80 /", "http://127.0.0.1/a\r\nX: y", "http://127.0.0.1#a",
        "http://127.0.0.1?level=1", "http://user@127.0.0.1/", "http://[::2]/"})
    EXPECT_FALSE(parse_local_url(text).ok()) << text;
  EXPECT_FALSE(parse_local_url("http://127.0.0.1/" + std::string(2000, 'a')).ok());
}

class EngineRequest : public testing::Test {
 protected:
  void SetUp() override {
    listen_.reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    url_ = parse_local_url("http://127.0.0.1:1/sleep?level=1").value();
    url_.address.v4.sin_port = 0;
    ASSERT_EQ(bind(listen_.get(), &url_.address.any, url_.address_bytes), 0);
    ASSERT_EQ(getsockname(listen_.get(), &url_.address.any, &url_.address_bytes), 0);
    ASSERT_EQ(listen(listen_.get(), 1), 0);
  }
  // The other end, once it has what was asked.
  void accept_and_read(Request& request) {
    server_.reset(accept(listen_.get(), nullptr, nullptr));
    while (asked_.find("\r\n\r\n") == asked_.npos) {
      request.on_ready();
      char some[512];
      const ssize_t got = recv(server_.get(), some, sizeof some, 0);
      ASSERT_GT(got, 0);
      asked_.append(some, size_t(got));
    }
  }
  void say(const std::string& text) {
    ASSERT_EQ(send(server_.get(), text.data(), text.size(), MSG_NOSIGNAL), ssize_t(text.size()));
  }
  // Until it has ended.
  static std::string failure_of(Request& request) {
    while (!request.ended(base::now_ns())) {
      pollfd p{request.fd(), POLLIN, 0};
      poll(&p, 1, -1);
      request.on_ready();
    }
    return request.failure();
  }
  std::string answer(const std::string& text, bool closes = false) {
    Request request(url_, base::now_ns() + kLongNs);
    accept_and_read(request);
    say(text);
    if (closes) server_.reset();
    return failure_of(request);
  }

  base::ScopedFd listen_, server_;
  LocalUrl url_;
  std::string asked_;
};

TEST_F(EngineRequest, PostsAndTakesAStatusOfSuccess) {
  EXPECT_EQ(answer("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"), "");
  EXPECT_EQ(
      asked_,
      "POST /sleep?level=1 HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
}

TEST_F(EngineRequest, TakesAnAnswerInPieces) {
  Request request(url_, base::now_ns() + kLongNs);
  accept_and_read(request);
  for (char c : std::string("HTTP/1.1 204 No Content\r\n")) {
    ASSERT_FALSE(request.ended(base::now_ns()));
    say(std::string(1, c));
    request.on_ready();
  }
  EXPECT_EQ(failure_of(request), "");
}

TEST_F(EngineRequest, NamesWhatWentWrong) {
  EXPECT_EQ(answer("HTTP/1.1 500 Internal Server Error\r\n\r\n"), "HTTP status 500");
  asked_.clear();
  EXPECT_EQ(answer("HTTP/1.0 404 Not Found\r\n\r\n"), "HTTP status 404");
  asked_.clear();
  EXPECT_EQ(answer("HTTP/1.1 200", true), "the connection was closed without an answer");
  asked_.clear();
  EXPECT_EQ(answer("", true), "the connection was closed without an answer");
  asked_.clear();
  EXPECT_EQ(answer("SSH-2.0-x\r\n"), "the answer is not HTTP");
  asked_.clear();
  EXPECT_EQ(answer("HTTP/1.1 2x0 OK\r\n"), "the answer is not HTTP");
  asked_.clear();
  EXPECT_EQ(answer(std::string(4096, 'a')), "the answer is not HTTP");
}

TEST_F(EngineRequest, EndsWhereNobodyListens) {
  listen_.reset();
  Request request(url_, base::now_ns() + kLongNs);
  EXPECT_EQ(failure_of(request), "Connection refused");
}

TEST_F(EngineRequest, EndsWhenItsTimeIsOver) {
  const uint64_t now_ns = base::now_ns();
  Request request(url_, now_ns + kLongNs);
  accept_and_read(request);
  request.on_ready();
  EXPECT_FALSE(request.ended(now_ns + kLongNs - 1));
  EXPECT_TRUE(request.ended(now_ns + kLongNs));
  EXPECT_EQ(request.failure(), "no answer in time");
  EXPECT_EQ(request.fd(), -1);
}

}  // namespace
}  // namespace tessera::engines

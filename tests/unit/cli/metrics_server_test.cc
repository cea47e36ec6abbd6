// The exporter's page stays open whatever connections others hold. Time is the test's own.
#include "cli/look/metrics_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <string.h>
#include <sys/socket.h>

#include <deque>

namespace tessera::cli {
namespace {

class MetricsServerTest : public testing::Test {
 protected:
  MetricsServerTest() { EXPECT_TRUE(server_.listen("127.0.0.1:0").ok()); }

  // From an address of the loopback network, which the server takes for a peer of its own.
  base::ScopedFd connect_from(const std::string& peer) {
    base::ScopedFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in from{
        .sin_family = AF_INET, .sin_port = 0, .sin_addr = {inet_addr(peer.c_str())}, .sin_zero = {}};
    sockaddr_in to{.sin_family = AF_INET,
                   .sin_port = htons(server_.port()),
                   .sin_addr = {inet_addr("127.0.0.1")},
                   .sin_zero = {}};
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&from), sizeof from), 0);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    return fd;
  }
  // Reads until the server closes.
  std::string answer(const base::ScopedFd& fd) {
    std::string all;
    for (char chunk[4096];;) {
      server_.turn(-1, 0);
      const ssize_t n = recv(fd.get(), chunk, sizeof chunk, MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN)) return all;
      if (n > 0) all.append(chunk, size_t(n));
    }
  }
  std::string ask(const std::string& peer, const std::string& request) {
    const base::ScopedFd fd = connect_from(peer);
    EXPECT_EQ(send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL), ssize_t(request.size()));
    return answer(fd);
  }

  static constexpr const char* kScrape = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
  uint64_t now_ns_ = 1'000'000'000;
  std::string page_ = "tessera_up 1\n";
  MetricsServer server_{[this] { return page_; }, [this] { return now_ns_; }};
};

TEST_F(MetricsServerTest, AnswersRequests) {
  const struct {
    std::string request, status, body;
  } rows[] = {{kScrape, "200", page_},
              {"GET /metrics?a=b HTTP/1.0\r\n\r\n", "200", page_},
              {"GET /metricsx HTTP/1.1\r\n\r\n", "404", "only /metrics is here\n"},
              {"GET / HTTP/1.1\r\n\r\n", "404", "only /metrics is here\n"},
              {"POST /metrics HTTP/1.1\r\n\r\n", "405", ""},
              {std::string(MetricsServer::kMostRequestBytes + 1, 'x'), "431", ""}};
  for (const auto& row : rows) {
    const std::string text = ask("127.0.0.1", row.request);
    EXPECT_EQ(text.rfind("HTTP/1.1 " + row.status, 0), 0u) << row.request << text;
    EXPECT_TRUE(text.ends_with("\r\n\r\n" + row.body)) << text;
  }
  EXPECT_EQ(server_.connections(), 0u);
}

TEST_F(MetricsServerTest, IdleConnectionsOfOthersAndOfTheSamePeerLeaveItOpen) {
  std::deque<base::ScopedFd> idle;
  for (int peer = 2; peer < 40; ++peer)
    for (size_t i = 0; i < 2 * MetricsServer::kMostOfPeer; ++i) {
      idle.push_back(connect_from("127.0.0." + std::to_string(peer)));
      EXPECT_EQ(send(idle.back().get(), "GET /me", 7, MSG_NOSIGNAL), 7);
      server_.turn(-1, 0);
      EXPECT_LE(server_.connections(),
                std::min((peer - 1) * MetricsServer::kMostOfPeer, MetricsServer::kMost));
    }
  EXPECT_EQ(server_.connections(), MetricsServer::kMost);
  for (const char* peer : {"127.0.0.1", "127.0.0.39"})
    EXPECT_NE(ask(peer, kScrape).find(page_), std::string::npos) << peer;
}

TEST_F(MetricsServerTest, WhoDoesNotAskInTimeIsDropped) {
  const base::ScopedFd silent = connect_from("127.0.0.2"), slow = connect_from("127.0.0.3");
  for (size_t i = 0; i < 8; ++i) {  // a byte now and then does not help
    EXPECT_EQ(send(slow.get(), kScrape + i, 1, MSG_NOSIGNAL), 1);
    server_.turn(-1, 0);
    EXPECT_EQ(server_.connections(), 2u);
    now_ns_ += MetricsServer::kLimitNs / 8;
  }
  server_.turn(-1, 0);
  EXPECT_EQ(server_.connections(), 0u);
  EXPECT_EQ(answer(silent), "");
  EXPECT_EQ(answer(slow), "");
}

TEST_F(MetricsServerTest, WhoDoesNotTakeTheAnswerIsDropped) {
  page_.assign(64u << 20, 'x');
  const base::ScopedFd fd = connect_from("127.0.0.2");
  EXPECT_EQ(send(fd.get(), kScrape, strlen(kScrape), MSG_NOSIGNAL), ssize_t(strlen(kScrape)));
  for (int i = 0; i < 100; ++i) server_.turn(-1, 0);
  EXPECT_EQ(server_.connections(), 1u);
  now_ns_ += MetricsServer::kLimitNs;
  server_.turn(-1, 0);
  EXPECT_EQ(server_.connections(), 0u);
}

TEST(MetricsServerAddress, Forms) {
  const auto listens = [](const char* address) {
    MetricsServer server([] { return ""; });
    return server.listen(address).ok();
  };
  for (const char* good : {"127.0.0.1:0", "0", "localhost:0"}) EXPECT_TRUE(listens(good)) << good;
  for (const char* bad : {"", "127.0.0.1:", "127.0.0.1:http x", "256.0.0.1:0", "127.0.0.1:99999"})
    EXPECT_FALSE(listens(bad)) << bad;
}

}  // namespace
}  // namespace tessera::cli

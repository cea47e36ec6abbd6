#include "scheduler_daemon/engines/local_url.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

namespace tessera::engines {
namespace {

constexpr char kScheme[] = "http://";
constexpr uint16_t kHttpPort = 80;
constexpr size_t kMostBytes = 1024;  // of a URL: far beyond what an engine's takes

bool is_plain(const std::string& text) {  // a request's first line must not be cut, or go on in another one
  return text.size() <= kMostBytes && std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7f; });
}

bool set_address(const std::string& host, uint16_t port, LocalUrl* url) {
  if (host == "[::1]") {
    url->address.v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_loopback};
    url->address_bytes = sizeof url->address.v6;
    return true;
  }
  url->address.v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
  url->address_bytes = sizeof url->address.v4;
  const std::string number = host == "localhost" ? "127.0.0.1" : host;
  return ::inet_pton(AF_INET, number.c_str(), &url->address.v4.sin_addr) == 1 &&
         ntohl(url->address.v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

}  // namespace

base::Result<LocalUrl> parse_local_url(const std::string& text) {
  const auto wrong = base::error(base::Code::kInvalid,
                                 "must be a URL of this machine, as \"http://127.0.0.1:8000/sleep?level=1\"");
  if (!text.starts_with(kScheme) || !is_plain(text)) return wrong;
  LocalUrl url;
  const size_t host_at = sizeof kScheme - 1, path_at = text.find_first_of("/?#", host_at);
  url.host = text.substr(host_at, path_at - host_at);
  url.path = path_at == text.npos ? "/" : text.substr(path_at);
  if (!url.path.starts_with('/') || url.path.find('#') != url.path.npos) return wrong;
  std::string host = url.host;
  uint16_t port = kHttpPort;
  if (const size_t colon = host.rfind(':'); colon != host.npos && !host.ends_with(']')) {
    const char* end = host.data() + host.size();
    const auto [rest, failed] = std::from_chars(host.data() + colon + 1, end, port);
    if (failed != std::errc() || rest != end || port == 0) return wrong;
    host.resize(colon);
  }
  if (!set_address(host, port, &url)) return wrong;
  return url;
}

}  // namespace tessera::engines

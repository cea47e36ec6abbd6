#include "cli/ps.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cstdio>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/scoped_fd.h"
#include "cli/run.h"
#include "ipc/abi/messages.h"
#include "ipc/abi/region.h"

namespace tessera::cli {
namespace {

using base::Code;
namespace abi = ipc::abi;

// Column: heading, width, key in the client's JSON object.
struct Column {
  const char* heading;
  int width;
  const char* key;
};
constexpr Column kColumns[] = {
    {"PID", 8, "pid"},         {"NAME", 20, "name"},      {"PRIO", 5, "priority"},
    {"STATE", 10, "state"},    {"LAUNCHES", 10, "launches"}, {"SLICES", 9, "slices"},
    {"HOLDS", 8, "holds"},     {"PREEMPTED", 10, "preemptions"},
};

std::string cell(const nlohmann::json& client, const Column& column) {
  const auto found = client.find(column.key);
  if (found == client.end()) return "-";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

}  // namespace

base::Result<std::string> query_daemon(const std::string& socket_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof address.sun_path)
    return base::error(Code::kInvalid, "socket path is longer than " + std::to_string(sizeof address.sun_path - 1) +
                                           " bytes: " + socket_path);
  memcpy(address.sun_path, socket_path.c_str(), socket_path.size() + 1);
  const base::ScopedFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return base::error(Code::kUnavailable, std::string("socket: ") + strerror(errno));
  const timeval patience{2, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return base::error(Code::kUnavailable, "no tesserad at " + socket_path + " (" + strerror(errno) +
                                               "): start it with `tesserad`, or name its socket with --socket");
  abi::Query query{};
  query.header = {abi::kMessageMagic, abi::kQuery, abi::kVersion, abi::kCompatVersion, 0, sizeof query};
  if (send(fd.get(), &query, sizeof query, MSG_NOSIGNAL) != ssize_t(sizeof query))
    return base::error(Code::kUnavailable, std::string("tesserad closed the connection: ") + strerror(errno));
  std::string text;
  std::vector<char> packet(abi::kMaxMessageBytes);
  while (true) {
    const ssize_t got = recv(fd.get(), packet.data(), packet.size(), 0);
    if (got <= 0) return base::error(Code::kUnavailable, "tesserad gave no answer within two seconds");
    abi::Reply reply;
    if (size_t(got) < sizeof reply) return base::error(Code::kVersion, "tesserad answered in an unknown format");
    memcpy(&reply, packet.data(), sizeof reply);
    if (reply.header.magic != abi::kMessageMagic || reply.header.type != abi::kReply ||
        reply.header.bytes != size_t(got))
      return base::error(Code::kVersion, "tesserad answered in an unknown format; are both of one version?");
    text.append(packet.data() + sizeof reply, size_t(got) - sizeof reply);
    if (reply.last) return text;
  }
}

int ps(const std::string& socket, bool json) {
  const auto socket_path = resolve_socket(socket);
  auto answer = socket_path ? query_daemon(*socket_path) : base::Result<std::string>(socket_path.error());
  if (!answer) {
    fprintf(stderr, "tessera ps: %s\n", answer.error().text.c_str());
    return 1;
  }
  if (json) {
    puts(answer->c_str());
    return 0;
  }
  const auto state = nlohmann::json::parse(*answer, nullptr, /*allow_exceptions=*/false);
  if (state.is_discarded() || !state.is_object()) {
    fprintf(stderr, "tessera ps: tesserad sent no JSON\n");
    return 1;
  }
  std::string line;
  for (const Column& column : kColumns) line += fmt::format("{:<{}}", column.heading, column.width);
  puts(line.c_str());
  for (const auto& client : state.value("clients", nlohmann::json::array())) {
    line.clear();
    for (const Column& column : kColumns) line += fmt::format("{:<{}}", cell(client, column), column.width);
    puts(line.c_str());
  }
  return 0;
}

}  // namespace tessera::cli

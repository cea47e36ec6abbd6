#include "cli/run/park.h"

#include <poll.h>

#include <charconv>
#include <cstdio>
#include <cstring>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/printable.h"
#include "cli/run/run.h"
#include "ipc/channel/client.h"

namespace tessera::cli {
namespace {

using nlohmann::json;
constexpr int kBetweenLooks_ms = 50;

double gib(uint64_t bytes) {
  return double(bytes) / double(uint64_t(1) << 30);
}

json park_of(const json& client) {
  return client.value("park", json::object());
}

bool is_named(const json& client, const ipc::abi::Control& request) {
  return request.pid != 0 ? client.value("pid", int64_t(0)) == int64_t(request.pid)
                          : client.value("name", "") == request.name;
}

std::string line_of(const json& client, const std::string& what) {
  return fmt::format("{} {}: {}\n", client.value("pid", int64_t(0)),
                     base::printable(client.value("name", "")), base::printable(what));
}

enum class Outcome { kDone, kPending, kRefused };

// The outcome of the latest order of one client, and its text.
Outcome outcome(const json& client, bool parked, std::string* said) {
  const json p = park_of(client);
  const std::string state = p.value("state", ""), refusal = p.value("refusal", "");
  const uint64_t bytes = p.value("bytes", uint64_t(0));
  if (!p.value("answered", false)) {
    *said = "does not answer";
    return Outcome::kPending;
  }
  if (state == ipc::abi::kParkStateNames[ipc::abi::kParkLost]) {
    *said = state;
    return Outcome::kRefused;
  }
  const bool away = state == ipc::abi::kParkStateNames[ipc::abi::kParkParked] ||
                    (parked && state == ipc::abi::kParkStateNames[ipc::abi::kParkWaits]);
  if (parked && away) {
    *said = fmt::format("parked: {:.2f} GiB in {:.2f} s", gib(bytes),
                        double(p.value("park_ns", uint64_t(0))) / 1e9);
    return Outcome::kDone;
  }
  if (parked && state.empty() && !refusal.empty()) {
    *said = "not parked: " + refusal;
    return Outcome::kRefused;
  }
  if (state.empty()) {
    *said = parked ? "parked, and needed again at once" : "on its GPU";
    return Outcome::kDone;
  }
  *said = state;
  return Outcome::kPending;
}

}  // namespace

int park(const ParkOptions& options, bool parked) {
  const char* command = parked ? "park" : "unpark";
  const auto complain = [&](const std::string& why) {
    fprintf(stderr, "tessera %s: %s\n", command, base::printable(why).c_str());
    return 1;
  };
  ipc::abi::Control request{};
  request.action = parked ? ipc::abi::kControlPark : ipc::abi::kControlUnpark;
  const char* end = options.target.data() + options.target.size();
  const auto [rest, failed] = std::from_chars(options.target.data(), end, request.pid);
  if (failed != std::errc() || rest != end) {
    request.pid = 0;
    if (options.target.empty() || options.target.size() >= sizeof request.name)
      return complain("name a client by process id or by name (`tessera ps` shows both)");
    std::memcpy(request.name, options.target.data(), options.target.size());
  }
  const auto path = resolve_socket(options.socket);
  if (!path) return complain(path.error().text);
  if (auto asked = ipc::control(ipc::control_socket_path(*path), request); !asked)
    return complain(asked.error().text);
  const uint64_t until_ns = base::now_ns() + uint64_t(options.seconds * 1e9);
  for (;;) {
    const auto state = ipc::query(*path);
    if (!state) return complain(state.error().text);
    const json answer = json::parse(*state, nullptr, false);
    bool pending = false, refused = false, any = false;
    std::string lines;
    for (const json& client : answer.value("clients", json::array())) {
      if (!is_named(client, request)) continue;
      any = true;
      std::string said;
      const Outcome now = outcome(client, parked, &said);
      pending = pending || now == Outcome::kPending;
      refused = refused || now == Outcome::kRefused;
      lines += line_of(client, said);
    }
    if (!any) return complain("the client has ended");
    if (!pending || base::now_ns() >= until_ns) {
      fputs(lines.c_str(), pending || refused ? stderr : stdout);
      return pending || refused ? 1 : 0;
    }
    poll(nullptr, 0, kBetweenLooks_ms);
  }
}

std::string ps_parked(const json& state) {
  std::string lines;
  for (const json& client : state.value("clients", json::array())) {
    const json p = park_of(client);
    const std::string now = p.value("state", "");
    if (now.empty()) continue;
    lines +=
        line_of(client, fmt::format("{}: {:.2f} GiB, for {:.0f} s", now, gib(p.value("bytes", uint64_t(0))),
                                    double(p.value("for_ns", uint64_t(0))) / 1e9));
  }
  return lines;
}

}  // namespace tessera::cli

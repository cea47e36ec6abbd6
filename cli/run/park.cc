#include "cli/run/park.h"

#include <poll.h>
#include <signal.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/printable.h"
#include "cli/run/layout.h"
#include "cli/run/place.h"
#include "cli/run/run.h"
#include "ipc/channel/client.h"
#include "scheduler_daemon/core/engines.h"

namespace tessera::cli {
namespace {

using nlohmann::json;
constexpr int kBetweenLooksMs = 50;

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

// The process that is named; 0: no such client.
pid_t process_named(const json& state, const ipc::abi::Control& request) {
  for (const json& client : state.value("clients", json::array()))
    if (is_named(client, request)) return client.value("pid", pid_t(0));
  return 0;
}

bool is_alive(pid_t pid) {
  return kill(pid, 0) == 0 || errno == EPERM;
}

std::string line_of(const json& client, const std::string& what) {
  return fmt::format("{} {}: {}\n", client.value("pid", int64_t(0)),
                     base::printable(client.value("name", "")), base::printable(what));
}

// A GPU as people name it; false: there is no such GPU.
bool find_gpu(const std::string& text, uint8_t (&uuid)[16]) {
  std::string digits = text.starts_with("GPU-") ? text.substr(4) : "";
  std::erase(digits, '-');
  for (size_t i = 0; digits.size() == 2 * sizeof uuid && i < sizeof uuid; ++i) {
    const char* at = digits.data() + 2 * i;
    if (std::from_chars(at, at + 2, uuid[i], 16).ptr != at + 2) return false;
  }
  if (digits.size() == 2 * sizeof uuid) return true;
  size_t index = 0;
  const char* end = text.data() + text.size();
  if (text.empty() || std::from_chars(text.data(), end, index).ptr != end) return false;
  const auto gpus = visible_gpus(meant_driver());
  if (!gpus || index >= gpus->size()) return false;
  std::memcpy(uuid, (*gpus)[index].uuid, sizeof uuid);
  return true;
}

std::string text_of(const uint8_t (&uuid)[16]) {
  std::string text = "GPU";
  for (size_t i = 0; i < sizeof uuid; ++i)
    text += fmt::format("{}{:02x}", i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
  return text;
}

enum class Outcome { kDone, kPending, kRefused };

// The outcome of the latest order of one client, and its text. `gpu`: where it is to move.
Outcome outcome(const json& client, ParkCommand command, const std::string& gpu, std::string* said) {
  const json p = park_of(client);
  const std::string state = p.value("state", ""), refusal = p.value("refusal", "");
  const std::string engine = p.value("engine", "");  // why it did not do what it was asked
  const uint64_t bytes = p.value("bytes", uint64_t(0));
  if (command == ParkCommand::kPark && state == core::kAsleep) {
    *said = fmt::format("asleep: {:.2f} GiB", gib(bytes));
    return Outcome::kDone;
  }
  if (command == ParkCommand::kUnpark && !engine.empty() && (state.empty() || state == core::kAsleep)) {
    *said = engine;
    return Outcome::kRefused;
  }
  if (!p.value("answered", false)) {
    *said = "does not answer";
    return Outcome::kPending;
  }
  if (state == ipc::abi::kParkStateNames[ipc::abi::kParkLost]) {
    *said = state;
    return Outcome::kRefused;
  }
  const bool parked = command == ParkCommand::kPark;
  const bool away = state == ipc::abi::kParkStateNames[ipc::abi::kParkParked] ||
                    (parked && state == ipc::abi::kParkStateNames[ipc::abi::kParkWaits]);
  if (parked && away) {
    *said = fmt::format("parked: {:.2f} GiB in {:.2f} s", gib(bytes),
                        double(p.value("park_ns", uint64_t(0))) / 1e9);
    return Outcome::kDone;
  }
  if (!state.empty()) {
    *said = state;
    return Outcome::kPending;
  }
  if (command != ParkCommand::kUnpark && !refusal.empty()) {
    *said = (parked ? "not parked: " : "not moved: ") + (engine.empty() ? "" : engine + "; ") + refusal;
    return Outcome::kRefused;
  }
  if (command == ParkCommand::kMove && client.value("gpu", "") != gpu) {
    *said = "not on that GPU yet";
    return Outcome::kPending;
  }
  const double seconds = double(p.value("park_ns", uint64_t(0)) + p.value("return_ns", uint64_t(0))) / 1e9;
  *said = parked                          ? "parked, and needed again at once"
          : command == ParkCommand::kMove ? fmt::format("moved: {:.2f} GiB in {:.2f} s", gib(bytes), seconds)
                                          : "on its GPU";
  return Outcome::kDone;
}

}  // namespace

int park(const ParkOptions& options, ParkCommand command) {
  static constexpr const char* kNames[] = {"park", "unpark", "move"};
  const auto complain = [&](const std::string& why) {
    fprintf(stderr, "tessera %s: %s\n", kNames[size_t(command)], base::printable(why).c_str());
    return 1;
  };
  ipc::abi::Control request{};
  static constexpr uint32_t kActions[] = {ipc::abi::kControlPark, ipc::abi::kControlUnpark,
                                          ipc::abi::kControlMove};
  request.action = kActions[size_t(command)];
  if (command == ParkCommand::kMove && !find_gpu(options.gpu, request.gpu))
    return complain("no GPU " + options.gpu);
  const std::string gpu = text_of(request.gpu);
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
  // A client that moves is no client between two attachments, which may be at the first look.
  pid_t moved = 0;
  if (command == ParkCommand::kMove) {
    const auto before = ipc::query(*path);
    if (!before) return complain(before.error().text);
    moved = process_named(json::parse(*before, nullptr, false), request);
  }
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
      const Outcome now = outcome(client, command, gpu, &said);
      pending = pending || now == Outcome::kPending;
      refused = refused || now == Outcome::kRefused;
      lines += line_of(client, said);
    }
    if (!any && moved != 0 && is_alive(moved)) pending = true;
    if (!any && !pending) return complain("the client has ended");
    if (!pending || base::now_ns() >= until_ns) {
      fputs(lines.c_str(), pending || refused ? stderr : stdout);
      return pending || refused ? 1 : 0;
    }
    poll(nullptr, 0, kBetweenLooksMs);
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

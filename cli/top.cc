#include "cli/top.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/printable.h"
#include "base/units.h"
#include "cli/run.h"
#include "ipc/channel/client.h"

namespace tessera::cli {
namespace {

using nlohmann::json;

// What grows while a client lives; shown as growth per second.
struct Sums {
  uint64_t launches = 0, slices = 0, preemptions = 0, completed_ns = 0, held_ns = 0, bursts = 0;
};

Sums sums_of(const json& client) {
  const auto at = [&](const char* key) { return client.value(key, uint64_t(0)); };
  return {at("launches"),     at("slices"),  at("preemptions"),
          at("completed_ns"), at("held_ns"), at("bursts_recorded")};
}

std::string row(const json& client, const Sums& before, double seconds) {
  const Sums now = sums_of(client);
  const auto rate = [&](uint64_t fresh, uint64_t old) {
    return double(fresh - std::min(fresh, old)) / seconds;
  };
  const uint64_t slowdown = client.value("slowdown_permille", uint64_t(0));
  return fmt::format(
      "{:<8}{:<20.19}{:<5}{:<9}{:>9.0f}{:>9.0f}{:>7.0f}{:>8.1f}{:>8.1f}{:>9.1f}{:>9}\n",
      client.value("pid", 0), base::printable(client.value("name", "")), client.value("priority", 0),
      base::printable(client.value("state", "")), rate(now.launches, before.launches),
      rate(now.slices, before.slices), rate(now.preemptions, before.preemptions),
      rate(now.completed_ns, before.completed_ns) / 1e7, rate(now.held_ns, before.held_ns) / 1e7,
      rate(now.bursts, before.bursts), slowdown == 0 ? "-" : fmt::format("{:.2f}", double(slowdown) / 1000));
}

}  // namespace

int top(const TopOptions& options) {
  const auto socket_path = resolve_socket(options.socket);
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  std::map<uint64_t, Sums> before;
  uint64_t last_ns = 0;
  // The first table is after one interval: rates need two looks.
  for (int shown = -1; options.count == 0 || shown < options.count; ++shown) {
    const auto answer =
        socket_path ? ipc::query(*socket_path) : base::Result<std::string>(socket_path.error());
    if (!answer) {
      fprintf(stderr, "tessera top: %s (or name its socket with --socket)\n", answer.error().text.c_str());
      return 1;
    }
    const json state = json::parse(*answer, nullptr, /*allow_exceptions=*/false);
    if (!state.is_object()) {
      fprintf(stderr, "tessera top: tesserad sent no JSON\n");
      return 1;
    }
    const uint64_t now_ns = base::now_ns();
    const double seconds = double(std::max<uint64_t>(1, now_ns - last_ns)) / double(base::kNsPerS);
    std::string text = terminal ? "\033[H\033[2J" : "";
    for (const json& gpu : state.value("gpus", json::array()))
      text += fmt::format("{}  policy {}, {}, {} clients\n", base::printable(gpu.value("uuid", "")),
                          base::printable(gpu.value("policy", "")),
                          gpu.value("mps", false) ? "leases overlap" : "exclusive turns",
                          gpu.value("clients", 0));
    text += fmt::format("{:<8}{:<20}{:<5}{:<9}{:>9}{:>9}{:>7}{:>8}{:>8}{:>9}{:>9}\n", "PID", "NAME", "PRIO",
                        "STATE", "LAUNCH/s", "SLICE/s", "PRE/s", "GPU %", "HELD %", "BURST/s", "SLOWDOWN");
    std::map<uint64_t, Sums> seen;
    for (const json& client : state.value("clients", json::array())) {
      const uint64_t id = client.value("id", uint64_t(0));
      seen[id] = sums_of(client);
      text += row(client, before.contains(id) ? before[id] : seen[id], seconds);
    }
    before = std::move(seen);
    last_ns = now_ns;
    if (shown >= 0) {
      if (fputs(text.c_str(), stdout) < 0 || fflush(stdout) != 0)
        return 1;  // nobody sees the next one either
    }
    if (shown + 1 == options.count && options.count != 0) break;
    poll(nullptr, 0, int(options.interval_s * 1000));
  }
  return 0;
}

}  // namespace tessera::cli

#include "cli/look/ps.h"

#include <poll.h>

#include <cstdio>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/printable.h"
#include "cli/look/bypass.h"
#include "cli/look/client_table.h"
#include "cli/look/device_memory.h"
#include "cli/look/measured_state.h"
#include "cli/look/request_table.h"
#include "cli/run/park.h"
#include "cli/run/run.h"
#include "ipc/channel/client.h"

namespace tessera::cli {
namespace {

constexpr double kBetweenLooksSeconds = 0.5;
constexpr size_t kMostRows = 1000;  // lines

std::string name_of(const nlohmann::json& client) {
  return base::printable(client.value("name", ""));
}

void print(const TwoLooks& looks) {
  const auto mps = looks.now.value("mps", nlohmann::json::object());
  if (mps.value("active", false))
    puts("MPS is on, fault isolation: no");
  else if (const std::string reason = mps.value("reason", ""); !reason.empty())
    puts(("MPS is off: " + base::printable(reason)).c_str());
  fputs(ps_table(looks).c_str(), stdout);
  for (const auto lines : {ps_unmanaged, ps_gangs, ps_reserves, ps_beside, ps_gates, ps_cutting, ps_memory,
                           ps_parked, ps_starved, ps_minimum, ps_splits})
    fputs(lines(looks.now).c_str(), stdout);
  std::set<long> clients;
  std::string bypasses;
  for (const auto& client : looks.now.value("clients", nlohmann::json::array())) {
    clients.insert(client.value("pid", 0L));
    if (client.value("bypassed", 0) != 0) {
      const long pid = client.value("pid", 0L);
      bypasses += fmt::format("{} {}: some of its driver calls may not pass through Tessera: it opened {}\n",
                              pid, name_of(client),
                              is_audited(pid) ? std::string("another driver")
                                              : std::string("the driver by its path; ") + kBypassRemedy);
    }
  }
  for (const Bypass& b : find_bypasses(clients))
    bypasses += fmt::format(
        "{} {}: its driver calls do not pass through Tessera: {}\n", b.pid, base::printable(b.name),
        b.has_library ? fmt::format("it opened {} by its path; {}", base::printable(b.driver), kBypassRemedy)
                      : fmt::format("it has {} and not the library: nobody started it by tessera run, or its "
                                    "environment was cleared (sudo, su, ssh, cron)",
                                    base::printable(b.driver)));
  fputs(bypasses.c_str(), stdout);
}

}  // namespace

int ps(const std::string& socket, const PsOptions& options) {
  const auto complain = [](const base::Error& why) {
    fprintf(stderr, "tessera ps: %s (or name its socket with --socket)\n", why.text.c_str());
    return 1;
  };
  if (options.json) {
    const auto socket_path = resolve_socket(socket);
    auto answer = socket_path ? ipc::query(*socket_path) : base::Result<std::string>(socket_path.error());
    if (!answer) return complain(answer.error());
    puts(answer->c_str());
    return 0;
  }
  TwoLooks looks;
  for (nlohmann::json* look : {&looks.before, &looks.now}) {
    auto state = measured_state(socket);
    if (!state) return complain(state.error());
    *look = std::move(*state);
    const uint64_t asked_ns = base::now_ns();
    if (look == &looks.now) {
      looks.seconds = double(asked_ns) / 1e9 - looks.seconds;
    } else {
      looks.seconds = double(asked_ns) / 1e9;
      poll(nullptr, 0, int(kBetweenLooksSeconds * 1000));
    }
  }
  add_residuals(process_memory(), &looks.now);
  print(looks);
  if (options.requests) fputs(request_table(looks.now, {}, kMostRows).c_str(), stdout);
  if (options.operations) fputs(operation_table(looks, kMostRows).c_str(), stdout);
  return 0;
}

}  // namespace tessera::cli

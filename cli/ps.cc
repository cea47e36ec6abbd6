#include "cli/ps.h"

#include <cstdio>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "cli/bypass.h"
#include "cli/run.h"
#include "ipc/channel/client.h"

namespace tessera::cli {
namespace {

// Column: heading, width, key in the client's JSON object.
struct Column {
  const char* heading;
  int width;
  const char* key;
};
constexpr Column kColumns[] = {
    {"PID", 8, "pid"},
    {"NAME", 20, "name"},
    {"PRIO", 5, "priority"},
    {"STATE", 10, "state"},
    {"LAUNCHES", 10, "launches"},
    {"SLICES", 9, "slices"},
    {"HOLDS", 8, "holds"},
    {"PREEMPTED", 10, "preemptions"},
};

std::string cell(const nlohmann::json& client, const Column& column) {
  const auto found = client.find(column.key);
  if (found == client.end()) return "-";
  return found->is_string() ? base::printable(found->get<std::string>()) : found->dump();
}

}  // namespace

int ps(const std::string& socket, bool json) {
  const auto socket_path = resolve_socket(socket);
  auto answer = socket_path ? ipc::query(*socket_path) : base::Result<std::string>(socket_path.error());
  if (!answer) {
    fprintf(stderr, "tessera ps: %s (or name its socket with --socket)\n", answer.error().text.c_str());
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
  const auto mps = state.value("mps", nlohmann::json::object());
  if (mps.value("active", false))
    puts("MPS is on, fault isolation: no");
  else if (const std::string reason = mps.value("reason", ""); !reason.empty())
    puts(("MPS is off: " + base::printable(reason)).c_str());
  std::string line;
  for (const Column& column : kColumns) line += fmt::format("{:<{}}", column.heading, column.width);
  puts(line.c_str());
  std::set<long> clients;
  std::string bypasses;
  for (const auto& client : state.value("clients", nlohmann::json::array())) {
    line.clear();
    for (const Column& column : kColumns) line += fmt::format("{:<{}}", cell(client, column), column.width);
    puts(line.c_str());
    clients.insert(client.value("pid", 0L));
    if (client.value("bypassed", 0) != 0)
      bypasses += fmt::format(
          "{} {}: some of its driver calls may not pass through Tessera: it opened the driver by its path\n",
          client.value("pid", 0L), cell(client, kColumns[1]));
  }
  for (const Bypass& b : find_bypasses(clients))
    bypasses += fmt::format("{} {}: its driver calls do not pass through Tessera: it opened {} by its path\n",
                            b.pid, base::printable(b.name), base::printable(b.driver));
  fputs(bypasses.c_str(), stdout);
  return 0;
}

}  // namespace tessera::cli

#include "cli/cdi.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/user_file.h"
#include "cli/client_environment.h"

namespace tessera::cli {
namespace {

using nlohmann::json;

constexpr char kKind[] = "tessera.dev/gpu";
// Names as people ask for them, and the priority of each.
struct Level {
  const char *name, *priority;
};
constexpr Level kLevels[] = {{"best-effort", "0"}, {"high", "5"},    {"level-1", "1"},
                             {"level-2", "2"},     {"level-3", "3"}, {"level-4", "4"},
                             {"level-5", "5"},     {"level-6", "6"}, {"level-7", "7"}};

json mount(const std::string& folder, const char* access) {
  return {{"hostPath", folder}, {"containerPath", folder}, {"options", {access, "rbind", "nosuid", "nodev"}}};
}

std::string nothing(const char*, void*) {
  return "";
}  // of the container's own environment nothing is known

}  // namespace

base::Result<std::string> cdi_specification(const CdiOptions& options, const Layout& layout) {
  if (options.socket.empty() || options.socket[0] != '/')
    return base::error(base::Code::kInvalid,
                       "--socket must be an absolute path, it is mounted: " + options.socket);
  json devices = json::array();
  for (const Level& level : kLevels) {
    RunOptions run;
    run.priority = level.priority;
    run.gpu = options.gpu;
    run.socket = options.socket;
    run.name = "container";
    auto variables = client_environment(run, layout, nothing);
    if (!variables) return variables.error();
    devices.push_back({{"name", level.name}, {"containerEdits", {{"env", *variables}}}});
  }
  const std::string sockets = options.socket.substr(0, options.socket.rfind('/'));
  const json out = {
      {"cdiVersion", options.version},
      {"kind", kKind},
      {"devices", devices},
      {"containerEdits", {{"mounts", {mount(layout.prefix + "/lib", "ro"), mount(sockets, "ro")}}}}};
  return out.dump(2);
}

int cdi(const CdiOptions& options) {
  const auto text = cdi_specification(options, find_layout());
  if (!text) {
    fprintf(stderr, "tessera cdi: %s\n", text.error().text.c_str());
    return 2;
  }
  if (options.output.empty()) {
    puts(text->c_str());
    return 0;
  }
  const base::Status written = base::write_user_file(options.output, *text + '\n');
  if (written.ok()) return 0;
  fprintf(stderr, "tessera cdi: %s (runtimes read /etc/cdi and /run/cdi; as root?)\n",
          written.error().text.c_str());
  return 1;
}

}  // namespace tessera::cli

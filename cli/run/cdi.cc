#include "cli/run/cdi.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/user_file.h"
#include "cli/run/client_environment.h"

namespace tessera::cli {
namespace {

using nlohmann::json;

constexpr char kKind[] = "tessera.dev/gpu";
// Containers have Tessera in this folder, wherever the host has it: packaging/ld.so.preload names its libraries there.
constexpr char kInside[] = "/usr/lib/tessera", kPreloadList[] = "/lib/ld.so.preload";
// Names as people ask for them, and the priority of each.
struct Level {
  const char *name, *priority;
};
constexpr Level kLevels[] = {{"best-effort", "0"}, {"high", "5"},    {"level-1", "1"},
                             {"level-2", "2"},     {"level-3", "3"}, {"level-4", "4"},
                             {"level-5", "5"},     {"level-6", "6"}, {"level-7", "7"}};

json mount(const std::string& of_host, const std::string& of_container) {
  return {{"hostPath", of_host},
          {"containerPath", of_container},
          {"options", {"ro", "rbind", "nosuid", "nodev"}}};
}

// A path of the host's installation as containers have it.
std::string inside(std::string variable, const std::string& prefix) {
  if (const size_t at = variable.find(prefix); at != std::string::npos)
    variable.replace(at, prefix.size(), kInside);
  return variable;
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
    run.preload = false;  // a variable would replace the container's own
    auto variables = client_environment(run, layout, nothing);
    if (!variables) return variables.error();
    for (std::string& variable : *variables) variable = inside(variable, layout.prefix);
    devices.push_back({{"name", level.name}, {"containerEdits", {{"env", *variables}}}});
  }
  const std::string sockets = options.socket.substr(0, options.socket.rfind('/'));
  const json out = {
      {"cdiVersion", options.version},
      {"kind", kKind},
      {"devices", devices},
      {"containerEdits",
       {{"mounts",
         {mount(layout.prefix + "/lib", std::string(kInside) + "/lib"),
          mount(layout.prefix + kPreloadList, "/etc/ld.so.preload"), mount(sockets, sockets)}}}}};
  return base::json_text(out, 2);
}

int cdi(const CdiOptions& options) {
  const Layout layout = find_layout();
  if (const std::string list = layout.prefix + kPreloadList; !file_exists(list)) {
    fprintf(stderr, "tessera cdi: %s, which containers mount, is missing: install Tessera again\n",
            list.c_str());
    return 1;
  }
  const auto text = cdi_specification(options, layout);
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

#include "cli/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>

#include "base/scoped_fd.h"
#include "cli/demo/process.h"
#include "cli/duration.h"
#include "cli/mps.h"
#include "cli/set.h"
#include "ipc/channel/socket_path.h"

namespace tessera::cli {
namespace {

constexpr unsigned kHighPriority = 5;

std::string environment(const char* name) {
  const char* value = getenv(name);
  return value ? value : "";
}

std::string joined(const std::string& first, const std::string& second) {
  if (first.empty()) return second;
  return second.empty() ? first : first + ":" + second;
}

bool daemon_answers(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  // One that is stopped, or busy, must not be waited for (EAGAIN).
  const base::ScopedFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return fd.valid() &&
         (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 || errno == EAGAIN);
}

}  // namespace

base::Result<std::string> resolve_socket(const std::string& given) {
  if (given.empty()) {
    std::string skipped;
    auto path = ipc::default_socket_path(&skipped);
    if (!skipped.empty()) std::fprintf(stderr, "tessera: %s\n", skipped.c_str());
    return path;
  }
  if (given.size() >= sizeof sockaddr_un::sun_path)
    return base::error(base::Code::kInvalid,
                       "the path of a socket has at most 107 characters, choose a shorter one: " + given);
  return given;
}

base::Result<unsigned> parse_priority(const std::string& text) {
  if (text == "high") return kHighPriority;
  if (text == "best-effort") return 0u;
  if (text.size() == 1 && text[0] >= '0' && text[0] <= '7') return unsigned(text[0] - '0');
  return base::error(
      base::Code::kInvalid,
      "priority '" + text + "' is none of: high, best-effort, 0..7 (0 = best-effort, 7 = highest)");
}

base::Result<std::vector<std::string>> client_environment(const RunOptions& options, const Layout& layout) {
  auto priority = parse_priority(options.priority);
  if (!priority) return priority.error();
  if (options.gpu != "auto" && options.gpu != "soft")
    return base::error(base::Code::kInvalid, "--gpu '" + options.gpu + "' is none of: auto, soft");
  std::vector<std::string> out;
  if (!options.weight.empty()) {
    const auto weight = parse_weight(options.weight);
    if (!weight) return weight.error();
    out.push_back("TESSERA_WEIGHT=" + std::to_string(*weight));
  }
  if (!options.slo.empty()) {
    const auto slo_ns = parse_slo_ns(options.slo);
    if (!slo_ns) return slo_ns.error();
    if (*priority == 0)
      return base::error(base::Code::kInvalid,
                         "--slo is for protected programs: give --priority high (or 1..7), too");
    out.push_back("TESSERA_SLO_MS=" + std::to_string(*slo_ns / 1'000'000));
  }
  if (!options.bit_stability.empty()) {
    if (options.bit_stability != "strict" && options.bit_stability != "relaxed")
      return base::error(base::Code::kInvalid,
                         "--bit-stability '" + options.bit_stability + "' is none of: strict, relaxed");
    out.push_back("TESSERA_BIT_STABILITY=" + options.bit_stability);
  }
  if (options.allow_order_dependent) out.push_back("TESSERA_ALLOW_ORDER_DEPENDENT=1");
  if (options.gpu == "soft") {
    const std::string driver = layout.softgpu + "/libcuda.so.1";
    if (!file_exists(driver))
      return base::error(base::Code::kNotFound,
                         "the software GPU is not installed (" + driver + " is missing)");
    out.push_back("TESSERA_DRIVER=" + driver);
    // Behind the user's folders. Without the library the driver must be found all the same, so it is
    // preloaded.
    out.push_back("LD_LIBRARY_PATH=" + joined(environment("LD_LIBRARY_PATH"), layout.softgpu));
    if (options.passthrough) out.push_back("LD_PRELOAD=" + joined(environment("LD_PRELOAD"), driver));
  }
  if (options.passthrough) {
    out.push_back("TESSERA_DISABLE=1");
    return out;
  }
  // Appended: profilers and allocators preload too, and want to stay first.
  out.push_back("LD_PRELOAD=" +
                joined(environment("LD_PRELOAD"), layout.preload + ":" + layout.preload_alias));
  out.push_back("TESSERA_PRIORITY=" + std::to_string(*priority));
  std::string name = options.name;
  if (name.empty() && !options.command.empty())
    name = options.command[0].substr(options.command[0].rfind('/') + 1);
  out.push_back("TESSERA_NAME=" + name);
  out.push_back("TESSERA_RUN=1");
  if (!options.socket.empty())
    out.push_back("TESSERA_SOCKET=" + options.socket);  // else the library finds the default
  return out;
}

int run(const RunOptions& given) {
  const Layout layout = find_layout();
  RunOptions options = given;
  // Whatever is missing, the program runs: then without the library, and with the errors it would see anyway.
  std::string missing;
  if (!options.passthrough && !file_exists(layout.preload))
    missing = layout.preload + " is missing, the program runs without Tessera";
  else if (const std::string driver = environment("TESSERA_DRIVER");
           options.gpu == "auto" && !driver.empty() && !file_exists(driver))
    missing = "TESSERA_DRIVER=" + driver + " is not there, the program runs without Tessera";
  else if (options.gpu == "auto" && driver.empty() && !driver_installed())
    missing =
        "no NVIDIA driver on this machine (libcuda.so.1 not found), the program runs without Tessera; "
        "--gpu soft runs it on the software GPU";
  if (!missing.empty()) options.passthrough = true;
  auto variables = client_environment(options, layout);
  if (!variables) {
    fprintf(stderr, "tessera run: %s\n", variables.error().text.c_str());
    return 2;
  }
  if (!missing.empty()) fprintf(stderr, "tessera run: %s\n", missing.c_str());
  if (!options.passthrough) {
    const auto socket_path = resolve_socket(options.socket);
    if (!socket_path)
      fprintf(stderr, "tessera run: %s; the program runs unmanaged\n", socket_path.error().text.c_str());
    else if (!daemon_answers(*socket_path))
      fprintf(stderr, "tessera run: no tesserad at %s, the program runs unmanaged (start tesserad first)\n",
              socket_path->c_str());
    else if (const auto mps = ask_mps(*socket_path); mps.ok() && mps->active) {
      for (const std::string& v : mps_environment(*mps, *parse_priority(options.priority) == 0))
        variables->push_back(v);
      fprintf(stderr, "tessera run: MPS is on, fault isolation: no (a fault of one program ends all)\n");
    }
  }
  set_variables(*variables);
  std::vector<char*> argv;
  for (const std::string& word : options.command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  const int failure = errno;
  fprintf(stderr, "tessera run: %s: %s\n", argv[0],
          failure == ENOENT ? "command not found (give a path or check PATH)" : strerror(failure));
  return failure == ENOENT ? 127 : 126;
}

}  // namespace tessera::cli

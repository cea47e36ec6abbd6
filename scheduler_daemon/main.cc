// tesserad: command line, configuration, logging, signals; then transport::Server runs.
// docs/configuration.md.

#include <grp.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>

#include "base/clock.h"
#include "base/scheduling.h"
#include "base/units.h"
#include "ipc/channel/socket_path.h"
#include "profiles/folders.h"
#include "scheduler_daemon/config/config.h"
#include "scheduler_daemon/kernel_limits/driver_limits.h"
#include "scheduler_daemon/learning/store.h"
#include "scheduler_daemon/parker/process.h"
#include "scheduler_daemon/transport/log.h"
#include "scheduler_daemon/transport/server.h"
#include "scheduler_daemon/transport/watchdog.h"

#ifndef TESSERA_VERSION
#define TESSERA_VERSION "unknown"
#endif

namespace tessera {
namespace {

struct Options {
  std::string config_path, socket, log_level;
  bool check = false, print_reference = false, foreground = false, system = false, parker = false,
       limits = false;
  int ready_fd = -1;
};

constexpr char kSystemConfig[] = "/etc/tessera/tesserad.toml";
constexpr char kSystemSocket[] = "/run/tessera/tesserad.sock";

// Turns between clients wait for this process: it should run soon after a wake-up although the machine is
// busy. It uses next to no processor time. Both are best effort: nice needs a privilege, a short slice does
// not.
void ask_for_early_scheduling() {
  (void)::setpriority(PRIO_PROCESS, 0, -10);
  base::ask_for_slice(base::us(100));
}

// Up to five descriptors per client: the usual soft limit of 1024 would be the first bound that is hit.
void raise_descriptor_limit() {
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

uint64_t new_epoch() {
  uint64_t epoch = 0;
  if (::getrandom(&epoch, sizeof epoch, 0) != ssize_t(sizeof epoch) || epoch == 0) epoch = base::now_ns();
  return epoch;
}

int fail(const std::string& text) {
  std::fprintf(stderr, "tesserad: %s\n", text.c_str());
  return 1;
}

// Tells who started us: by a descriptor, or as sd_notify(3) says it.
void tell_ready(int fd) {
  if (fd >= 0) {
    (void)!::write(fd, "\n", 1);
    ::close(fd);
  }
  const char* manager = ::getenv("NOTIFY_SOCKET");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (manager == nullptr || std::strlen(manager) >= sizeof address.sun_path) return;
  std::strcpy(address.sun_path, manager);
  if (*manager == '@') address.sun_path[0] = '\0';
  const base::ScopedFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  constexpr char kReady[] = "READY=1";
  (void)!::sendto(socket.get(), kReady, sizeof kReady - 1, MSG_NOSIGNAL,
                  reinterpret_cast<sockaddr*>(&address),
                  socklen_t(offsetof(sockaddr_un, sun_path) + std::strlen(manager)));
}

// The error has every mistake, each in a line of its own.
base::Result<config::Config> load(const Options& options) {
  config::Config initial;
  // The system's daemon serves every user; what each may claim is bounded by [priority].
  if (options.system) initial.daemon_socket_mode = "0666";
  if (options.config_path.empty()) return initial;
  base::Result<config::Parsed> loaded = config::load_config(options.config_path, initial);
  if (!loaded.ok()) return loaded.error();
  std::string mistakes;
  for (const std::string& line : loaded->errors) mistakes += line + '\n';
  if (!mistakes.empty())
    return base::error(base::Code::kInvalid, "the configuration has mistakes:\n" + mistakes +
                                                 "docs/configuration.md lists all keys");
  return std::move(loaded->config);
}

void set_log_level(const Options& options, const config::Config& config) {
  spdlog::set_level(
      spdlog::level::from_str(options.log_level.empty() ? config.daemon_log_level : options.log_level));
}

// Its own configuration, and what was measured of checkpoints on GPUs.
core::Settings all_settings(const config::Config& config) {
  core::Settings settings = config::settings_of(config);
  std::vector<std::string> folders = profiles::shared_folders();
  folders.insert(folders.begin(),
                 config.daemon_profiles.empty() ? profiles::user_folder() : config.daemon_profiles);
  const config::Checkpoints checkpoints = config::load_checkpoints(folders);
  for (const std::string& mistake : checkpoints.errors) spdlog::warn("{}", mistake);
  settings.checkpoints = checkpoints.rules;
  return settings;
}

transport::Reload reload_from(const Options& options, const config::Config& started_with) {
  return [options, started_with]() -> base::Result<transport::Reloaded> {
    if (options.config_path.empty())
      return base::error(base::Code::kNotFound, "started without --config: there is nothing to read again");
    base::Result<config::Config> config = load(options);
    if (!config.ok()) return config.error();
    set_log_level(options, *config);
    return transport::Reloaded{all_settings(*config), config::needs_restart(started_with, *config)};
  };
}

base::Result<ipc::ListenSocket> listen_for_operators(const config::Config& config,
                                                     const std::string& socket_path) {
  const std::string path = ipc::control_socket_path(socket_path);
  base::Result<ipc::ListenSocket> listen =
      ipc::listen_on(path, mode_t(std::stoul(config.daemon_control_mode, nullptr, 8)));
  if (!listen.ok() || config.daemon_control_group.empty()) return listen;
  const group* g = ::getgrnam(config.daemon_control_group.c_str());
  if (g == nullptr)
    return base::error(base::Code::kNotFound, "daemon.control_group: no group '" +
                                                  config.daemon_control_group + "' on this machine");
  if (::chown(path.c_str(), uid_t(-1), g->gr_gid) != 0)
    return base::error(base::Code::kPermission,
                       "cannot give " + path + " to group " + config.daemon_control_group + ": " +
                           std::strerror(errno) + "; run as root or as a member of it");
  return listen;
}

// Without a folder, or one that cannot be used, the daemon schedules as well, but every start is a cold one.
std::unique_ptr<learning::Store> open_store(const config::Config& config) {
  learning::StoreOptions options;
  options.folder = config.daemon_profiles.empty() ? profiles::user_folder() : config.daemon_profiles;
  if (options.folder.empty() || options.folder == "off") return nullptr;
  options.shared = profiles::shared_folders();
  options.interval_ms = config.daemon_learn_interval_ms;
  options.log = [](bool warning, const std::string& line) {
    spdlog::log(warning ? spdlog::level::warn : spdlog::level::info, line);
  };
  base::Result<std::unique_ptr<learning::Store>> store = learning::Store::open(std::move(options));
  if (store.ok()) return std::move(*store);
  spdlog::warn("{}; nothing is learnt", store.error().text);
  return nullptr;
}

mps::Options mps_options(const config::Config& config, const std::string& socket_path) {
  mps::Options o;
  o.mode = config.mps_mode;
  o.program = config.mps_control_program;
  const size_t slash = socket_path.rfind('/');
  const std::string own = (slash == std::string::npos ? "." : socket_path.substr(0, slash)) + "/mps";
  const char* inherited = ::getenv("CUDA_MPS_PIPE_DIRECTORY");
  const std::string usual = inherited != nullptr && *inherited != '\0' ? inherited : "/tmp/nvidia-mps";
  o.pipe_directory = !config.mps_pipe_directory.empty() ? config.mps_pipe_directory
                     : o.mode == "manage"               ? own + "/pipe"
                                                        : usual;
  o.log_directory = o.mode == "manage" ? own + "/log" : "";
  return o;
}

int serve(const Options& options, const config::Config& config, const std::string& socket_path) {
  std::optional<transport::Watchdog> watchdog;  // until all below has ended
  core::Settings settings = all_settings(config);
  const std::unique_ptr<learning::Store> store = open_store(config);
  settings.learning = store.get();
  settings.version = TESSERA_VERSION;
  settings.socket_path = socket_path;
  settings.epoch = new_epoch();
  settings.user = ::geteuid();
  raise_descriptor_limit();
  ask_for_early_scheduling();

  if (::access("/proc/self/stat", R_OK) != 0)
    spdlog::warn(
        "/proc is not there: limits by control group fit nobody, and clients are gone only when they have "
        "ended");

  sigset_t handled;
  sigemptyset(&handled);
  for (int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&handled, number);
  sigprocmask(SIG_BLOCK, &handled, nullptr);
  signal(SIGPIPE, SIG_IGN);
  transport::Sources sources;
  sources.reload = reload_from(options, config);
  sources.signals.reset(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!sources.signals.valid()) return fail(std::string("signalfd: ") + std::strerror(errno));

  mode_t mode = mode_t(std::stoul(config.daemon_socket_mode, nullptr, 8));
  base::Result<ipc::ListenSocket> listen = ipc::listen_on(socket_path, mode);
  if (!listen.ok()) return fail(listen.error().text);
  sources.clients = std::move(*listen);
  if (config.daemon_control_mode != "off") {
    base::Result<ipc::ListenSocket> control = listen_for_operators(config, socket_path);
    if (!control.ok()) return fail(control.error().text);
    sources.control = std::move(*control);
  }
  sources.mps = std::make_unique<mps::Mps>(mps_options(config, socket_path));
  sources.mps->start();
  sources.parker = {"/proc/self/exe", "--parker"};  // this build, also when its file was replaced
  sources.driver_limits = {"/proc/self/exe", "--driver-limits"};
  base::Result<std::unique_ptr<transport::Server>> server =
      transport::Server::create(std::move(sources), settings, uint32_t(config.daemon_spin_us));
  if (!server.ok()) return fail(server.error().text);
  spdlog::info("tesserad {} listens on {} (policy {}, epoch {:x})", settings.version, socket_path,
               settings.policy_name, settings.epoch);
  tell_ready(options.ready_fd);
  watchdog.emplace();
  if (const base::Status ended = (*server)->run(*watchdog); !ended.ok()) return fail(ended.error().text);
  spdlog::info("tesserad ends, clients run unmanaged");
  return 0;
}

// The caller's umask still keeps files from others, but not from this daemon, which reads its own again.
void keep_own_files_readable() {
  constexpr mode_t kOwner = 0700;
  ::umask(::umask(0) & ~kOwner);
}

int run(int argc, char** argv) {
  keep_own_files_readable();
  Options options;
  CLI::App app("tesserad: the scheduler daemon of Tessera. One per user, or one for the system.");
  app.set_version_flag("--version", TESSERA_VERSION);
  app.add_option("--config", options.config_path, "configuration file (TOML); without it the defaults hold");
  app.add_flag("--system", options.system,
               std::string("one daemon for all users: listens on ") + kSystemSocket +
                   " for everyone, reads " + kSystemConfig + " if it is there");
  app.add_option("--socket", options.socket,
                 "where to listen; overrides TESSERA_SOCKET and the configuration");
  app.add_option("--log-level", options.log_level, "trace, debug, info, warn, error or off")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}));
  app.add_flag("--check", options.check, "check the configuration, print every mistake, and exit");
  app.add_flag("--foreground", options.foreground, "stay in the foreground (what it does anyway)");
  app.add_flag("--print-reference", options.print_reference, "print the reference of all configuration keys");
  app.add_flag("--parker", options.parker,
               "what tesserad starts itself to make the driver's checkpoint calls")
      ->group("");
  app.add_flag("--driver-limits", options.limits,
               "what tesserad starts itself to set the driver's own limits of memory")
      ->group("");
  app.add_option("--ready-fd", options.ready_fd, "write a line to this descriptor when clients can connect");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    return app.exit(problem) == 0 ? 0 : 2;
  }
  if (options.parker) return parker::serve_requests(STDIN_FILENO);
  if (options.limits) return kernel_limits::serve_driver_limits(STDIN_FILENO);
  if (options.print_reference) return std::fputs(config::reference_markdown().c_str(), stdout) < 0 ? 1 : 0;

  if (options.system && options.config_path.empty() && ::access(kSystemConfig, F_OK) == 0)
    options.config_path = kSystemConfig;
  base::Result<config::Config> config = load(options);
  if (!config.ok()) return fail(config.error().text);
  if (options.check) {
    std::printf("configuration is fine\n");
    return 0;
  }
  spdlog::set_default_logger(transport::make_logger(STDERR_FILENO));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
  set_log_level(options, *config);

  std::string socket_path = !options.socket.empty() ? options.socket : config->daemon_socket;
  if (socket_path.empty() && options.system) socket_path = kSystemSocket;
  if (socket_path.empty()) {
    base::Result<std::string> chosen = ipc::own_socket_path();
    if (!chosen.ok()) return fail(chosen.error().text);
    socket_path = *chosen;
  }
  return serve(options, *config, socket_path);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  try {
    return tessera::run(argc, argv);
  } catch (const std::exception& e) {  // out of memory and the like
    return tessera::fail(e.what());
  }
}

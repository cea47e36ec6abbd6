// tesserad: command line, configuration, logging, signals; then transport::Server runs.
// docs/configuration.md.

#include <sched.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/clock.h"
#include "base/units.h"
#include "ipc/channel/socket_path.h"
#include "profiles/folders.h"
#include "scheduler_daemon/config/config.h"
#include "scheduler_daemon/learning/store.h"
#include "scheduler_daemon/transport/server.h"

#ifndef TESSERA_VERSION
#define TESSERA_VERSION "unknown"
#endif

namespace tessera {
namespace {

struct Options {
  std::string config_path, socket, log_level;
  bool check = false, print_reference = false, foreground = false;
  int ready_fd = -1;
};

// Turns between clients wait for this process: it should run soon after a wake-up although the machine is
// busy. It uses next to no processor time. Both are best effort: nice needs a privilege; a short slice
// (Linux 6.12: a woken task with a shorter slice preempts one with the usual 3 ms) does not.
void ask_for_early_scheduling() {
  (void)::setpriority(PRIO_PROCESS, 0, -10);
  struct {  // struct sched_attr of sched_setattr(2), first version; glibc 2.36 does not declare it
    uint32_t size = sizeof(*this), policy = SCHED_OTHER;
    uint64_t flags = 0;
    int32_t nice = ::getpriority(PRIO_PROCESS, 0);
    uint32_t priority = 0;
    uint64_t runtime_ns = base::us(100), deadline_ns = 0, period_ns = 0;
  } attributes;
  static_assert(sizeof attributes == 48);
  (void)::syscall(SYS_sched_setattr, 0, &attributes, 0);
}

// Four descriptors per client: the usual soft limit of 1024 would be the first bound that is hit.
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

void tell_ready(int fd) {
  if (fd < 0) return;
  (void)!::write(fd, "\n", 1);
  ::close(fd);
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

int serve(const Options& options, const config::Config& config, const std::string& socket_path) {
  core::Settings settings = config::settings_of(config);
  const std::unique_ptr<learning::Store> store = open_store(config);
  settings.learning = store.get();
  settings.version = TESSERA_VERSION;
  settings.socket_path = socket_path;
  settings.epoch = new_epoch();
  raise_descriptor_limit();
  ask_for_early_scheduling();

  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  sigprocmask(SIG_BLOCK, &stop, nullptr);
  signal(SIGHUP, SIG_IGN);  // a closed terminal is no reason to let go of the GPU
  signal(SIGPIPE, SIG_IGN);
  base::ScopedFd stop_fd(::signalfd(-1, &stop, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!stop_fd.valid()) return fail(std::string("signalfd: ") + std::strerror(errno));

  mode_t mode = mode_t(std::stoul(config.daemon_socket_mode, nullptr, 8));
  base::Result<ipc::ListenSocket> listen = ipc::listen_on(socket_path, mode);
  if (!listen.ok()) return fail(listen.error().text);
  base::Result<std::unique_ptr<transport::Server>> server =
      transport::Server::create(std::move(*listen), stop_fd.get(), settings, uint32_t(config.daemon_spin_us));
  if (!server.ok()) return fail(server.error().text);
  spdlog::info("tesserad {} listens on {} (policy {}, epoch {:x})", settings.version, socket_path,
               settings.policy_name, settings.epoch);
  tell_ready(options.ready_fd);
  (*server)->run();
  spdlog::info("tesserad ends, clients run unmanaged");
  return 0;
}

int check_config(const Options& options, config::Parsed* parsed) {
  if (options.config_path.empty()) return 0;
  base::Result<config::Parsed> loaded = config::load_config(options.config_path);
  if (!loaded.ok()) return fail(loaded.error().text);
  *parsed = std::move(*loaded);
  for (const std::string& line : parsed->errors) std::fprintf(stderr, "%s\n", line.c_str());
  if (!parsed->errors.empty())
    return fail("the configuration has errors, see above; docs/configuration.md lists all keys");
  return 0;
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("tesserad: the scheduler daemon of Tessera. One per user, or one for the system.");
  app.set_version_flag("--version", TESSERA_VERSION);
  app.add_option("--config", options.config_path, "configuration file (TOML); without it the defaults hold");
  app.add_option("--socket", options.socket,
                 "where to listen; overrides TESSERA_SOCKET and the configuration");
  app.add_option("--log-level", options.log_level, "trace, debug, info, warn, error or off")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}));
  app.add_flag("--check", options.check, "check the configuration, print every mistake, and exit");
  app.add_flag("--foreground", options.foreground, "stay in the foreground (what it does anyway)");
  app.add_flag("--print-reference", options.print_reference, "print the reference of all configuration keys");
  app.add_option("--ready-fd", options.ready_fd, "write a line to this descriptor when clients can connect");
  CLI11_PARSE(app, argc, argv);
  if (options.print_reference) return std::fputs(config::reference_markdown().c_str(), stdout) < 0 ? 1 : 0;

  config::Parsed parsed;
  if (int rc = check_config(options, &parsed); rc != 0) return rc;
  if (options.check) {
    std::printf("configuration is fine\n");
    return 0;
  }
  spdlog::set_default_logger(spdlog::stderr_logger_mt("tesserad"));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
  spdlog::set_level(spdlog::level::from_str(options.log_level.empty() ? parsed.config.daemon_log_level
                                                                      : options.log_level));

  std::string socket_path = !options.socket.empty() ? options.socket : parsed.config.daemon_socket;
  if (socket_path.empty()) {
    base::Result<std::string> chosen = ipc::default_socket_path();
    if (!chosen.ok()) return fail(chosen.error().text);
    socket_path = *chosen;
  }
  return serve(options, parsed.config, socket_path);
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

#include "scheduler_daemon/programs/spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

extern char** environ;

namespace tessera::programs {

std::vector<std::string> environment_without(const std::vector<std::string>& beginnings) {
  std::vector<std::string> all;
  for (char** v = environ; *v != nullptr; ++v)
    if (std::ranges::none_of(beginnings, [&](const auto& b) { return std::string(*v).starts_with(b); }))
      all.push_back(*v);
  return all;
}

pid_t spawn(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
            const Files& files) {
  std::vector<char*> argv, envp;
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  for (const std::string& v : environment) envp.push_back(const_cast<char*>(v.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (files.input >= 0)
    posix_spawn_file_actions_adddup2(&actions, files.input, 0);
  else
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  if (!files.output.empty()) {
    posix_spawn_file_actions_addopen(&actions, 1, files.output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
  }
  posix_spawnattr_t attributes;  // this daemon blocks the signals that it reads from a descriptor
  posix_spawnattr_init(&attributes);
  sigset_t none, defaults;
  sigemptyset(&none);
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGPIPE);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t pid = -1;
  const int failed = ::posix_spawnp(&pid, argv[0], &actions, &attributes, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  errno = failed;
  return failed == 0 ? pid : -1;
}

base::ScopedFd open_process(pid_t pid) {
  return base::ScopedFd(int(::syscall(SYS_pidfd_open, pid, 0)));
}

void reap(pid_t child) {
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace tessera::programs

#include "scheduler_daemon/kernel_limits/driver_limits.h"

#include <dlfcn.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "base/read_to_end.h"
#include "scheduler_daemon/programs/spawn.h"

namespace tessera::kernel_limits {
namespace {

constexpr unsigned kLongestSeconds =
    30;  // NVML's start is the longest part, and takes seconds where nothing uses the GPU
constexpr char kNotAnswered[] = "the driver did not answer";

// ---- the process

using Device = void*;
constexpr unsigned long long kNoHardLimit = ~0ull;
struct ToSet {
  const char* folder;
  unsigned long long soft, hard;
};
struct AsItIs {
  const char* folder;
  unsigned long long soft, hard, used;
};

// Null functions: this NVML does not have them.
struct Nvml {
  int (*nvmlInit_v2)() = nullptr;
  int (*nvmlDeviceGetCount_v2)(unsigned*) = nullptr;
  int (*nvmlDeviceGetHandleByIndex_v2)(unsigned, Device*) = nullptr;
  int (*nvmlDeviceGetMemoryLimits_v1)(Device, AsItIs*) = nullptr;
  int (*nvmlDeviceSetMemoryLimits_v1)(Device, ToSet*) = nullptr;
  const char* (*nvmlErrorString)(int) = nullptr;
  std::string unusable;

  Nvml() {
    void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    bool all = library != nullptr;
    const auto find = [&](auto& function, const char* name) {
      if (library)
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
      all = all && function;
    };
#define TS_FIND(name) find(name, #name)
    TS_FIND(nvmlInit_v2);
    TS_FIND(nvmlDeviceGetCount_v2);
    TS_FIND(nvmlDeviceGetHandleByIndex_v2);
    TS_FIND(nvmlDeviceGetMemoryLimits_v1);
    TS_FIND(nvmlDeviceSetMemoryLimits_v1);
    TS_FIND(nvmlErrorString);
#undef TS_FIND
    unusable = all ? failure(nvmlInit_v2()) : kNoDriverLimits;
  }
  std::string failure(int result) const {
    return result == 0 ? "" : nvmlErrorString(result);
  }
};

std::string set_on(const Nvml& nvml, Device device, const DriverLimit& limit) {
  AsItIs now{limit.folder.c_str(), 0, 0, 0};
  if (std::string failed = nvml.failure(nvml.nvmlDeviceGetMemoryLimits_v1(device, &now)); !failed.empty())
    return failed;
  const unsigned long long hard = limit.bytes != 0 ? limit.bytes : kNoHardLimit;
  const bool of_others = now.hard != kNoHardLimit && now.hard != limit.ours;
  if (now.hard == hard || (of_others && limit.bytes == 0)) return "";
  if (of_others)
    return "a limit of " + std::to_string(now.hard) +
           " bytes is there already, which stays: clear it by `nvidia-smi memory-limits`, and reload";
  ToSet wanted{limit.folder.c_str(), std::min(now.soft, hard), hard};
  return nvml.failure(nvml.nvmlDeviceSetMemoryLimits_v1(device, &wanted));
}

std::string set_on_all(const Nvml& nvml, const DriverLimit& limit) {
  if (!nvml.unusable.empty()) return nvml.unusable;
  unsigned n = 0;
  if (std::string failed = nvml.failure(nvml.nvmlDeviceGetCount_v2(&n)); !failed.empty()) return failed;
  std::string all;
  for (unsigned i = 0; i < n; ++i) {
    Device device = nullptr;
    std::string failed = nvml.failure(nvml.nvmlDeviceGetHandleByIndex_v2(i, &device));
    if (failed.empty()) failed = set_on(nvml, device, limit);
    if (!failed.empty()) all += (all.empty() ? "GPU " : ", GPU ") + std::to_string(i) + ": " + failed;
  }
  std::ranges::replace(all, '\n', ' ');
  return all;
}

}  // namespace

int serve_driver_limits(int socket) {
  ::alarm(kLongestSeconds);
  std::istringstream requests(base::read_to_end(socket));
  const Nvml nvml;
  std::string answers;
  for (DriverLimit limit; requests >> limit.bytes >> limit.ours;) {
    requests.get();
    std::getline(requests, limit.folder);
    if (requests.eof()) break;  // not whole: it did not fit
    answers += set_on_all(nvml, limit) + '\n';
  }
  return ::send(socket, answers.data(), answers.size(), MSG_NOSIGNAL) == ssize_t(answers.size()) ? 0 : 1;
}

// ---- the daemon's end

void DriverLimits::ask(const std::vector<DriverLimit>& limits) {
  asked_ = limits.size();
  text_.clear();
  std::string requests;
  for (const DriverLimit& limit : limits)
    requests += std::to_string(limit.bytes) + ' ' + std::to_string(limit.ours) + ' ' + limit.folder + '\n';
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return;
  const base::ScopedFd theirs(pair[1]);
  socket_.reset(pair[0]);
  // Too many for a socket's buffer, or no process: there is no whole answer then.
  (void)!::send(socket_.get(), requests.data(), requests.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::shutdown(socket_.get(), SHUT_WR);
  child_ = programs::spawn(command_, programs::environment_without({"LD_PRELOAD=", "LD_AUDIT="}),
                           {.input = theirs.get(), .output = ""});
}

std::optional<std::vector<std::string>> DriverLimits::answers() {
  char part[4096];
  ssize_t got;
  while ((got = ::recv(socket_.get(), part, sizeof part, MSG_DONTWAIT)) > 0) text_.append(part, size_t(got));
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  socket_.reset();
  if (child_ >= 0) programs::reap(child_);
  child_ = -1;
  std::vector<std::string> lines;
  std::istringstream in(text_);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  if (lines.size() != asked_) lines.assign(asked_, kNotAnswered);
  return lines;
}

}  // namespace tessera::kernel_limits

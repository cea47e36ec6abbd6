#include "softgpu/timing/place.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/clock.h"
#include "base/own_folder.h"
#include "base/split.h"
#include "softgpu/timing/stretch.h"

extern char** environ;

namespace tessera::softgpu::timing {
namespace {

using base::Code;

std::string environment(const char* name) {
  const char* value = getenv(name);
  return value ? value : "";
}

bool readable(const std::string& path) {
  return access(path.c_str(), R_OK) == 0;
}

// Folder of the object that holds this code: the softgpu library in an application, the program itself
// elsewhere.
std::string own_folder() {
  Dl_info info{};
  char real[PATH_MAX];
  const char* file = dladdr(reinterpret_cast<void*>(&own_folder), &info) ? info.dli_fname : nullptr;
  if (!file || !realpath(file, real)) {
    // A program found through PATH has no folder in its name.
    ssize_t n = readlink("/proc/self/exe", real, sizeof real - 1);
    if (n <= 0) return ".";
    real[n] = 0;
  }
  std::string path(real);
  return path.substr(0, path.rfind('/'));
}

base::Result<std::string> find_arbiter() {
  std::string named = environment("TESSERA_SOFTGPU_ARBITER");
  if (!named.empty()) return named;
  std::string folder = own_folder();
  for (const char* relative : {"/softgpu_arbiter", "/../bin/softgpu_arbiter", "/../../bin/softgpu_arbiter"})
    if (access((folder + relative).c_str(), X_OK) == 0) return folder + relative;
  return base::error(Code::kNotFound, "softgpu_arbiter not found near " + folder +
                                          "; build it or set TESSERA_SOFTGPU_ARBITER to its path");
}

// The arbiter must not drag the host's preloads into itself, nor wait for what the host's libraries do. `gpu`
// is "TESSERA_SOFTGPU_GPU=..." or empty, then the host's own holds.
std::vector<char*> arbiter_environment(std::string& gpu) {
  std::vector<char*> result;
  for (char** entry = environ; entry && *entry; ++entry) {
    const bool replaced = !gpu.empty() && strncmp(*entry, "TESSERA_SOFTGPU_GPU=", 20) == 0;
    if (!replaced && strncmp(*entry, "LD_PRELOAD=", 11) != 0 && strncmp(*entry, "LD_LIBRARY_PATH=", 16) != 0)
      result.push_back(*entry);
  }
  if (!gpu.empty()) result.push_back(gpu.data());
  result.push_back(nullptr);
  return result;
}

// Starts the program, which detaches itself, and waits until it or another one listens, or it has given up.
base::Status start_arbiter(const std::string& directory, const std::string& description) {
  auto program = find_arbiter();
  if (!program.ok()) return program.error();
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return base::error(Code::kExhausted, std::string("pipe: ") + strerror(errno));
  base::ScopedFd read_end(ends[0]), write_end(ends[1]);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, write_end.get(), 1);  // readiness goes to its standard output
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::string name = "softgpu_arbiter", option = "--detach";
  char* arguments[] = {name.data(), option.data(), const_cast<char*>(directory.c_str()), nullptr};
  std::string gpu = description.empty() ? "" : "TESSERA_SOFTGPU_GPU=" + description;
  pid_t pid = 0;
  int problem =
      posix_spawn(&pid, program->c_str(), &actions, &attributes, arguments, arbiter_environment(gpu).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (problem) return base::error(Code::kNotFound, "cannot start " + *program + ": " + strerror(problem));
  write_end.reset();
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  std::string said;  // "ready", or what is wrong, or nothing if another arbiter was faster
  for (;;) {
    pollfd ready{read_end.get(), POLLIN, 0};
    if (poll(&ready, 1, int(kArbiterPatienceNs / base::kNsPerMs)) == 0)
      return base::error(Code::kUnavailable, *program + " does not answer");
    char buffer[512];
    ssize_t n = read(read_end.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    said.append(buffer, size_t(n));
    if (said == "ready\n") break;
  }
  while (!said.empty() && said.back() == '\n') said.pop_back();
  if (!said.empty() && said != "ready") return base::error(Code::kInvalid, said);
  return base::ok();
}

}  // namespace

base::Result<std::string> runtime_directory(unsigned device) {
  std::string directory = environment("TESSERA_SOFTGPU_DIR");
  if (directory.empty() && !environment("XDG_RUNTIME_DIR").empty())
    directory = environment("XDG_RUNTIME_DIR") + "/tessera-softgpu";
  if (directory.empty()) directory = "/tmp/tessera-softgpu-" + std::to_string(getuid());
  const std::string remedy = " (set TESSERA_SOFTGPU_DIR to a private folder)";
  if (device > 0) {
    if (auto base = runtime_directory(); !base.ok()) return base.error();
    directory += "/device" + std::to_string(device);
  }
  if (auto folder = base::make_own_folder(directory, base::FolderOf::kUser); !folder.ok())
    return base::error(Code::kPermission, folder.error().text + remedy);
  return directory;
}

std::string socket_path(const std::string& directory) {
  return directory + "/arbiter.sock";
}

base::Result<std::string> find_description(const std::string& name) {
  std::string wanted = name.empty() ? environment("TESSERA_SOFTGPU_GPU") : name;
  if (wanted.empty()) wanted = "test4";
  if (wanted.find('/') != std::string::npos || wanted.ends_with(".toml")) {
    char real[PATH_MAX];
    if (readable(wanted) && realpath(wanted.c_str(), real)) return std::string(real);
    return base::error(Code::kNotFound, "cannot read GPU description " + wanted + " (TESSERA_SOFTGPU_GPU)");
  }
  std::string folder = own_folder();
  for (const std::string& place : {folder + "/../share/tessera/gpus/", folder + "/../../share/tessera/gpus/",
                                   std::string(TESSERA_GPUS_FOLDER "/")})
    if (readable(place + wanted + ".toml")) return place + wanted + ".toml";
  return base::error(Code::kNotFound, "no GPU description '" + wanted +
                                          "'; set TESSERA_SOFTGPU_GPU to a file or one of profiles/gpus");
}

std::vector<std::string> split(const std::string& list) {
  return base::split<std::string>(list, ',');
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

base::Result<std::vector<std::string>> device_descriptions(size_t most) {
  const char* text = std::getenv("TESSERA_SOFTGPU_DEVICES");
  const std::string list = text ? text : "";
  if (list.empty()) return std::vector<std::string>(1);
  const std::vector<std::string> descriptions =
      is_number(list) && list.size() < 4 ? std::vector<std::string>(size_t(std::atoi(list.c_str())))
                                         : split(list);
  if (!descriptions.empty() && descriptions.size() <= most) return descriptions;
  return base::error(base::Code::kInvalid, "TESSERA_SOFTGPU_DEVICES is '" + list +
                                               "': expected a number from 1 to " + std::to_string(most) +
                                               ", or as many descriptions");
}

void number(profiles::GpuDescription& gpu, unsigned index) {
  constexpr int kPciBusId = 33;  // CU_DEVICE_ATTRIBUTE_PCI_BUS_ID
  if (index == 0) return;
  int bus = 0;
  profiles::gpu_attribute(gpu, kPciBusId, &bus);
  gpu.uuid.back() = uint8_t(gpu.uuid.back() ^ index);
  gpu.attributes[kPciBusId] = bus + int(index);
}

std::string uuid_text(const std::array<uint8_t, 16>& uuid) {
  std::string text = "GPU-";
  char hex[3];
  for (size_t i = 0; i < uuid.size(); ++i) {
    snprintf(hex, sizeof hex, "%02x", uuid[i]);
    text += hex;
    if (i == 3 || i == 5 || i == 7 || i == 9) text += '-';
  }
  return text;
}

base::Result<double> stretch_from_environment() {
  const std::string text = environment("TESSERA_SOFTGPU_STRETCH");
  if (text.empty()) return kLeastStretch;
  char* end = nullptr;
  const double stretch = strtod(text.c_str(), &end);
  if (*end == 0 && stretch >= kLeastStretch && stretch <= kMostStretch) return stretch;
  return base::error(Code::kInvalid,
                     "TESSERA_SOFTGPU_STRETCH is '" + text + "', must be a factor from 1 to 1000");
}

base::Result<base::ScopedFd> try_connect(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return base::error(Code::kInvalid,
                       "socket path too long: " + path + " (set TESSERA_SOFTGPU_DIR to a shorter one)");
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  base::ScopedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return base::error(Code::kExhausted, std::string("socket: ") + strerror(errno));
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return base::error(Code::kUnavailable, "connect " + path + ": " + strerror(errno));
  return fd;
}

base::Result<base::ScopedFd> connect_to_arbiter(unsigned device, const std::string& description) {
  auto directory = runtime_directory(device);
  if (!directory.ok()) return directory.error();
  std::string path = socket_path(*directory);
  uint64_t deadline = base::now_ns() + kArbiterPatienceNs;
  for (;;) {
    auto fd = try_connect(path);
    if (fd.ok() || fd.error().code != Code::kUnavailable) return fd;
    if (base::now_ns() > deadline) return fd.error();
    if (auto started = start_arbiter(*directory, description); !started.ok()) return started.error();
    auto again = try_connect(path);
    if (again.ok()) return again;
    // An old one is on its way out, which takes milliseconds.
    timespec pause{0, 2'000'000};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace tessera::softgpu::timing

#include "cli/layout.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sstream>

namespace tessera::cli {
namespace {

enum ProbeExit { kGpuPresent = 0, kNoDriver = 1, kNoInit = 2, kNoDevice = 3 };

int probe_driver() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!driver) return kNoDriver;
  auto* init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  auto* count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  if (!init || !count || init(0) != 0) return kNoInit;
  int devices = 0;
  return count(&devices) == 0 && devices > 0 ? kGpuPresent : kNoDevice;
}

std::string path_without_proc() {
  const auto* given = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
  char real[PATH_MAX];
  return given && realpath(given, real) ? real : "./bin/tessera";
}

}  // namespace

bool file_exists(const std::string& path) {
  return access(path.c_str(), R_OK) == 0;
}

std::string find_in_path(const std::string& name) {
  if (name.find('/') != std::string::npos) return access(name.c_str(), X_OK) == 0 ? name : "";
  const char* path = getenv("PATH");
  std::istringstream folders(path ? path : "/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (std::string file = folder + "/" + name; access(file.c_str(), X_OK) == 0) return file;
  return "";
}

bool driver_installed() {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver) dlclose(driver);
  return driver != nullptr;
}

Layout find_layout() {
  char exe[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", exe, sizeof exe - 1);
  std::string path = length > 0 ? std::string(exe, size_t(length)) : path_without_proc();
  const std::string bin = path.substr(0, path.rfind('/'));
  const size_t slash = bin.rfind('/');
  return layout_below(slash == std::string::npos ? "." : bin.substr(0, slash));
}

bool real_gpu_present(std::string* why_not) {
  const pid_t child = fork();
  if (child == 0) _exit(probe_driver());
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) {
    *why_not = "the driver probe died";
    return false;
  }
  switch (WEXITSTATUS(status)) {
    case kGpuPresent:
      return true;
    case kNoDriver:
      *why_not = "no NVIDIA driver on this machine (libcuda.so.1 not found)";
      return false;
    case kNoInit:
      *why_not = "the NVIDIA driver does not initialise (cuInit failed; is the kernel module loaded?)";
      return false;
    default:
      *why_not = "the NVIDIA driver shows no device";
      return false;
  }
}

}  // namespace tessera::cli

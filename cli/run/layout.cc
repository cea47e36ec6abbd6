#include "cli/run/layout.h"

#include <dlfcn.h>
#include <elf.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "base/machine.h"
#include "base/user_file.h"

namespace tessera::cli {
namespace {

// The loader parts lists at the first three, and reads a word behind the last as a name of its own ($ORIGIN).
constexpr char kNotInLists[] = " :;$";

enum ProbeExit { kGpuPresent = 0, kNoDriver = 1, kNoInit = 2, kNoDevice = 3 };

int probe_driver() {
  void* driver = dlopen(meant_driver().c_str(), RTLD_NOW | RTLD_LOCAL);
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

std::string given_driver() {
  const char* given = getenv("TESSERA_DRIVER");
  return given ? given : "";
}

// Whatever the loader maps must be in the file: behind the end of a file is no memory.
bool is_whole_library(int fd) {
  struct stat facts;
  Elf64_Ehdr header;
  if (fstat(fd, &facts) != 0 || pread(fd, &header, sizeof header, 0) != ssize_t(sizeof header) ||
      !std::equal(header.e_ident, header.e_ident + SELFMAG, ELFMAG) ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_type != ET_DYN ||
      header.e_machine != base::kElfMachine)
    return false;
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  const size_t bytes = segments.size() * sizeof(Elf64_Phdr);
  return pread(fd, segments.data(), bytes, off_t(header.e_phoff)) == ssize_t(bytes) &&
         std::all_of(segments.begin(), segments.end(), [&](const Elf64_Phdr& segment) {
           return segment.p_type != PT_LOAD || segment.p_offset + segment.p_filesz <= uint64_t(facts.st_size);
         });
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

std::string why_not_loadable(const std::string& path) {
  if (path.find_first_of(kNotInLists) != std::string::npos)
    return "'" + path +
           "' cannot be preloaded: the loader parts its lists at a space, ':' and ';', and reads '$'";
  if (access(path.c_str(), F_OK) != 0) return path + " is missing";
  const auto fd = base::open_to_read(path);
  if (!fd) return fd.error().text;
  return is_whole_library(fd->get()) ? "" : path + " is not a whole library for " + base::kMachine;
}

std::string meant_driver() {
  const std::string given = given_driver();
  struct stat facts;
  if (given.empty()) return "libcuda.so.1";
  const std::string path = given.find('/') == std::string::npos ? "./" + given : given;
  return stat(path.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode) ? path + "/libcuda.so.1" : path;
}

std::string why_no_driver() {
  void* driver = dlopen(meant_driver().c_str(), RTLD_LAZY | RTLD_LOCAL);
  const bool found = driver && dlsym(driver, "cuInit");
  const char* error = driver ? "it has no cuInit" : dlerror();
  std::string why;
  if (!found && given_driver().empty())
    why = "no NVIDIA driver on this machine (libcuda.so.1 not found); --gpu soft runs it on the software GPU";
  else if (!found)
    why = "TESSERA_DRIVER=" + given_driver() + " is no driver: " + error;
  if (driver) dlclose(driver);
  return why;
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
      *why_not = given_driver().empty() ? "no NVIDIA driver on this machine (libcuda.so.1 not found)"
                                        : "TESSERA_DRIVER=" + given_driver() + " is no driver";
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

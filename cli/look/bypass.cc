#include "cli/look/bypass.h"

#include <sys/stat.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/run/first_line.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

std::string folder_of(long pid) {
  return "/proc/" + std::to_string(pid);
}

constexpr char kMps[] = "nvidia-cuda-mps";  // of a process's name the kernel keeps 15 letters

struct Mapped {
  std::string library;  // where libtessera.so begins and ends; "" if it is not mapped
  bool audit = false;   // libtessera_audit.so
  std::string driver;   // path; "" if it is not mapped
};

Mapped mapped_by(long pid) {
  std::ifstream maps(folder_of(pid) + "/maps");
  Mapped out;
  for (std::string line; std::getline(maps, line);) {
    const size_t at = line.find('/');
    if (at == std::string::npos) continue;
    const std::string path = line.substr(at), file = path.substr(path.rfind('/') + 1);
    if (out.library.empty() && file == "libtessera.so") out.library = line.substr(0, line.find(' '));
    out.audit = out.audit || file == "libtessera_audit.so";
    if (file.starts_with("libcuda.so")) out.driver = path;
  }
  return out;
}

// The library's helper runs: it was called, and is a client or tries to become one.
bool has_helper(long pid) {
  std::error_code gone;
  for (fs::directory_iterator task(folder_of(pid) + "/task", gone), end; !gone && task != end;
       task.increment(gone))
    if (task->path().filename() != std::to_string(pid) &&
        first_line(task->path().string() + "/comm") == "tessera")
      return true;
  return false;
}

long parent_of(long pid) {
  std::ifstream status(folder_of(pid) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("PPid:")) return strtol(line.c_str() + sizeof "PPid:" - 1, nullptr, 10);
  return 0;
}

// A forked child has the library where its parent has it. The loader of a program that was started anew has put it elsewhere,
// or has put none.
bool inherits(long pid, const std::string& library, const std::set<long>& clients) {
  if (library.empty()) return false;
  for (long parent = parent_of(pid); parent > 1; parent = parent_of(parent))
    if ((clients.contains(parent) || has_helper(parent)) && mapped_by(parent).library == library) return true;
  return false;
}

bool switched_off(long pid) {
  std::ifstream file(folder_of(pid) + "/environ", std::ios::binary);
  for (std::string variable; std::getline(file, variable, '\0');)
    if (variable.starts_with("TESSERA_DISABLE=") && variable != "TESSERA_DISABLE=" &&
        variable != "TESSERA_DISABLE=0")
      return true;
  return false;
}

}  // namespace

bool is_audited(long pid) {
  return mapped_by(pid).audit;
}

bool has_older_file(long pid, const std::string& path) {
  constexpr char kReplaced[] = " (deleted)";  // whose name another file has now, or none
  struct stat now;
  std::ifstream maps(folder_of(pid) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string addresses, rights, offset, device, file;
    ino_t inode = 0;
    words >> addresses >> rights >> offset >> device >> inode >> std::ws;
    std::getline(words, file);
    if (file == path + kReplaced) return true;
    if (file == path) return stat(path.c_str(), &now) == 0 && now.st_ino != inode;
  }
  return false;
}

std::vector<Bypass> find_bypasses(const std::set<long>& clients) {
  std::vector<Bypass> out;
  std::error_code gone;
  for (fs::directory_iterator process("/proc", gone), end; !gone && process != end; process.increment(gone)) {
    const std::string number = process->path().filename().string();
    long pid = 0;
    const auto [rest, failed] = std::from_chars(number.data(), number.data() + number.size(), pid);
    if (failed != std::errc() || *rest != 0 || clients.contains(pid)) continue;
    const Mapped mapped = mapped_by(pid);
    if (mapped.driver.empty() || mapped.audit) continue;
    if (has_helper(pid) || switched_off(pid) || inherits(pid, mapped.library, clients)) continue;
    const std::string name = first_line(folder_of(pid) + "/comm");
    if (name.starts_with(kMps)) continue;
    out.push_back({pid, name, mapped.driver, !mapped.library.empty()});
  }
  return out;
}

}  // namespace tessera::cli

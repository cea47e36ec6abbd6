#include "ipc/channel/socket_path.h"

#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "base/own_folder.h"

namespace tessera::ipc {
namespace {

using base::Code;
constexpr size_t kMaxPath = sizeof(sockaddr_un::sun_path) - 1;
constexpr char kSystemSocket[] = "/run/tessera/tesserad.sock";

std::string folder_of(const std::string& path) {
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

base::Error with_remedy(base::Error problem) {
  problem.text += "; or choose another folder with TESSERA_SOCKET or --socket";
  return problem;
}

}  // namespace

base::Result<std::string> own_socket_path() {
  // secure_getenv: a program with raised privileges must not be led to somebody else's daemon.
  if (const char* chosen = ::secure_getenv("TESSERA_SOCKET"); chosen != nullptr && *chosen != '\0') {
    if (std::strlen(chosen) > kMaxPath)
      return base::error(Code::kInvalid, "TESSERA_SOCKET is longer than " + std::to_string(kMaxPath) +
                                             " characters: choose a shorter path");
    return std::string(chosen);
  }
  if (const char* runtime = ::secure_getenv("XDG_RUNTIME_DIR"); runtime != nullptr && *runtime == '/') {
    std::string path = std::string(runtime) + "/tessera/tesserad.sock";
    if (path.size() <= kMaxPath) return path;
  }
  if (::geteuid() == 0) return std::string(kSystemSocket);
  return "/tmp/tessera-" + std::to_string(::geteuid()) + "/tesserad.sock";
}

base::Result<std::string> default_socket_path(std::string* skipped) {
  base::Result<std::string> own = own_socket_path();
  const char* chosen = ::secure_getenv("TESSERA_SOCKET");
  if (!own.ok() || (chosen != nullptr && *chosen != '\0')) return own;
  return own_or_system_socket(*own, kSystemSocket, skipped);
}

std::string own_or_system_socket(const std::string& own, const std::string& system, std::string* skipped) {
  if (::access(system.c_str(), F_OK) != 0) return own;
  if (const base::Status folder = check_socket_folder(own); !folder.ok()) {
    if (skipped != nullptr) *skipped = folder.error().text + "; skipped, " + system + " is used instead";
    return system;
  }
  return ::access(own.c_str(), F_OK) == 0 ? own : system;
}

std::string control_socket_path(const std::string& socket_path) {
  constexpr std::string_view kEnding = ".sock";
  std::string_view stem = socket_path;
  if (stem.ends_with(kEnding)) stem.remove_suffix(kEnding.size());
  return std::string(stem) + "-control.sock";
}

base::Status check_socket_folder(const std::string& socket_path) {
  auto folder = base::open_own_folder(folder_of(socket_path), base::FolderOf::kUserOrSystem);
  if (folder.ok() || folder.error().code == Code::kNotFound) return base::ok();
  return with_remedy(folder.error());
}

base::Status prepare_socket_folder(const std::string& socket_path) {
  if (socket_path.empty() || socket_path.size() > kMaxPath)
    return base::error(Code::kInvalid, "socket path must have 1 to " + std::to_string(kMaxPath) +
                                           " characters: " + socket_path);
  const std::string folder = folder_of(socket_path);
  // Daemons of the system serve all users: their folder can be searched, only root writes it.
  const mode_t mode = folder == "/run/tessera" ? 0755 : 0700;
  auto made = base::make_own_folder(folder, base::FolderOf::kUserOrSystem, mode);
  if (made.ok()) return base::ok();
  return with_remedy(made.error());
}

}  // namespace tessera::ipc

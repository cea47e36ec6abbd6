#include "ipc/channel/socket_path.h"

#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace tessera::ipc {
namespace {

using base::Code;
constexpr size_t kMaxPath = sizeof(sockaddr_un::sun_path) - 1;
constexpr char kSystemSocket[] = "/run/tessera/tesserad.sock";

std::string folder_of(const std::string& path) {
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
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

base::Result<std::string> default_socket_path() {
  base::Result<std::string> own = own_socket_path();
  const char* chosen = ::secure_getenv("TESSERA_SOCKET");
  if (!own.ok() || (chosen != nullptr && *chosen != '\0')) return own;
  if (::access(own->c_str(), F_OK) != 0 && ::access(kSystemSocket, F_OK) == 0)
    return std::string(kSystemSocket);  // no daemon of this user, but the machine has one
  return own;
}

std::string control_socket_path(const std::string& socket_path) {
  constexpr std::string_view kEnding = ".sock";
  std::string_view stem = socket_path;
  if (stem.ends_with(kEnding)) stem.remove_suffix(kEnding.size());
  return std::string(stem) + "-control.sock";
}

base::Status check_socket_folder(const std::string& socket_path) {
  std::string folder = folder_of(socket_path);
  struct stat st;
  if (::stat(folder.c_str(), &st) != 0) {
    if (errno == ENOENT) return base::ok();
    return base::error(Code::kPermission, folder + ": " + std::strerror(errno));
  }
  if (!S_ISDIR(st.st_mode)) return base::error(Code::kInvalid, folder + " is not a folder");
  if (st.st_uid != 0 && st.st_uid != ::geteuid())
    return base::error(Code::kPermission, folder + " belongs to another user (uid " +
                                              std::to_string(st.st_uid) +
                                              "): choose another folder with TESSERA_SOCKET or --socket");
  // A sticky folder such as /tmp is safe enough: nobody can replace a socket that they do not own.
  if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0 && (st.st_mode & S_ISVTX) == 0)
    return base::error(Code::kPermission, folder + " can be written by others: chmod go-w " + folder);
  return base::ok();
}

base::Status prepare_socket_folder(const std::string& socket_path) {
  if (socket_path.empty() || socket_path.size() > kMaxPath)
    return base::error(Code::kInvalid, "socket path must have 1 to " + std::to_string(kMaxPath) +
                                           " characters: " + socket_path);
  std::string folder = folder_of(socket_path);
  // Daemons of the system serve all users: their folder can be searched, only root writes it.
  mode_t mode = folder == "/run/tessera" ? 0755 : 0700;
  if (::mkdir(folder.c_str(), mode) != 0 && errno != EEXIST)
    return base::error(errno == ENOENT ? Code::kNotFound : Code::kPermission,
                       "cannot create " + folder + ": " + std::strerror(errno) +
                           "; create it, or choose another place with --socket");
  return check_socket_folder(socket_path);
}

}  // namespace tessera::ipc

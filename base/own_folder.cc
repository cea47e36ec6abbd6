#include "base/own_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tessera::base {
namespace {

struct Name {
  std::string parent, last;
};
Name split(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  const std::string last = path.substr(slash + 1);
  return {slash == 0 ? "/" : path.substr(0, slash), last.empty() ? "." : last};
}

Error failed(const std::string& path) {
  const Code code = errno == ENOENT                      ? Code::kNotFound
                    : errno == ENOTDIR || errno == ELOOP ? Code::kInvalid
                                                         : Code::kPermission;
  return error(code, code == Code::kInvalid ? path + " is not a folder" : path + ": " + std::strerror(errno));
}

Result<ScopedFd> open_in(int parent, const Name& name, const std::string& path, FolderOf whose) {
  ScopedFd folder(::openat(parent, name.last.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat facts {};
  if (!folder.valid() || ::fstat(folder.get(), &facts) != 0) return failed(path);
  const bool systems = whose == FolderOf::kUserOrSystem;
  if (facts.st_uid != ::geteuid() && !(systems && facts.st_uid == 0))
    return error(Code::kPermission,
                 path + " belongs to another user (uid " + std::to_string(facts.st_uid) + ")");
  const bool sticky = systems && (facts.st_mode & S_ISVTX) != 0;
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0 && !sticky)
    return error(Code::kPermission, path + " can be written by others: chmod go-w " + path);
  return folder;
}

ScopedFd open_parent(const Name& name) {
  return ScopedFd(::open(name.parent.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
}

}  // namespace

Result<ScopedFd> open_own_folder(const std::string& path, FolderOf whose) {
  const Name name = split(path);
  const ScopedFd parent = open_parent(name);
  if (!parent.valid()) return failed(path);
  return open_in(parent.get(), name, path, whose);
}

Result<ScopedFd> make_own_folder(const std::string& path, FolderOf whose, mode_t mode) {
  const Name name = split(path);
  const ScopedFd parent = open_parent(name);
  if (!parent.valid()) return failed(path);
  if (::mkdirat(parent.get(), name.last.c_str(), mode) != 0 && errno != EEXIST) return failed(path);
  return open_in(parent.get(), name, path, whose);
}

}  // namespace tessera::base

#include "base/user_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tessera::base {
namespace {

Error failure(const char* what, const std::string& path, int why) {
  const Code code = why == ENOENT || why == ENOTDIR ? Code::kNotFound
                    : why == EACCES || why == EPERM ? Code::kPermission
                                                    : Code::kUnavailable;
  return error(code, std::string("cannot ") + what + " " + path + ": " + std::strerror(why));
}

// What stands in the way of a file of this kind; nullptr: nothing.
const char* kind_problem(mode_t mode) {
  return S_ISREG(mode)    ? nullptr
         : S_ISDIR(mode)  ? "it is a folder"
         : S_ISFIFO(mode) ? "it is a pipe, not a regular file"
         : S_ISSOCK(mode) ? "it is a socket, not a regular file"
                          : "it is a device, not a regular file";
}

Result<ScopedFd> open_regular(const char* what, const std::string& path, int flags) {
  const auto wrong = [&](mode_t mode) {
    return error(Code::kInvalid, std::string("cannot ") + what + " " + path + ": " + kind_problem(mode));
  };
  // O_NONBLOCK: a FIFO is opened at once, or ENXIO says that nobody reads it. Regular files ignore it.
  ScopedFd fd(open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666));
  const int why = errno;
  struct stat facts {};
  if (!fd.valid()) {
    const bool known = stat(path.c_str(), &facts) == 0;
    return known && kind_problem(facts.st_mode) ? wrong(facts.st_mode) : failure(what, path, why);
  }
  if (fstat(fd.get(), &facts) != 0) return failure(what, path, errno);
  if (kind_problem(facts.st_mode)) return wrong(facts.st_mode);
  return fd;
}

}  // namespace

Result<ScopedFd> open_to_read(const std::string& path) {
  return open_regular("read", path, O_RDONLY);
}

Result<ScopedFd> open_to_write(const std::string& path) {
  auto fd = open_regular("write", path, O_WRONLY | O_CREAT);
  if (fd && ftruncate(fd->get(), 0) != 0) return failure("write", path, errno);
  return fd;
}

Result<std::string> read_user_file(const std::string& path, uint64_t most_bytes) {
  const auto fd = open_to_read(path);
  if (!fd) return fd.error();
  std::string text;
  for (char chunk[64 << 10];;) {
    const ssize_t n = read(fd->get(), chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failure("read", path, errno);
    if (n == 0) return text;
    text.append(chunk, size_t(n));
    if (text.size() > most_bytes)
      return error(Code::kExhausted, path + " is larger than " + std::to_string(most_bytes >> 20) +
                                         " MiB, the most that is read");
  }
}

Status write_user_file(const std::string& path, std::string_view text) {
  const auto fd = open_to_write(path);
  if (!fd) return fd.error();
  while (!text.empty()) {
    const ssize_t n = write(fd->get(), text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failure("write", path, errno);
    text.remove_prefix(size_t(n));
  }
  return ok();
}

}  // namespace tessera::base

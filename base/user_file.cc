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

// Names what stands in the way of a file of this kind; nullptr: nothing. Output may go to a terminal, to /dev/null, or to a
// pipe that somebody reads (/dev/stdout often is one).
const char* kind_problem(mode_t mode, bool writes) {
  return S_ISREG(mode) || (writes && S_ISCHR(mode)) ? nullptr
         : S_ISDIR(mode)                            ? "it is a folder"
         : S_ISFIFO(mode)                           ? "it is a pipe, not a regular file"
         : S_ISSOCK(mode)                           ? "it is a socket, not a regular file"
                                                    : "it is a device, not a regular file";
}

Result<ScopedFd> open_at_once(const char* what, const std::string& path, int flags) {
  const bool writes = (flags & O_ACCMODE) == O_WRONLY;
  // O_NONBLOCK: a FIFO is opened at once, or ENXIO says that nobody reads it. Regular files ignore it.
  ScopedFd fd(open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666));
  const int why = errno;
  struct stat facts {};
  const bool known = fd.valid() ? fstat(fd.get(), &facts) == 0 : stat(path.c_str(), &facts) == 0;
  const bool is_read_pipe = writes && fd.valid() && S_ISFIFO(facts.st_mode);
  if (const char* problem = known && !is_read_pipe ? kind_problem(facts.st_mode, writes) : nullptr)
    return error(Code::kInvalid, std::string("cannot ") + what + " " + path + ": " + problem);
  if (!fd.valid() || !known) return failure(what, path, fd.valid() ? errno : why);
  if (!S_ISREG(facts.st_mode)) fcntl(fd.get(), F_SETFL, flags & ~O_CREAT);  // whoever reads sets the pace
  return fd;
}

}  // namespace

Result<ScopedFd> open_to_read(const std::string& path) {
  return open_at_once("read", path, O_RDONLY);
}

Result<ScopedFd> open_to_write(const std::string& path) {
  auto fd = open_at_once("write", path, O_WRONLY | O_CREAT);
  struct stat facts {};
  if (fd && fstat(fd->get(), &facts) == 0 && S_ISREG(facts.st_mode) && ftruncate(fd->get(), 0) != 0)
    return failure("write", path, errno);
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
    if (n < 0) {
      const Error why = failure("write", path, errno);
      (void)!ftruncate(fd->get(), 0);  // half of it could be taken for the whole
      return why;
    }
    text.remove_prefix(size_t(n));
  }
  return ok();
}

}  // namespace tessera::base

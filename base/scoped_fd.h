// Owns one file descriptor. Move-only; closes on destruction. Any thread, not shared.
//
// Part of it lives in programs of others, which may close every descriptor and use the numbers again: only
// what is still the file that was taken is closed. (Between that look and the close, a system call, somebody
// quick could still come between. Anonymous files, such as eventfds, share one inode and are told apart by
// kind only.)
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <utility>

namespace tessera::base {

class ScopedFd {
 public:
  ScopedFd() = default;
  explicit ScopedFd(int fd) : fd_(fd), file_(file_of(fd)) {}
  ScopedFd(ScopedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), file_(other.file_) {}
  ScopedFd& operator=(ScopedFd&& other) noexcept {
    if (this == &other) return *this;
    close_ours();
    fd_ = std::exchange(other.fd_, -1);
    file_ = other.file_;
    return *this;
  }
  ScopedFd(const ScopedFd&) = delete;
  ScopedFd& operator=(const ScopedFd&) = delete;
  ~ScopedFd() { close_ours(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // False once somebody else closed it, whatever the number stands for by now. One system call.
  bool intact() const { return fd_ >= 0 && file_of(fd_) == file_; }
  // The same in a tenth of the time, but anonymous files of other kinds pass for ours.
  bool same_inode() const { return fd_ >= 0 && inode_of(fd_).is(file_); }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) { *this = ScopedFd(fd); }

 private:
  struct File {
    dev_t device = 0;
    ino_t inode = 0;
    mode_t type = 0;
    char kind[32] = {};  // of an anonymous file, which has no type: anon_inode:[eventfd]
    bool is(const File& o) const { return device == o.device && inode == o.inode && type == o.type; }
    // Without /proc, now or when it was taken, the kind is not known.
    bool operator==(const File& o) const {
      return is(o) && (kind[0] == 0 || o.kind[0] == 0 || std::strcmp(kind, o.kind) == 0);
    }
  };
  void close_ours() {
    if (intact()) ::close(fd_);
  }
  static File inode_of(int fd) {
    struct stat st;
    return fd >= 0 && ::fstat(fd, &st) == 0 ? File{st.st_dev, st.st_ino, st.st_mode & S_IFMT, {}} : File{};
  }
  static File file_of(int fd) {
    File file = inode_of(fd);
    if (file.type != 0 || file.inode == 0) return file;
    char link[32];
    std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    (void)!::readlink(link, file.kind, sizeof file.kind);
    return file;
  }

  int fd_ = -1;
  File file_;
};

}  // namespace tessera::base

#include "kernels/cache/store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <memory>
#include <vector>

#include "base/own_folder.h"
#include "base/quiet_write.h"
#include "base/scoped_fd.h"
#include "kernels/cache/file.h"

namespace tessera::cache {
namespace {

constexpr char kSuffix[] = ".tsr";
constexpr char kUnfinished[] = ".part";            // of a writer that died, once it is old
constexpr uint64_t kLeftToOthersBytes = 64 << 20;  // on the file system: the last of it is the program's
constexpr time_t kUnfinishedSeconds = 3600;        // far longer than any write takes

base::Error failed(const std::string& path, const char* what) {
  return base::error(errno == ENOENT ? base::Code::kNotFound : base::Code::kPermission,
                     path + ": " + what + ": " + strerror(errno));
}

bool ours_alone(const struct stat& facts) {
  return facts.st_uid == geteuid() && (facts.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

base::Status write_all(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = base::quiet_write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return failed(path, "not written");
    bytes.remove_prefix(size_t(n));
  }
  return base::ok();
}

struct Found {
  std::string path;
  uint64_t bytes;
  timespec used;
};

bool older(const Found& a, const Found& b) {
  return a.used.tv_sec != b.used.tv_sec ? a.used.tv_sec < b.used.tv_sec : a.used.tv_nsec < b.used.tv_nsec;
}

}  // namespace

base::Status Store::prepare() const {
  // Each parent, too; those that exist or cannot be made are noticed at the last.
  for (size_t slash = directory_.find('/', 1); slash != std::string::npos;
       slash = directory_.find('/', slash + 1))
    mkdir(directory_.substr(0, slash).c_str(), 0700);
  if (auto folder = base::make_own_folder(directory_, base::FolderOf::kUser); !folder.ok())
    return folder.error();
  struct statvfs space {};
  if (statvfs(directory_.c_str(), &space) == 0 && space.f_frsize != 0 &&
      space.f_bavail < kLeftToOthersBytes / space.f_frsize)
    return base::error(base::Code::kExhausted, directory_ + ": the file system is nearly full, not used");
  return base::ok();
}

base::Result<std::string> Store::load(const Key& key) const {
  const std::string path = directory_ + "/" + file_name(key);
  const base::ScopedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat facts {};
  if (!fd.valid() || fstat(fd.get(), &facts) != 0) return failed(path, "not read");
  if (!S_ISREG(facts.st_mode) || !ours_alone(facts))
    return base::error(base::Code::kPermission, path + ": not a file that only this user can write to");
  if (uint64_t(facts.st_size) > max_bytes_) return base::error(base::Code::kInvalid, path + ": too large");

  std::string bytes(size_t(facts.st_size), '\0');
  size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t n = read(fd.get(), bytes.data() + have, bytes.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed(path, "not read");
    if (n == 0) break;
    have += size_t(n);
  }
  bytes.resize(have);
  auto payload = unwrap(key, bytes);
  if (!payload) return base::error(payload.error().code, path + ": " + payload.error().text);
  futimens(fd.get(), nullptr);  // used now; a folder that is read-only keeps its order
  bytes.erase(0, bytes.size() - payload->size());
  return bytes;
}

base::Status Store::save(const Key& key, std::string_view payload) const {
  if (payload.size() > max_bytes_ / 4)
    return base::error(base::Code::kExhausted, "too large for " + directory_ + ", not kept");
  if (base::Status status = prepare(); !status) return status;
  static std::atomic<unsigned> serial{0};  // threads of one process
  const std::string path = directory_ + "/" + file_name(key);
  const std::string part =
      path + "." + std::to_string(getpid()) + "." + std::to_string(serial.fetch_add(1)) + kUnfinished;
  {
    // Not synchronised to the disk: what a power failure leaves, the checksum refuses.
    const base::ScopedFd fd(open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd.valid()) return failed(part, "not made");
    if (base::Status status = write_all(fd.get(), wrap(key, payload), part); !status) {
      unlink(part.c_str());
      return status;
    }
  }
  if (rename(part.c_str(), path.c_str()) != 0) {
    base::Error error = failed(path, "not put in place");
    unlink(part.c_str());
    return error;
  }
  make_room();
  return base::ok();
}

void Store::make_room() const {
  std::vector<Found> files;
  uint64_t sum = 0;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(directory_.c_str()), closedir);
  if (!folder) return;
  while (const dirent* entry = readdir(folder.get())) {
    const std::string path = directory_ + "/" + entry->d_name;
    struct stat facts {};
    if (lstat(path.c_str(), &facts) != 0 || !S_ISREG(facts.st_mode)) continue;
    if (path.ends_with(kUnfinished) && facts.st_mtim.tv_sec + kUnfinishedSeconds < time(nullptr)) {
      unlink(path.c_str());
    } else if (path.ends_with(kSuffix)) {
      sum += uint64_t(facts.st_size);
      files.push_back({path, uint64_t(facts.st_size), facts.st_mtim});
    }
  }
  if (sum <= max_bytes_) return;
  std::sort(files.begin(), files.end(), older);
  const uint64_t target = max_bytes_ / 4 * 3;  // some room, or each save would remove a file
  for (const Found& file : files) {
    if (sum <= target) break;
    if (unlink(file.path.c_str()) == 0) sum -= file.bytes;
  }
}

}  // namespace tessera::cache

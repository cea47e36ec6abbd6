#include "profiles/profile_file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <vector>

#include "base/scoped_fd.h"
#include "base/user_file.h"

namespace tessera::profiles {
namespace {

using base::Code;

constexpr size_t kMaxFileBytes = size_t(512) << 20;

base::Error file_error(const std::string& what, const std::string& path) {
  const int why = errno;
  return base::error(why == ENOENT   ? Code::kNotFound
                     : why == EACCES ? Code::kPermission
                                     : Code::kUnavailable,
                     "cannot " + what + " " + path + ": " + strerror(why));
}

bool write_all(int fd, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = write(fd, text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    at += size_t(n);
  }
  return true;
}

void keep_most_time(Profile& profile, size_t most) {
  std::vector<double> total_ns;
  for (const auto& [key, record] : profile.kernels) total_ns.push_back(record.duration.total_ns);
  std::nth_element(total_ns.begin(), total_ns.begin() + ptrdiff_t(most), total_ns.end(), std::greater<>());
  const double border = total_ns[most];
  std::erase_if(profile.kernels, [&](const auto& item) { return item.second.duration.total_ns <= border; });
}

}  // namespace

base::Result<Profile> load_profile(const std::string& path) {
  const auto text = base::read_user_file(path, kMaxFileBytes);
  if (!text) return text.error();
  return parse_profile(*text, path);
}

base::Status save_profile(const Profile& profile, const std::string& path) {
  static std::atomic<unsigned> counter{0};
  // Relaxed: only the number's being unique matters.
  const std::string temporary = path + ".new." + std::to_string(getpid()) + "." +
                                std::to_string(counter.fetch_add(1, std::memory_order_relaxed));
  {
    const base::ScopedFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!fd.valid()) return file_error("write", temporary);
    if (!write_all(fd.get(), format_profile(profile)) || fsync(fd.get()) != 0) {
      const base::Error error = file_error("write", temporary);
      unlink(temporary.c_str());
      return error;
    }
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    const base::Error error = file_error("replace", path);
    unlink(temporary.c_str());
    return error;
  }
  return base::ok();
}

base::Result<Profile> merge_into_file(const Profile& addition, const std::string& path,
                                      const std::vector<GpuDescription>& gpus, size_t most_kernels) {
  const std::string lock_path = path + ".lock";
  const base::ScopedFd lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock.valid()) return file_error("lock", lock_path);
  while (flock(lock.get(), LOCK_EX) != 0)
    if (errno != EINTR) return file_error("lock", lock_path);
  auto present = load_profile(path);
  if (!present && present.error().code != Code::kNotFound) return present.error();
  Profile merged = present ? std::move(*present) : Profile{};
  merge(merged, addition);
  for (const GpuDescription& gpu : gpus) classify_all(merged, gpu);
  classify_uncounted(merged);
  if (merged.kernels.size() > most_kernels) keep_most_time(merged, most_kernels);
  if (auto saved = save_profile(merged, path); !saved) return saved.error();
  return merged;
}

void remove_leftovers(const std::string& path) {
  const std::filesystem::path file(path);
  const std::string prefix = file.filename().string() + ".new.";
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(file.parent_path(), ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    const pid_t writer = pid_t(strtol(name.c_str() + prefix.size(), nullptr, 10));
    if (writer > 0 && kill(writer, 0) != 0 && errno == ESRCH) std::filesystem::remove(entry.path(), ignored);
  }
}

}  // namespace tessera::profiles

#include "scheduler_daemon/learning/store.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/clock.h"
#include "base/units.h"
#include "profiles/folders.h"
#include "profiles/profile_file.h"

namespace tessera::learning {
namespace {

using base::Code;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr size_t kMostSlots = 65'536;  // handed over at once: 4 MiB
constexpr char kOnlinePrefix[] = "online-";
constexpr char kSuffix[] = ".json";

std::optional<uint32_t> uid_of(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  const size_t digits = sizeof kOnlinePrefix - 1;
  if (!name.starts_with(kOnlinePrefix)) return {};
  char* end = nullptr;
  const unsigned long uid = strtoul(name.c_str() + digits, &end, 10);
  if (end == name.c_str() + digits || strcmp(end, kSuffix) != 0 || uid > UINT32_MAX) return {};
  return uint32_t(uid);
}

std::vector<std::string> profiles_in(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code problem;
  for (const auto& entry : std::filesystem::directory_iterator(folder, problem))
    if (entry.path().extension() == kSuffix && entry.is_regular_file(problem))
      out.push_back(entry.path().string());
  std::sort(out.begin(), out.end());  // precedence within a folder does not depend on the file system
  return out;
}

}  // namespace

base::Result<std::unique_ptr<Store>> Store::open(StoreOptions options) {
  if (!profiles::make_folder(options.folder))
    return base::error(Code::kPermission, "cannot keep profiles in " + options.folder + ": " +
                                              strerror(errno) + " (TESSERA_PROFILES names another folder)");
  std::unique_ptr<Store> store(new Store(std::move(options)));
  if (!store->wake_.valid()) return base::error(Code::kExhausted, std::string("eventfd: ") + strerror(errno));
  store->reload();
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are the daemon's thread's
  store->thread_ = std::thread([s = store.get()] { s->run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return store;
}

Store::Store(StoreOptions options)
    : options_(std::move(options)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      watch_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)),
      files_(std::make_shared<Files>()) {
  constexpr uint32_t kChanges = IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE;
  ::inotify_add_watch(watch_.get(), options_.folder.c_str(), kChanges);
  for (const std::string& folder : options_.shared)
    ::inotify_add_watch(watch_.get(), folder.c_str(), kChanges);  // may not exist
  for (const std::string& path : profiles_in(options_.folder)) profiles::remove_leftovers(path);
}

Store::~Store() {
  stop_.store(true, std::memory_order_release);
  nudge();
  if (thread_.joinable()) thread_.join();
}

void Store::nudge() {
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

std::string Store::online_path(uint32_t uid) const {
  return options_.folder + "/" + kOnlinePrefix + std::to_string(uid) + kSuffix;
}

void Store::record(const UserGpu& from, const ipc::abi::Record& record) {
  const std::lock_guard lock(mutex_);
  const bool was_fresh = records_.fresh();
  (records_.record(from, record) ? counters_.records : counters_.ignored).fetch_add(1, kRelaxed);
  if (records_.fresh() && !was_fresh) nudge();
}

void Store::seen(const UserGpu& from, const Seen& what) {
  const std::lock_guard lock(mutex_);
  const bool was_fresh = records_.fresh();
  records_.seen(from, what);
  if (records_.fresh() && !was_fresh) nudge();
}

base::Result<ipc::LearntFile> Store::table(const UserGpu& wants) {
  std::shared_ptr<const Files> files;
  std::vector<ipc::abi::LearntSlot> slots;
  {
    const std::lock_guard lock(mutex_);
    files = files_;
    slots = records_.known(wants.uid, wants.gpu);  // newest first: the first of equal keys counts
  }
  std::vector<ProfileIndex::Source> sources;
  for (const auto& file : *files) sources.push_back({file->uid, &file->known});
  const auto more = ProfileIndex::slots(sources, wants.uid, wants.gpu, kMostSlots);
  slots.insert(slots.end(), more.begin(), more.end());
  if (slots.empty()) return ipc::LearntFile{};
  counters_.tables_given.fetch_add(1, kRelaxed);
  return ipc::create_learnt(slots);
}

std::shared_ptr<const Store::File> Store::read(const std::string& path, std::shared_ptr<const File> before) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) return nullptr;
  const int64_t mtime_ns = int64_t(status.st_mtim.tv_sec) * 1'000'000'000 + status.st_mtim.tv_nsec;
  if (before && before->mtime_ns == mtime_ns && before->bytes == uint64_t(status.st_size) &&
      before->inode == status.st_ino)
    return before;
  auto file = std::make_shared<File>();
  file->path = path;
  file->mtime_ns = mtime_ns;
  file->bytes = uint64_t(status.st_size);
  file->inode = status.st_ino;
  file->uid = uid_of(path);
  auto profile = profiles::load_profile(path);
  if (profile) {
    file->known = known_of(*profile);
  } else {
    file->broken = true;
    counters_.broken_files.fetch_add(1, kRelaxed);
    options_.log(true, "profile not used: " + profile.error().text);
  }
  return file;
}

void Store::reload() {
  std::shared_ptr<const Files> before;
  {
    const std::lock_guard lock(mutex_);
    before = files_;
  }
  auto now = std::make_shared<Files>();
  std::vector<std::string> folders = {options_.folder};
  folders.insert(folders.end(), options_.shared.begin(), options_.shared.end());
  for (const std::string& folder : folders) {
    for (const std::string& path : profiles_in(folder)) {
      const auto same = [&](const auto& f) { return f->path == path; };
      const auto old = std::find_if(before->begin(), before->end(), same);
      if (std::any_of(now->begin(), now->end(), same)) continue;  // one folder under two names
      if (auto file = read(path, old == before->end() ? nullptr : *old)) now->push_back(std::move(file));
    }
  }
  counters_.files.store(now->size(), kRelaxed);
  const std::lock_guard lock(mutex_);
  files_ = std::move(now);
}

void Store::persist() {
  std::map<uint32_t, profiles::Profile> learnt;
  {
    const std::lock_guard lock(mutex_);
    if (!records_.fresh()) return;
    learnt = records_.take();
  }
  for (const auto& [uid, profile] : learnt) {
    const auto merged = profiles::merge_into_file(profile, online_path(uid), {}, options_.most_kernels);
    counters_.writes.fetch_add(1, kRelaxed);
    if (merged) continue;
    counters_.failed_writes.fetch_add(1, kRelaxed);
    options_.log(true, "what was learnt is not written: " + merged.error().text);
    const std::lock_guard lock(mutex_);
    records_.put_back(uid, profile);
  }
}

void Store::run() {
  uint64_t write_at_ns = 0;  // 0: nothing to write
  for (;;) {
    const uint64_t now_ns = base::now_ns();
    int wait_ms = -1;
    if (write_at_ns != 0)
      wait_ms = now_ns >= write_at_ns ? 0 : int((write_at_ns - now_ns) / base::kNsPerMs + 1);
    pollfd watched[] = {{wake_.get(), POLLIN, 0}, {watch_.get(), POLLIN, 0}};
    ::poll(watched, 2, wait_ms);
    if (watched[0].revents != 0) {
      uint64_t count;
      (void)!::read(wake_.get(), &count, sizeof count);
      if (write_at_ns == 0) write_at_ns = base::now_ns() + options_.interval_ms * base::kNsPerMs;
    }
    const bool stop = stop_.load(std::memory_order_acquire);
    if (stop || (write_at_ns != 0 && base::now_ns() >= write_at_ns)) {
      persist();
      write_at_ns = 0;
      const std::lock_guard lock(mutex_);
      if (records_.fresh()) write_at_ns = base::now_ns() + options_.interval_ms * base::kNsPerMs;
    }
    if (stop) return;
    if (watched[1].revents != 0) {
      alignas(inotify_event) char events[4096];
      bool profile_changed = false;
      for (ssize_t n; (n = ::read(watch_.get(), events, sizeof events)) > 0;)
        for (ssize_t at = 0; at < n;) {
          const auto* event = reinterpret_cast<const inotify_event*>(events + at);
          const std::string name = event->len ? event->name : "";
          profile_changed |= name.ends_with(kSuffix);
          at += ssize_t(sizeof *event + event->len);
        }
      if (profile_changed) reload();
    }
  }
}

}  // namespace tessera::learning

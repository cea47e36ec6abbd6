// The daemon's memory of kernels: takes clients' records, keeps them in the user's profile folder, and
// hands clients what that folder, the system's and the shipped one hold. The daemon's thread calls record,
// seen and table: none waits for a file. A thread of the store's own reads files at start and whenever a
// folder changes, and every interval merges what was learnt into online-UID.json by renaming a finished file:
// killing the daemon loses at most the last interval. A file that cannot be read is named in the log and left
// alone.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "base/scoped_fd.h"
#include "ipc/channel/learnt.h"
#include "scheduler_daemon/learning/profile_index.h"
#include "scheduler_daemon/learning/records.h"

namespace tessera::learning {

struct StoreOptions {
  std::string folder;               // the user's; written to
  std::vector<std::string> shared;  // behind it, in order; read only
  uint64_t interval_ms = 30'000;    // between writes
  size_t most_kernels = 50'000;     // kept in one online file
  // From the store's thread and from open(). For people.
  std::function<void(bool warning, const std::string& line)> log = [](bool, const std::string&) {};
};

struct StoreCounters {  // relaxed: statistics
  std::atomic<uint64_t> records{0}, ignored{0}, tables_given{0}, writes{0}, failed_writes{0}, broken_files{0},
      files{0};
};

class Store {
 public:
  // Reads what there is, then starts the thread. The folder is made if it is not there. Errors: it cannot be.
  static base::Result<std::unique_ptr<Store>> open(StoreOptions options);
  ~Store();  // writes what is left

  void record(const UserGpu& from, const ipc::abi::Record& record_untrusted);
  void seen(const UserGpu& from, const Seen& what);
  // Returns what this user's programs should know of the GPU; no descriptor if that is nothing.
  base::Result<ipc::LearntFile> table(const UserGpu& wants);

  const StoreCounters& counters() const { return counters_; }

 private:
  struct File {
    std::string path;
    int64_t mtime_ns = 0;
    uint64_t bytes = 0, inode = 0;
    std::optional<uint32_t> uid;
    bool broken = false;
    ByGpu known;
  };
  using Files = std::vector<std::shared_ptr<const File>>;

  explicit Store(StoreOptions options);
  void run();
  void reload();
  void persist();
  std::string online_path(uint32_t uid) const;
  std::shared_ptr<const File> read(const std::string& path, std::shared_ptr<const File> before);
  void nudge();

  StoreOptions options_;
  StoreCounters counters_;
  base::ScopedFd wake_, watch_;  // eventfd: something to write, or stop; inotify: a folder changed
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // guards records_, files_
  Records records_;
  std::shared_ptr<const Files> files_;
  std::thread thread_;
};

}  // namespace tessera::learning

#include "interpose/operations/split_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string_view>

#include "base/claimed_key.h"
#include "base/errno_guard.h"
#include "base/scoped_fd.h"

namespace tessera::library {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint64_t kCheck = 0x74735f73706c6975;  // changes with what a record means
constexpr uint32_t kClasses = 2048, kProbes = 32;
constexpr uint32_t kMostSayNothing =
    4;  // trials of a class in one process: a program may multiply by zeros for ever
constexpr off_t kMostBytes = 1 << 20;  // a file that has grown to this is not added to

struct Class {
  std::atomic<uint64_t> key;  // 0 = free; never changes once set
  std::atomic<uint32_t> verdict;
  std::atomic<uint32_t> equal_pieces;  // the first ones, of a class that is not tried to its end
  std::atomic<uint32_t> say_nothing;   // trials
};
constinit Class g_classes[kClasses] = {};
constinit char g_path[512] = {};  // written once, before anything is recalled

uint64_t check_of(uint64_t key, uint32_t verdict) {
  const uint64_t mixed = (key ^ kCheck) * 0x9e3779b97f4a7c15u + verdict;
  return (mixed ^ mixed >> 31) * 0xbf58476d1ce4e5b9u;
}

// Null: not there, and, with `claim`, no room.
Class* class_of(uint64_t key, bool claim) {
  if (key == 0) return nullptr;
  constexpr auto kKeyAt = [](uint32_t i) -> auto& {
    return g_classes[i].key;
  };
  const base::ClaimedKey found = base::find_key(kKeyAt, kClasses, kProbes, key, claim);
  return found.at < 0 ? nullptr : &g_classes[found.at];
}

void remember(uint64_t key, Equality verdict) {
  Class* c = class_of(key, true);
  if (c && c->verdict.load(kRelaxed) != uint32_t(Equality::kUnequal))
    c->verdict.store(uint32_t(verdict), kRelaxed);
}

bool append(char* to, size_t room, std::string_view text) {
  const size_t used = strlen(to);
  if (used + text.size() + 1 > room) return false;
  memcpy(to + used, text.data(), text.size());
  to[used + text.size()] = 0;
  return true;
}

// $XDG_CACHE_HOME/tessera/split, else ~/.cache/tessera/split. The folders are made.
bool find_path() {
  char path[sizeof g_path] = {};
  const char* cache = getenv("XDG_CACHE_HOME");
  if (cache && *cache == '/') {
    if (!append(path, sizeof path, cache)) return false;
  } else {
    const char* home = getenv("HOME");
    if (!home || *home != '/' || !append(path, sizeof path, home) || !append(path, sizeof path, "/.cache"))
      return false;
  }
  mkdir(path, 0700);
  if (!append(path, sizeof path, "/tessera")) return false;
  mkdir(path, 0700);
  if (!append(path, sizeof path, "/split")) return false;
  memcpy(g_path, path, sizeof g_path);
  return true;
}

// Only ours to write.
base::ScopedFd open_file(int flags) {
  base::ScopedFd fd(open(g_path, flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
  struct stat file {};
  if (!fd.valid() || fstat(fd.get(), &file) != 0 || !S_ISREG(file.st_mode) || file.st_uid != geteuid() ||
      (file.st_mode & (S_IWGRP | S_IWOTH)) != 0 || file.st_size > kMostBytes)
    return base::ScopedFd();
  return fd;
}

void save(uint64_t key, Equality verdict) {
  if (!g_path[0]) return;
  const base::ScopedFd fd = open_file(O_WRONLY | O_APPEND | O_CREAT);
  if (!fd.valid()) return;
  const VerdictRecord record = make_record(key, verdict);
  // One write, so that records of several processes lie one behind the other. What a full disk cuts off is skipped.
  if (write(fd.get(), &record, sizeof record) < 0) return;
}

}  // namespace

VerdictRecord make_record(uint64_t key, Equality verdict) {
  return {key, check_of(key, uint32_t(verdict)), uint32_t(verdict), 0};
}

void parse_records(std::span<const unsigned char> bytes, void (*found)(uint64_t key, Equality verdict)) {
  VerdictRecord record;
  // A record that was cut off shifts those behind it: each place is looked at until one is good again.
  for (size_t at = 0; at + sizeof record <= bytes.size();) {
    memcpy(&record, bytes.data() + at, sizeof record);
    const bool good =
        record.key != 0 && record.reserved == 0 &&
        (record.verdict == uint32_t(Equality::kEqual) || record.verdict == uint32_t(Equality::kUnequal)) &&
        record.check == check_of(record.key, record.verdict);
    if (good) found(record.key, Equality(record.verdict));
    at += good ? sizeof record : 1;
  }
}

void open_memory() {
  const base::ErrnoGuard keep_errno;
  if (!find_path()) return;
  const base::ScopedFd fd = open_file(O_RDONLY);
  if (!fd.valid()) return;
  // Several records at a time; what may be the beginning of one moves to the front.
  unsigned char buffer[100 * sizeof(VerdictRecord)];
  size_t kept = 0;
  for (ssize_t n; (n = read(fd.get(), buffer + kept, sizeof buffer - kept)) > 0;) {
    const size_t have = kept + size_t(n);
    parse_records({buffer, have}, remember);
    kept = std::min(have, sizeof(VerdictRecord) - 1);
    memmove(buffer, buffer + have - kept, kept);
  }
}

Equality recall(uint64_t key) {
  const Class* c = class_of(key, false);
  return c ? Equality(c->verdict.load(kRelaxed)) : Equality::kUnknown;
}

std::optional<uint32_t> begin_trial(uint64_t key) {
  Class* c = class_of(key, true);
  uint32_t unknown = uint32_t(Equality::kUnknown);
  if (!c || !c->verdict.compare_exchange_strong(unknown, uint32_t(Equality::kTried), kRelaxed))
    return std::nullopt;
  return c->equal_pieces.load(kRelaxed);  // one trial at a time: whoever stored it has ended
}

void end_trial_of_some(uint64_t key, uint32_t equal_pieces) {
  if (Class* c = class_of(key, false)) c->equal_pieces.store(equal_pieces, kRelaxed);
  end_trial(key, Equality::kUnknown);
}

void end_trial_that_says_nothing(uint64_t key) {
  Class* c = class_of(key, false);
  const bool again = c && c->say_nothing.fetch_add(1, kRelaxed) + 1 < kMostSayNothing;
  end_trial(key, again ? Equality::kUnknown : Equality::kTried);
}

void end_trial(uint64_t key, Equality verdict) {
  const base::ErrnoGuard keep_errno;
  remember(key, verdict);
  if (verdict == Equality::kEqual || verdict == Equality::kUnequal) save(key, verdict);
}

}  // namespace tessera::library

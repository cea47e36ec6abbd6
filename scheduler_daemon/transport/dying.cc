#include "scheduler_daemon/transport/dying.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <string>

#include "ipc/channel/memfd.h"

namespace tessera::transport {
namespace {

// Flags of a task: include/linux/sched.h of the kernel, the same since 2.6; not in its headers for programs.
constexpr uint64_t kExiting = 0x4;     // PF_EXITING: this thread ends, others may go on (pthread_exit)
constexpr uint64_t kSignaled = 0x400;  // PF_SIGNALED: ended by a fatal signal, and with it all threads
constexpr uint64_t kKillPending = uint64_t{1} << (SIGKILL - 1);

// Numbers of the fields in proc_pid_stat(5). All are of the main thread but the count.
constexpr size_t kFirst = 3, kFlags = 9, kThreads = 20, kPending = 31;

std::string_view next_word(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  const std::string_view word = text.substr(0, text.find(' '));
  text.remove_prefix(word.size());
  return word;
}

ssize_t read_from_start(int fd, char* buffer, size_t bytes) {
  ssize_t n;
  do n = ::pread(fd, buffer, bytes, 0);
  while (n < 0 && errno == EINTR);
  return n;
}

// The number under which the mounted /proc lists the process: ours may be of another pid namespace.
std::string number_in_proc(int pidfd) {
  const std::string path = "/proc/self/fdinfo/" + std::to_string(pidfd);
  const base::ScopedFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char buffer[512];
  const ssize_t n = fd.valid() ? read_from_start(fd.get(), buffer, sizeof buffer) : -1;
  if (n <= 0) return "";
  const std::string_view text(buffer, size_t(n));
  constexpr std::string_view kKey = "\nPid:\t";
  const size_t at = text.find(kKey);
  if (at == text.npos) return "";
  const size_t start = at + kKey.size(), end = text.find_first_not_of("0123456789", start);
  return std::string(text.substr(start, end - start));  // of an ended process "-1", hence empty
}

}  // namespace

base::ScopedFd open_process_stat(int pidfd) {
  const std::string number = number_in_proc(pidfd);
  if (number.empty() || number == "0") return {};
  const std::string path = "/proc/" + number + "/stat";
  base::ScopedFd fd = ipc::above_standard_streams(base::ScopedFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)));
  pollfd ended{pidfd, POLLIN, 0};
  // Not ended after it was opened: the number was still the process's own.
  return ::poll(&ended, 1, 0) == 0 ? std::move(fd) : base::ScopedFd();
}

bool says_dying(std::string_view stat) {
  // The second field is the program's name in parentheses and may hold anything.
  const size_t name_end = stat.rfind(')');
  if (name_end == stat.npos) return false;
  stat.remove_prefix(name_end + 1);
  std::array<uint64_t, kPending + 1> field{};
  for (size_t i = kFirst; i <= kPending; ++i) {
    const std::string_view word = next_word(stat);
    if (word.empty()) return false;
    std::from_chars(word.data(), word.data() + word.size(), field[i]);  // no number, or a negative one: 0
  }
  const bool last_thread_ends = (field[kFlags] & kExiting) != 0 && field[kThreads] <= 1;
  return (field[kFlags] & kSignaled) != 0 || (field[kPending] & kKillPending) != 0 || last_thread_ends;
}

bool is_dying(int stat_fd) {
  if (stat_fd < 0) return false;
  char buffer[1024];
  const ssize_t n = read_from_start(stat_fd, buffer, sizeof buffer);
  if (n < 0) return errno == ESRCH;  // it ended and was waited for
  return says_dying({buffer, size_t(n)});
}

}  // namespace tessera::transport

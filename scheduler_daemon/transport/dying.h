// Is a process dying although its end is not reported yet? The kernel frees a killed process's memory before
// it closes its files and tells its pidfd: tens of milliseconds per GiB, much longer under load, minutes
// while it writes a core file. From the moment a fatal signal is pending no instruction of the program runs
// any more. Used by transport/server; one thread; never blocks; allocates nothing that stays.
#pragma once

#include <string_view>

#include "base/scoped_fd.h"

namespace tessera::transport {

// /proc/PID/stat of the process behind a pidfd. It stays with that process although its number is used again.
// Invalid where the process cannot be seen: it ended, /proc is hidden from us or not mounted.
base::ScopedFd open_process_stat(int pidfd);

// One read. False where nothing is known.
bool is_dying(int stat_fd);

// The same of the file's text, proc_pid_stat(5).
bool says_dying(std::string_view stat);

}  // namespace tessera::transport

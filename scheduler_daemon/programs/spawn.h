// Starts programs beside the daemon. A process started here has the usual signals, and of the daemon's files only what is named. One
// thread; returns at once.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/scoped_fd.h"

namespace tessera::programs {

// The daemon's environment without variables that begin like one of these.
std::vector<std::string> environment_without(const std::vector<std::string>& beginnings);

struct Files {
  int input = -1;      // standard input; -1: /dev/null
  std::string output;  // file that standard output and error are added to; empty: the daemon's own
};
// `arguments[0]`: a path, or a name in PATH. -1: errno says why.
pid_t spawn(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
            const Files& files);

base::ScopedFd open_process(pid_t pid);  // a pidfd; readable: it has ended
void reap(pid_t child);                  // waits for its end

}  // namespace tessera::programs

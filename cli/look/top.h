// `tessera top`: who uses the GPUs right now, again and again. One thread; ends with the daemon or by a
// signal.
#pragma once

#include <string>

namespace tessera::cli {

struct TopOptions {
  std::string socket;
  double interval_s = 1;
  int count = 0;  // tables printed, 0 = until a signal
};

// On a terminal each table replaces the one before. Returns the exit status.
int top(const TopOptions& options);

}  // namespace tessera::cli

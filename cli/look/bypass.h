// Programs whose driver calls do not pass through the preload library, so that the daemon knows nothing of their work: they open
// the driver by its path, or were started without the library. Seen in /proc, where this user may look. Main thread.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace tessera::cli {

struct Bypass {
  long pid = 0;
  std::string name, driver;  // as /proc shows them
  bool has_library = false;
};

// Processes that have a driver and are no clients (`clients`: process ids): without the library, or with it although it
// never opened a driver. A child that a client forked has both from it and is not meant, nor are who has
// libtessera_audit.so, as its first call will come to the library, who was switched off by TESSERA_DISABLE, and MPS.
std::vector<Bypass> find_bypasses(const std::set<long>& clients);

// Whether the process has libtessera_audit.so; false of one that this user may not look at.
bool is_audited(long pid);

// Whether the process has another file than the one at this path, which was there when it began.
bool has_older_file(long pid, const std::string& path);

// Tells the user what to do about a driver that was opened by its path.
inline constexpr char kBypassRemedy[] = "tessera run --audit serves it";

}  // namespace tessera::cli

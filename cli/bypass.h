// Programs that open the CUDA driver by its path: their calls do not pass through the preload library, so
// that the daemon knows nothing of their work. Seen in /proc, where this user may look. Main thread.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace tessera::cli {

struct Bypass {
  long pid = 0;
  std::string name, driver;  // as /proc shows them
};

// Processes that have the library and a driver, although the library, which is no client's (`clients`:
// process ids), never opened one. A child that a client forked has both from it and is not meant, nor is who has
// libtessera_audit.so: its first call will come to the library.
std::vector<Bypass> find_bypasses(const std::set<long>& clients);

// Whether the process has libtessera_audit.so; false of one that this user may not look at.
bool is_audited(long pid);

// What to do about it.
inline constexpr char kBypassRemedy[] = "tessera run --audit serves it";

}  // namespace tessera::cli

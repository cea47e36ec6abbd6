#include "cli/look/top.h"

#include <poll.h>
#include <unistd.h>

#include <cstdio>

#include "base/clock.h"
#include "cli/look/client_table.h"
#include "cli/look/device_memory.h"
#include "cli/look/measured_state.h"
#include "cli/run/park.h"

namespace tessera::cli {

int top(const TopOptions& options) {
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  TwoLooks looks;
  uint64_t last_ns = 0;
  // The first table is after one interval: rates need two looks.
  for (int shown = -1; options.count == 0 || shown < options.count; ++shown) {
    auto state = measured_state(options.socket);
    if (!state) {
      fprintf(stderr, "tessera top: %s (or name its socket with --socket)\n", state.error().text.c_str());
      return 1;
    }
    const uint64_t now_ns = base::now_ns();
    looks.now = std::move(*state);
    looks.seconds = double(now_ns - last_ns) / 1e9;
    if (shown >= 0) {
      add_residuals(process_memory(), &looks.now);
      const std::string text =
          (terminal ? "\033[H\033[2J" : "") + top_table(looks) + ps_memory(looks.now) + ps_parked(looks.now);
      if (fputs(text.c_str(), stdout) < 0 || fflush(stdout) != 0)
        return 1;  // nobody sees the next one either
    }
    looks.before = std::move(looks.now);
    last_ns = now_ns;
    if (shown + 1 == options.count && options.count != 0) break;
    poll(nullptr, 0, int(options.interval_s * 1000));
  }
  return 0;
}

}  // namespace tessera::cli

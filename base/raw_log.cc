#include "base/raw_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/printable.h"
#include "base/quiet_write.h"

namespace tessera::base {
namespace {

constexpr int kMaxLines = 1000;  // a log inside a host program must not fill its disk
constinit std::atomic<int> g_level{0};
constinit std::atomic<int> g_fd{2};
constinit std::atomic<int> g_lines{0};

int parse_level(const char* text) {
  if (!text) return 0;
  if (!strcmp(text, "error")) return int(LogLevel::kError);
  if (!strcmp(text, "info")) return int(LogLevel::kInfo);
  if (!strcmp(text, "debug")) return int(LogLevel::kDebug);
  return 0;
}

}  // namespace

void raw_log_init() {
  const int level = parse_level(getenv("TESSERA_LOG"));
  if (level == 0) return;
  if (const char* path = getenv("TESSERA_LOG_FILE")) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 3) g_fd.store(fd, std::memory_order_relaxed);  // configuration, read-only afterwards
  }
  g_level.store(level, std::memory_order_relaxed);
}

void raw_log(LogLevel level, const char* format, ...) {
  if (int(level) > g_level.load(std::memory_order_relaxed)) return;
  if (g_lines.fetch_add(1, std::memory_order_relaxed) >= kMaxLines) return;
  char text[512], line[sizeof text];
  va_list args;
  va_start(args, format);
  const int wanted = vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (wanted < 0) return;
  size_t used = size_t(snprintf(line, sizeof line, "tessera[%d]: ", int(getpid())));
  put_printable(text, [&](char c) {
    if (used < sizeof line - 1) line[used++] = c;
  });
  line[used++] = '\n';
  quiet_write(g_fd.load(std::memory_order_relaxed), line, used);
}

}  // namespace tessera::base

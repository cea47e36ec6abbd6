// Text from inside a host program: formatted on the stack, written with one write(2), no allocation, no
// locale, no stdio lock. Off unless TESSERA_LOG names a level (error, info, debug); at most kMaxLines per
// process. Slow paths only; the hot path leaves counters (interpose/gate). Any thread.
#pragma once

namespace tessera::base {

enum class LogLevel : int {
  kOff = 0,
  kAsked = 0,  // of a line: written at every level, because the user asked for it elsewhere
  kError,
  kInfo,
  kDebug
};

// Reads TESSERA_LOG and TESSERA_LOG_FILE (else standard error). Called once by interpose/state.
void raw_log_init();
// printf-like; a line longer than 500 bytes is cut. Appends the newline.
void raw_log(LogLevel level, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace tessera::base

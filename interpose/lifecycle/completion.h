// The helper thread's look at work that nobody synchronised with: a protected client's pulse goes idle, a
// best-effort client's window runs empty. Beats go with it. Enters the driver only between enter_driver and
// leave_driver, only to query. Private to interpose/lifecycle; helper thread.
#pragma once

#include <cstdint>

namespace tessera::lifecycle {

inline constexpr uint64_t kParkedNs = 1'000'000'000;  // idle: until the next look at the socket

void begin_completion_watch();                  // of a new attachment
uint64_t look_for_completion(uint64_t now_ns);  // returns how long the helper may sleep, ns

}  // namespace tessera::lifecycle

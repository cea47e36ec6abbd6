// Waits for what another thread or process does, without sleeping blindly. Header only, no GoogleTest.
#pragma once

#include <poll.h>

#include "base/clock.h"

namespace tessera::test {

// Looks every millisecond until the condition holds; false after `limit_ms`, which is generous: the machine
// may be busy. A condition that never comes fails a test instead of hanging it.
template <class F>
bool eventually(F&& condition, int limit_ms = 240'000) {
  const uint64_t end_ns = base::now_ns() + uint64_t(limit_ms) * 1'000'000;
  while (!condition()) {
    if (base::now_ns() > end_ns) return condition();
    poll(nullptr, 0, 1);
  }
  return true;
}

}  // namespace tessera::test

// Engines that give their memory back themselves when they are asked, by a request over HTTP: `[[park.engine]]`
// (docs/memory.md). Owned by Core, which decides (engines.cc); scheduler_daemon/transport makes the requests.
//
//   awake -park-> asked to sleep -answer-> asleep -unpark-> waits for room -room-> asked to wake -answer-> awake
//                       \-no answer, or a refusal-> its clients are parked by a checkpoint
#pragma once

#include <cstdint>
#include <string>

#include "scheduler_daemon/core/settings.h"

namespace tessera::core {

inline constexpr char kAsleep[] =
    "asleep";  // the state of its clients, for people and in `tessera ps --json`

struct Engine {
  enum class Task { kNone, kSleep, kWaitForRoom, kWake };
  EngineRule rule;
  bool asleep = false;  // as it answered
  Task task = Task::kNone;
  bool wanted = false;    // it is to wake as soon as it has fallen asleep
  uint64_t since_ns = 0;  // CLOCK_MONOTONIC of the latest change
  uint64_t request = 0;   // number of the one under way; 0: none
  bool settled = false;   // all launches from before it fell asleep were told
  uint64_t launches = 0;  // of its clients until it had settled
  std::string failure;    // why it did not do what it was asked last; empty: it did
};

}  // namespace tessera::core

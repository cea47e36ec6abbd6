// Parks this process and brings it back (docs/memory.md, ipc/abi/park.h). Who makes the driver's checkpoint calls stands in
// checkpointer.h.
//
// While it is parked every slot of both tables leads to tessera_await_return (interpose/entry), where the program's threads
// wait. So they do in the middle of a hook of ours: the helper takes no lock meanwhile that a hook may hold, and
// makes no step of its own but park_step.
#pragma once

#include <cstdint>

#include "ipc/abi/park.h"

namespace tessera::lifecycle {

void set_exchange_slots(void (*exchange)(bool parked));  // before there is a helper thread

enum class ParkStep {
  kHere,
  kAway,   // the process is parked, and nothing else is to be done
  kMoves,  // ... and is to come back on another GPU: attach anew, so that the daemon counts it there
};
// Helper thread.
void park_attached();  // to a daemon, which numbers its orders anew; who is parked stays parked
// `lines`: of the daemon that is there, or null.
ParkStep park_step(ipc::abi::ParkLines* lines, uint64_t now_ns);
bool slots_are_exchanged();      // helper thread: nobody else may write slots until they are back
void forget_parking_in_child();  // of a fork; stores only

}  // namespace tessera::lifecycle

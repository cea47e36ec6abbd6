// Collectives of a gang (docs/gangs.md). The member that would be the first to begin a collective asks the rule, as for other
// work. One that another member has begun is never held: its kernel is on a GPU, and waits there for ours.
//
// Members count their collectives from their start, so that equal numbers mean the same one. A process that is in no gang
// neither counts nor waits: its collectives are never held, because nobody knows how far their peers are.
// Launching threads call starts_collective; the helper thread the rest.
#pragma once

#include "driver_api/real_table.h"
#include "ipc/abi/gang.h"

namespace tessera::gate {

// True: the process is in a gang, and this kernel is a collective, which is counted and may go to the driver now. It may
// have waited for that, at most for the hold limit. No allocation, no lock; system calls only while it waits, and to wake.
bool starts_collective(CUfunction function);

// The page that the daemon sent. `counted`: no collective of this process can have begun yet.
void join_gang(ipc::abi::GangPage* page, bool counted);
// The gate does not see any more what this process launches.
void leave_gang();

}  // namespace tessera::gate

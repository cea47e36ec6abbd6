// Locks and unlocks a process as the driver's calls of these names do, with our own calls out of the way in between if it is this
// process. Called by the hooks of these names, and by the helper thread that parks this process (interpose/lifecycle).
#pragma once

#include "driver_api/real_table.h"

namespace tessera::hooks {

CUresult lock_process(int pid, CUcheckpointLockArgs* args);
CUresult unlock_process(int pid, CUcheckpointUnlockArgs* args);

// The same for this process, if another one makes the driver's calls: `lock` has it lock us, and returns its answer. Once it is
// unlocked somebody says so.
CUresult lock_by(CUresult (*lock)(unsigned within_ms), unsigned within_ms);
void unlocked();

}  // namespace tessera::hooks

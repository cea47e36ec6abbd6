// The gang that a process belongs to: the job whose processes, perhaps on several GPUs, start and wait together
// (docs/gangs.md). Told by `tessera run --gang`, else by what launchers leave in the environment. Called once, by
// load_config(). Pure: the environment comes as a function.
#pragma once

#include "ipc/abi/messages.h"

namespace tessera::state {

using Environment = const char* (*)(const char* variable);  // null: not set

struct GangName {
  char text[ipc::abi::kMaxNameBytes] = {};  // "": the process is in none
};

// TESSERA_GANG says the name ("none": in no gang). Otherwise the first launcher counts that tells of a job of more than
// one process and identifies it.
GangName gang_of(Environment environment);

}  // namespace tessera::state

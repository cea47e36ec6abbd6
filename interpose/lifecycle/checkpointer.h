// The caller of the driver's checkpoint functions for this process: the helper thread itself, or tesserad's parker process, which the
// daemon has make them (ipc/abi/park.h). Called by the helper thread, and at exit by the thread that returns; they wait until the
// call has ended. Nothing here decides.
#pragma once

#include "driver_api/cuda.h"
#include "ipc/abi/park.h"

namespace tessera::lifecycle {

// Nobody knows how far the call came: the daemon is gone, or its parker ended. The state says it, once somebody can be asked.
inline constexpr CUresult kNotAnswered = CUresult(1001);  // no driver answers so

struct Checkpointer {
  CUresult (*lock)(unsigned within_ms);
  CUresult (*save)();
  CUresult (*restore)(const CUuuid& from, const CUuuid& to);  // equal: where it was
  CUresult (*unlock)();
  bool (*state)(CUprocessState* out);  // false: no answer
};
extern const Checkpointer kOwnThread, kParker;
bool parker_can_be_asked();  // there is a daemon

}  // namespace tessera::lifecycle

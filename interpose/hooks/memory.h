// A program is not refused memory of the device that Tessera holds. Any thread of the program, outside every lock of ours.
#pragma once

#include "base/errno_guard.h"
#include "driver_api/real_table.h"
#include "interpose/state/note.h"
#include "interpose/state/process.h"

namespace tessera::hooks {

// `call()`, and once more if it was refused memory and some of ours was given back.
template <class F>
inline CUresult with_memory(F&& call) {
  const CUresult result = call();
  if (result != CUDA_ERROR_OUT_OF_MEMORY || !state::live()) [[likely]]
    return result;
  const base::ErrnoGuard keep_errno;
  const auto* listener = state::g_listener.load(std::memory_order_acquire);  // pairs with listen()
  return listener && listener->memory_short() ? call() : result;
}

}  // namespace tessera::hooks

// Declarations of every hook, from driver_api/hooks.def: `extern "C" CUresult hook_cuLaunchKernel(...)`.
// Defined in this folder, few in interpose/lifecycle and interpose/entry (or forwarded by default, see
// entry.h); hidden, never exported; called by any thread of the program through the stubs. A hook returns
// exactly what real() returned and never throws.
#pragma once

#include "driver_api/real_table.h"

namespace tessera::hooks {

struct FirstCall {
  bool driver_found;        // false: every call answers an error, see docs/driver_api.md
  bool disabled;            // TESSERA_DISABLE=1: hooks are not installed; do nothing
  const char* driver_path;  // absolute; empty if none; static storage
  bool driver_was_open;     // by its path, by somebody else whose calls do not come through here
  uint64_t (*call_count)(
      driver_api::Entry);  // how often the program came through a row's stub, about; ask at any time
  // true: the slots of both tables lead to tessera_await_return, but for checkpoints of the second; false: as before.
  void (*exchange_slots)(bool parked);
};

}  // namespace tessera::hooks

extern "C" {
#define TS_HOOK(klass, symbol, base, since, stream, ret, params, args) \
  __attribute__((visibility("hidden"))) ret hook_##symbol params noexcept;
#include "driver_api/hooks.def"

// Once per process image, by the thread that made the first driver call, after both tables are filled and
// before that call goes on; no lock held; may take milliseconds, other threads do not wait for it.
__attribute__((visibility("hidden"))) void tessera_on_first_call(
    const tessera::hooks::FirstCall* first) noexcept;
// While the slots are exchanged: waits until they are back. Then the call goes where its slot led before.
__attribute__((visibility("hidden"))) void tessera_await_return() noexcept;
}

// Declarations of every hook, from driver_api/hooks.def: `extern "C" CUresult hook_cuLaunchKernel(...)`.
// Defined by the gate's archive (or forwarded by default, see entry.h); hidden, never exported; called by any
// thread of the program through the stubs. A hook returns exactly what real() returned and never throws.
#pragma once

#include "driver_api/real_table.h"
#include "interpose/entry/entry.h"

extern "C" {
#define TS_HOOK(klass, symbol, base, since, stream, ret, params, args) \
  __attribute__((visibility("hidden"))) ret hook_##symbol params noexcept;
#include "driver_api/hooks.def"

// Once per process image, by the thread that made the first driver call, after both tables are filled and
// before that call goes on; no lock held; may take milliseconds, other threads do not wait for it.
__attribute__((visibility("hidden"))) void tessera_on_first_call(
    const tessera::entry::FirstCall* first) noexcept;
}

// Life of the preload library in a host program: start, exit and fork (the phases: interpose/state/process.h),
// and the one helper thread.
//
// Never exits, aborts, throws or prints; never joins a thread, unmaps memory or calls CUDA at exit.
#pragma once

#include <cstdint>

#include "driver_api/real_table.h"
#include "ipc/channel/client.h"

namespace tessera::lifecycle {

// tessera_on_first_call. `driver_was_open`: by its path, before us (bypass.cc).
void first_call(bool driver_found, bool disabled, bool driver_was_open = false);
void note_bypass();  // so it was
bool bypassed();
uint64_t launch_calls();    // of kernels and graphs, whether or not anybody gates them; about
void tell_bypass();         // once, if the user asked for it (TESSERA_RUN)
void driver_initialised();  // cuInit succeeded: starts the helper, once

// Helper thread, and what tests drive by hand instead of starting it.
struct Helper;
bool start_helper();
void helper_attach(ipc::Attachment&& attachment);  // publishes it (tests: a region written by the test)
void helper_detach();                              // daemon lost
uint64_t helper_step(uint64_t now_ns);             // one round; returns how long it may sleep, ns
void helper_sleep(uint64_t ns);
bool poll_idle(uint64_t now_ns);  // protected: asks the driver about outstanding streams

}  // namespace tessera::lifecycle

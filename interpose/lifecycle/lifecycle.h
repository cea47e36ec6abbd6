// Life of the preload library in a host program: preinit -> live -> draining -> dead, and the one helper
// thread.
//
//   preinit   until the first intercepted call; every hook forwards
//   live      after it; attached to a daemon or not (then everything is forwarded)
//   draining  exit handlers run: nothing is gated any more, the helper keeps out of the driver
//   dead      a forked child of an initialised process, or after exit: forward only, touch nothing
//
// Never exits, aborts, throws or prints; never joins a thread, unmaps memory or calls CUDA at exit.
#pragma once

#include <atomic>
#include <cstdint>

#include "driver_api/real_table.h"
#include "ipc/channel/client.h"

namespace tessera::lifecycle {

enum class Phase : uint32_t { kPreinit = 0, kLive, kDraining, kDead };
extern constinit std::atomic<Phase> g_phase;

// tessera_on_first_call. `driver_was_open`: by its path, before us (bypass.cc).
void first_call(bool driver_found, bool disabled, bool driver_was_open = false);
void note_bypass();  // so it was
bool bypassed();
void tell_bypass();         // once, if the user asked for it (TESSERA_RUN)
void driver_initialised();  // cuInit succeeded: starts the helper, once
void prepare_threads();

// The GPU that this process uses, told by context hooks; the helper announces it. First one wins (one client
// is one process on one GPU: work on further GPUs passes ungated).
void device_seen(CUdevice device);

// begin-capture, destruction and reset: no call of ours is in the driver between enter and leave.
void enter_exclusive();
void leave_exclusive();

// Helper thread, and what tests drive by hand instead of starting it.
struct Helper;
bool start_helper();
void helper_attach(
    ipc::Attachment&& attachment);      // publish an attachment (tests: a region written by the test)
void helper_detach();                   // daemon lost
uint64_t helper_step(uint64_t now_ns);  // one round; returns how long it may sleep, ns
void helper_sleep(uint64_t ns);
bool poll_idle(uint64_t now_ns);  // protected: asks the driver about outstanding streams

// Contexts alive, for the helper's queries. Slow path.
void context_seen(CUcontext context);
void context_gone(CUcontext context);  // null: all
uint32_t copy_contexts(CUcontext* out, uint32_t capacity);

}  // namespace tessera::lifecycle

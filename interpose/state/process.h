// The phase, GPU and contexts of this process. Written on slow paths (start, exit, context
// hooks); read by hooks and by the helper thread. Static storage; nothing here allocates or locks.
//
//   preinit   until the first intercepted call; every hook forwards
//   live      after it; attached to a daemon or not (then everything is forwarded)
//   draining  exit handlers run: nothing is gated any more, the helper keeps out of the driver
//   dead      a forked child of an initialised process, or after exit: forward only, touch nothing
#pragma once

#include <atomic>
#include <cstdint>

#include "driver_api/real_table.h"

namespace tessera::state {

enum class Phase : uint32_t { kPreinit = 0, kLive, kDraining, kDead };
extern constinit std::atomic<Phase> g_phase;
inline bool live() {
  return g_phase.load(std::memory_order_relaxed) == Phase::kLive;
}

// Begin-capture, destruction and reset: no call of ours is in the driver between enter and leave (the other
// side is enter_driver in state.h). Those around the lock of a checkpoint are told apart: calls of the program go on behind it.
inline constexpr uint32_t kOneCapture = 1, kLocked = 1 << 16;
void enter_exclusive(uint32_t as = kOneCapture);
void leave_exclusive(uint32_t as = kOneCapture);
bool capture_open();  // in the process, or such a section that is around no lock

// The GPUs on which this process has contexts, told by context hooks; the helper announces those that it uses. Work on any
// of them asks for the one lease of the process.
void device_seen(CUdevice device);
int device();                                       // the first; -1: none yet
uint64_t devices_seen();                            // bit per device, of the first 64
extern constinit std::atomic<uint32_t> g_sm_count;  // of that GPU; 0 = not known yet
inline constexpr uint32_t kGuessedSms = 64;
inline uint32_t sm_count() {
  const uint32_t known = g_sm_count.load(std::memory_order_relaxed);
  return known ? known : kGuessedSms;
}

// Contexts alive, for the helper's queries.
inline constexpr uint32_t kContexts = 16;
void context_seen(CUcontext context);
void context_gone(CUcontext context);  // null: all
uint32_t copy_contexts(CUcontext* out, uint32_t capacity);

// The primary context owns what is made in a green one, as memory: it stays when the green one ends. `face`: the
// green context's handle as a context.
void face_made(CUcontext face, CUcontext primary);
void face_gone(CUcontext face);
CUcontext owner_of(CUcontext context);  // itself, unless it is a known face

}  // namespace tessera::state

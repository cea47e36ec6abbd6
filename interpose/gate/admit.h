// Best-effort client: may this piece of work start now? Decided from shared memory in the caller's thread.
//
//   Call call;                                     one per API call of the program, for all its slices
//   switch (admit(call, stream, estimate_ns)) {
//     kReserved:  launch, then settle(call, lane, ...)    in-flight raised by the estimate
//     kForward:   launch                                  nobody else on the GPU, unmanaged, or pass-through
//     kExpired:   launch the whole remainder              nothing of it started for the hold limit; reserved
//                                                         all the same
//     kReplan:    make it narrower and ask again          only with `may_narrow`: the lease became a packed
//     one
//   }
// A wait ends by grant, daemon loss, hold limit or the pass-through switch, and by nothing else; while it
// lasts the thread cannot be cancelled. System calls only while held: futex wait, the daemon's wake. No
// allocation, no lock.
#pragma once

#include "interpose/gate/window.h"

namespace tessera::gate {

enum class Admission { kReserved, kForward, kExpired, kReplan };

struct Call {  // on the stack of the hook
  // What asks. A packed lease lets work of known width and kind run beside a busy pulse, nothing else.
  uint64_t blocks = 0;          // of this launch or slice; 0 = not a kernel, or not known
  uint32_t resource_class = 0;  // abi::ResourceClass
  bool may_narrow = false;      // the caller can cut it to any width
  const Link* link = nullptr;   // of the reservation
  uint64_t reserved_ns = 0;
  uint64_t spacing_ns = 0;            // marker spacing of the lease seen
  uint32_t word = 0;                  // lease word that allowed it
  ThreadSlot* credit_slot = nullptr;  // set by the caller of a short launch: its thread's, for later ones
  uint64_t credit_ns = 0;             // reserved for it together with this launch
  uint32_t credit_epoch = 0;          // State::credit_epoch before that
  bool waited = false;
  uint64_t held_ns = 0;    // waited for lease or pulse since the latest slice; bounded by the hold limit
  uint64_t served_ns = 0;  // waited likewise before the slices that started
  uint64_t stuck_ns = 0;   // waited for the window while nothing completed; bounded likewise
  uint64_t paced_ns = 0;   // waited for the window in all
  uint64_t queued_ns = 0;  // what UsageLine::queued_ns carries for us
  const Link* waiting_on = nullptr;  // usage line that carries it
  uint32_t notified_word = 0;        // lease word for which the daemon was told that we wait
  bool notified = false;
  int cancel_state = 0;
  bool expired = false;
  ~Call();  // takes back what the waits published
};

Admission admit(Call& call, driver_api::StreamArg stream, uint64_t estimate_ns);

// After the driver call that kReserved allowed. Failure rolls the reservation back; a sticky error ends
// gating.
void settle(Call& call, driver_api::StreamArg stream, CUresult result);
// Short launches: spend() uses the thread's credit; on true the launch may go and spent() must follow it.
// admit() of a call with `credit_slot` reserves the next credit, settle() puts it there. settle_credit()
// gives a credit back.
bool spend(ThreadSlot& slot, driver_api::StreamArg stream, uint64_t estimate_ns);
void spent(ThreadSlot& slot, uint64_t estimate_ns, CUresult result);

void roll_back(Call& call);  // the reservation was not used
// settle() for calls that block the host until their work is done.
void settle_blocking(Call& call, CUresult result);

// True if the context is lost for good: nothing that was enqueued will complete.
bool is_sticky(CUresult result);
void poison();  // permanent pass-through for this process; async-signal-safe

// The lease as it stands, for planning slices (may be stale by the time of admit()).
struct Plan {
  bool managed;
  uint64_t slice_ns, window_ns;
  uint32_t width_blocks;
  uint32_t long_width_percent;  // 1..100
  uint64_t long_block_ns;       // blocks that last longer get slices of that width
};
Plan current_plan();

}  // namespace tessera::gate

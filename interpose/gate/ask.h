// Best-effort client: asks the rule (admission/rule.h) about one piece of work, with what shared memory says,
// in the caller's thread; waits as long as the answer is "wait"; reserves the window for what may go.
//
//   Wait wait;                                     one per API call of the program, for all its slices
//   Reservation reservation;                       one per piece
//   switch (ask({estimate_ns, ...}, stream, wait, reservation)) {
//     kGo:       launch, then reservation.settle(stream, result)
//     kForward:  launch; nothing is reserved
//     kLetGo:    launch the whole remainder; reserved all the same
//     kWait:     plan anew, and ask again: the lease is not the one that it was planned by
//   }
// Pieces of launches come here through gate/piece.h.
//
// A wait ends by grant, daemon loss, hold limit or the pass-through switch, and by nothing else; while it
// lasts the thread cannot be cancelled. System calls only while held: futex wait, the daemon's wake. No
// allocation, no lock.
#pragma once

#include "admission/rule.h"
#include "interpose/gate/window.h"

namespace tessera::gate {

// The lease as it stands, with the user's own hold limit. `order`: of its word.
admission::LeaseView lease_of(const state::DaemonLink* link,
                              std::memory_order order = std::memory_order_acquire);
inline admission::LeaseView current_lease() {
  return lease_of(state::g_state.link.load(std::memory_order_acquire));
}

// Copies of the watched pages; each word is read once.
struct Pulses {
  uint32_t n = 0;
  admission::PulseView views[state::kWatched];
  operator std::span<const admission::PulseView>() const { return {views, n}; }
};
Pulses current_pulses();
admission::PulseView pulse_of(const state::Watch& watch);

// The part of the window that is reserved for one piece of work. It lives on the hook's stack. The destructor
// gives back a reservation that was not settled.
class Reservation {
 public:
  Reservation() = default;
  Reservation(const Reservation&) = delete;
  ~Reservation() { release(); }
  // After the driver call. Failure gives back what was reserved; a sticky error ends gating.
  void settle(driver_api::StreamArg stream, CUresult result);
  void settle_blocking(driver_api::StreamArg stream,
                       CUresult result);  // the call has waited until its work was done
  void release();                         // it was not used

 private:
  friend class Asking;
  void refused(driver_api::StreamArg stream, CUresult result);
  void clear();
  static constexpr uint32_t kNone = UINT32_MAX;
  const state::DaemonLink* link_ = nullptr;
  uint64_t ns_ = 0, credit_ns_ = 0;
  uint64_t spacing_ns_ = 0;            // marker spacing of the lease seen
  uint32_t word_ = 0;                  // lease word that allowed it
  uint32_t epoch_ = 0;                 // State::epoch before it looked
  state::ThreadSlot* slot_ = nullptr;  // of the credit
  bool behind_ = false;                // a boundary on the device
  // Class of what starts while a burst of a higher level runs; kNone: none does.
  uint32_t burst_class_ = kNone;
};

// The waits of one API call, and what they publish while they last.
class Wait {
 public:
  Wait() : call_(state::t_thread.call) {}
  Wait(const Wait&) = delete;
  ~Wait();
  const admission::Waited& so_far() const { return waited_; }

 private:
  friend class Asking;
  friend class FirstCollective;                // collectives.cc
  void follow(const state::DaemonLink* link);  // the daemon went, another one came
  void begin(const state::DaemonLink* link, uint64_t estimate_ns, uint64_t now_ns);
  void end();
  void tell_daemon(uint32_t word);
  void note_held(admission::Reason reason, uint64_t stream, uint64_t start_ns,
                 uint64_t end_ns);  // for traces
  void flush_held();

  admission::Waited waited_;
  state::UnderWay& call_;                                       // of this thread
  bool told_ = false;                                           // the daemon, that we wait under
  uint32_t told_word_ = 0;                                      // this lease
  admission::Reason traced_reason_ = admission::Reason::kNone;  // of the stretch that is not in the trace yet
  uint64_t traced_stream_ = 0, traced_since_ns_ = 0, traced_until_ns_ = 0;
};

struct AskTerms {
  state::ThreadSlot* credit_slot =
      nullptr;  // of the calling thread, if its next short launches of this stream should find credit
  const admission::LeaseView* planned =
      nullptr;  // the lease that the work was planned by; null: it goes under any
};
admission::Action ask(const admission::Ask& ask, driver_api::StreamArg stream, Wait& wait,
                      Reservation& reservation, const AskTerms& terms = {});

// True if the context is lost for good: nothing that was enqueued will complete.
bool is_sticky(CUresult result);
void poison();  // permanent pass-through for this process; async-signal-safe

}  // namespace tessera::gate

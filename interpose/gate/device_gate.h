// Best-effort client: the gate on the device (ipc/abi/gate.h, docs/architecture.md). Work goes to the driver at once and
// waits in its own stream, behind boundaries; the thread that launches goes on. The thread's own gate (ask.h) stays in force
// where a boundary cannot be enqueued.
//
// The page is adopted by the helper thread, pinned for the GPU once there is a context, and never unmapped, because a
// stream may wait for its word. Whatever ends the attachment opens it first, by the owner's override, which no peer can
// close. Opening is a store: it depends on no driver call, which could itself wait behind the gate.
#pragma once

#include <utility>

#include "admission/rule.h"
#include "interpose/gate/window.h"
#include "ipc/abi/gate.h"

namespace tessera::gate {

struct DeviceGate {
  std::atomic<ipc::abi::GatePage*> page;  // null: none; helper thread stores, release
  std::atomic<CUdeviceptr> word;          // as the GPU reads it; 0: it does not. Stored after `page`, release
  std::atomic<CUcontext> context;         // that has it pinned
  std::atomic<uint32_t>
      refused;  // 1: the driver refused a wait, or leave_device_gate; the thread asks, for good
  std::atomic<uint32_t> blocked;  // calls of the program that wait for its work right now
};
extern constinit DeviceGate g_device_gate;

// Can what is asked about wait on the device? `account`: of its stream, whose work must be seen to be in flight. Not in a
// stream of another context than the one that has the page pinned: the page goes with that.
bool waits_on_device(const admission::Ask& ask, const admission::LeaseView& lease,
                     const StreamAccount& account, const driver_api::StreamArg& stream);

// Before a launch of `estimate_ns`: a boundary, if one is due. `during_bursts`: it may begin during bursts. False: the driver refused
// it, or a capture is open, and nothing was enqueued. The caller then asks in its thread.
bool pass_boundary(StreamAccount& account, driver_api::StreamArg stream, uint64_t estimate_ns,
                   bool during_bursts, uint64_t quantum_ns, uint64_t now_ns);

// Work was enqueued although another client has the turn: the daemon hears of the first.
void tell_first_behind(uint64_t in_flight_before_ns, const admission::LeaseView& lease);

// This program has work that must never wait: a stream of it that shares a hardware queue with a waiting one would. From
// now on the thread asks, for good.
inline void leave_device_gate() {
  if (g_device_gate.refused.load(std::memory_order_relaxed) == 0) [[unlikely]]
    g_device_gate.refused.store(1, std::memory_order_relaxed);
}

// Tessera's own calls that return when the work of this process has ended (a green context, a module's load) are made only
// while nothing is behind a boundary. Any thread.
bool nothing_behind_gate();
inline constexpr uint64_t kQueuePatienceNs = 1'000'000'000;  // for a program to let its queue end by itself
// As nothing_behind_gate. This also waits, for 64 ms once a second at most, if the program never lets its queue end.
bool let_queue_end();

// A launch asked in its thread although its lease would let it wait on the device. For people.
void count_thread_ask();
void count_run_ahead_wait();  // it is as far ahead as it may

// The program's own wait, or a host function: what follows in the stream starts at a time that the latest boundary knows
// nothing of.
void end_quantum(driver_api::StreamArg stream);

// Before an event that the program records: autotuners time what lies between two of them, so that no boundary should.
void begin_quantum_before_event(driver_api::StreamArg stream);

// A call that returns when work of this process has ended: the hold limit counts for all of that work at once.
class Blocked {
 public:
  Blocked() : outermost_(!state::is_within(state::t_thread.blocked, reinterpret_cast<uintptr_t>(this))) {
    uintptr_t& mark = state::t_thread.blocked;
    if (mark == 0) g_device_gate.blocked.fetch_add(1, std::memory_order_relaxed);
    if (outermost_) mark = reinterpret_cast<uintptr_t>(this);
  }
  Blocked(const Blocked&) = delete;
  ~Blocked() {
    if (outermost_) unblock();
  }
  static void unblock() {
    if (std::exchange(state::t_thread.blocked, 0) != 0)
      g_device_gate.blocked.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  const bool outermost_;  // of this thread's
};

template <class F>
inline auto blocked(F&& call) {
  const Blocked waits;
  return call();
}

// Everything passes, or again only what may. Any thread, async-signal-safe; nothing without a page.
void override_device_gate(bool open);

// The context is gone (null: any), and the pin with it. Any thread.
void unpin_device_gate(CUcontext context);

// Helper thread.
void adopt_device_gate(ipc::abi::GatePage* page);  // null: none any more; the one before is open for ever
// `context` is current, inside enter_driver. False: the driver refuses.
bool pin_device_gate(CUcontext context);
// Obeys the hold limit and tells the daemon that work waits. How soon to look again; 0 = no need.
uint64_t watch_device_gate(const state::DaemonLink* link, uint64_t now_ns);
bool waits_behind_gate();  // as of the latest watch
// This process is best-effort no longer: what waits goes, and the daemon is told that nothing does.
void stop_device_gate(const state::DaemonLink* link);

}  // namespace tessera::gate

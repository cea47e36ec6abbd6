// The ring of a trace (abi/trace.h). Writer: any thread, wait-free, no system call. Reader: one position of its own.
#pragma once

#include "ipc/abi/trace.h"
#include "ipc/channel/atomic.h"

namespace tessera::ipc {

inline abi::TraceEvent* trace_slot(abi::TraceHeader* ring, uint64_t number) {
  auto* events =
      reinterpret_cast<abi::TraceEvent*>(reinterpret_cast<unsigned char*>(ring) + abi::kTraceEventsOffset);
  return events + (number & (abi::kTraceSlots - 1));
}

// All fields but `ready`; a name lies where `at` does. Each goes from register to memory by itself: to gather them in
// wider words first would read what was just written in pieces, which stalls a core for longer than all the rest takes.
template <class To, class From, class Move>
inline void move_fields(To& to, From& from, Move move) {
  move(to.a, from.a);
  move(to.kind, from.kind);
  move(to.detail, from.detail);
  move(to.thread, from.thread);
  move(to.at.start_ns, from.at.start_ns);
  move(to.at.end_ns, from.at.end_ns);
  move(to.at.stream, from.at.stream);
  move(to.at.b, from.at.b);
  move(to.at.c, from.at.c);
}

inline void trace_write(abi::TraceHeader* ring, const abi::TraceEvent& event) {
  constexpr auto relaxed = std::memory_order_relaxed;  // published by `ready`
  const uint64_t number = std::atomic_ref(ring->head).fetch_add(1, relaxed);
  abi::TraceEvent& slot = *trace_slot(ring, number);
  store(slot.ready, uint64_t(0), relaxed);
  // Later stores must not be seen with the old number; pairs with the fence of the reader.
  std::atomic_thread_fence(std::memory_order_release);
  move_fields(slot, event, [](auto& to, auto from) { store(to, from, relaxed); });
  store(slot.ready, number + 1, std::memory_order_release);  // pairs with the acquire of the reader
}

class TraceReader {
 public:
  explicit TraceReader(abi::TraceHeader* ring = nullptr) : ring_(ring) {
    if (ring_) next_ = load(ring_->head, std::memory_order_relaxed);
  }
  // Also what was written before this reader came, as far as it is surely still there.
  void from_what_is_kept() { next_ = next_ > abi::kTraceSlots / 2 ? next_ - abi::kTraceSlots / 2 : 0; }
  // False: nothing more now. An event that its writer has not finished is waited for, unless it is `last`.
  bool read(abi::TraceEvent* out, bool last = false) {
    for (;;) {
      const uint64_t head_untrusted = load(ring_->head, std::memory_order_acquire);
      if (head_untrusted == next_) return false;
      const uint64_t behind = head_untrusted - next_;
      if (behind > abi::kTraceSlots) {  // overwritten; or a head that lies, which loses its own events
        lost_ += behind - abi::kTraceSlots / 2;
        next_ = head_untrusted - abi::kTraceSlots / 2;
        continue;
      }
      const Copy copied = copy(out);
      if (copied == Copy::kUnfinished && !last) return false;
      next_++;
      if (copied == Copy::kDone) return true;
      lost_++;
    }
  }
  uint64_t lost() const { return lost_; }

 private:
  enum class Copy { kDone, kUnfinished, kOverwritten };
  Copy copy(abi::TraceEvent* out) {
    const abi::TraceEvent& slot = *trace_slot(ring_, next_);
    const uint64_t ready = load(slot.ready, std::memory_order_acquire);  // pairs with the writer's release
    if (ready != next_ + 1) return ready > next_ + 1 ? Copy::kOverwritten : Copy::kUnfinished;
    out->ready = ready;
    move_fields(*out, slot, [](auto& to, auto& from) { to = load(from, std::memory_order_relaxed); });
    std::atomic_thread_fence(std::memory_order_acquire);  // pairs with the fence of the writer
    if (load(slot.ready, std::memory_order_relaxed) != ready) return Copy::kOverwritten;
    return Copy::kDone;
  }
  abi::TraceHeader* ring_;
  uint64_t next_ = 0, lost_ = 0;
};

}  // namespace tessera::ipc

// Requests of a protected client (docs/requests.md): ranges that the program marked, and its bursts; how long each took is
// counted in the region (ipc/abi/requests.h). A request lasts from its first call to the moment when everything that it
// began was seen to have ended.
//
// clang-format off
//   free -> waiting ----------> running ------------> ended -------------> free, counted
//            |      first call    |     end_request     what it began has
//            |                    |                     ended
//            |                    +--> free, counted: its work had ended already, when that was seen
//            +--> free: it began nothing
// clang-format on
//
// Any thread. No lock, allocation or system call. Launches pay nothing: who begins a request makes its thread forget which
// stream it used last, so that the first call takes the slow half of begin_work.
#pragma once

#include "interpose/state/state.h"
#include "ipc/abi/requests.h"

namespace tessera::gate {

// The kind of that name, the same for the same name; 0: there is no room. What a thread launches in a range of a kind that
// yields begins no burst.
uint32_t request_kind(const char* name, bool yields);

uint64_t begin_request(uint32_t kind, bool of_thread);  // 0: it is not measured
void end_request(uint64_t request);
void drop_request(uint64_t request);

// A burst, or a step of one, has ended: counts it, and as a prefill or a step of a decoder what is known to be one by now.
// Returns the kind of requests that it is one of: that of the latest range that began to work in it, else by its launches.
uint32_t count_burst(uint64_t signature, uint64_t start_ns, uint64_t end_ns);

// A program's work that has a gap in the middle of a request is one burst, if the gap is not longer: one step of a model's
// decoder follows the other within a few milliseconds. A request that waits longer waits for something else.
inline constexpr uint64_t kLongestGapNs = 10'000'000;

extern constinit std::atomic<uint32_t> g_requests_waiting;  // for their first call
extern constinit std::atomic<uint32_t> g_requests_running;  // that have begun something, and are not over
extern constinit std::atomic<uint32_t> g_requests_open;     // places in use
// When everything was last seen to have ended while a request went on; 0: never.
extern constinit std::atomic<uint64_t> g_gap_ns;

void first_call_of_requests();
void see_requests_end();
uint64_t gap_since_ns(uint64_t now_ns);

inline bool yields() {
  return state::t_thread.yielding != 0;
}

// relaxed, all three: a hint. Who makes it true is this thread, or one that came a moment earlier.
inline void before_first_call() {
  if (g_requests_waiting.load(std::memory_order_relaxed) != 0) [[unlikely]]
    first_call_of_requests();
}
// Something was seen to have ended.
inline void look_at_requests() {
  if (g_requests_open.load(std::memory_order_relaxed) != 0) [[unlikely]]
    see_requests_end();
}
// Nothing is outstanding: since when.
inline uint64_t idle_since_ns(uint64_t now_ns) {
  const bool may_be_gap = g_requests_running.load(std::memory_order_relaxed) != 0 ||
                          g_gap_ns.load(std::memory_order_relaxed) != 0;
  return may_be_gap ? gap_since_ns(now_ns) : now_ns;
}
// And is that a gap in the middle of a request, in which the burst goes on?
inline bool is_in_gap(uint64_t idle_since_ns, uint64_t now_ns) {
  return g_requests_running.load(std::memory_order_relaxed) != 0 && now_ns - idle_since_ns < kLongestGapNs;
}

}  // namespace tessera::gate

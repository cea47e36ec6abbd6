// Memory of a trace (docs/trace.md): a ring of events of one client, created by the daemon while somebody traces it, mapped
// by the client and by who traces. Many writers, which wait for nobody; readers take nothing away, so that there may
// be several, and count what was overwritten before they came. Freestanding. tests/unit/ipc/trace_test.cc
//
//   offset 0      TraceHeader   daemon writes once; the head counts events for ever
//   offset 4096   TraceEvent    `slots` of them, a power of two
//
// A writer takes a number (head, fetch_add), fills the slot of that number modulo `slots`, and says so in `ready`
// (release). A reader copies a slot if `ready` is the number it expects, before and after. Everything is untrusted to
// everybody: an index is masked before use, an event is bounded before it is shown.
#pragma once

#include <cstdint>

#include "ipc/abi/cutting.h"

namespace tessera::ipc::abi {

inline constexpr uint32_t kTraceMagic = 0x52545354;  // "TSTR" little endian
inline constexpr uint32_t kTraceSlots = 32768, kTraceEventsOffset = 4096;

enum TraceKind : uint16_t {
  kTraceNone = 0,
  kTraceLaunch =
      1,  // what the program asked for; a: function, b: blocks (0: not a plain kernel), detail: result,
          // c: see launch_facts
  kTraceSlice = 2,       // of a cut kernel: as a launch
  kTraceCopy = 3,        // a: row of the entry point in driver_api/entries.def, detail: result, b: bytes,
                         // c: TraceCopyFact
  kTraceHold = 4,        // a launch waited; detail: TraceReason
  kTraceBurst = 5,       // of a protected client, when it ends; a: launches
  kTraceBusy = 6,        // a pulse: the burst begins (start = end)
  kTraceMarker = 7,      // enqueued; a: estimated ns that it covers, cumulative per stream
  kTraceDone = 8,        // a marker was reached; a: as there
  kTraceLease = 9,       // written by the daemon; a: word, b: window_ns, c: slice_ns
  kTraceName = 10,       // a: function or operation; detail: number of the piece; name: the piece
  kTraceOperation = 11,  // a call of a library, launches included; a: operation, b: FLOP, c: bytes
  kTraceSync =
      12,  // the program waited; a: row as of a copy, b: event, if it waited for one; stream: 0 if it
           // waited for a whole context
  kTraceRecord = 13,  // a: event, recorded in the stream
  kTraceWait = 14,    // a: event that the stream waits for
  kTraceEstimate =
      15,  // a shape was measured first (start = end); a: function, b: ns that were expected, c: ns it
           // took, detail: 1 below a call of a library
  kTraceRequest = 16,  // of a protected client, when it ends; a: its kind, which kTraceName names
};
inline constexpr uint16_t kTraceKinds = 17;

enum TraceCopyFact : uint64_t {  // bits
  kTraceCopyEnded = 1,           // on return it has ended, and what was in the stream before it
  kTraceCopyIn = 2,              // from the host
  kTraceCopyOut = 4,             // to the host
};

// The bits that a launch says of itself: bit 0, it was cut; bits 8 to 15, LaunchOutcome + 1 if it is of a best-effort client.
inline constexpr uint64_t kTraceLaunchCut = 1;
inline constexpr uint32_t kTraceOutcomeShift = 8;
constexpr uint64_t launch_facts(LaunchOutcome outcome) {
  return (uint64_t(outcome) + 1) << kTraceOutcomeShift | (outcome == kOutcomeSliced ? kTraceLaunchCut : 0);
}

enum TraceReason : uint16_t {  // why a launch waited
  kTraceHeldByLease = 1,       // another client's turn, or the daemon wants the GPU back
  kTraceHeldByPulse = 2,       // protected work is busy
  kTraceHeldByWindow = 3,      // enough is in flight
  kTraceHeldByBurst = 4,       // protected: a burst that goes first
};
inline constexpr uint16_t kTraceReasons = 5;

inline constexpr uint32_t kTraceNameBytes = 40;  // of one kTraceName
inline constexpr uint32_t kTraceNamePieces = 5;

struct TraceEvent {
  uint64_t ready;   // number of the event + 1, when the rest is there
  uint64_t a;       // see TraceKind
  uint16_t kind;    // TraceKind
  uint16_t detail;  // see TraceKind
  uint32_t thread;  // of the client, counted from 1; 0: not a thread of it
  union {
    struct {
      uint64_t start_ns, end_ns;  // CLOCK_MONOTONIC
      uint64_t stream;  // handle, 1: the legacy default stream, top bit set: a thread's default stream
      uint64_t b, c;    // see TraceKind
    } at;
    unsigned char name[kTraceNameBytes];
  };
};
static_assert(sizeof(TraceEvent) == 64);

struct TraceHeader {
  uint32_t magic;
  uint16_t version, compat_version;
  uint32_t slots;
  uint32_t client_id;
  uint64_t reserved0[6];      // zero
  alignas(64) uint64_t head;  // events so far; any writer
};
static_assert(sizeof(TraceHeader) == 128);

inline constexpr uint32_t kTraceBytes = kTraceEventsOffset + kTraceSlots * 64;

}  // namespace tessera::ipc::abi

// Shared memory between tesserad and one client: a sealed memfd region, created by the daemon, mapped by both.
// Freestanding: <cstdint> only. docs/abi.md says the same in prose; tests/unit/ipc/layout_test.cc compares both with the
// structures. A client is one process; one that works on several GPUs has one lease for all of them.
//
// clang-format off
//   offset  structure        writer  trusted by the other side
//   0       RegionHeader     daemon  yes      once, before the descriptor is sent
//   256     LeaseLine        daemon  yes      the client's launches read it, without a system call
//   320     AnswerLine       daemon  yes      that it is alive, when it is asked
//   384     UsageLine        client  no       read by the daemon on wake-ups and on its tick
//   512     SignalLine       client  no       what packing and slice sizing need, and counters
//   640     CuttingLines     client  no       which launches can be cut (cutting.h)
//   896     OperationTable   client  no       calls of libraries (operations.h)
//   13312   MemoryTable      both    no       who has how much memory, and who may have how much (memory.h)
//   14912   ParkLines        both    no       off the GPU and back (park.h)
//   15104   RecordRing       client  no       completed launches and bursts; the daemon consumes
//   56192   RequestTable     client  no       how long requests took (requests.h)
// clang-format on
//
// Rules: fixed-width integers through std::atomic_ref; all-zero is a valid initial state; sides write on different 64-byte
// lines; each untrusted word is read once into a local and validated.
#pragma once

#include <cstdint>

#include "ipc/abi/cutting.h"
#include "ipc/abi/memory.h"
#include "ipc/abi/operations.h"
#include "ipc/abi/park.h"
#include "ipc/abi/requests.h"

namespace tessera::ipc::abi {

inline constexpr uint32_t kRegionMagic = 0x41525354;  // "TSRA" little endian
inline constexpr uint32_t kPulseMagic = 0x554c5054;   // "TPLU"
inline constexpr uint16_t kVersion = 1;               // of this page
inline constexpr uint16_t kCompatVersion = 1;         // oldest version that this one can talk to
inline constexpr uint32_t kRegionBytes = 96 * 1024;
inline constexpr uint32_t kPulseBytes = 4096;
inline constexpr uint32_t kMaxPriority = 7;  // 0 = best-effort, 1..7 = protected

struct RegionHeader {          // written by the daemon before anyone else maps the region
  uint32_t magic;              // kRegionMagic
  uint16_t version;            // kVersion of the daemon
  uint16_t compat_version;     // kCompatVersion of the daemon
  uint32_t header_bytes;       // sizeof(RegionHeader)
  uint32_t region_bytes;       // whole region; the receiver checks it against the size of the memfd
  uint64_t features;           // of later versions; unknown bits are ignored. Version 1 has none
  uint64_t required_features;  // likewise; unknown bits: the client does not attach
  uint64_t daemon_epoch;       // changes with every daemon start
  uint32_t client_id;          // given by the daemon, unique within its epoch
  uint32_t priority;          // granted, may be lower than claimed; changes by `tessera set` are in LeaseLine
  uint32_t on_daemon_loss;    // OnDaemonLoss: what held and later launches do when the daemon is gone
  uint32_t answer_within_ms;  // a daemon that leaves a question open for this time counts as gone
  uint64_t guard_ns;          // a watched pulse must be idle this long before best-effort work starts
  uint32_t keeps_profiles;    // 1: it answers ProfileWanted and takes KernelSeen (messages.h)
  uint32_t reserved0;         // zero
  uint64_t reserved[23];      // zero
};
static_assert(sizeof(RegionHeader) == 256);

enum OnDaemonLoss : uint32_t {
  kLossOpen = 0,  // run unmanaged and reconnect (default)
  kLossHold = 1,  // best-effort launches wait for a daemon, each at most its hold limit
};

// State of a lease, low two bits of LeaseLine::word.
enum LeaseState : uint32_t {
  kLeaseHold = 0,     // do not start new work; what is in flight drains
  kLeaseGranted = 1,  // start work within window and slice until expires_ns
  kLeaseFree = 2,     // nobody else on this GPU: forward, no clock, no marker
};
inline constexpr uint32_t kLeaseStateMask = 3;
// The daemon adds this on each change: sequence in the upper 30 bits.
inline constexpr uint32_t kLeaseStep = 4;

// One word of the lease, which is read and stored whole. A field is 0 or 1 where nothing else is said.
struct alignas(8) LeaseRights {
  uint8_t priority;     // current priority of this client, 0..7
  uint8_t passthrough;  // forward everything (operator's switch)
  uint8_t packed;       // anything may start while protected work is busy: a minimum share
  uint8_t tell_busy;  // tell the daemon when a busy pulse holds a launch: it may have a packed lease to give
  // Protected: at the start of a burst wait (bounded) for watched pulses that go first: of a higher level, or
  // of the same level with the earlier deadline (busy_since + SLO). Bursts that run are never stopped.
  uint8_t defers;
  // Protected: gates on the device stay closed after a burst until the daemon opens them, because gaps inside a request
  // are too short to be used.
  uint8_t keeps_closed;
  // Every launch that can be keeps off the reserved SMs, however short it is.
  uint8_t confine_all;
  uint8_t burst_classes;  // with confine_all; bit c: kernels of ResourceClass c may start during bursts
};
static_assert(sizeof(LeaseRights) == 8);

struct alignas(64) LeaseLine {
  // Futex word: state | sequence. Daemon: writes the fields below, then stores word (release), then wakes.
  // Client: loads word (acquire), then reads the fields.
  uint32_t word;
  uint16_t max_hold_ms;    // nothing of an API call started for this time: it is launched anyway
  uint16_t watch_spin_us;  // how long a held launch spins before it sleeps
  uint64_t expires_ns;     // CLOCK_MONOTONIC; a granted lease is void afterwards
  uint64_t window_ns;      // GPU time that may be in flight at once
  uint64_t slice_ns;       // longest single launch; longer kernels are cut if they may be
  LeaseRights rights;
  uint32_t marker_spacing_ns;  // completion markers at least this often
  // Low 32 bits of CLOCK_MONOTONIC in us: when a protected client's next burst is expected. What starts should end by then; 0 =
  // whenever. Less than half an hour away, so that the difference has a sign.
  uint32_t ends_by_us;
  uint32_t slo_us;              // of this client, 0 = none
  uint16_t long_block_us;       // blocks that last longer are long; 0: longer than slice_ns
  uint16_t long_width_percent;  // widest slice of a kernel whose single blocks are long, of a wave; 0 = 100
  // Longest stretch of work between two boundaries of the gate on the device (gate.h), for a client that has one; 0 = the
  // thread that launches asks.
  uint16_t quantum_us;
  // SMs that launches which cannot be cut and slices of long blocks keep off, if the client can make them
  // (Device::confines). Others do not look here. Whole steps of kReserveStep.
  uint16_t reserved_sms;
  uint32_t reserved0;  // zero
};
static_assert(sizeof(LeaseLine) == 64);
inline constexpr uint32_t kReserveStep = 8;
// Blocks that last longer than kLongNarrowsAt times that get the less width the longer they are, so that what
// is left of a slice when a burst begins disturbs it equally; but a wave is at most kLeastLongPart slices.
// Not where long_width_percent is 100.
inline constexpr uint32_t kLongNarrowsAt = 2, kLeastLongPart = 16;

// A daemon that has nothing to do sleeps for any time, so that its silence says nothing. A client whose
// launches wait asks, and an answer is owed: SignalLine::question, then the wake eventfd.
struct alignas(64) AnswerLine {  // all written by the daemon
  uint64_t answered;             // the latest SignalLine::question that it saw
  // Protected, 1: the daemon looks at the pulse by itself before the end of a burst matters. 0: the client writes the wake
  // eventfd when a burst ends. Either way it does so whenever half a ring of records
  // was written.
  uint32_t quiet;
  uint32_t reserved0;    // zero
  uint64_t reserved[6];  // zero
};
static_assert(sizeof(AnswerLine) == 64);

struct alignas(64) UsageLine {  // all written by the client
  uint64_t in_flight_ns;  // estimated GPU time started, not yet seen complete; raised before the look at word
  uint64_t queued_ns;     // estimated GPU time of launches that wait now
  uint64_t waiting_since_ns;   // CLOCK_MONOTONIC of the oldest waiting launch, 0 = none waits
  uint32_t waiting;            // launches that wait now
  uint32_t drained_word;       // LeaseLine::word of the last hold after which in-flight work reached zero
  uint64_t launches;           // kernels and graphs, as the program asked for them
  uint64_t slices;             // launches that reached the driver for cut kernels
  uint64_t holds;              // launches that had to wait
  uint64_t hold_expired;       // waits ended by max_hold_ms
  uint64_t held_ns;            // total time in waits
  uint64_t completed_ns;       // estimated GPU time seen complete
  uint64_t preemptions;        // transitions launching -> held because of a busy pulse or a revoked lease
  uint64_t records_dropped;    // ring was full
  uint64_t refused_kernels;    // kernels that may not be cut, by load
  uint64_t cut_kernels;        // kernels with a variant, by load
  uint64_t forwarded_unknown;  // driver calls outside the table
  uint64_t heartbeat_ns;       // by the helper thread, at least every 100 ms while work is in flight
};
static_assert(sizeof(UsageLine) == 128);

// The resource that bounds a kernel or a burst: resource_class everywhere.
enum ResourceClass : uint32_t {
  kResourceUnknown = 0,
  kResourceCompute = 1,
  kResourceMemory = 2,
  kResourceLatency = 3,
};

// Holds what packing and slice sizing need to know of a best-effort client. All written by the client, seldom. Zero reads as
// unknown.
struct alignas(64) SignalLine {
  // The launch that waits, or was admitted last:
  uint32_t resource_class;  // 0 unknown, 1 compute, 2 memory, 3 latency
  uint32_t wave_blocks;     // its blocks that fill the GPU once; 0 = not known or it cannot be cut
  uint32_t launch_sms;      // SMs that it would fill uncut; 0 = not known
  // The process:
  uint32_t slice_overhead_ns;  // GPU time that one slice more costs, learnt; 0 = not known
  uint64_t uncut_launches;     // kernels and graphs launched whole that may not be cut
  uint64_t blocks_launched;    // thread blocks started
  uint64_t in_flight_end_ns;   // CLOCK_MONOTONIC when in_flight_ns last became zero
  uint64_t whole_releases;     // cut launches whose rest went out in one piece after the hold limit
  uint32_t cutting_off;        // 1: holds expired again and again, kernels are not cut for now
  uint32_t watchdog_releases;  // cut launches whose slice did not end: the rest went out beside it
  uint64_t unknown_estimates;  // kernel launches gated with a class default: nothing known of their shape
  uint64_t learnt_estimates;   // launch shapes whose first estimate came from the learnt table
  // Kernels that are not cut, by what is behind the reason (interpose/track/reasons.h has the names):
  uint32_t refused_waiting;     // blocks wait for each other, or may
  uint32_t refused_order;       // the result depends on the order of blocks
  uint32_t refused_unclear;     // not understood
  uint32_t refused_bits;        // another compilation may change bits (D13)
  uint32_t refused_state;       // needs its own module, or its source is not there
  uint32_t refused_other;       // limits, attributes, the driver
  uint64_t question;            // number of the latest one to the daemon (AnswerLine)
  uint32_t daemon_losses;       // times that this process lost a daemon or gave one up that did not answer
  uint32_t bypassed;            // 1: somebody in the process had opened the driver by its path
  uint64_t in_flight_since_ns;  // CLOCK_MONOTONIC when in_flight_ns last left zero
  uint64_t confined_launches;   // that kept off the reserved SMs of the lease
};
static_assert(sizeof(SignalLine) == 128);

// One completed launch or burst. SPSC: client writes slot, then head (release); daemon reads head (acquire),
// copies the slot out, validates, then advances tail (release). Full ring: the client drops and counts.
enum RecordKind : uint32_t { kRecordNone = 0, kRecordKernel = 1, kRecordBurst = 2 };
struct Record {
  uint16_t kind;            // RecordKind
  uint16_t request_kind;    // burst: which requests it is one of (requests.h); kBurstKind: not known
  uint32_t resource_class;  // 0 unknown, 1 compute, 2 memory, 3 latency
  uint64_t key;             // kernel: hash of image, name, block, grid bucket, shared; burst: signature
  uint64_t duration_ns;     // kernel: GPU time; burst: first launch to idle
  uint64_t end_ns;          // CLOCK_MONOTONIC
  uint64_t blocks;          // kernel: blocks launched; burst: launches
};
static_assert(sizeof(Record) == 40);

inline constexpr uint32_t kRingSlots = 1024;  // power of two
struct RecordRing {
  alignas(64) uint64_t head;  // next slot to write; client
  alignas(64) uint64_t tail;  // next slot to read; daemon
  alignas(64) Record slots[kRingSlots];
};

struct Region {
  RegionHeader header;
  LeaseLine lease;
  AnswerLine answer;
  UsageLine usage;
  SignalLine signals;
  CuttingLines cutting;
  OperationTable operations;
  MemoryTable memory;
  ParkLines park;
  RecordRing ring;
  RequestTable requests;
};
static_assert(sizeof(Region) <= kRegionBytes);

// Pulse page: one per protected client. Its owner maps it writable; then the daemon seals FUTURE_WRITE and
// hands it read-only to best-effort clients on the same GPU. It says nothing but this.
struct PulsePage {
  uint32_t magic;  // kPulseMagic, daemon, before the seal
  uint16_t version, compat_version;
  uint32_t client_id, priority;  // daemon, at creation
  uint64_t reserved0[5];
  // second line, written by the owner's launching threads on idle -> busy only
  alignas(
      64) uint32_t busy;  // 0 idle, else busy (any value: the owner may keep a generation in it). idle->busy:
                          // release store; busy->idle: compare-exchange; watchers: acquire load
  // 2 bits. With the store of busy: of the launch that began the burst, or of the latest bursts if that is a
  // copy. While busy the helper thread corrects it to the latest launch's.
  uint32_t resource_class;
  uint64_t burst;          // number of the current burst
  uint64_t busy_since_ns;  // CLOCK_MONOTONIC
  uint64_t reserved1[5];
  // third line, written by the owner's helper thread and by returning synchronise calls
  alignas(64) uint64_t heartbeat_ns;  // 10 Hz while busy; if both this and busy_since_ns are older than
                                      // kPulseStaleNs the pulse is treated as idle
  uint64_t idle_since_ns;             // CLOCK_MONOTONIC of the last busy -> idle
  uint64_t reserved2[6];
};
static_assert(sizeof(PulsePage) == 192);
inline constexpr uint64_t kPulseStaleNs = 1'000'000'000;

// Last sign of life in a busy page: the beat, or the start of the burst if the helper has not beaten since.
constexpr bool pulse_is_stale(uint64_t heartbeat_ns, uint64_t busy_since_ns, uint64_t now_ns) {
  const uint64_t sign_ns = heartbeat_ns > busy_since_ns ? heartbeat_ns : busy_since_ns;
  if (sign_ns > now_ns) return sign_ns - now_ns > kPulseStaleNs;  // a page that lies about the future
  return now_ns - sign_ns > kPulseStaleNs;
}

inline constexpr uint32_t kMaxWatchedPulses = 32;  // of one GPU

}  // namespace tessera::ipc::abi

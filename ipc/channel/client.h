// The client's end of the channel: attach to tesserad, say which GPU, notify it, hear about peers. Used by
// the preload library (interpose), by `tessera ps` and by tests. Slow path: allocates, makes syscalls, never
// throws, never prints, never blocks longer than the timeout that it is given. One thread at a time per
// Attachment. What the launches need afterwards is plain memory: lease.h, pulse.h, ring.h on
// Attachment::lease() and so on.
//
//   auto attached = ipc::attach(ipc::default_socket_path().value(), {.priority = 0, .name = "trainer"});
//   ipc::announce_device(*attached, uuid, sm_count, mps);     // once the GPU is known; until then:
//   free-running helper thread: poll(attached->socket) -> while (next_event(...).kind != kNothing) ... launch
//   that must wait: usage.waiting etc., then ipc::notify(*attached)
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "base/scoped_fd.h"
#include "ipc/abi/messages.h"
#include "ipc/abi/placement.h"
#include "ipc/abi/region.h"
#include "ipc/channel/map.h"
#include "ipc/channel/socket_path.h"

namespace tessera::ipc {

struct Claim {                      // what this process asks for; the daemon decides
  uint32_t priority = 0;            // 0 best-effort, 1..7 protected
  uint32_t weight = 100;            // share among clients of one level
  uint64_t slo_ns = 0;              // 0 = none
  const char* name = "";            // for people, cut at abi::kMaxNameBytes - 1
  uint64_t memory_limit_bytes = 0;  // of each device; 0 = none
  uint64_t memory_group = 0;        // processes of one user that share that limit; 0 = this one alone
  const char* gang = "";            // its gang (docs/gangs.md), cut likewise; "": none
};

struct Attachment {       // owned by the caller; destroying it detaches
  base::ScopedFd socket;  // non-blocking, close-on-exec, >= 3
  base::ScopedFd wake;    // eventfd, non-blocking, close-on-exec, >= 3
  Mapping region;         // read-write, MADV_DONTFORK; its memfd is already closed
  Mapping pulse_page;     // read-write, only if priority > 0; its memfd is already closed
  uint32_t client_id = 0;
  uint32_t priority = 0;  // granted, may be lower than claimed
  uint64_t daemon_epoch = 0;

  abi::Region& shared() const { return *region.as<abi::Region>(); }
  const abi::RegionHeader& header() const { return shared().header; }
  abi::LeaseLine* lease() const { return &shared().lease; }
  abi::UsageLine* usage() const { return &shared().usage; }
  abi::PulsePage* pulse() const { return pulse_page.valid() ? pulse_page.as<abi::PulsePage>() : nullptr; }

  // Copies of the header's: use these, it lies in shared memory.
  uint32_t on_daemon_loss = 0;    // abi::OnDaemonLoss
  uint32_t answer_within_ms = 0;  // a daemon that leaves a question open for this time counts as gone
  bool keeps_profiles = false;    // the daemon does: want_profile, name_kernel
  uint64_t guard_ns = 0;          // a pulse must be idle this long before best-effort work starts again
};

// Connects, greets, maps, checks seals, sizes and versions, acknowledges the pulse page. timeout_ms bounds
// the whole. Errors: kUnavailable (no daemon there, or it does not answer), kExhausted (it accepts nobody in time), kVersion,
// kPermission (refused), kInvalid.
base::Result<Attachment> attach(const std::string& socket_path, const Claim& claim,
                                uint32_t timeout_ms = 200);

// Would attach() get as far as the greeting? Never waits: a daemon that is busy or stopped counts as one. Errors as of attach().
base::Status may_attach(const std::string& socket_path);

// Closes what is still ours. For an owner that must not free the attachment itself: async-signal-safe, and
// the mappings stay.
void close_descriptors(Attachment& attachment);

base::Status announce_device(const Attachment& attachment, const uint8_t (&uuid)[16], uint32_t sm_count,
                             bool mps, bool confines = false, abi::GateChoice gate = abi::kGateThread,
                             uint64_t unmanaged_launches = 0);

// Answer to kGate: does the GPU read the page?
base::Status acknowledge_gate(const Attachment& attachment, bool usable);

// Tells the daemon to look (waiting without a lease, became idle, drained): one eventfd write, about a
// microsecond. Costs two fstat calls, because a host that closes all descriptors may have reused the number.
// False: dead.
bool notify(const Attachment& attachment);

// Both descriptors are still the ones we opened. False: the host closed them; never touch or close them again
// (release(), not reset()).
bool descriptors_intact(const Attachment& attachment);

// The new pulse page is mapped and in use (answer to kPriority with a page).
base::Status acknowledge_pulse(const Attachment& attachment);

// Before announce_device: what is known of kernels on this GPU? Answered by kLearnt. Only if it `keeps_profiles`.
base::Status want_profile(const Attachment& attachment, const char* gpu, uint32_t driver);

// The meaning of a key in this client's records. False: try again later (the daemon does not read fast enough).
struct KernelIdentity {
  uint64_t key, image_hash, blocks;
  uint32_t block[3], shared_bytes;
  const char* name;
};
bool name_kernel(const Attachment& attachment, const KernelIdentity& kernel);

struct PeerEvent {
  enum class Kind {
    kNothing,    // no message now
    kPeerPulse,  // watch `page` (read-only, sealed, checked)
    kPeerGone,   // forget the page of client_id
    kPriority,   // ours is `priority` from now on; `page` is our pulse if we become protected
    kLearnt,     // answer to want_profile: `page` is a table (learnt.h), invalid if nothing is known
    kGate,       // `page` (abi::GatePage) is the gate of this client: pin it, acknowledge_gate
    kPeerGate,   // close byte `gate_byte` of `page` while our bursts last, until kPeerGone of client_id
    kGang,       // `page` (abi::GangPage, read-write) is that of our gang
    kTrace,      // trace into `page` (abi::TraceHeader, read-write) from now on; invalid: no longer
    kLost,       // the daemon is gone or talks nonsense: this attachment is over
  };
  Kind kind = Kind::kNothing;
  uint32_t client_id = 0;
  uint32_t priority = 0;  // of the peer; kPriority: of this client
  uint64_t slo_ns = 0;    // kPeerPulse: of the peer, 0 = none
  uint32_t gate_byte = 0;
  Mapping page;  // abi::PulsePage: kPeerPulse read-only, kPriority writable or invalid; kLearnt: a table
};

// Never blocks. Unknown messages are skipped (a newer daemon may send them).
PeerEvent next_event(const Attachment& attachment);

// A connection that traces (abi::Trace), and its answers about the clients.
struct TracedClient {
  uint32_t client_id = 0, pid = 0, priority = 0;
  bool gone = false;
  uint8_t uuid[16] = {};
  std::string name;
  Mapping memory;  // the first time, read-only
};
base::Result<base::ScopedFd> start_trace(const std::string& socket_path, pid_t pid,
                                         uint32_t timeout_ms = 1000);
// True: *out is filled. False: nothing now. Errors: the daemon is gone, refuses, or talks nonsense.
base::Result<bool> next_traced(int socket, TracedClient* out);

// Control: JSON text about clients, GPUs and counters (stats.def). For `tessera ps`.
base::Result<std::string> query(const std::string& socket_path, uint32_t what = 0,
                                uint32_t timeout_ms = 1000);

// On which of these GPUs a program of this priority should start. The answer is JSON: stats::placement_json. At most
// abi::kMostPlaceGpus.
base::Result<std::string> query_place(const std::string& socket_path, abi::PlaceQuery question,
                                      std::span<const abi::PlaceGpu> gpus, uint32_t timeout_ms = 1000);

// Memory of these GPUs for this process and the clients of its group. Error kExhausted: there is not so much; the text says who
// has how much.
base::Result<std::string> query_reserve(const std::string& socket_path, abi::ReserveQuery question,
                                        std::span<const abi::PlaceGpu> gpus, uint32_t timeout_ms = 1000);

// Asks for a change over the control socket (control_socket_path); its header is filled in here. The answer
// is a line for people. Errors: what the daemon refuses with, kPermission if the socket file does not let us.
base::Result<std::string> control(const std::string& control_path, abi::Control request,
                                  uint32_t timeout_ms = 1000);

}  // namespace tessera::ipc

// Messages on the daemon's UNIX socket (SOCK_SEQPACKET: one message per packet, descriptors by SCM_RIGHTS).
// Freestanding. Identity is SO_PEERCRED; what a message says about itself is a claim. docs/abi.md.
//
//   client                          daemon
//   Hello {priority, weight, names} ->
//                                   <- Welcome {client id, epoch} + [region, wake eventfd (, pulse)]
//                                   <- GangMemory {} + [gang page] to one that named a gang
//   PulseMapped {}                  ->  protected only: the page is mapped, it may be sealed and shared
//   Device {uuid}                   ->  once known; until then the client is on no GPU and free-running. Again for
//                                      each further GPU on which it works, at most kMemoryDevices in all
//                                   <- PeerPulse {client id, priority, SLO} + [pulse, read-only]; again when
//                                      they change. To best-effort clients, and to protected ones that defer
//                                   <- PeerGone {client id}
//                                   <- SetPriority {priority} (+ [pulse]) the operator changed it
//   PulseMapped {}                  ->  answer to a SetPriority that carried a pulse page
//                                   <- GateMemory {} + [gate page] to a best-effort client whose Device says that it
//                                      can wait on the device
//   GateReady {usable}              ->  its GPU reads the page (or cannot)
//                                   <- PeerGate {client id, byte} + [gate page] to protected clients: whom to close.
//                                      PeerGone ends it
// If RegionHeader::keeps_profiles:
//   ProfileWanted {GPU, driver}     ->  before Device
//                                   <- Learnt {bytes} + [table, read-only, ipc/abi/learnt.h], or without one
//   KernelSeen {key, image, name}   ->  what a key in this client's records stands for, once per key
//
// The wake eventfd is written by the client when the daemon should look: it waits without a lease, it became
// idle, it drained. Everything fast is in the region.
//
// Control (tessera ps), on a fresh connection: Query {} -> Reply packets of JSON text, the last with `last`
// set.
//
// Control (tessera set), on a fresh connection to the control socket, whose file says who may: Control {} ->
// Reply with one line of text, or Refused.
//
// A daemon that gets anything malformed counts it and closes that connection.
#pragma once

#include <cstdint>

namespace tessera::ipc::abi {

inline constexpr uint32_t kMessageMagic = 0x474d5354;  // "TSMG"
inline constexpr uint32_t kMaxMessageBytes = 4096;
inline constexpr uint32_t kMaxNameBytes = 64;

enum MessageType : uint16_t {
  kHello = 1,
  kWelcome = 2,
  kPulseMapped = 3,
  kDevice = 4,
  kPeerPulse = 5,
  kPeerGone = 6,
  kRefused = 7,
  kSetPriority = 8,
  kProfileWanted = 9,
  kLearnt = 10,
  kKernelSeen = 11,
  kTraceMemory = 12,
  kTrace = 13,
  kTraced = 14,
  kGateMemory = 15,
  kGateReady = 16,
  kPeerGate = 17,
  kQuery = 18,
  kReply = 19,
  kControl = 20,
  kGangMemory = 21,
};

struct MessageHeader {
  uint32_t magic;
  uint16_t type;            // MessageType
  uint16_t version;         // kVersion of the sender
  uint16_t compat_version;  // kCompatVersion of the sender
  uint16_t reserved;
  uint32_t bytes;  // whole message
};
static_assert(sizeof(MessageHeader) == 16);

struct Hello {
  MessageHeader header;
  uint32_t priority;            // claim, 0..7
  uint32_t weight;              // claim, share within a level; 0 = 100
  uint64_t slo_ns;              // claim, 0 = none
  uint64_t features;            // of later versions; unknown bits are ignored. Version 1 has none
  uint64_t memory_limit_bytes;  // claim: of each device it wants no more (memory.h); 0 = none
  uint64_t memory_group;        // claim: processes of its user that share that limit; 0 = this one alone
  uint64_t reserved;
  char name[kMaxNameBytes];  // claim, NUL-terminated, for people
  // Claim, NUL-terminated: of the gang (docs/gangs.md) that it belongs to with others of its user; "": none.
  char gang[kMaxNameBytes];
};
static_assert(sizeof(Hello) == 192);

struct Welcome {  // descriptors: region, wake eventfd, and pulse if priority > 0
  MessageHeader header;
  uint32_t client_id;
  uint32_t priority;  // granted
  uint64_t daemon_epoch;
  uint64_t now_ns;  // the daemon's CLOCK_MONOTONIC when it read the Hello; 0: it does not say
  uint64_t reserved[3];
};
static_assert(sizeof(Welcome) == 64);

struct PulseMapped {
  MessageHeader header;
};

struct Device {
  MessageHeader header;
  uint8_t uuid[16];
  uint32_t sm_count;
  // Only `confines` counts where the client is on another GPU already.
  uint32_t mps;                 // 1: this process is an MPS client (spatial sharing), 0: time-sliced
  uint32_t confines;            // 1: it can keep launches off some SMs by green contexts
  uint32_t gate;                // GateChoice: may its streams wait on the device?
  uint64_t unmanaged_launches;  // of the process since it had no GPU here, until now
};
static_assert(sizeof(Device) == 56);

// A choice that a client makes of the gate on the device (gate.h), and that an operator may make.
enum GateChoice : uint32_t {
  kGateThread = 0,  // no: the device cannot, or the user does not want it
  kGateAuto = 1,    // it can; the daemon decides
  kGateDevice = 2,  // it can, and the user asks for it
};
struct GateMemory {  // descriptor: gate page
  MessageHeader header;
};
struct GangMemory {  // descriptor: gang page (gang.h)
  MessageHeader header;
};
struct GateReady {
  MessageHeader header;
  uint32_t usable;  // 0: the driver refuses; the thread asks, for good
  uint32_t reserved;
};
static_assert(sizeof(GateReady) == 24);
struct PeerGate {  // descriptor: gate page of that client
  MessageHeader header;
  uint32_t client_id;
  uint32_t byte;  // the receiver's, kGateFirstPeer..
};
static_assert(sizeof(PeerGate) == 24);
struct PeerPulse {  // descriptor: pulse page, sealed
  MessageHeader header;
  uint32_t client_id, priority;
  uint64_t slo_ns;  // 0 = none
};
static_assert(sizeof(PeerPulse) == 32);
struct PeerGone {
  MessageHeader header;
  uint32_t client_id, reserved;
};
// The client's priority from now on. Descriptor: its own new pulse page, if it becomes protected (it had
// none); the client maps it, answers PulseMapped, and announces bursts there. Becoming best-effort it forgets
// its page.
struct SetPriority {
  MessageHeader header;
  uint32_t priority, reserved;
};
struct ProfileWanted {
  MessageHeader header;
  char gpu[128];    // as cuDeviceGetName says, NUL-terminated
  uint32_t driver;  // as cuDriverGetVersion says
  uint32_t reserved0;
  uint64_t reserved[3];
};
static_assert(sizeof(ProfileWanted) == 176);
struct Learnt {  // descriptor: the table, unless nothing is known (then bytes = 0)
  MessageHeader header;
  uint64_t bytes;  // of the table
  uint64_t reserved[2];
};
static_assert(sizeof(Learnt) == 40);
inline constexpr uint32_t kMaxKernelNameBytes = 2048;
struct KernelSeen {  // followed by name_bytes bytes of the kernel's name
  MessageHeader header;
  uint64_t key;  // must be base::launch_key of what follows
  uint64_t image_hash;
  uint64_t blocks;        // of the launch that was seen
  uint32_t block[3];      // threads
  uint32_t shared_bytes;  // dynamic
  uint32_t name_bytes;    // 1..kMaxKernelNameBytes
  uint32_t reserved0;
};
static_assert(sizeof(KernelSeen) == 64);
// To a client. Descriptor: the memory to trace into (trace.h), or none: trace no longer.
struct TraceMemory {
  MessageHeader header;
};
// From who traces, on a fresh connection instead of Hello; its end ends the trace. Clients of other users are traced
// for root and for the daemon's own user only.
struct Trace {
  MessageHeader header;
  uint32_t pid;  // 0: all clients
  uint32_t reserved;
};
static_assert(sizeof(Trace) == 24);
// To who traces, for each client, those that come later too. Descriptor: its memory, the first time. Again when its
// GPU is known.
struct Traced {
  MessageHeader header;
  uint32_t client_id, pid, priority;
  uint32_t gone;     // 1: nothing more comes
  uint8_t uuid[16];  // of its GPU; zero: not known yet
  char name[kMaxNameBytes];
};
static_assert(sizeof(Traced) == 112);
struct Refused {  // then the daemon closes
  MessageHeader header;
  uint32_t code;   // base::Code
  char text[108];  // for people
};
static_assert(sizeof(Refused) == 128);

// As question 0; and for a few seconds a client that is alone on its GPU is measured, too.
inline constexpr uint32_t kQueryStateMeasured = 3;
struct Query {  // on a fresh connection, instead of Hello
  MessageHeader header;
  uint32_t
      what;  // 0 = clients and GPUs, 1 = what the counters mean, 2 = MPS: what its clients need, 3: above
  uint32_t reserved;
};
// Actions that an operator asks for; on the control socket only.
enum ControlAction : uint32_t {
  kControlSet = 1,
  kControlReload = 2,
  kControlPark = 3,
  kControlUnpark = 4,
  kControlMove = 5,  // park, and return on another GPU
};
enum ControlField : uint32_t {  // what a set changes; the rest stays
  kSetsPriority = 1,
  kSetsWeight = 2,
  kSetsSlo = 4,
  kSetsPassthrough = 8,
};
struct Control {
  MessageHeader header;
  uint32_t action;  // ControlAction
  uint32_t fields;  // ControlField bits; unknown ones are refused
  uint32_t pid;     // whom: by process, or 0 and by name
  uint32_t priority, weight, passthrough;
  uint64_t slo_ns;
  uint8_t gpu[16];  // kControlMove: where to
  uint64_t reserved;
  char name[kMaxNameBytes];  // NUL-terminated; every client that has it
};
static_assert(sizeof(Control) == 136);
struct Reply {  // followed by header.bytes - sizeof(Reply) bytes of text
  MessageHeader header;
  uint32_t last;
  uint32_t code;  // 0: the text is the answer; else base::Code, and the text says why not
};

}  // namespace tessera::ipc::abi

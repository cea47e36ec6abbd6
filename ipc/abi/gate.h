// The gate on the device: one page per best-effort client, whose word the client's streams wait for on the GPU itself.
// Freestanding: <cstdint> only. The daemon makes the page; the client pins it, so that its GPU reads it; the daemon and
// the protected clients of the same GPU store into it. docs/architecture.md, "The gate on the device".
//
//   byte 7        the owner's, and the daemon's, override: anything but 0 lets everything pass
//   bytes 1 to 6  one protected client each: kGateByteOpen while it is idle, its burst's number while it is busy
//   byte 0        the daemon's: the longest class of work that may begin, as gate_class() writes it; 0: nothing may
//
// A boundary is one cuStreamWaitValue64(word, gate_value(class of its quantum), GEQ), a signed comparison of the difference
// (cuda.h), so that the device itself sees all of that at once: no byte of 0 to 6 can make up for another one, and byte 7
// makes up for all. Classes of lengths are those of base/length_class.h.
// All-zero, as a new page is, is closed. No page is shared by two best-effort clients.
#pragma once

#include <cstdint>

namespace tessera::ipc::abi {

inline constexpr uint32_t kGateMagic = 0x54415447;  // "GTAT" little endian
inline constexpr uint32_t kGateBytes = 4096;

inline constexpr uint64_t kGateOpen = 0x00ff'ffff'ffff'ffff;
inline constexpr uint8_t kGateByteOpen = 0xff;
inline constexpr uint32_t kGateTurnByte = 0, kGateFirstPeer = 1, kGatePeers = 6, kGateOverrideByte = 7;
// A protected client stores its burst's number in seven bits while it is busy; what the daemon stores for one that
// has not yet mapped the page is none of these.
inline constexpr uint8_t kGateBurstMask = 0x7f, kGateUnmapped = 0x80;

inline constexpr uint32_t kGateClasses = 24;  // the last is everything that is longer

constexpr uint8_t gate_class(uint32_t length_class) {
  return length_class + 1 < kGateClasses ? uint8_t(length_class + 1) : kGateByteOpen;
}
constexpr uint64_t gate_value(uint32_t length_class) {
  return kGateOpen - kGateByteOpen + gate_class(length_class);
}

enum GateOverride : uint8_t {  // bits of byte 7; below 0x80, because the comparison is signed
  kGateOwnerOpens = 1,         // the client: fail open, hold limit, another role
  kGateDaemonOpens = 2,        // the daemon: a lease that may start during bursts, or pass-through
};

struct GatePage {
  uint32_t magic;                    // kGateMagic; daemon, before it is sent
  uint16_t version, compat_version;  // daemon
  uint32_t client_id;                // whose work waits here; daemon
  uint32_t reserved0;
  uint64_t reserved1[6];
  alignas(64) uint64_t word;  // byte by byte, as above
  // For work on SMs of its own that the lease lets begin during bursts: bytes 1 to 6 are always open, the others as in `word`.
  uint64_t burst_word;
  uint64_t reserved2[6];
  // Statistics of the client, for people; untrusted.
  alignas(64) uint64_t boundaries;  // waits that were enqueued
  uint64_t boundary_ns;             // time of the launching threads for that
  uint64_t run_ahead_waits;         // launches that waited because the program was far enough ahead
  uint64_t limit_openings;          // times that the hold limit let work pass a closed gate
  uint64_t thread_asks;             // launches that asked in their thread although the lease has a quantum
  uint64_t longest_ns;              // longest launch or slice of late; the daemon reads it, too
  uint64_t reserved3[2];
};
static_assert(sizeof(GatePage) == 192);

}  // namespace tessera::ipc::abi

// The page by which members of a gang (docs/gangs.md) tell each other how many collectives have begun. One page per gang, made by
// the daemon, written by all members, which are processes of one user. Freestanding: <cstdint> only. docs/abi.md.
//
// A member that lies, or that dies in between, makes the collectives of its own gang start early, or makes them wait as long
// as other best-effort work may wait. Nobody else reads the page.
#pragma once

#include <cstdint>

namespace tessera::ipc::abi {

inline constexpr uint32_t kGangMagic = 0x474e4754;  // "TGNG" little endian
inline constexpr uint32_t kGangBytes = 4096;

struct alignas(64) CollectiveLine {
  uint64_t begun;      // most that any member has begun, counted from its start; it never falls
  uint32_t changes;    // futex word: raised with `begun` if somebody waits
  uint32_t waiting;    // members that wait for `changes`; too high where one was killed
  uint32_t uncounted;  // 1: some member began collectives that nobody counted, so that none is held
  uint32_t reserved0;
  uint64_t reserved[5];
};
static_assert(sizeof(CollectiveLine) == 64);

struct GangPage {
  uint32_t magic;                    // kGangMagic; daemon, before it is sent
  uint16_t version, compat_version;  // daemon
  uint64_t reserved[7];
  CollectiveLine collectives;
};
static_assert(sizeof(GangPage) == 128);

}  // namespace tessera::ipc::abi

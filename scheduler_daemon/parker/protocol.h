// Messages between tesserad and its parker process: one per packet of a SOCK_SEQPACKET pair. Both are one program, so
// there is no version. A packet of another size ends the connection.
#pragma once

#include <cstdint>

namespace tessera::parker {

struct Request {
  uint64_t number;     // by the daemon; the answer has it, too
  int32_t pid;         // whom, as the daemon sees it
  uint32_t step;       // ipc::abi::ParkStep
  uint32_t within_ms;  // kStepLock; never 0
  // 1: a parker that was asked for this has ended, and how far the driver came is not known.
  uint32_t again;
  uint8_t from[16], to[16];  // kStepRestore: UUIDs of its GPU, and of the one where it comes back
};
static_assert(sizeof(Request) == 56);

struct Answer {
  uint64_t number;
  int32_t result;  // CUresult, or ipc::abi::kStepNotAnswered
  uint32_t state;  // kStepState: CUprocessState
};
static_assert(sizeof(Answer) == 16);

}  // namespace tessera::parker

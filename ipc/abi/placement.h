// Questions of `tessera run`, each on a fresh connection: on which GPU of a node a program should start (--place), and whether
// it can have some memory of its GPUs for itself (--memory-reserve). Freestanding. A daemon that does not know it answers as to every unknown Query. docs/abi.md.
#pragma once

#include <cstdint>

#include "ipc/abi/messages.h"

namespace tessera::ipc::abi {

inline constexpr uint32_t kQueryPlace = 4;
inline constexpr uint32_t kMostPlaceGpus = 128;  // fits a message

struct PlaceGpu {
  uint8_t uuid[16];
  uint64_t memory_bytes;  // of the GPU; 0 = not known
};
static_assert(sizeof(PlaceGpu) == 24);

// Followed by n_gpus times PlaceGpu: the GPUs that the program could use, in its driver's order.
struct PlaceQuery {
  Query query;              // what = kQueryPlace
  uint32_t priority;        // 0..7, as the program is going to claim it
  uint32_t n_gpus;          // 1..kMostPlaceGpus
  uint64_t memory_bytes;    // that the program is going to need; 0 = not known
  uint32_t resource_class;  // ResourceClass of most of its work; 0 = not known
  uint32_t reserved;
};
static_assert(sizeof(PlaceQuery) == 48);

inline constexpr uint32_t kQueryReserve = 5;

// Followed by n_gpus times PlaceGpu: the GPUs that the program can use. The memory is the asking process's, on each of them,
// and its group's, until the process has ended and no client of the group is left.
struct ReserveQuery {
  Query query;            // what = kQueryReserve
  uint64_t memory_bytes;  // of each GPU
  uint64_t memory_group;  // Hello::memory_group of the clients whose memory it is
  uint32_t n_gpus;        // 1..kMostPlaceGpus
  uint32_t reserved;
};
static_assert(sizeof(ReserveQuery) == 48);
static_assert(sizeof(PlaceQuery) + kMostPlaceGpus * sizeof(PlaceGpu) <= kMaxMessageBytes);

}  // namespace tessera::ipc::abi

// Parking: a client's memory leaves its devices for memory of the host, by the driver's checkpoint calls, and comes back
// when the client needs the GPU (docs/memory.md). Freestanding. tests/unit/ipc/layout_test.cc checks every offset.
//
//   RUNS -order-> PARKING -> PARKED -the program's next call, or an order-> WAITS -room-> RETURNING -> RUNS
//                    \-> RUNS, with a refusal                                              LOST is final
//
// The daemon orders, and says when there is room; the client's helper thread makes the driver's calls, or asks the daemon for them
// (ParkOrder::by_parker), whose parker process then makes them. A client that then
// finds no room wishes anew (ParkReport::need). An order may name another GPU: a client that is parked then attaches anew, with
// its memory counted there, and comes back as any other. All-zero is a valid initial state: it runs.
#pragma once

#include <cstdint>

namespace tessera::ipc::abi {

enum ParkState : uint32_t {
  kParkRuns = 0,
  kParkParking = 1,
  kParkParked = 2,
  kParkWaits = 3,  // it is needed, and there is no room yet
  kParkReturning = 4,
  kParkLost = 5,  // the driver failed on the way: its calls answer errors, or wait for ever
};
inline constexpr const char* kParkStateNames[] = {"",          "parking",    "parked", "waits for memory",
                                                  "returning", "park failed"};

// Why a client was not parked, or not moved: name, what it says to people. 0: it was, or was not asked.
#define TS_PARK_REFUSALS(X)                                                                          \
  X(kNotParkable, "it was not started with `tessera run --parkable`")                                \
  X(kParkNoGpu, "it has nothing on a GPU yet")                                                       \
  X(kParkOldDriver, "the driver has no checkpoints: they came with 570")                             \
  X(kParkMps, "it is a client of MPS")                                                               \
  X(kParkMig, "it is on a MIG device")                                                               \
  X(kParkUnified, "its GPU shares the host's memory, where nothing would get free")                  \
  X(kParkManaged, "it has managed memory")                                                           \
  X(kParkShared, "it has memory of another process, or another process may have some of its memory") \
  X(kParkSharedEvents, "it has events of another process, or another process may have some of its")  \
  X(kParkUncounted, "it has memory that could not be counted")                                       \
  X(kParkCollectives, "it has communicators (NCCL, NVSHMEM)")                                        \
  X(kParkCapturing, "it captures a graph")                                                           \
  X(kParkHostMemory, "the host, or its control group, has too little memory")                        \
  X(kParkThreadStopped, "a thread of it does not run")                                               \
  X(kParkWorkGoesOn, "its work on the GPU did not end in time")                                      \
  X(kParkDriverRefused, "the driver refused")                                                        \
  X(kParkNoParker, "the parker process of tesserad does not run, or the driver does not let it")     \
  X(kMoveOldDriver, "the driver moves nothing to another GPU: that came with 580")                   \
  X(kMoveNoSuchGpu, "NVML shows it no such GPU")                                                     \
  X(kMoveSameGpu, "it is on that GPU")                                                               \
  X(kMoveSeveralGpus, "it has memory on several GPUs")                                               \
  X(kMoveOtherModel, "that GPU is of another model")                                                 \
  X(kMoveMig, "that GPU is divided by MIG")                                                          \
  X(kMoveNoRoom, "that GPU has too little free memory")
enum ParkRefusal : uint32_t {
  kParkNotRefused = 0,
#define TS_ROW(name, text) name,
  TS_PARK_REFUSALS(TS_ROW)
#undef TS_ROW
      kParkRefusals
};

struct alignas(64) ParkOrder {  // all written by the daemon
  uint32_t number;              // of the latest order (release; acquire)
  uint32_t parked;              // what it says: 1 be parked, 0 come back
  uint32_t room_for;            // ParkReport::need, once there is room for that return (release; acquire)
  uint8_t gpu[16];  // with `parked` 1: its GPU from then on, on which it comes back at once; zero: as before
  uint32_t by_parker;     // with `parked` 1: the parker process makes the driver's calls
  uint32_t answered;      // ParkCall::number, once its call has ended (release; acquire); futex word
  int32_t result;         // of that call: CUresult, or kStepNotAnswered
  uint32_t driver_state;  // kStepState: CUprocessState
  uint32_t reserved[5];   // zero
};
static_assert(sizeof(ParkOrder) == 64);

// One of the driver's calls.
enum ParkStep : uint32_t { kStepState = 0, kStepLock, kStepSave, kStepRestore, kStepUnlock, kParkSteps };
inline constexpr int32_t kStepNotAnswered = -1;  // no result of the driver: nobody knows how far it came

struct alignas(64) ParkCall {  // that the parker is to make for this client; written by the client
  uint32_t number;             // of the latest one (release; acquire)
  uint32_t step;               // ParkStep
  uint32_t within_ms;          // kStepLock
  uint8_t from[16], to[16];    // kStepRestore: its GPU, and where it comes back; equal: no move
  uint32_t reserved[5];        // zero
};
static_assert(sizeof(ParkCall) == 64);

struct alignas(64) ParkReport {  // all written by the client
  uint32_t state;                // ParkState (release; acquire)
  uint32_t answered;             // the latest order that was obeyed or refused
  uint32_t refusal;              // ParkRefusal of the latest order to be parked
  uint32_t need;                 // number of the latest wish to return
  uint64_t bytes;                // that are off the devices, or were last
  uint64_t since_ns;             // CLOCK_MONOTONIC of the state
  uint64_t park_ns, return_ns;   // how long the latest ones took
  uint64_t parks;                // so far
  uint64_t lacks_bytes;  // for its return, as the GPU's own figures say; 0: nothing, or they are not known
};
static_assert(sizeof(ParkReport) == 64);

struct ParkLines {
  ParkOrder order;
  ParkReport report;
  ParkCall call;
};

}  // namespace tessera::ipc::abi

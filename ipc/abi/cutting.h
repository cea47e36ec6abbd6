// Counts what became of a best-effort client's launches, by whether they can be cut: 256 bytes in its region.
// The client's helper thread writes all of it, the daemon reads it when somebody asks for its state (untrusted). Launches
// of a client that is alone on its GPU are not looked at, and not counted. Freestanding. tests/unit/ipc/layout_test.cc
// checks every offset.
#pragma once

#include <cstdint>

namespace tessera::ipc::abi {

// Rows: outcome, name in JSON.
#define TS_LAUNCH_OUTCOMES(X)                                                                  \
  X(kOutcomeSliced, "sliced")          /* went out as slices */                                \
  X(kOutcomePossible, "can_be_cut")    /* went whole: short enough, or nobody waited */        \
  X(kOutcomeNoPtx, "no_ptx")           /* machine code without the PTX it was made of */       \
  X(kOutcomeLibrary, "nvidia_library") /* of a library of NVIDIA's: never modified */          \
  X(kOutcomeWaiting, "waiting")        /* blocks wait for each other, or may */                \
  X(kOutcomeOrder, "order")            /* the result depends on the order of blocks */         \
  X(kOutcomeUnclear, "unclear")        /* not understood */                                    \
  X(kOutcomeBits, "bits")              /* another compilation may change bits (D13) */         \
  X(kOutcomeState, "module_state")     /* needs its own module */                              \
  X(kOutcomeWhole, "whole")            /* graphs and cooperative launches */                   \
  X(kOutcomeOther, "other")            /* limits, attributes, images that nobody could read */ \
  X(kOutcomeOff, "off")                /* the user switched slicing off (TESSERA_SLICE=0) */

enum LaunchOutcome : uint32_t {
#define TS_ROW(id, name) id,
  TS_LAUNCH_OUTCOMES(TS_ROW)
#undef TS_ROW
};
#define TS_ROW(id, name) +1
inline constexpr uint32_t kLaunchOutcomes = 0 TS_LAUNCH_OUTCOMES(TS_ROW);
#undef TS_ROW

struct OutcomeCounts {
  uint64_t launches;
  uint64_t gpu_ns;  // that they were expected to take
};
inline constexpr uint32_t kOutcomeSlots = 16;
struct alignas(64) CuttingLines {
  OutcomeCounts outcomes[kOutcomeSlots];  // by LaunchOutcome; zero behind the last
};
static_assert(sizeof(CuttingLines) == 256 && kLaunchOutcomes <= kOutcomeSlots);

}  // namespace tessera::ipc::abi

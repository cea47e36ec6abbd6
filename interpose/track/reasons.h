// Why kernels of this process are not cut and graphs go whole, counted: the refusals of kernels/slice
// (refusals.def, globals.h), the obstacles of graph_plan.h and those below, which only show at run time. A reason is a number, never a text that somebody owns.
// Counting is lock-free; any thread.
#pragma once

#include <cstdint>

#include "interpose/track/graph_plan.h"
#include "ipc/abi/cutting.h"
#include "kernels/slice/globals.h"
#include "kernels/slice/slice.h"

namespace tessera::track {

// Rows: reason, name in the log, what it means.
#define TS_RUN_TIME_REASONS(X)                                                   \
  X(kNotParsed, "not_parsed", "the image's PTX, or the kernel in it")            \
  X(kBitStability, "bit_stability", "recompilation may change bits (D13)")       \
  X(kNoSource, "no_source", "machine code without the PTX it came from")         \
  X(kVariableAddress, "variable_address", "the driver does not find a variable") \
  X(kSiblingFailed, "sibling_failed", "the driver, or the copy is not the same") \
  X(kSiblingLimit, "sibling_limit", "too many, or too much text")                \
  X(kAttributes, "attributes", "the variant cannot have the original's")         \
  X(kGridRows, "grid_rows", "a look-back launched with y or z above 1")          \
  X(kOneQueue, "one_queue", "a look-back, CUDA_DEVICE_MAX_CONNECTIONS=1")        \
  X(kWatchdog, "watchdog", "a slice did not end: it waits for others")

enum class RunTimeReason : uint8_t {
#define TS_ROW(id, name, text) id,
  TS_RUN_TIME_REASONS(TS_ROW)
#undef TS_ROW
};
#define TS_ROW(id, name, text) +1
inline constexpr uint8_t kRunTimeReasonCount = 0 TS_RUN_TIME_REASONS(TS_ROW);
#undef TS_ROW

class Reason {  // a value of one of the four enums
 public:
  constexpr Reason(slice::Refusal refusal) : index_(uint8_t(refusal)) {}
  constexpr Reason(slice::GlobalsObstacle obstacle) : index_(slice::kRefusalCount + uint8_t(obstacle)) {}
  constexpr Reason(RunTimeReason reason)
      : index_(slice::kRefusalCount + slice::kObstacleCount + uint8_t(reason)) {}
  constexpr Reason(GraphObstacle obstacle)
      : index_(slice::kRefusalCount + slice::kObstacleCount + kRunTimeReasonCount + uint8_t(obstacle)) {}

  constexpr uint32_t index() const { return index_; }
  static constexpr uint32_t kCount =
      slice::kRefusalCount + slice::kObstacleCount + kRunTimeReasonCount + kGraphObstacleCount;

 private:
  uint32_t index_;
};

const char* name_of(Reason reason) noexcept;
void count_refusal(Reason reason) noexcept;
uint64_t refusals(Reason reason) noexcept;
// Returns the outcome of a kernel's launches for this reason.
ipc::abi::LaunchOutcome outcome_of(Reason reason) noexcept;

}  // namespace tessera::track

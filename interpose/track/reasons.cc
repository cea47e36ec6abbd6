#include "interpose/track/reasons.h"

#include <atomic>
#include <iterator>

#include "interpose/track/track.h"
#include "ipc/channel/atomic.h"

namespace tessera::track {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;  // single counters
constinit std::atomic<uint64_t> g_counts[Reason::kCount] = {};

using ipc::abi::SignalLine;
using Counter = uint32_t SignalLine::*;

constexpr Counter counter_of(slice::Refusal refusal) {
  using enum slice::Refusal;
  switch (refusal) {
    case kGridSync:
    case kInterBlockWait:
    case kLowerBlockWait:
    case kLockLoop:
    case kCluster:
    case kCollective:
      return &SignalLine::refused_waiting;
    case kOrderDependent:
    case kPlacement:
      return &SignalLine::refused_order;
    case kCoordinateForm:
    case kIndirectCall:
    case kUnknownOpcode:
    case kTooComplex:
      return &SignalLine::refused_unclear;
    case kNone:
    case kParamLimit:
      break;
  }
  return &SignalLine::refused_other;
}

constexpr Counter counter_of(RunTimeReason reason) {
  using enum RunTimeReason;
  switch (reason) {
    case kGridRows:
    case kOneQueue:
    case kWatchdog:
      return &SignalLine::refused_waiting;
    case kNotParsed:
      return &SignalLine::refused_unclear;
    case kBitStability:
      return &SignalLine::refused_bits;
    case kNoSource:
    case kVariableAddress:
      return &SignalLine::refused_state;
    case kSiblingFailed:
    case kSiblingLimit:
    case kAttributes:
      break;
  }
  return &SignalLine::refused_other;
}

constexpr Counter counter_of(slice::GlobalsObstacle) {
  return &SignalLine::refused_state;
}

constexpr Counter counter_of(GraphObstacle) {
  return &SignalLine::refused_other;
}

template <class Enum>
uint64_t counted(Counter counter, uint8_t n_values) {
  uint64_t n = 0;
  for (uint8_t i = 0; i < n_values; i++)
    if (counter_of(Enum(i)) == counter) n += refusals(Enum(i));
  return n;
}

}  // namespace

void publish_refusals(SignalLine& signals) noexcept {
  for (const Counter counter :
       {&SignalLine::refused_waiting, &SignalLine::refused_order, &SignalLine::refused_unclear,
        &SignalLine::refused_bits, &SignalLine::refused_state, &SignalLine::refused_other}) {
    const uint64_t n = counted<slice::Refusal>(counter, slice::kRefusalCount) +
                       counted<slice::GlobalsObstacle>(counter, slice::kObstacleCount) +
                       counted<RunTimeReason>(counter, kRunTimeReasonCount) +
                       counted<GraphObstacle>(counter, kGraphObstacleCount);
    if (ipc::load(signals.*counter, kRelaxed) != n) ipc::store(signals.*counter, uint32_t(n), kRelaxed);
  }
}

const char* name_of(Reason reason) noexcept {
  constexpr const char* kNames[] = {
#define TS_REFUSAL(id, name, text) name,
#include "kernels/slice/refusals.def"
#define TS_ROW(id, name, text) name,
      TS_GLOBALS_OBSTACLES(TS_ROW) TS_RUN_TIME_REASONS(TS_ROW) TS_GRAPH_OBSTACLES(TS_ROW)
#undef TS_ROW
  };
  static_assert(std::size(kNames) == Reason::kCount);
  return kNames[reason.index()];
}

void count_refusal(Reason reason) noexcept {
  g_counts[reason.index()].fetch_add(1, kRelaxed);
}

uint64_t refusals(Reason reason) noexcept {
  return g_counts[reason.index()].load(kRelaxed);
}

}  // namespace tessera::track

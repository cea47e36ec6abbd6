#include "interpose/track/reasons.h"

#include <atomic>
#include <iterator>

#include "interpose/track/track.h"
#include "ipc/channel/atomic.h"

namespace tessera::track {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;  // single counters
constinit std::atomic<uint64_t> g_counts[Reason::kCount] = {};

using ipc::abi::LaunchOutcome;
using ipc::abi::SignalLine;

constexpr LaunchOutcome outcome_of(slice::Refusal refusal) {
  using enum slice::Refusal;
  switch (refusal) {
    case kGridSync:
    case kInterBlockWait:
    case kLowerBlockWait:
    case kLockLoop:
    case kCluster:
    case kCollective:
      return ipc::abi::kOutcomeWaiting;
    case kOrderDependent:
    case kPlacement:
      return ipc::abi::kOutcomeOrder;
    case kCoordinateForm:
    case kIndirectCall:
    case kUnknownOpcode:
    case kTooComplex:
      return ipc::abi::kOutcomeUnclear;
    case kNone:
    case kParamLimit:
      break;
  }
  return ipc::abi::kOutcomeOther;
}

constexpr LaunchOutcome outcome_of(RunTimeReason reason) {
  using enum RunTimeReason;
  switch (reason) {
    case kGridRows:
    case kOneQueue:
    case kWatchdog:
      return ipc::abi::kOutcomeWaiting;
    case kNotParsed:
      return ipc::abi::kOutcomeUnclear;
    case kBitStability:
      return ipc::abi::kOutcomeBits;
    case kNoSource:
      return ipc::abi::kOutcomeNoPtx;
    case kVariableAddress:
      return ipc::abi::kOutcomeState;
    case kSiblingFailed:
    case kSiblingLimit:
    case kAttributes:
      break;
  }
  return ipc::abi::kOutcomeOther;
}

constexpr LaunchOutcome outcome_of(slice::GlobalsObstacle) {
  return ipc::abi::kOutcomeState;
}

constexpr LaunchOutcome outcome_of(GraphObstacle) {
  return ipc::abi::kOutcomeOther;
}

template <class Enum>
constexpr LaunchOutcome* append(LaunchOutcome* at, uint8_t n_values) {
  for (uint8_t i = 0; i < n_values; i++) *at++ = outcome_of(Enum(i));
  return at;
}

struct Outcomes {  // by Reason::index()
  LaunchOutcome of[Reason::kCount] = {};
};
constexpr Outcomes kOutcomes = [] {
  Outcomes outcomes;
  LaunchOutcome* at = append<slice::Refusal>(outcomes.of, slice::kRefusalCount);
  at = append<slice::GlobalsObstacle>(at, slice::kObstacleCount);
  at = append<RunTimeReason>(at, kRunTimeReasonCount);
  append<GraphObstacle>(at, kGraphObstacleCount);
  return outcomes;
}();

// Counters of kernels by the outcomes of their launches.
using Counter = uint32_t SignalLine::*;
constexpr Counter counter_of(LaunchOutcome outcome) {
  switch (outcome) {
    case ipc::abi::kOutcomeWaiting:
      return &SignalLine::refused_waiting;
    case ipc::abi::kOutcomeOrder:
      return &SignalLine::refused_order;
    case ipc::abi::kOutcomeUnclear:
      return &SignalLine::refused_unclear;
    case ipc::abi::kOutcomeBits:
      return &SignalLine::refused_bits;
    case ipc::abi::kOutcomeNoPtx:
    case ipc::abi::kOutcomeState:
      return &SignalLine::refused_state;
    case ipc::abi::kOutcomeSliced:
    case ipc::abi::kOutcomePossible:
    case ipc::abi::kOutcomeLibrary:
    case ipc::abi::kOutcomeWhole:
    case ipc::abi::kOutcomeOther:
    case ipc::abi::kOutcomeOff:
      break;
  }
  return &SignalLine::refused_other;
}

}  // namespace

LaunchOutcome outcome_of(Reason reason) noexcept {
  return kOutcomes.of[reason.index()];
}

void publish_refusals(SignalLine& signals) noexcept {
  for (const Counter counter :
       {&SignalLine::refused_waiting, &SignalLine::refused_order, &SignalLine::refused_unclear,
        &SignalLine::refused_bits, &SignalLine::refused_state, &SignalLine::refused_other}) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < Reason::kCount; i++)
      if (counter_of(kOutcomes.of[i]) == counter) n += g_counts[i].load(kRelaxed);
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

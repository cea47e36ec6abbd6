// Asserts the offsets that launch.S uses.
#include <cstddef>

#include "interpose/arch/x86_64/offsets.h"
#include "interpose/state/state.h"

namespace tessera {

using namespace state;
using driver_api::Flavour;

static_assert(offsetof(State, link) == TS_STATE_LINK && offsetof(State, role) == TS_STATE_ROLE &&
              offsetof(State, symmetric) == TS_STATE_SYMMETRIC && offsetof(State, epoch) == TS_STATE_EPOCH &&
              offsetof(DaemonLink, pulse) == TS_LINK_PULSE);
static_assert(uint32_t(Role::kForward) == 0 && uint32_t(Role::kProtected) == TS_ROLE_PROTECTED &&
              uint32_t(Role::kBestEffort) == 2);
static_assert(offsetof(Thread, slot) == TS_THREAD_SLOT && offsetof(Thread, count) == TS_THREAD_COUNT &&
              offsetof(Thread, key) == TS_THREAD_KEY && offsetof(Thread, shared) == TS_THREAD_SHARED &&
              offsetof(Thread, memo) == TS_THREAD_MEMO);
static_assert(
    offsetof(LaunchMemo, grid) == TS_MEMO_GRID && offsetof(LaunchMemo, block) == TS_MEMO_BLOCK &&
    offsetof(LaunchMemo, shared_bytes) == TS_MEMO_SHARED && offsetof(LaunchMemo, epoch) == TS_MEMO_EPOCH &&
    offsetof(LaunchMemo, stream) == TS_MEMO_STREAM && offsetof(LaunchMemo, function) == TS_MEMO_FUNCTION &&
    offsetof(LaunchMemo, family) == TS_MEMO_FAMILY && offsetof(LaunchMemo, expected_ns) == TS_MEMO_EXPECTED &&
    offsetof(LaunchMemo, blocks) == TS_MEMO_BLOCKS && offsetof(LaunchMemo, repeats) == TS_MEMO_REPEATS);
static_assert(offsetof(CUlaunchConfig, gridDimX) == TS_MEMO_GRID &&
              offsetof(CUlaunchConfig, blockDimX) == TS_MEMO_BLOCK &&
              offsetof(CUlaunchConfig, sharedMemBytes) == TS_MEMO_SHARED &&
              offsetof(CUlaunchConfig, hStream) == TS_MEMO_STREAM &&
              offsetof(CUlaunchConfig, hStream) == TS_CONFIG_STREAM &&
              offsetof(CUlaunchConfig, numAttrs) == TS_CONFIG_ATTRIBUTES);
static_assert(uint64_t(Flavour::kLegacy) == TS_FAMILY_LEGACY &&
              uint64_t(Flavour::kPerThread) == TS_FAMILY_PER_THREAD);
static_assert(offsetof(StreamCount, begun) == TS_COUNT_BEGUN &&
              offsetof(StreamCount, ended) == TS_COUNT_ENDED);
static_assert(offsetof(ThreadSlot, launches) == TS_SLOT_LAUNCHES &&
              offsetof(ThreadSlot, last_function) == TS_SLOT_LAST_FUNCTION &&
              offsetof(ThreadSlot, blocks) == TS_SLOT_BLOCKS);
constexpr size_t kCredit = offsetof(ThreadSlot, credit);
static_assert(kInGate == TS_IN_GATE && kOutOfCredit == TS_OUT_OF_CREDIT &&
              kCredit + offsetof(Credit, in_gate) == TS_SLOT_IN_GATE &&
              kCredit + offsetof(Credit, left_ns) == TS_SLOT_LEFT &&
              kCredit + offsetof(Credit, spent_ns) == TS_SLOT_SPENT &&
              kCredit + offsetof(Credit, lease_word) == TS_SLOT_LEASE_WORD &&
              kCredit + offsetof(Credit, word) == TS_SLOT_WORD &&
              kCredit + offsetof(Credit, peers) == TS_SLOT_PEERS && sizeof(Credit::Peer) == TS_PEER_BYTES &&
              offsetof(Credit::Peer, page) == 0 && offsetof(Credit::Peer, burst) == 8);
static_assert(offsetof(abi::PulsePage, busy) == TS_PULSE_BUSY &&
              offsetof(abi::PulsePage, burst) == TS_PULSE_BURST);
}  // namespace tessera

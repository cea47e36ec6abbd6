#include "interpose/lifecycle/checkpointer.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/futex.h"
#include "interpose/hooks/checkpoint.h"
#include "interpose/lifecycle/connection.h"
#include "interpose/lifecycle/device_room.h"
#include "ipc/channel/atomic.h"

namespace tessera::lifecycle {
namespace {

namespace abi = ipc::abi;
using driver_api::real;
constexpr uint64_t kLookForDaemonNs = 20'000'000;  // while it answers

bool same(const CUuuid& a, const CUuuid& b) {
  return !memcmp(&a, &b, sizeof a);
}

// All GPUs of the machine have to be named.
unsigned pairs_of_move(const CUuuid& from, const CUuuid& to, CUcheckpointGpuPair (&pairs)[kMostGpus]) {
  static MachineGpu gpus[kMostGpus];  // one return at a time
  const size_t n = gpus_of_machine(gpus);
  for (size_t i = 0; i < n; ++i) {
    const CUuuid& old = gpus[i].uuid;
    pairs[i] = {old, same(old, from) ? to : same(old, to) ? from : old};
  }
  return unsigned(n);
}

bool daemon_is_gone(const ipc::Attachment& daemon) {
  pollfd socket{daemon.socket.get(), POLLRDHUP, 0};
  return !ipc::descriptors_intact(daemon) || poll(&socket, 1, 0) != 0;
}

CUresult by_parker(abi::ParkStep step, unsigned within_ms = 0, const CUuuid& from = {}, const CUuuid& to = {},
                   CUprocessState* state = nullptr) {
  const ipc::Attachment* daemon = attached();
  if (!daemon) return kNotAnswered;
  abi::ParkLines& lines = daemon->shared().park;
  const uint32_t number = ipc::load(lines.call.number, std::memory_order_relaxed) + 1;
  ipc::store(lines.call.step, uint32_t(step), std::memory_order_relaxed);
  ipc::store(lines.call.within_ms, within_ms, std::memory_order_relaxed);
  memcpy(lines.call.from, &from, sizeof from);
  memcpy(lines.call.to, &to, sizeof to);
  ipc::store(lines.call.number, number, std::memory_order_release);  // pairs with the daemon's acquire
  notify_daemon();
  for (;;) {
    const uint32_t answered = ipc::load(lines.order.answered, std::memory_order_acquire);  // its release
    if (answered == number) break;
    if (daemon_is_gone(*daemon)) return kNotAnswered;
    base::futex_wait(&lines.order.answered, answered, kLookForDaemonNs);
  }
  if (state) *state = CUprocessState(ipc::load(lines.order.driver_state, std::memory_order_relaxed));
  const int32_t result = ipc::load(lines.order.result, std::memory_order_relaxed);
  return result == abi::kStepNotAnswered ? kNotAnswered : CUresult(result);
}

}  // namespace

bool parker_can_be_asked() {
  const ipc::Attachment* daemon = attached();
  return daemon && !daemon_is_gone(*daemon);
}

const Checkpointer kOwnThread = {
    [](unsigned within_ms) {
      CUcheckpointLockArgs args = {};
      args.timeoutMs = within_ms;
      return hooks::lock_process(getpid(), &args);
    },
    [] { return real().cuCheckpointProcessCheckpoint(getpid(), nullptr); },
    [](const CUuuid& from, const CUuuid& to) {
      if (same(from, to)) return real().cuCheckpointProcessRestore(getpid(), nullptr);
      CUcheckpointGpuPair pairs[kMostGpus];
      CUcheckpointRestoreArgs args = {};
      args.gpuPairs = pairs;
      args.gpuPairsCount = pairs_of_move(from, to, pairs);
      return args.gpuPairsCount == 0 ? CUDA_ERROR_NOT_SUPPORTED
                                     : real().cuCheckpointProcessRestore(getpid(), &args);
    },
    [] { return hooks::unlock_process(getpid(), nullptr); },
    [](CUprocessState* out) { return real().cuCheckpointProcessGetState(getpid(), out) == CUDA_SUCCESS; },
};

const Checkpointer kParker = {
    [](unsigned within_ms) {
      return hooks::lock_by([](unsigned ms) { return by_parker(abi::kStepLock, ms); }, within_ms);
    },
    [] { return by_parker(abi::kStepSave); },
    [](const CUuuid& from, const CUuuid& to) { return by_parker(abi::kStepRestore, 0, from, to); },
    [] {
      const CUresult result = by_parker(abi::kStepUnlock);
      if (result == CUDA_SUCCESS) hooks::unlocked();
      return result;
    },
    [](CUprocessState* out) { return by_parker(abi::kStepState, 0, {}, {}, out) == CUDA_SUCCESS; },
};

}  // namespace tessera::lifecycle

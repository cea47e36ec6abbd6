// Checkpoints of a process by itself or by another one (cuCheckpoint*). These calls are none that a checkpoint waits for.
#include <algorithm>

#include "softgpu/driver/checkpoint_service.h"
#include "softgpu/driver/state.h"

using namespace tessera::softgpu::driver;  // entry points are global by nature

namespace {

using checkpoint::Step;

#define TS_CHECKPOINT_CALL(symbol)     \
  const UncancelledThread uncancelled; \
  if (CUresult entered = enter(#symbol)) return entered

template <class T, size_t N>
bool zero(const T (&reserved)[N]) {
  return std::all_of(std::begin(reserved), std::end(reserved), [](T value) { return value == 0; });
}

}  // namespace

CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int* tid) {
  TS_CHECKPOINT_CALL(cuCheckpointProcessGetRestoreThreadId);
  if (!tid) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult unknown = checkpoint::carry_out(pid, {})) return unknown;
  *tid = pid;  // none has to run for it but the driver's own
  return CUDA_SUCCESS;
}

CUresult cuCheckpointProcessGetState(int pid, CUprocessState* state) {
  TS_CHECKPOINT_CALL(cuCheckpointProcessGetState);
  if (!state) return CUDA_ERROR_INVALID_VALUE;
  return checkpoint::carry_out(pid, {}, state);
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs* args) {
  TS_CHECKPOINT_CALL(cuCheckpointProcessLock);
  if (args && (args->reserved0 || !zero(args->reserved1))) return CUDA_ERROR_INVALID_VALUE;
  return checkpoint::carry_out(pid, {.step = Step::kLock, .limit_ms = args ? args->timeoutMs : 0});
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs* args) {
  TS_CHECKPOINT_CALL(cuCheckpointProcessCheckpoint);
  if (args && !zero(args->reserved)) return CUDA_ERROR_INVALID_VALUE;
  return checkpoint::carry_out(pid, {.step = Step::kSave});
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs* args) {
  TS_CHECKPOINT_CALL(cuCheckpointProcessRestore);
  if (args && (!zero(args->reserved) || args->reserved1)) return CUDA_ERROR_INVALID_VALUE;
  checkpoint::Request request{.step = Step::kRestore};
  if (args && args->gpuPairsCount) {
    if (!args->gpuPairs || args->gpuPairsCount > unsigned(kMaxDevices)) return CUDA_ERROR_INVALID_VALUE;
    request.n_pairs = args->gpuPairsCount;
    std::copy_n(args->gpuPairs, request.n_pairs, request.pairs);
  }
  return checkpoint::carry_out(pid, request);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs* args) {
  TS_CHECKPOINT_CALL(cuCheckpointProcessUnlock);
  if (args && !zero(args->reserved)) return CUDA_ERROR_INVALID_VALUE;
  return checkpoint::carry_out(pid, {.step = Step::kUnlock});
}

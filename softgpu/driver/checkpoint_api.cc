// Checkpoints of this process by itself (cuCheckpoint*). These calls are none that a checkpoint waits for.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "softgpu/driver/checkpoint.h"
#include "softgpu/driver/state.h"

using namespace tessera::softgpu::driver;  // entry points are global by nature

namespace {

// `TS_OWN(cuCheckpoint...)`: may this process be asked about that one?
#define TS_OWN(symbol, pid)                              \
  const UncancelledThread uncancelled;                   \
  if (CUresult entered = enter(#symbol)) return entered; \
  if (CUresult foreign = is_own(pid)) return foreign

CUresult is_own(int pid) {
  if (pid == getpid()) return CUDA_SUCCESS;
  const bool lives = pid > 0 && (kill(pid, 0) == 0 || errno == EPERM);
  return lives ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

template <class T, size_t N>
bool zero(const T (&reserved)[N]) {
  return std::all_of(std::begin(reserved), std::end(reserved), [](T value) { return value == 0; });
}

}  // namespace

CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int* tid) {
  TS_OWN(cuCheckpointProcessGetRestoreThreadId, pid);
  if (!tid) return CUDA_ERROR_INVALID_VALUE;
  *tid = getpid();  // the thread that calls restores: none has to run for it
  return CUDA_SUCCESS;
}

CUresult cuCheckpointProcessGetState(int pid, CUprocessState* state) {
  TS_OWN(cuCheckpointProcessGetState, pid);
  if (!state) return CUDA_ERROR_INVALID_VALUE;
  *state = checkpoint::state();
  return CUDA_SUCCESS;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs* args) {
  TS_OWN(cuCheckpointProcessLock, pid);
  if (args && (args->reserved0 || !zero(args->reserved1))) return CUDA_ERROR_INVALID_VALUE;
  return checkpoint::lock(std::chrono::milliseconds(args ? args->timeoutMs : 0));
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs* args) {
  TS_OWN(cuCheckpointProcessCheckpoint, pid);
  if (args && !zero(args->reserved)) return CUDA_ERROR_INVALID_VALUE;
  return checkpoint::save();
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs* args) {
  TS_OWN(cuCheckpointProcessRestore, pid);
  if (args && (!zero(args->reserved) || args->reserved1)) return CUDA_ERROR_INVALID_VALUE;
  if (!args || !args->gpuPairsCount) return checkpoint::restore({});
  if (!args->gpuPairs) return CUDA_ERROR_INVALID_VALUE;
  return checkpoint::restore({args->gpuPairs, args->gpuPairsCount});
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs* args) {
  TS_OWN(cuCheckpointProcessUnlock, pid);
  if (args && !zero(args->reserved)) return CUDA_ERROR_INVALID_VALUE;
  return checkpoint::unlock();
}

// Checkpoints of this process by another one, and of another one by this. A process that has the driver listens on an abstract
// socket named by its pid, as NVIDIA's driver has a thread for it. The same user and root may ask. A request that was
// received is carried out to its end, whatever becomes of who asked; one after the other.
#pragma once

#include "softgpu/driver/checkpoint.h"
#include "softgpu/driver/memory.h"

namespace tessera::softgpu::driver::checkpoint {

enum class Step : uint32_t { kState, kLock, kSave, kRestore, kUnlock };
struct Request {
  Step step = Step::kState;
  uint32_t limit_ms = 0;  // kLock; 0: none
  uint32_t n_pairs = 0;   // kRestore; more than kMaxDevices are no request
  CUcheckpointGpuPair pairs[kMaxDevices] = {};
};

void serve();                // starts the thread; at cuInit
void leave_to_the_parent();  // in the child of a fork: closes a file
// In that process, which may be this one. CUDA_ERROR_INVALID_VALUE: there is none; CUDA_ERROR_NOT_SUPPORTED: it has no driver of
// ours; CUDA_ERROR_NOT_PERMITTED: another user's; CUDA_ERROR_OPERATING_SYSTEM: it ended meanwhile.
CUresult carry_out(int pid, const Request& request, CUprocessState* state_afterwards = nullptr);

}  // namespace tessera::softgpu::driver::checkpoint

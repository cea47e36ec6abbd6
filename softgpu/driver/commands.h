// From a command (what a call asked for) to an engine operation: modelled size, and the body that does the
// work. Bodies run on engine threads, possibly ahead of modelled time; they look at Context::poisoned first
// and never take Context::mutex.
#pragma once

#include "softgpu/driver/objects.h"

namespace tessera::softgpu::driver {

timing::OpSpec make_op(const std::shared_ptr<Context>& context, Command command, const Stream& stream);
// Copies the box now, in the calling thread.
void perform_copy(const CopyCommand& copy);
// Kernel bodies that run at this moment; process exit waits for them.
int running_bodies();
// Same launch, about the same work per block: kernel, block, shared memory, magnitude of grid and of scalar
// parameters (not pointers: a loop length matters, where the buffer lies does not).
uint64_t cost_key(const KernelCommand& kernel);

}  // namespace tessera::softgpu::driver

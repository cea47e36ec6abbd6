// Scripted faults, so that error paths can be tested: TESSERA_SOFTGPU_FAULTS, a comma-separated list of
//   oom@N            the N-th allocation (any kind) answers CUDA_ERROR_OUT_OF_MEMORY
//   launch@N         the N-th kernel submitted fails with CUDA_ERROR_LAUNCH_FAILED (sticky)
//   hang@N           the N-th kernel submitted does not end before its context or process does
//   slow=F           every kernel, copy and fill is modelled F times as long (F >= 1)
//   SYMBOL@N=CODE    the N-th call of SYMBOL answers CODE, nothing is done (cuStreamSynchronize@3=999)
// N counts from 1; N = * means every one. Read once, at cuInit; a malformed list is reported on standard
// error and ignored. Called by softgpu/driver from any thread; costs one load when nothing is scripted.
#pragma once

#include <string>

namespace tessera::softgpu::faults {

// Parses the script; returns "" or what is wrong with it. Not thread-safe: once, before the others.
std::string load(const char* script);

bool armed();                     // is there any script?
int on_call(const char* symbol);  // code to answer, or 0
bool on_allocation();             // true: fail it
enum class KernelFault { kNone, kFail, kHang };
KernelFault on_kernel();  // once per kernel submitted; a graph submits each of its kernels at each launch
double slowness();        // factor on modelled work, >= 1

}  // namespace tessera::softgpu::faults

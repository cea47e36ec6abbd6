#include "interpose/gate/launch.h"

namespace tessera::gate {

using driver_api::Flavour;
using driver_api::StreamArg;

CUresult issue(const LaunchCall& c) {
  const auto& real = driver_api::real();
  const bool per_thread = c.stream.flavour == Flavour::kPerThread;
  if (c.config) {
    CUlaunchConfig config = *c.config;
    config.gridDimX = c.grid[0];
    config.gridDimY = c.grid[1];
    config.gridDimZ = c.grid[2];
    return per_thread ? real.cuLaunchKernelEx_ptsz(&config, c.function, c.params, c.extra)
                      : real.cuLaunchKernelEx(&config, c.function, c.params, c.extra);
  }
  return (per_thread ? real.cuLaunchKernel_ptsz : real.cuLaunchKernel)(
      c.function, c.grid[0], c.grid[1], c.grid[2], c.block[0], c.block[1], c.block[2], c.shared_bytes,
      c.stream.stream, c.params, c.extra);
}

bool capturing(StreamArg s) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult r = driver_api::real().cuStreamIsCapturing(driver_api::on(s), &status);
  return r != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace tessera::gate

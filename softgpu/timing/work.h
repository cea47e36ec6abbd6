// The words that clients, arbiter and model share: kinds of operations and the work of a block. Plain data.
#pragma once

#include <cstdint>

namespace tessera::softgpu::timing {

enum class OpKind : uint8_t {
  kKernel,
  kCopy,  // uses a copy engine for bytes / bandwidth (direction picks the engine); device-to-device uses DRAM
          // bandwidth
  kAction,  // body runs at its modelled time; takes no device time
  kJoin,    // no body, no time: completes with its dependencies (events, joins of many streams)
};
enum class CopyDirection : uint8_t { kHostToDevice, kDeviceToHost, kDeviceToDevice };

// Modelled work per block, before it is turned into time with the GPU description.
struct BlockWork {
  double warp_instructions = 0;
  double global_bytes = 0;
  double tensor_operations = 0;
  // Pipes that may be slower than the issue slots; fp32 never is, it is for traces and profiles.
  double fp64_operations = 0, fp32_operations = 0, fp16_operations = 0;
};

}  // namespace tessera::softgpu::timing

// How fast the device of the calling thread's context copies and computes, for what a copy, a fill or a library call
// (operation.h) is estimated at. Rates
// come from the description of the device's model (profiles/gpus), else from what the driver says of its
// memory. `rates()`, `transfer_ns()`: every copy of a best-effort client, any thread, no system call.
// `use_rates_of()`: slow path, whenever a context becomes current. Static storage. Knows no measured copy.
#pragma once

#include <cstdint>

#include "driver_api/real_table.h"
#include "driver_api/transfer.h"
#include "operations/roofline.h"

namespace tessera::gate {

struct Rates {  // bytes per microsecond, none 0
  uint64_t h2d, d2h, memory;
  uint64_t overhead_ns;     // per copy
  operations::Peaks peaks;  // 0: not described
};

// A pageable copy over PCIe and a slow card's memory: an unknown device is better overestimated.
inline constexpr Rates kCautiousRates{10'000, 10'000, 200'000, 2'000, {}};
inline constexpr uint64_t kLongestTransferNs = 60'000'000'000;  // what arguments that are garbage amount to

// Returns the rates of the device that this thread used last, else those of the process's first one.
const Rates& rates();
void use_rates_of(CUdevice device);

uint64_t transfer_ns(const driver_api::Transfer& transfer, const Rates& rates);

}  // namespace tessera::gate

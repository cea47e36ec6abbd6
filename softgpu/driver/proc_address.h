// The table of entry points that cuGetProcAddress answers from; made in entry_points.cc from
// driver_api/entries.def.
#pragma once

#include <span>

#include "softgpu/driver/cuda_api.h"

namespace tessera::softgpu::driver {

struct ProcRow {
  const char* base;  // name that is asked for
  int since;         // first version that gets this address
  bool per_thread;   // twin whose NULL stream is the per-thread one
  void* address;
};
std::span<const ProcRow> proc_rows();

}  // namespace tessera::softgpu::driver

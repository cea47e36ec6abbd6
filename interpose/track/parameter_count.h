// How many parameters a kernel has, where the driver says it (CUDA 13.2). Elsewhere one asks for each until the driver refuses,
// which is an error to it, and stands in its log. Any thread.
#pragma once

#include <cstddef>
#include <optional>

#include "driver_api/real_table.h"

namespace tessera::track {

template <class Kernel>
std::optional<size_t> parameter_count(CUresult (*ask)(Kernel, size_t*), Kernel kernel) {
  size_t count = 0;
  if (!ask || ask(kernel, &count) != CUDA_SUCCESS) return std::nullopt;
  return count;
}

}  // namespace tessera::track

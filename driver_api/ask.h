// Asks the driver about a GPU or itself, and has it make things for us. A driver that fails may have left anything in an
// out-parameter, so nothing reads one without a look at the result, and what is kept is not passed as one. Any thread, once the
// real table is filled.
#pragma once

#include "driver_api/real_table.h"

namespace tessera::driver_api {

// `call(&kept, arguments...)`, which leaves `kept` as it is where it fails.
template <class Kept, class... P, class... A>
bool made(Kept& kept, CUresult (*call)(Kept*, P...), const A&... arguments) {
  Kept answer{};
  if (call(&answer, arguments...) != CUDA_SUCCESS) return false;
  kept = answer;
  return true;
}

// 0 where the call fails, here and below.
inline int attribute_or_zero(CUdevice_attribute attribute, CUdevice device) {
  int value = 0;
  return real().cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS ? value : 0;
}

inline int version_or_zero() {
  int version = 0;
  return real().cuDriverGetVersion(&version) == CUDA_SUCCESS ? version : 0;
}

}  // namespace tessera::driver_api

// What the driver says of a GPU or of itself; 0 where the call fails. Nothing else reads an out-parameter of a call whose result
// it does not look at: a driver that fails may have left anything there. Any thread, once the real table is filled.
#pragma once

#include "driver_api/real_table.h"

namespace tessera::driver_api {

inline int attribute_or_zero(CUdevice_attribute attribute, CUdevice device) {
  int value = 0;
  return real().cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS ? value : 0;
}

inline int version_or_zero() {
  int version = 0;
  return real().cuDriverGetVersion(&version) == CUDA_SUCCESS ? version : 0;
}

}  // namespace tessera::driver_api

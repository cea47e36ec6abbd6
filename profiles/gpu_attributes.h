// Table of device attributes: CU_DEVICE_ATTRIBUTE_ name in lower case, its number in cuda.h 13.0, and its
// value derived from a description or the one all described GPUs share. Private to profiles/.
#pragma once

#include <string>

#include "profiles/gpu_description.h"

namespace tessera::profiles {

int attribute_number(const std::string& lower_case_name);  // -1 if there is none
bool attribute_default(const GpuDescription& gpu, int number, int* value);

}  // namespace tessera::profiles

// CUPTI activity records (CUDA 13) in our terms. Pure: reads what the record points at, keeps nothing.
#pragma once

#include <cupti.h>

#include "profiles/collector/activity.h"

namespace tessera::profiles {

// Kinds we do not know come out as kUnknown. The image hash is the caller's to add: CUPTI does not say which
// image a kernel is of.
Activity decode(const CUpti_Activity& record);

// All records of a completed buffer. `next` is cuptiActivityGetNextRecord, or what stands for it in tests.
using NextRecord = CUptiResult (*)(uint8_t* buffer, size_t valid_bytes, CUpti_Activity** record);
template <class F>
size_t for_each_activity(NextRecord next, uint8_t* buffer, size_t valid_bytes, F&& use) {
  size_t n = 0;
  for (CUpti_Activity* record = nullptr; next(buffer, valid_bytes, &record) == CUPTI_SUCCESS; ++n)
    use(decode(*record));
  return n;
}

}  // namespace tessera::profiles

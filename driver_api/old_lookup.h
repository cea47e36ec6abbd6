// cuGetProcAddress for drivers that lack one of its forms. Without us a runtime does not find that form by
// dlsym and does without; through our export it does find it, so something must answer as a later driver
// would. open_driver() puts these into the slots that the driver leaves empty. Any thread, once real() is
// filled; they read it, allocate nothing and keep nothing.
#pragma once

#include "driver_api/cuda.h"

namespace tessera::driver_api {

// First form, for a driver older than 11.3: among the entry points that the driver exports, by the table.
CUresult old_lookup(const char* name, void** function, int version, cuuint64_t flags);

// Second form, for a driver older than 12.0: the first one answers, and the status comes from the table.
CUresult old_lookup_v2(const char* name, void** function, int version, cuuint64_t flags,
                       CUdriverProcAddressQueryResult* status);

}  // namespace tessera::driver_api

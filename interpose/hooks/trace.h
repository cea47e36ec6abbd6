// Tracing on and off: the driver's entry points for work are exchanged for ones that say when they were called and
// call the driver. Nothing is asked while nobody traces. Helper thread.
#pragma once

namespace tessera::hooks {

// Calls under way end as they began. The address index of cuGetProcAddress was made before and stays.
void trace_driver_calls(bool on);

}  // namespace tessera::hooks

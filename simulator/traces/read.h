// A recording of any format that we read, by what the file begins with. Opens files; any thread.
#pragma once

#include "simulator/traces/recording.h"

namespace tessera::simulator::traces {

// Errors name the file, the place in it, and what is expected there.
base::Result<Recording> read_recording(const std::string& path);

}  // namespace tessera::simulator::traces

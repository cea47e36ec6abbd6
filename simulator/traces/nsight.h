// The SQLite database that Nsight Systems exports (`nsys export --type sqlite`), of 2021 or later. Reads any bytes:
// tests/fuzz/nsight_fuzz.cc.
#pragma once

#include <istream>

#include "simulator/traces/recording.h"

namespace tessera::simulator::traces {

// The bytes are copied to a temporary file (TMPDIR), which needs as much room as they have. Errors name the table.
base::Result<Recording> read_nsight(std::istream& bytes, const std::string& name);

}  // namespace tessera::simulator::traces

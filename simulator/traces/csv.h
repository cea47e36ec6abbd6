// The CSV of published kernel traces: lines `# key: value`, a line of column names, a row for each event; times in
// microseconds with fractions (docs/traces.md). Reads any bytes: tests/fuzz/csv_trace_fuzz.cc.
#pragma once

#include <istream>

#include "simulator/traces/recording.h"

namespace tessera::simulator::traces {

// Errors name the line and the column. `name`: of the file, for messages.
base::Result<Recording> read_csv(std::istream& text, const std::string& name);

}  // namespace tessera::simulator::traces

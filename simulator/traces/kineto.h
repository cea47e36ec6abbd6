// PyTorch's profiler (Kineto): JSON in Chrome's Trace Event Format, of every version since 2021. Its quirks are listed in
// docs/traces.md. The text is read once, event by event; kept are operations of the GPU, calls that launch or wait, and
// ranges. Reads any bytes: tests/fuzz/kineto_fuzz.cc.
#pragma once

#include <istream>

#include "simulator/traces/recording.h"

namespace tessera::simulator::traces {

// Errors name the byte. A text that ends early is read as far as it goes, and a remark says so. `name`: of the file.
base::Result<Recording> read_kineto(std::istream& text, const std::string& name);

}  // namespace tessera::simulator::traces

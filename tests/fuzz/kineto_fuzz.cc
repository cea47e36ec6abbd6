// Any bytes as a trace of PyTorch's profiler: read or refused.
#include <cstdint>
#include <sstream>

#include "simulator/traces/kineto.h"
#include "tests/fuzz/recording_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::istringstream text(std::string(reinterpret_cast<const char*>(data), size));
  tessera::fuzz::check_recording(tessera::simulator::traces::read_kineto(text, "fuzzed"));
  return 0;
}

// Any bytes as a database of Nsight Systems: read or refused.
#include <cstdint>
#include <sstream>

#include "simulator/traces/nsight.h"
#include "tests/fuzz/recording_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::istringstream bytes(std::string(reinterpret_cast<const char*>(data), size));
  tessera::fuzz::check_recording(tessera::simulator::traces::read_nsight(bytes, "fuzzed"));
  return 0;
}

// Any bytes as an execution trace of Chakra: read or refused. What was read says the same when it is written and read
// again, and makes a workload that a simulation could run, or is refused by name.
#include <cstdint>

#include "simulator/chakra_workload.h"
#include "tests/fuzz/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera::simulator;
  const auto trace = chakra::decode({reinterpret_cast<const char*>(data), size});
  if (!trace.ok()) {
    CHECK(!trace.error().text.empty());
    return 0;
  }
  const std::string written = chakra::encode(*trace);
  const auto again = chakra::decode(written);
  CHECK(again.ok() && again->nodes.size() == trace->nodes.size() && chakra::encode(*again) == written);
  const auto workload = workload_of(*trace, "fuzzed", 4);
  if (!workload.ok()) {
    CHECK(!workload.error().text.empty());
    return 0;
  }
  CHECK(!workload->steps.empty() && workload->cv >= 0);
  size_t launches = 0;
  for (const Step& step : workload->steps)
    for (const Segment& segment : step.segments) {
      CHECK(segment.count > 0 && segment.cv >= 0 && segment.kernel.n_blocks > 0 &&
            segment.kernel.block_ns > 0);
      launches += segment.count;
    }
  CHECK(launches <= trace->nodes.size());
  return 0;
}

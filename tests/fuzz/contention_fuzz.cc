// Any bytes as an answer to H16: tables within their bounds, or a message that names the file and tables as before.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "simulator/contention_file.h"
#include "tests/fuzz/check.h"

namespace {

using namespace tessera::simulator;

void within(const ContentionTable& table, double least) {
  for (const auto& row : table)
    for (const double value : row) CHECK(value >= least && value <= kMostContention);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const GpuSpec before;
  GpuSpec gpu = before;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto status = read_contention_answer(text, "fuzz-input", &gpu);
  within(gpu.contention, 0);
  within(gpu.contention_disjoint, -1);  // -1: not given
  if (status.ok()) return 0;
  CHECK(status.error().text.find("fuzz-input: ") == 0);
  CHECK(gpu.contention == before.contention && gpu.contention_disjoint == before.contention_disjoint);
  return 0;
}

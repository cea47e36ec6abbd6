// Any bytes as a profile file or a GPU description: read or refused with the path named; what was read can be
// written and read again, merges with itself, and is classified.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "profiles/kernel_profile.h"

namespace {

using namespace tessera::profiles;

constexpr char kPath[] = "fuzz-input";

void check(bool fine) {
  if (!fine) abort();
}

void profile(const std::string& text, const GpuDescription& gpu) {
  auto read = parse_profile(text, kPath);
  if (!read.ok()) return check(read.error().text.find(kPath) == 0);
  merge(*read, *read);
  GpuDescription same_name = gpu;
  if (!read->kernels.empty()) same_name.name = read->kernels.begin()->first.gpu;
  classify_all(*read, same_name);
  Profile alone = *read;
  note_slowdowns(alone, *read, Neighbour::kMemory);
  note_slowdowns(alone, *read, Neighbour::kCompute);
  classify_uncounted(alone);
  check(parse_profile(format_profile(alone), kPath).ok());
  const std::string written = format_profile(*read);
  auto again = parse_profile(written, kPath);
  check(again.ok());
  check(format_profile(*again) == written);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  auto gpu = parse_gpu_description(text, kPath);
  if (!gpu.ok()) check(gpu.error().text.find(kPath) == 0);
  GpuDescription plain;
  plain.sm.count = 4;
  plain.sm.clock_hz = 1e9;
  plain.memory.bytes_per_s = 1e9;
  plain.peak.fp32 = 1e9;
  profile(text, gpu.ok() ? *gpu : plain);
  return 0;
}

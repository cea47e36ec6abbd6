// Any bytes as a file in which library calls are counted, and as the first slots of one: read or refused with the path
// named; what was read can be written into a profile and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "operations/table.h"
#include "profiles/kernel_profile.h"

namespace {

using namespace tessera;
constexpr char kPath[] = "fuzz-input";

void check(bool fine) {
  if (!fine) abort();
}

void table(const std::string& bytes) {
  profiles::GpuDescription gpu;
  gpu.memory.bytes_per_s = 1e9;
  gpu.peak.fp32 = 1e9;
  auto read = profiles::parse_operation_table(bytes, kPath, &gpu);
  if (!read.ok()) return check(read.error().text.find(kPath) == 0);
  profiles::Profile profile;
  profile.operations = read->operations;
  profiles::merge(profile, profile);
  const std::string written = profiles::format_profile(profile);
  auto again = profiles::parse_profile(written, kPath);
  check(again.ok());
  check(again->operations.size() == profile.operations.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  table(text);
  operations::TableHeader header{};
  memcpy(header.magic, operations::kTableMagic, sizeof header.magic);
  header.version = operations::kTableVersion;
  header.slots = operations::kTableSlots;
  std::string whole(reinterpret_cast<const char*>(&header), sizeof header);
  whole += text;
  whole.resize(operations::kTableBytes);
  table(whole);
  return 0;
}

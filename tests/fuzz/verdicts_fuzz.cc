// Any bytes as the file in which splitting remembers what it found: no record is believed whose check does not hold, and one
// that was written is found behind anything.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "interpose/operations/split_memory.h"

namespace {

using namespace tessera::library;

std::vector<VerdictRecord> g_found;
void found(uint64_t key, Equality verdict) {
  g_found.push_back(make_record(key, verdict));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  g_found.clear();
  parse_records({data, size}, found);
  const std::vector<VerdictRecord> once = g_found;
  // Each that was believed stands there byte by byte.
  const uint8_t* at = data;
  for (const VerdictRecord& record : once) {
    at = static_cast<const uint8_t*>(memmem(at, size_t(data + size - at), &record, sizeof record));
    if (!at) abort();
    at += sizeof record;
  }
  // A good record behind these bytes is found, too.
  std::vector<uint8_t> more(data, data + size);
  const VerdictRecord good = make_record(0x1234567812345678, Equality::kUnequal);
  more.resize(size + sizeof good);
  memcpy(more.data() + size, &good, sizeof good);
  g_found.clear();
  parse_records(more, found);
  if (g_found.empty() || memcmp(&g_found.back(), &good, sizeof good) != 0) abort();
  return 0;
}

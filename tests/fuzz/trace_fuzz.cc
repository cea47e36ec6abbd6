// Any bytes as a file of a trace, and as the memory of one: read or refused; what was read is shown and explained
// without end or growth, and read again it says the same.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "cli/trace/explain.h"
#include "ipc/channel/trace_ring.h"
#include "tests/fuzz/check.h"

namespace {

using namespace tessera;
namespace abi = ipc::abi;

void show(const cli::Trace& trace) {
  const std::string text = cli::to_text(trace);
  CHECK(size_t(std::count(text.begin(), text.end(), '\n')) == trace.items.size() + (trace.lost ? 1 : 0));
  for (const cli::BurstParts& burst : cli::slowest_bursts(trace, 5)) CHECK(burst.end_ns >= burst.start_ns);
  CHECK(!cli::explanation(cli::slowest_bursts(trace, 5), trace).empty());
  const auto again = cli::from_chrome(cli::to_chrome(trace));
  CHECK(again.ok() && again->items.size() == trace.items.size());
}

void as_file(const uint8_t* data, size_t size) {
  const auto json = nlohmann::json::parse(data, data + size, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return;
  if (const auto trace = cli::from_chrome(json)) show(*trace);
}

// The head, then slots from 0 on; `ready` is as it would be, unless the event says otherwise.
void as_memory(const uint8_t* data, size_t size) {
  static void* memory = std::aligned_alloc(4096, abi::kTraceBytes);
  auto* ring = static_cast<abi::TraceHeader*>(memory);
  std::memset(memory, 0, abi::kTraceBytes);
  if (size < 8) return;
  std::memcpy(&ring->head, data, 8);
  data += 8, size -= 8;
  for (uint64_t n = 0; size >= sizeof(abi::TraceEvent) && n < 64; ++n, data += 64, size -= 64) {
    abi::TraceEvent* slot = ipc::trace_slot(ring, n);
    std::memcpy(slot, data, sizeof *slot);
    if (slot->ready % 4 != 3) slot->ready = n + 1;
  }
  ipc::TraceReader reader(ring);
  reader.from_what_is_kept();
  cli::Trace trace;
  trace.clients[1] = {};
  abi::TraceEvent event;
  for (uint32_t n = 0; n < 2 * abi::kTraceSlots && reader.read(&event, true); ++n)
    cli::add_event(trace, 1, event);
  cli::sort_by_start(trace);
  show(trace);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  as_file(data, size);
  as_memory(data, size);
  return 0;
}

#include "interpose/gate/operation_counts.h"

#include <iterator>

#include "interpose/gate/trace.h"
#include "ipc/channel/atomic.h"

namespace tessera::gate {
namespace {

using operations::Note;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint64_t kNotCounted = UINT64_MAX;  // Note::launches_before of a thread without a slot of its own

void add(uint64_t& counter, uint64_t n) {
  // relaxed: counters stand for themselves
  if (n) std::atomic_ref(counter).fetch_add(n, kRelaxed);
}

void add_wide(uint64_t (&counter)[2], uint64_t n) {
  const uint64_t before = std::atomic_ref(counter[0]).fetch_add(n, kRelaxed);
  if (before + n < before) add(counter[1], 1);
}

void fill(abi::OperationCounts& counts, const Note& note) {
  counts.type = note.type;
  uint32_t i = 0;
  for (; i + 1 < abi::kOperationNameBytes && note.name[i]; i++) counts.name[i] = note.name[i];
  counts.name[i] = 0;
  ipc::store(counts.ready, 1u, std::memory_order_release);  // pairs with the daemon's load
}

// The slot of a function and type, claimed if it is new; null if all are taken.
abi::OperationCounts* counts_of(const DaemonLink& link, const Note& note) {
  auto* counts = reinterpret_cast<abi::OperationCounts*>(link.operations + 1);
  const uint64_t key = (uint64_t(uint32_t(note.type)) << 32 | note.entry) + 1;
  uint64_t at = (key * 0x9e3779b97f4a7c15u >> 32) * link.operation_slots >> 32;  // below that: no division
  for (uint32_t i = 0; i < link.operation_slots; i++, at++) {
    if (at == link.operation_slots) at = 0;
    std::atomic_ref<uint64_t> owner(counts[at].key);
    uint64_t seen = owner.load(kRelaxed);  // keys never change once set
    if (seen == key) return &counts[at];
    if (seen != 0) continue;
    if (owner.compare_exchange_strong(seen, key, kRelaxed)) {
      fill(counts[at], note);
      return &counts[at];
    }
    if (seen == key) return &counts[at];
  }
  return nullptr;
}

// Launches that went out without being looked at: each as the thread's latest.
uint64_t repeats(const Note& note) {
  const Thread& t = t_thread;
  if (note.launches_before == kNotCounted || !t.slot || t.shared) return 0;
  return t.slot->launches.load(kRelaxed) - note.launches_before - note.gated;
}

void trace_operation(const Note& note, bool launched) {
  char text[abi::kTraceNameBytes * abi::kTraceNamePieces];
  const uint64_t id = note.describe(&note, nullptr, 0);
  if (!was_named(id)) {
    note.describe(&note, text, sizeof text);
    trace_text(id, text, sizeof text);
  }
  trace({.kind = abi::kTraceOperation,
         .start_ns = note.start_ns,
         .end_ns = clock_ns(),
         .stream = launched ? t_thread.account_key : 0,
         .a = id,
         .b = note.flop,
         .c = note.bytes});
}

}  // namespace

void begin_operation(Note& note) {
  const Thread& t = t_thread;
  note.launches_before = t.slot && !t.shared ? t.slot->launches.load(kRelaxed) : kNotCounted;
  note.start_ns = tracing() ? clock_ns() : 0;
}

void end_operation(Note& note, bool begins_call) {
  const uint64_t repeated = repeats(note);
  if (note.start_ns && begins_call) [[unlikely]]
    trace_operation(note, repeated + note.gated != 0);
  count_operation(note, {.calls = begins_call,
                         .flop = begins_call ? note.flop : 0,
                         .bytes = begins_call ? note.bytes : 0,
                         .gpu_ns = note.expected_ns + repeated * t_thread.memo.expected_ns,
                         .launches = note.gated + repeated});
}

void count_operation(const Note& note, const OperationSum& sum) {
  const DaemonLink& link = *g_state.link.load(std::memory_order_acquire);  // pairs with set_link
  if (!link.operations) return;
  abi::OperationCounts* counts = counts_of(link, note);
  if (!counts) {
    add(link.operations->further_calls, sum.calls);
    return;
  }
  add(counts->calls, sum.calls);
  add_wide(counts->flop, sum.flop);
  add_wide(counts->bytes, sum.bytes);
  add(counts->gpu_ns, sum.gpu_ns);
  add(counts->launches, sum.launches);
  if (note.resource_class && ipc::load(counts->resource_class, kRelaxed) != note.resource_class)
    ipc::store(counts->resource_class, note.resource_class, kRelaxed);
}

void count_operations(uint32_t word, uint64_t n) {
  abi::OperationTotals* totals = g_state.link.load(std::memory_order_acquire)->operations;
  if (totals && word < sizeof *totals / sizeof(uint64_t)) add(reinterpret_cast<uint64_t*>(totals)[word], n);
}

void count_beside_burst(uint32_t resource_class) {
  abi::OperationTotals* totals = g_state.link.load(std::memory_order_acquire)->operations;
  if (totals && resource_class < std::size(totals->beside_bursts))
    add(totals->beside_bursts[resource_class], 1);
}

}  // namespace tessera::gate

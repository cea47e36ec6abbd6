#include "interpose/gate/operation_counts.h"

#include <iterator>

#include "base/claimed_key.h"
#include "base/machine.h"
#include "interpose/gate/trace.h"
#include "ipc/channel/atomic.h"

namespace tessera::gate {
namespace {

using namespace state;
using operations::Note;
constexpr auto kRelaxed = std::memory_order_relaxed;

void add_locked(uint64_t& counter, uint64_t n) {
  // relaxed: counters stand for themselves
  if (n) std::atomic_ref(counter).fetch_add(n, kRelaxed);
}

void fill(abi::OperationCounts& counts, const Note& note) {
  counts.type = note.type;
  uint32_t i = 0;
  for (; i + 1 < abi::kOperationNameBytes && note.name[i]; i++) counts.name[i] = note.name[i];
  counts.name[i] = 0;
  ipc::store(counts.ready, 1u, std::memory_order_release);  // pairs with the daemon's load
}

// The counters of a function and element type. While the table has room each thread has slots of its own, so that nobody
// else adds to them: an addition that others may make at the same time takes ten times as long.
struct Counters {
  abi::OperationCounts* counts;  // null: all slots are taken
  bool is_own;

  void add(uint64_t& counter, uint64_t n) const {
    if (n == 0) return;
    if (is_own)
      base::add_own(counter, n);
    else
      add_locked(counter, n);
  }
  void add_wide(uint64_t (&counter)[2], uint64_t n) const {
    if (is_own)
      base::add_own(counter, n);
    else if (const uint64_t before = std::atomic_ref(counter[0]).fetch_add(n, kRelaxed); before + n < before)
      add_locked(counter[1], 1);
  }
};

class Table {
 public:
  explicit Table(const DaemonLink& link) : counts_(link.operation_counts), size_(link.operation_slots) {}

  // Slots are claimed for good: a thread that ends leaves them to the next owner of its ThreadSlot.
  Counters of(uint64_t kind, const Note& note) {
    const Thread& t = t_thread;
    const uint64_t owner = t.slot && !t.shared ? uint64_t(t.slot - g_slots) + 1 : 0;
    if (owner != 0) {
      if (abi::OperationCounts* own = find(key(kind, owner))) return {own, true};
    }
    if (abi::OperationCounts* shared = find(key(kind, 0))) return {shared, false};
    if (owner != 0 && taken() < size_ / 2) return {claim(key(kind, owner), note), true};
    return {claim(key(kind, 0), note), false};
  }

 private:
  static uint64_t key(uint64_t kind, uint64_t owner) { return (kind | owner << 16) + 1; }
  uint32_t taken() const {
    uint32_t n = 0;
    for (uint32_t i = 0; i < size_; i++) n += ipc::load(counts_[i].key, kRelaxed) != 0;
    return n;
  }
  base::ClaimedKey look_for(uint64_t key, bool claim) const {
    const auto key_at = [this](uint32_t i) { return std::atomic_ref(counts_[i].key); };
    return base::find_key(key_at, size_, size_, key, claim);
  }
  abi::OperationCounts* find(uint64_t key) const {
    const base::ClaimedKey found = look_for(key, false);
    return found.at < 0 ? nullptr : &counts_[found.at];
  }
  abi::OperationCounts* claim(uint64_t key, const Note& note) {
    const base::ClaimedKey found = look_for(key, true);
    if (found.at < 0) return nullptr;
    if (found.is_new) fill(counts_[found.at], note);
    return &counts_[found.at];
  }

  abi::OperationCounts* const counts_;
  const uint32_t size_;
};

// The slots that this thread added to last, by function: finding one takes as long as adding to it.
struct LastUsed {
  const abi::OperationTotals* table;  // of the region; null: none
  uint64_t kind;
  Counters counters;
};
constexpr uint32_t kLastUsed = 8;
constinit thread_local LastUsed t_last_used[kLastUsed] __attribute__((tls_model("initial-exec"))) = {};

[[gnu::noinline]] void look_up(const DaemonLink& link, uint64_t kind, const Note& note, LastUsed& last) {
  last = {link.operations, kind, Table(link).of(kind, note)};
}

[[gnu::always_inline]] inline Counters counters_of(const DaemonLink& link, const Note& note) {
  const uint64_t kind = uint64_t(uint32_t(note.type)) << 32 | (note.entry & 0xffffu);
  LastUsed& last = t_last_used[note.entry % kLastUsed];
  if (last.table != link.operations || last.kind != kind) [[unlikely]]
    look_up(link, kind, note, last);
  return {last.counters.counts, last.counters.is_own};
}

// Launches that went out without being looked at: each as the thread's latest.
uint64_t repeats(const Note& note) {
  const Thread& t = t_thread;
  if (note.launches_before == kNotCounted || !t.slot || t.shared) return 0;
  return t.slot->launches.load(kRelaxed) - note.launches_before - note.gated;
}

constexpr size_t kMostText = abi::kTraceNameBytes * abi::kTraceNamePieces;

void trace_event(uint64_t id, const TracedOperations& what) {
  trace({.kind = abi::kTraceOperation,
         .start_ns = what.start_ns,
         .end_ns = clock_ns(),
         .stream = what.stream,
         .a = id,
         .b = what.flop,
         .c = what.bytes});
}

[[gnu::noinline]] void trace_operation(const Note& note, bool launched) {
  char text[kMostText];
  const uint64_t id = note.describe(&note, nullptr, 0);
  if (!was_named(id)) {
    note.describe(&note, text, sizeof text);
    trace_text(id, text, sizeof text);
  }
  trace_event(id, {note.start_ns, launched ? t_thread.account_key : 0, note.flop, note.bytes});
}

// Inline: a sum of a single call stays in registers.
[[gnu::always_inline]] inline void count(const Note& note, const OperationSum& sum) {
  const DaemonLink& link = *g_state.link.load(std::memory_order_acquire);  // pairs with set_link
  if (!link.operations) return;
  const Counters counters = counters_of(link, note);
  abi::OperationCounts* const counts = counters.counts;
  if (!counts) {
    add_locked(link.operations->further_calls, sum.calls);
    return;
  }
  counters.add(counts->calls, sum.calls);
  counters.add_wide(counts->flop, sum.flop);
  counters.add_wide(counts->bytes, sum.bytes);
  counters.add(counts->gpu_ns, sum.gpu_ns);
  counters.add(counts->launches, sum.launches);
  if (note.resource_class && ipc::load(counts->resource_class, kRelaxed) != note.resource_class)
    ipc::store(counts->resource_class, note.resource_class, kRelaxed);
}

}  // namespace

void trace_from_now(Note& note) {
  note.start_ns = clock_ns();
}

void count_operation(const Note& note, const OperationSum& sum) {
  count(note, sum);
}

void end_operation(Note& note, bool begins_call) {
  const uint64_t repeated = repeats(note);
  if (note.start_ns && begins_call) [[unlikely]]
    trace_operation(note, repeated + note.gated != 0);
  count(note, {.calls = begins_call,
               .flop = begins_call ? note.flop : 0,
               .bytes = begins_call ? note.bytes : 0,
               .gpu_ns = note.expected_ns + repeated * t_thread.memo.expected_ns,
               .launches = note.gated + repeated});
}

void trace_operations(uint64_t id, const char* text, const TracedOperations& what) {
  if (!was_named(id)) trace_text(id, text, kMostText);
  trace_event(id, what);
}

void count_operations(uint32_t word, uint64_t n) {
  abi::OperationTotals* totals = g_state.link.load(std::memory_order_acquire)->operations;
  if (totals && word < sizeof *totals / sizeof(uint64_t))
    add_locked(reinterpret_cast<uint64_t*>(totals)[word], n);
}

void count_during_burst(uint32_t resource_class) {
  abi::OperationTotals* totals = g_state.link.load(std::memory_order_acquire)->operations;
  if (totals && resource_class < std::size(totals->during_bursts))
    add_locked(totals->during_bursts[resource_class], 1);
}

}  // namespace tessera::gate

// Litmus tests of what the library and the daemon share without locks: two threads make their steps at once, many times, and
// an outcome that the protocol rules out is a finding. Each step is the product's own code. A machine of weak order (aarch64)
// shows more than one of strong order: there only loads pass stores.
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "base/machine.h"
#include "interpose/gate/cover.h"
#include "interpose/gate/peer_gates.h"
#include "interpose/gate/pulse.h"
#include "interpose/gate/window.h"
#include "interpose/lifecycle/connection.h"
#include "interpose/lifecycle/lifecycle.h"
#include "interpose/state/process.h"
#include "ipc/channel/gate.h"
#include "ipc/channel/lease.h"
#include "ipc/channel/memfd.h"
#include "ipc/channel/pulse.h"
#include "ipc/channel/ring.h"
#include "ipc/channel/trace_ring.h"
#include "tests/attack/attack.h"

extern "C" {
constinit void* order_slot __attribute__((visibility("hidden"))) = nullptr;
uint64_t order_jump(void);
}

namespace tessera::attack {
namespace {

namespace abi = ipc::abi;
using state::g_state;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kSeqCst = std::memory_order_seq_cst;
constexpr uint32_t kItems = 512;  // of one round: pairs of steps between two meetings of the threads

// A second thread, which makes its part of each round at the same time as the first.
class Other {
 public:
  Other() : thread_([this] { serve(); }) {}
  ~Other() {
    part_ = {};
    begin_.fetch_add(1);
    thread_.join();
  }
  void round(const std::function<void()>& mine, std::function<void()> other) {
    part_ = std::move(other);
    const uint64_t number = begin_.fetch_add(1) + 1;
    ready_.fetch_add(1);
    while (ready_.load() != 2 * number) relax();
    mine();
    while (end_.load() != number) relax();
  }

 private:
  static void relax() { base::yield_cpu(); }
  void serve() {
    for (uint64_t number = 1;; number++) {
      while (begin_.load() < number) relax();
      if (!part_) return;
      ready_.fetch_add(1);
      while (ready_.load() != 2 * number) base::cpu_relax();
      part_();
      end_.store(number);
    }
  }
  std::function<void()> part_;
  std::atomic<uint64_t> begin_{0}, ready_{0}, end_{0};
  std::thread thread_;
};

// Each on lines of its own.
template <class T>
struct alignas(256) Apart {
  T value{};
};

// Two sides that first say something and then look at what the other says: one of them sees the other.
template <class Item>
uint64_t both_blind(Other& other, std::vector<Item>& items, bool (*one)(Item&), bool (*another)(Item&)) {
  std::vector<char> blind(items.size());
  other.round(
      [&] {
        for (size_t i = 0; i < items.size(); i++) blind[i] = !one(items[i]);
      },
      [&] {
        for (Item& item : items) item.other_saw = another(item);
      });
  uint64_t n = 0;
  for (size_t i = 0; i < items.size(); i++) n += blind[i] && !items[i].other_saw;
  return n;
}

struct alignas(256) Launch {
  state::StreamCount count{};
  alignas(256) abi::PulsePage pulse{};
  bool other_saw = false;
};
// A launch counts, then looks at `busy`; who clears `busy` then looks at the count (gate/pulse.h).
uint64_t idle_over_running_work(Other& other) {
  std::vector<Launch> items(kItems / 8);
  for (Launch& item : items) ipc::pulse_set_busy(item.pulse, 1, 0, 1, 1);
  return both_blind<Launch>(
      other, items,
      [](Launch& item) {
        state::add(item.count.begun, 1, false);
        state::asymmetric_fence();
        return ipc::load(item.pulse.busy, kRelaxed) == 0;
      },
      [](Launch& item) {
        ipc::pulse_try_idle(item.pulse, 1, 2);
        gate::g_slow.heavy_fence();
        return item.count.begun.load(kAcquire) != 0;
      });
}

struct alignas(256) Spent {
  state::Credit credit{};
  alignas(256) std::atomic<uint32_t> epoch{1};
  bool other_saw = false;
};
// A launch on credit says that it is inside, then looks at the epoch; who reclaims raises that, then looks (gate/credit.h).
uint64_t credit_taken_from_a_launch(Other& other) {
  std::vector<Spent> items(kItems / 8);
  return both_blind<Spent>(
      other, items,
      [](Spent& item) {
        item.credit.in_gate.store(base::stack_pointer(), kRelaxed);
        state::asymmetric_fence();
        return item.epoch.load(kRelaxed) != 1;
      },
      [](Spent& item) {
        item.epoch.fetch_add(1, kSeqCst);
        gate::g_slow.heavy_fence();
        return item.credit.in_gate.load(kAcquire) != 0;
      });
}

struct alignas(256) Drain {
  abi::UsageLine usage{};
  alignas(256) abi::LeaseLine lease{};
  uint32_t word = 0;
  bool other_saw = false;
};
// A launch raises what is in flight, then looks at the lease; the daemon holds, then looks (ipc/channel/lease.h).
uint64_t drained_over_a_launch(Other& other) {
  std::vector<Drain> items(kItems);
  for (Drain& item : items) ipc::lease_publish(item.lease, item.word, {.state = abi::kLeaseGranted});
  return both_blind<Drain>(
      other, items,
      [](Drain& item) {
        std::atomic_ref(item.usage.in_flight_ns).fetch_add(5, kSeqCst);
        return (ipc::lease_copy(item.lease, kSeqCst).word & abi::kLeaseStateMask) == abi::kLeaseHold;
      },
      [](Drain& item) {
        ipc::lease_publish(item.lease, item.word, {.state = abi::kLeaseHold});
        return std::atomic_ref(item.usage.in_flight_ns).load(kSeqCst) != 0;
      });
}

// The word of a lease is seen with its terms, or those of a later one.
uint64_t terms_older_than_their_word(Other& other) {
  Apart<abi::LeaseLine> line;
  uint32_t word = 0;
  uint64_t wrong = 0;
  other.round(
      [&] {
        for (uint32_t i = 1; i <= kItems; i++)
          ipc::lease_publish(
              line.value, word,
              {.state = abi::kLeaseGranted, .window_ns = i, .marker_spacing_ns = i, .slo_us = i});
      },
      [&] {
        for (uint32_t i = 0; i < kItems; i++) {
          const abi::LeaseLine seen = ipc::lease_copy(line.value);
          const uint64_t number = seen.word / abi::kLeaseStep;
          wrong += seen.window_ns < number || seen.marker_spacing_ns < number || seen.slo_us < number;
        }
      });
  return wrong;
}

// A burst is seen with the time when it began.
uint64_t burst_older_than_its_pulse(Other& other) {
  Apart<abi::PulsePage> page;
  uint64_t wrong = 0;
  other.round(
      [&] {
        for (uint32_t i = 1; i <= kItems; i++) ipc::pulse_set_busy(page.value, i, 1, i, i);
      },
      [&] {
        for (uint32_t i = 0; i < kItems; i++) {
          const uint32_t busy = ipc::load(page.value.busy, kAcquire);
          wrong += ipc::load(page.value.burst, kRelaxed) < busy ||
                   ipc::load(page.value.busy_since_ns, kRelaxed) < busy;
        }
      });
  return wrong;
}

// Records come whole and in order.
uint64_t torn_records(Other& other) {
  static abi::RecordRing ring;
  ring = {};
  uint64_t wrong = 0;
  std::atomic<bool> written{false};
  other.round(
      [&] {
        ipc::RingWriter writer(&ring, abi::kRingSlots);
        for (uint64_t i = 1; i <= kItems; i++) {
          const abi::Record record{
              .kind = abi::kRecordKernel, .key = i, .duration_ns = i, .end_ns = i, .blocks = i};
          while (!writer.write(record)) base::yield_cpu();
        }
        written.store(true);
      },
      [&] {
        ipc::RingReader reader(&ring, abi::kRingSlots);
        abi::Record r{};
        for (uint64_t next = 1; next <= kItems;) {
          const ipc::RingRead read = reader.read(&r);
          if (read == ipc::RingRead::kEmpty) {
            base::cpu_relax();
            continue;
          }
          wrong += read != ipc::RingRead::kRecord || r.key != next || r.duration_ns != next ||
                   r.end_ns != next || r.blocks != next;
          next++;
        }
      });
  return wrong;
}

// Events come whole, also while the ring goes round.
uint64_t torn_events(Other& other) {
  static std::vector<uint64_t> memory(abi::kTraceBytes / sizeof(uint64_t));
  auto* const ring = reinterpret_cast<abi::TraceHeader*>(memory.data());
  static uint64_t number = 0;
  uint64_t wrong = 0;
  std::atomic<bool> ended{false};
  ipc::TraceReader reader(ring);
  other.round(
      [&] {
        for (uint32_t i = 0; i < 2 * abi::kTraceSlots; i++) {
          const uint64_t n = ++number;
          abi::TraceEvent e{};
          e.kind = abi::kTraceLaunch;
          e.a = n;
          e.at = {n, n, n, n, n};
          ipc::trace_write(ring, e);
        }
        ended.store(true);
      },
      [&] {
        abi::TraceEvent e{};
        do
          while (reader.read(&e))
            wrong += e.at.start_ns != e.a || e.at.end_ns != e.a || e.at.stream != e.a || e.at.b != e.a ||
                     e.at.c != e.a;
        while (!ended.load());
      });
  return wrong;
}

// A function to which a slot leads reads what was written before the slot (interpose/arch/jumps.inc).
constinit uint64_t g_table[8] = {};
template <uint64_t kNumber>
uint64_t behind_slot() {
  uint64_t least = UINT64_MAX;
  for (uint64_t& word : g_table) least = std::min(least, std::atomic_ref(word).load(kRelaxed));
  return least < kNumber;
}
uint64_t slot_before_its_table(Other& other) {
  constexpr uint64_t (*kTargets[])() = {behind_slot<0>, behind_slot<1>, behind_slot<2>, behind_slot<3>,
                                        behind_slot<4>, behind_slot<5>, behind_slot<6>, behind_slot<7>};
  for (uint64_t& word : g_table) word = 0;
  order_slot = reinterpret_cast<void*>(kTargets[0]);
  uint64_t wrong = 0;
  std::atomic<bool> ended{false};
  other.round(
      [&] {
        for (uint64_t i = 1; i < std::size(kTargets); i++) {
          for (uint64_t& word : g_table) std::atomic_ref(word).store(i, kRelaxed);
          std::atomic_ref(order_slot).store(reinterpret_cast<void*>(kTargets[i]), std::memory_order_release);
          for (int wait = 0; wait < 20; wait++) base::cpu_relax();
        }
        ended.store(true);
      },
      [&] {
        while (!ended.load(kRelaxed)) wrong += order_jump();
      });
  return wrong;
}

// A protected client without a burst, as g_state has it.
const state::DaemonLink& idle_client() {
  static abi::Region region;
  static const state::DaemonLink link = {
      &region.lease, &region.usage, &region.ring, 0, new abi::PulsePage{}, 0, 0};
  g_state.role = state::Role::kProtected;
  g_state.link = &link;
  ipc::store(link.pulse->busy, 0u, kSeqCst);
  return link;
}

// Shifts one side of single steps against the other, by less than a step of either takes.
void shift() {
  static uint32_t n = 0;
  n = (n + 1) % 400;
  for (uint32_t wait = 0; wait < n; wait++) base::cpu_relax();
}

// A burst begins while the helper lists a gate on the device: then the gate is closed (gate/peer_gates.h).
uint64_t gate_open_in_a_burst(Other& other) {
  idle_client();
  constexpr uint32_t kClient = 1, kByte = 1;
  const auto file = ipc::create_memfd("tessera-order", abi::kGateBytes, ipc::kRegionSeals);
  auto seen = ipc::map_shared(file->get(), abi::kGateBytes, ipc::Access::kReadWrite);
  auto page = ipc::map_shared(file->get(), abi::kGateBytes, ipc::Access::kReadWrite);
  other.round(
      [] {
        shift();
        gate::become_busy(0, 0);
      },
      [&] { gate::watch_peer_gate(kClient, kByte, std::move(*page)); });
  const uint8_t byte = ipc::gate_byte(*seen->as<abi::GatePage>(), kByte).load(kSeqCst);
  gate::forget_peer_gate(kClient);
  return byte == abi::kGateByteOpen;
}

// A burst begins while the helper goes to sleep: the helper sees it, or is woken (gate/pulse.h).
uint64_t asleep_in_a_burst(Other& other) {
  uint64_t wrong = 0;
  for (int i = 0; i < 32; i++) {
    const state::DaemonLink& link = idle_client();
    bool sleeps = false;
    other.round(
        [] {
          shift();
          gate::become_busy(0, 0);
        },
        [&] { sleeps = gate::park(link); });
    wrong += sleeps && gate::g_helper_word.load() == 1;
  }
  return wrong;
}

struct alignas(256) End {
  abi::PulsePage pulse{};
  alignas(256) abi::AnswerLine answers{};
  bool other_saw = false;
};
// A burst ends, then the client looks whether to tell; the daemon wants to be told, then looks at the pulse
// (interpose/gate/pulse.cc, scheduler_daemon/core/client.cc).
uint64_t end_that_nobody_hears_of(Other& other) {
  std::vector<End> items(kItems);
  for (End& item : items) {
    ipc::pulse_set_busy(item.pulse, 1, 0, 1, 1);
    item.answers.quiet = 1;
  }
  return both_blind<End>(
      other, items,
      [](End& item) {
        ipc::pulse_try_idle(item.pulse, 1, 2);
        return ipc::load(item.answers.quiet, kSeqCst) == 0;
      },
      [](End& item) {
        ipc::store(item.answers.quiet, 0u, kSeqCst);
        return ipc::load(item.pulse.busy, kSeqCst) == 0;
      });
}

// Own calls into the driver keep off captures (state.h, enter_driver).
uint64_t own_call_in_a_capture(Other& other) {
  std::atomic<uint32_t> calls{0};
  uint64_t wrong = 0;
  other.round(
      [&] {
        for (uint32_t i = 0; i < kItems; i++) {
          if (!state::enter_driver()) continue;
          calls.store(1, kRelaxed);
          for (int wait = 0; wait < 5; wait++) base::cpu_relax();
          calls.store(0, kRelaxed);
          state::leave_driver();
        }
      },
      [&] {
        for (uint32_t i = 0; i < kItems / 8; i++) {
          state::enter_exclusive();
          for (int wait = 0; wait < 3; wait++) base::cpu_relax();
          wrong += calls.load(kRelaxed);
          state::leave_exclusive();
        }
      });
  return wrong;
}

// A note of an event is of one record: the stream, and how many calls had ended there (gate/cover.cc).
uint64_t note_of_two_records(Other& other) {
  constexpr uint64_t kStreams = 4, kFirstKey = 3;
  static state::StreamCount* counts[kStreams] = {};
  const auto event = reinterpret_cast<CUevent>(uintptr_t{0x1000});
  const auto use = [](uint64_t i) { return state::switch_stream(state::t_thread, kFirstKey + i); };
  for (uint64_t i = 0; i < kStreams; i++)
    if (!counts[i])
      state::add((counts[i] = use(i))->begun, 1, false);  // at work: it becomes no other stream's
  uint64_t wrong = 0;
  std::atomic<bool> ended{false};
  other.round(
      [&] {
        for (uint64_t i = kStreams; i < kItems; i++) {
          use(i % kStreams)->ended.store(i, kRelaxed);
          gate::note_event(event, kFirstKey + i % kStreams);
        }
        ended.store(true);
      },
      [&] {
        while (!ended.load(kRelaxed)) {
          const gate::Point point = gate::point_of(event);
          wrong += point.count && point.count != counts[point.ended % kStreams];
        }
      });
  return wrong;
}

// An account is taken for one stream after another: who sees the key of a stream in it asks about that stream (gate/window.h).
uint64_t account_of_another_stream(Other& other) {
  uint64_t wrong = 0;
  std::atomic<bool> ended{false};
  other.round(
      [&] {
        for (uint64_t key = kItems; key < 2 * kItems; key++) {
          gate::account_of({reinterpret_cast<CUstream>(key), driver_api::Flavour::kLegacy});
          gate::forget_account_of(key);
        }
        ended.store(true);
      },
      [&] {
        const gate::StreamAccount& account = gate::g_accounts[0];
        while (!ended.load(kRelaxed)) {
          const uint64_t key = account.key.load(kAcquire);
          const auto stream = reinterpret_cast<uint64_t>(account.stream.load(kRelaxed));
          std::atomic_thread_fence(kAcquire);
          wrong += key != 0 && stream != key && account.key.load(kRelaxed) == key;
        }
      });
  return wrong;
}

struct Litmus {
  const char* outcome;
  uint64_t (*times)(Other&);
  // An emulator on x86-64 may let a load-acquire pass an earlier store-release, which no processor for aarch64 does.
  bool needs_processor = false;
};
constexpr Litmus kLitmuses[] = {
    {"idle is said over running work", idle_over_running_work},
    {"credit is taken from a launch that spends it", credit_taken_from_a_launch},
    {"a drain is seen over a launch", drained_over_a_launch},
    {"the terms of a lease are older than its word", terms_older_than_their_word},
    {"a pulse is seen with the facts of an earlier burst", burst_older_than_its_pulse},
    {"records are torn or out of order", torn_records},
    {"events are torn", torn_events},
    {"a slot is seen before what it leads to", slot_before_its_table},
    {"a burst runs beside a gate that is open", gate_open_in_a_burst},
    {"the helper sleeps over a burst", asleep_in_a_burst},
    {"the end of a burst is told to nobody", end_that_nobody_hears_of, true},
    {"an own call is inside during a capture", own_call_in_a_capture},
    {"a note is of two records of its event", note_of_two_records},
    {"an account is asked about another stream", account_of_another_stream},
};

}  // namespace
}  // namespace tessera::attack

int main(int argc, char** argv) {
  using namespace tessera;  // NOLINT
  attack::Run run("order", argc, argv);
  lifecycle::first_call(true, false);
  lifecycle::register_membarrier();
  attack::Other other;
  do {
    for (const attack::Litmus& litmus : attack::kLitmuses) {
      if (litmus.needs_processor && getenv("TESSERA_EMULATED")) continue;
      if (const uint64_t times = litmus.times(other))
        run.found(litmus.outcome + std::string(", times: ") + std::to_string(times));
      run.ran();
    }
  } while (run.goes_on());
  return run.finish();
}

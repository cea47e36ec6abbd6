// One client as the daemon knows it: identity, memory, its lease and what it says about its use. Owned by
// Core.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ipc/abi/gate.h"
#include "ipc/abi/memory.h"
#include "ipc/abi/messages.h"
#include "ipc/abi/region.h"
#include "ipc/channel/lease.h"
#include "ipc/channel/region_layout.h"
#include "ipc/channel/ring.h"
#include "ipc/channel/server.h"
#include "scheduler_daemon/learning/records.h"
#include "scheduler_daemon/policy/burst_watch.h"
#include "scheduler_daemon/policy/overlap.h"
#include "scheduler_daemon/policy/policy.h"
#include "scheduler_daemon/policy/starvation.h"
#include "scheduler_daemon/stats/stats.h"

namespace tessera::core {

struct Gang;
using Uuid = std::array<uint8_t, 16>;  // of a GPU, as cuDeviceGetUuid has it

inline constexpr uint64_t kMostBytes = uint64_t(1) << 50;  // of one claim: sums of them do not overflow
inline constexpr uint32_t kMaxSms = 4096;                  // likewise

// Drains that were given up; one of them is forgiven every ten seconds.
class OverdueDrains {
 public:
  uint32_t count(uint64_t now_ns) const {
    const uint64_t forgiven = (now_ns - std::min(now_ns, last_ns_)) / kForgivenNs;
    return count_ - uint32_t(std::min<uint64_t>(count_, forgiven));
  }
  void add(uint64_t now_ns) {
    count_ = std::min(count(now_ns) + 1, kMost);
    last_ns_ = now_ns;
  }

 private:
  static constexpr uint64_t kForgivenNs = 10'000'000'000;
  static constexpr uint32_t kMost = 6;  // an offender is not remembered for longer than a minute
  uint32_t count_ = 0;
  uint64_t last_ns_ = 0;
};

// A client on one of its GPUs. Most have one. A process on several is one client with one lease and one pulse.
struct OnGpu {
  Uuid uuid{};
  uint32_t sm_count = 0;
  bool watched = false;       // protected: its pulse is handed to the clients of this GPU that shall watch it
  uint32_t gate_byte = 0;     // protected: its byte of every gate page on this GPU (gates.cc), 0 = none
  uint64_t placed_bytes = 0;  // of memory, as it was asked for where it should start; 0 = not known
  std::optional<policy::Lease> offered;  // by this GPU's policy; none: it has not decided yet
  policy::BurstWatch bursts;             // protected
  policy::StarvationWatch starvation;    // best-effort
};

struct Client {
  uint64_t connection = 0;
  uint32_t id = 0;
  ipc::PeerIdentity identity;
  std::string name;
  uint32_t priority = 0, claimed_priority = 0, weight = 100;
  uint64_t slo_ns = 0;
  // Operator's switch: everything of this client is forwarded and no policy counts with it.
  bool passthrough = false;
  bool cutting_off = false;  // as it said last
  // Alone on its GPU, and measured because somebody looks: its lease is granted and limits nothing.
  bool measured_alone = false;
  OverdueDrains overdue;     // it inherits what its user had when it came
  uint64_t attached_ns = 0;  // CLOCK_MONOTONIC
  bool dying = false;        // off its GPU; the end of its process will end the connection

  ipc::ClientMemory memory;
  ipc::RingReader ring;
  ipc::TraceMemory trace;     // while somebody traces it
  bool pulse_sealed = false;  // the owner has it mapped; others may have it
  struct Watching {
    uint32_t priority;
    uint64_t slo_ns;
    bool operator==(const Watching&) const = default;
  };
  std::map<uint32_t, Watching> watching;  // pulses that it was given, as it was told of them
  uint64_t behind_since_ns = 0;  // since then it reads too slowly to be told more; 0: it is up to date

  // The gate on the device (gates.cc). Best-effort: its page, and what it said of it.
  ipc::abi::GateChoice gate_choice = ipc::abi::kGateThread;
  ipc::GateMemory gate;
  bool gate_told = false, gate_ready = false;
  bool on_device = false;                       // best-effort: as of the latest decision its work waits there
  uint32_t length_class = base::kLongestClass;  // that may begin behind its gate
  uint64_t gate_shut_since_ns = 0;  // and only the daemon could have opened since; 0: not known to be shut
  // Protected: whose pages it was given, for which byte.
  std::map<uint32_t, uint32_t> closing;

  std::vector<OnGpu> gpus;  // in the order in which it came to them; none: it has not said which yet
  // Memory (memory.cc). What it asked for itself, and what it was granted, by row of its table.
  uint64_t memory_limit_bytes = 0, memory_group = 0;
  std::array<uint64_t, ipc::abi::kMemoryDevices> memory_granted{};
  // Parking (park.cc): the latest order, and the wish to return for which there is room.
  uint32_t park_orders = 0, granted_return = 0;
  uint32_t park_calls_seen = 0;  // ParkCall::number (parker.cc)
  uint64_t park_call = 0;        // number of its call that is under way; 0: none
  bool parked_here = false;  // by an order of this daemon, to this client or to the one it was before a move
  uint64_t park_asked_ns = 0;  // when the policy asked it to leave; 0: never
  std::array<uint64_t, ipc::abi::kMemoryDevices>
      before_sleep{};  // bytes that it used when its engine was last asked to sleep (engines.cc), by row
  uint64_t work_seen = 0, worked_ns = 0;  // a number that changes with its work, and when it did
  Gang* gang = nullptr;                   // gangs.cc; null: none
  bool mps = false;
  bool confines = false;  // it can keep launches off some SMs

  // The daemon's own copy of the lease: what is in shared memory is never read back.
  uint32_t lease_word = 0;
  ipc::LeaseTerms terms;
  bool together = false;                             // as policy::Lease
  bool quiet = false;                                // AnswerLine::quiet
  uint64_t held_since_ns = 0;                        // when `terms` became a hold
  uint64_t used_ns = 0;                              // completed_ns as believed: it never runs backwards
  uint64_t uncut_launches = 0, blocks_launched = 0;  // likewise
  learning::UserGpu user_gpu;                        // GPU "": nothing is learnt from it
  stats::ClientCounters counters;                    // those that the daemon counts itself

  ipc::abi::Region& shared() const { return *memory.region.as<ipc::abi::Region>(); }
  ipc::abi::LeaseLine& lease_line() const { return shared().lease; }
  ipc::abi::AnswerLine& answers() const { return shared().answer; }
  const ipc::abi::UsageLine& usage_untrusted() const { return shared().usage; }
  const ipc::abi::SignalLine& signals_untrusted() const { return shared().signals; }
  const ipc::abi::OperationTable& operations_untrusted() const { return shared().operations; }
  const ipc::abi::RequestTable& requests_untrusted() const { return shared().requests; }
  const ipc::abi::CuttingLines& cutting_untrusted() const { return shared().cutting; }
  ipc::abi::MemoryTable& memory_untrusted() const { return shared().memory; }
  ipc::abi::ParkLines& park_untrusted() const { return shared().park; }
  ipc::abi::MemoryDevice& memory_row(uint32_t i) const { return memory_untrusted().devices[i]; }
  uint32_t number_of(const ipc::abi::MemoryDevice& row) const { return uint32_t(&row - &memory_row(0)); }
  // Bytes of that row that its engine gave back, and will take again when it wakes.
  uint64_t slept_bytes(const ipc::abi::MemoryDevice& row) const;

  ipc::abi::GatePage* gate_page() const {  // null: none
    return gate.page.valid() ? gate.page.as<ipc::abi::GatePage>() : nullptr;
  }

  bool is_protected() const { return priority > 0; }
  const OnGpu* find_on(const Uuid& uuid) const {  // null: it is not there
    const auto found = std::ranges::find(gpus, uuid, &OnGpu::uuid);
    return found == gpus.end() ? nullptr : &*found;
  }
  // On a GPU that it is on.
  OnGpu& on(const Uuid& uuid) { return *std::ranges::find(gpus, uuid, &OnGpu::uuid); }
  const OnGpu& on(const Uuid& uuid) const { return *find_on(uuid); }
  uint64_t last_burst_end_ns() const { return gpus.empty() ? 0 : gpus.front().bursts.last_end_ns(); }
  // Best-effort: when it had work on the GPU.
  policy::InFlight in_flight() const;
  // Best-effort, on the device: what passed its gate had ended by then.
  bool nothing_passed(uint64_t by_ns) const;
  // Protected: was it busy at some time since then?
  bool active_since(uint64_t since_ns, uint64_t now_ns) const;
  bool packed() const {  // its work may run during bursts
    return (terms.packed || terms.confine_all) && terms.state == ipc::abi::kLeaseGranted;
  }
  bool busy(uint64_t now_ns) const;
  // Protected and busy: since when its burst runs, or the step of it that was not recorded yet.
  uint64_t busy_since_ns() const;
  // Protected: whether it tells of the ends of bursts from now on. False: one ended unheard since it was `seen`.
  bool set_quiet(bool quiet, const policy::ClientView& seen);
  // Best-effort: it has work that the daemon holds, in a thread or behind its gate.
  bool waiting() const;
  // Says that the daemon gets on, if it was asked.
  void answer() const;
  // Nothing of its revoked lease runs or is about to start (the drain contract in ipc/channel/lease.h), or what passed its
  // gate before has had the time to end.
  bool drained(uint64_t now_ns) const;
  policy::ClientView view(OnGpu& on, uint64_t now_ns);
  uint64_t busy_ns(uint64_t now_ns) const;  // protected: since it attached
  stats::ClientRow row(uint64_t now_ns) const;
};

// For people.
std::string uuid_text(const uint8_t (&uuid)[16]);
std::string uuid_text(const Uuid& uuid);
std::string who(const ipc::PeerIdentity& identity);
std::string quoted(const std::string& text_untrusted);
std::string name_of(const Client& client);

}  // namespace tessera::core

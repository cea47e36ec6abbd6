// The modelled GPU: one in-order stream per client, blocks that are never preempted, and the three ways in
// which processes share the hardware. Driven by Simulation in virtual time; single thread; owns all its
// state.
//
//   kTimesliced   one client's kernels run at a time, round robin, `timeslice_ns` each, `switch_ns` between
//   kMps          all run; kernels with pending blocks share the room, but some kernels wait in line
//   kMpsPriority  as kMps, but pending blocks of clients with higher priority are placed first
//
// Blocks that run together slow each other down: a kernel's rate is 1 / (1 + sum over others of
// contention[own class][their class] * share of the SMs that they occupy). Not modelled: copies
// as a separate engine, instruction-level preemption.
//
// Confined work (GpuWork::sm_limit) is placed on that many of the highest-numbered SMs; everything else goes
// anywhere, to the lowest-numbered SMs first. Between confined work and what stands beside its SMs
// contention_disjoint holds instead.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "scheduler_daemon/policy/placement.h"
#include "simulator/random.h"
#include "simulator/workload.h"

namespace tessera::simulator {

enum class Regime : uint8_t { kTimesliced, kMps, kMpsPriority };
const char* regime_name(Regime regime);

using ContentionTable = policy::ContentionBetween;
constexpr double kMostContention = 20;

constexpr ContentionTable all_as_contention() {
  ContentionTable table{};
  for (auto& row : table) row.fill(-1);
  return table;
}

struct GpuSpec {
  uint32_t sm_count = 108;
  uint64_t timeslice_ns = 2'000'000;
  uint64_t switch_ns = 145'000;       // from one client to the next: it came while the first had work
  uint64_t idle_switch_ns = 145'000;  // it came when the first had none
  uint64_t kernel_gap_ns = 1'000;     // between two kernels of one stream
  double in_line_share = 0;    // kMps: kernels that wait until those before them have placed every block
  uint64_t refill_ns = 0;      // first kernel after another client had the GPU: caches, TLBs
  uint64_t memory_bytes = 0;   // for models (Workload::memory_bytes); 0 = there is room for all
  double block_jitter = 0.15;  // half width of the uniform spread of block times
  // How much blocks of class [row] suffer from neighbours of class [column] that fill the GPU.
  ContentionTable contention{};
  // The same between confined work and blocks outside of its SMs: L2 and DRAM only. Negative = as `contention`.
  ContentionTable contention_disjoint = all_as_contention();
  // kTimesliced: a context with work of higher priority takes the GPU at once, and keeps it while it has work.
  bool context_priorities = false;
  bool partitions = false;  // GpuWork::sm_limit is a place of its own, in which nobody is waited for
  bool lends = false;       // SMs of clients that have no work at all are everybody's, until a block ends
  uint64_t slow_from_ns = 0, slow_to_ns = 0;  // perturbation: clocks drop in this interval ...
  double slow_factor = 1;                     // ... to this
};

struct GpuWork {  // one launch, or one slice of it
  uint32_t client = 0;
  uint64_t id = 0;            // of the client: increasing
  uint64_t available_ns = 0;  // when the host had submitted it
  Kernel kernel;
  uint32_t n_blocks = 0;
  uint32_t sm_limit = 0;      // SMs that it may occupy, the highest-numbered; 0 = all
  bool lowest = false;        // the lowest-numbered instead: a partition beside that of confined work
  uint32_t workers = 0;       // blocks of it that run at once at most; 0 = as many as find room
  uint64_t gap_ns = 0;        // before it, on top of GpuSpec::kernel_gap_ns
  double work_scale = 1;      // of its work, what counts: less if the kernel was made slower
  bool yields = false;        // may be asked to stop at a block boundary
  bool gated = false;         // waits for the client's gate: see open_gate()
  uint32_t length_class = 0;  // with gated (base/length_class.h)
  bool meets = false;         // of a gang: once begun, it stands still until meet()
};

struct Completion {
  uint32_t client = 0;
  uint64_t id = 0;
  uint32_t blocks_left = 0;  // > 0: it yielded
};

class Gpu {
 public:
  Gpu(const GpuSpec& spec, Regime regime, const std::vector<uint32_t>& client_priorities, Random random);

  void submit(const GpuWork& op);
  // Pulls back the blocks of yielding work that have not started.
  void retreat(uint32_t client);
  // The gate in the client's stream, before its gated launches. Open from `at_ns` on; closed; or open for one of them
  // more, which stays so whatever comes. At first it is open.
  void open_gate(uint32_t client, uint64_t at_ns, uint32_t longest_class = base::kLongestClass);
  void close_gate(uint32_t client);
  void add_pass(uint32_t client, uint64_t at_ns);
  // A collective runs and stands still until its peers on other GPUs run too; meet() lets it go on, at the next advance().
  bool waits_for_peers(uint32_t client) const {
    return streams_[client].running && streams_[client].awaits_peers;
  }
  void meet(uint32_t client);
  void drop_queue(uint32_t client);  // the process is gone: what has not begun never will
  // Lets time pass until `now_ns` (at most next_ns()) and appends what completed.
  void advance(uint64_t now_ns, std::vector<Completion>* done);
  uint64_t next_ns();  // next change by itself; UINT64_MAX = none
  bool idle() const { return running_.empty() && switch_until_ns_ == 0; }
  uint64_t n_events() const { return n_events_; }

  // Blocks of the client that completed, in ns that they would take alone on the whole GPU.
  double work_ns(uint32_t client) const { return streams_[client].work_ns; }
  double fill(uint32_t client) const;  // part of the GPU that its running blocks take
  uint64_t blocks_started(uint32_t client) const { return streams_[client].blocks_started; }

 private:
  struct Group {  // blocks placed together end together
    double end_v = 0;
    uint32_t blocks = 0;
    double confined_sms = 0;  // of the SMs under them, those that confined work may use
  };
  static constexpr uint32_t kAlwaysOpen = UINT32_MAX;
  struct Head {              // what follows from the running launch alone: asked for at every event
    uint32_t sms = 0;        // that it may occupy
    uint32_t wave = 0;       // blocks of it that run at once when it is alone
    bool confined = false;   // to the highest-numbered SMs
    bool full_speed = true;  // however many of its blocks run
    policy::ResourceClass resource_class = policy::ResourceClass::kCompute;
    double sms_per_block = 0, block_ns = 0, work_per_block = 0;
  };
  struct Stream {
    bool running = false;       // head is ready: its blocks are pending or resident
    bool bulk = false;          // alone on the device: no groups, one end
    bool in_line = false;       // see GpuSpec::in_line_share
    bool awaits_peers = false;  // its head waits for meet()
    uint32_t pending = 0, resident = 0;
    double v = 0, rate = 1;  // progress in ns of undisturbed time
    double first_end_v = 0;  // of its groups, or of all its blocks in bulk; infinite = nothing is placed
    Head head;               // valid while it runs
    uint32_t bulk_blocks = 0;
    uint32_t withdrawn = 0;  // by retreat()
    std::vector<Group> groups;
    std::deque<GpuWork> queue;
    uint64_t opens_ns = 0;
    uint32_t passes = kAlwaysOpen;                 // gated launches that may begin
    uint32_t longest_class = base::kLongestClass;  // of them, with kAlwaysOpen
    uint32_t priority = 0;
    uint64_t order = 0;  // when it became ready
    uint64_t last_end_ns = 0;
    double work_ns = 0;
    uint64_t blocks_started = 0;
  };

  bool in_context(uint32_t client) const {
    return regime_ != Regime::kTimesliced || (client == current_ && switch_until_ns_ == 0);
  }
  bool has_work(uint32_t client) const {
    const Stream& s = streams_[client];
    return !s.queue.empty() && s.queue.front().available_ns <= last_ns_ && (s.running || !held_at_gate(s));
  }
  static bool passes(const Stream& s) {
    return s.passes == kAlwaysOpen ? s.queue.front().length_class <= s.longest_class : s.passes != 0;
  }
  bool held_at_gate(const Stream& s) const {
    return s.queue.front().gated && (!passes(s) || s.opens_ns > last_ns_);
  }
  void set_ready(uint32_t client);  // its stream has a new head, or its gate changed
  Head head_of(const GpuWork& op) const;
  void lend(uint32_t client);
  void progress(uint64_t now_ns);
  void activate(uint64_t now_ns);
  void end_groups(Stream& s);
  void complete_groups(uint64_t now_ns, std::vector<Completion>* done);
  void place_blocks();
  void place(Stream& s, uint32_t n);
  double block_speed(const Stream& s) const;
  void find_confined();
  double room_for(const Stream& s) const;
  double taken_outside() const;
  void add_group(Stream& s, const Group& added);
  void leave_bulk(Stream& s);
  void set_rates();
  double outside_confined(const Stream& s) const;
  double contention(const Stream& own, const Stream& other) const;
  uint64_t end_ns(const Stream& s) const;  // when the first of its groups ends at its present rate
  void slice_time(uint64_t now_ns);
  uint64_t change_ns() const;  // what it costs that the current client leaves now
  double clock(uint64_t now_ns) const;

  GpuSpec spec_;
  Regime regime_;
  Random random_;
  std::vector<Stream> streams_;
  std::vector<uint64_t>
      ready_ns_;                // per stream, when its head may begin; UINT64_MAX = it runs, or there is none
  std::vector<double> shares_;  // of the SMs, of each running kernel; reused by set_rates()
  std::vector<uint32_t> running_;  // in the order in which their blocks are placed
  uint64_t last_ns_ = 0, next_order_ = 0, n_events_ = 0;
  uint32_t last_client_ = UINT32_MAX;  // whose kernel became ready last
  bool changed_ = true;
  uint32_t confined_sms_ = 0;  // the largest limit among the running kernels; 0 = none is confined
  // kTimesliced
  uint32_t current_ = 0;
  uint32_t next_context_ = 0;
  uint64_t slice_end_ns_ = 0, switch_until_ns_ = 0;  // switch_until 0: not switching
  bool contended_ = false;                           // another client waited while the current one had work
};

}  // namespace tessera::simulator

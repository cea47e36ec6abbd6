// The modelled device in virtual time: clients, a DAG of operations per client, SMs with occupancy limits,
// copy engines, time slices, partitions of SMs (kernels of disjoint ones do not wait for each other). PURE:
// no clock, no I/O, no threads; the same inputs give the same outputs. Driven by the arbiter (one thread) and
// by tests. Owns everything it is given.
//
//   spaces     a space is a set of SMs as one context sees them. timesliced: one space per client, one active
//              at a time, the others frozen with their resident blocks. mps: one space for all clients.
//   dispatch   among ready kernels by (client priority, stream priority, order of becoming ready); blocks of
//              the first kernel are placed as long as they fit, a later kernel only when all blocks of the
//              earlier ones are placed. Running blocks are never preempted within a space.
//   progress   a *group* is n equal blocks of one kernel that started together on one SM. Groups share the
//              SM's issue slots and tensor units and the device's memory bandwidth, weighted by warps. Unused
//              shares go to the others (fluid approximation). Its warps' own issue rate bounds a block alone.
//   copies     one FIFO engine per direction, independent of time slices; device-to-device competes for memory
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <queue>
#include <unordered_map>
#include <vector>

#include "profiles/gpu_description.h"
#include "softgpu/timing/work.h"

namespace tessera::softgpu::timing {

enum class Mode : uint8_t { kTimesliced, kMps };
using ClientId = uint32_t;

struct ModelOp {
  uint64_t id = 0;  // larger than every earlier id of the client
  OpKind kind = OpKind::kJoin;
  std::vector<uint64_t> deps;  // smaller ids of the same client; unknown ones are complete
  bool has_body = false;       // complete only after functional_done()
  bool cooperative = false;    // all blocks start together
  bool work_known = false;
  int priority = 0;
  uint64_t n_blocks = 0;
  uint32_t threads_per_block = 1, registers_per_thread = 16, shared_bytes_per_block = 0;
  uint64_t cost_key = 0;             // 0: no memory of costs
  uint32_t first_sm = 0, n_sms = 0;  // partition of a green context; n_sms 0: all
  BlockWork work;                    // if work_known
  uint64_t bytes = 0;
  CopyDirection direction = CopyDirection::kDeviceToDevice;
};

// The modelled part of an operation is over.
struct Ended {
  ClientId client;
  uint64_t op;
  uint64_t start_ns, end_ns;
  uint64_t stall_ns;  // of these, time spent because the cost of a block was not known yet
};

class Model {
 public:
  Model(const profiles::GpuDescription& gpu, Mode mode, uint64_t start_ns);
  ~Model();

  // Inputs take effect at now(); call advance_to() first.
  void add_client(ClientId client, int client_priority);
  void remove_client(ClientId client);       // its work vanishes
  bool submit(ClientId client, ModelOp op);  // false: malformed
  void report(ClientId client, uint64_t op, const BlockWork& mean);
  void functional_done(ClientId client, uint64_t op);  // unknown ids are ignored
  void abort(ClientId client, uint64_t up_to);         // drops every operation with id <= up_to

  void run_until(uint64_t time_ns);   // handles every event up to time_ns; now() stays at the last one
  void advance_to(uint64_t time_ns);  // run_until, then now() = time_ns; never goes back
  uint64_t now_ns() const;
  uint64_t next_wake_ns() const;  // no Ended can appear before; UINT64_MAX: none without new input
  std::vector<Ended> take_ended();
  size_t n_operations(ClientId client) const;
  uint64_t n_events() const { return n_events_; }  // handled so far, for tests of efficiency

 private:
  struct Op;
  struct Client;
  struct Group;
  struct Space;
  struct Sm;
  struct Engine;
  struct Delayed;

  // operations
  void make_ready(Op* op);
  void drain_ready();
  void enqueue_kernel(Op* op);
  void end_model(Op* op);
  void complete(Op* op);
  Op* find(ClientId client, uint64_t id) const;
  void drop(Client& client, uint64_t up_to);
  void set_work(Op* op, const BlockWork& work);

  // time
  double next_event() const;
  void progress(double to);
  void step();
  void fast_forward(double limit);
  void settle();  // after any change: slices, dispatch, rates

  // the active space
  void schedule_spaces();
  void switch_to(Space* space);
  Space* next_busy() const;
  void dispatch(Space& space);
  uint64_t place(Space& space, Op* op);
  void retire(Space& space);
  void compute_rates(Space& space);
  void release(Space& space, const Group& group);
  void start_copies();

  double from_ns(uint64_t t) const { return double(int64_t(t - epoch_)); }
  uint64_t to_ns(double t) const { return epoch_ + uint64_t(t + 0.5); }

  const profiles::GpuDescription gpu_;
  const Mode mode_;
  const uint64_t epoch_;  // ns; model time is counted from here in double, exact to far below 1 ns
  double now_ = 0;
  uint64_t n_events_ = 0, sequence_ = 0;
  std::map<ClientId, std::unique_ptr<Client>> clients_;
  std::vector<std::unique_ptr<Space>> spaces_;  // round-robin order
  Space* active_ = nullptr;                     // resident on the device; may be idle
  double switching_until_ = -1;                 // >= 0: a context switch to active_ is under way
  double slice_end_ = 0;
  std::unique_ptr<Engine> engines_[2];
  std::vector<Delayed> delayed_;  // heap: kernels in their launch overhead
  std::vector<Op*> ready_;        // worklist of drain_ready
  std::vector<Ended> ended_;
};

}  // namespace tessera::softgpu::timing

// The client side of the software GPU's clock: operations of this process, the threads that execute their
// bodies, the connection to the arbiter. Private to softgpu/timing (engine.cc wraps it as Engine). Every
// thread holds a reference, so a thread that outlives the Engine (a body still running at exit) finds
// everything in place.
//
// One lock (mutex_) guards operations and queues; bodies and callbacks run without it. Messages are put into
// outbox_ under mutex_ (so ids leave in order) and sent under send_mutex_ (so that sending never holds up
// completions). Lock order: send_mutex_ before mutex_.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/scoped_fd.h"
#include "softgpu/timing/engine.h"
#include "softgpu/timing/trace.h"
#include "softgpu/timing/wire.h"

namespace tessera::softgpu::timing {

class Core;

// State of one operation. Guarded by Core::mutex_ except `done`, which is released last and may be read by
// anyone.
class Op {
 public:
  uint64_t id = 0;
  std::weak_ptr<Core> home;       // whose operation it is; set before anyone sees it
  OpSpec spec;                    // deps emptied at submit, body emptied when it has run
  std::vector<OpRef> dependents;  // those that still wait for one of our two ends
  uint32_t bodies_left = 0;       // dependencies whose body has not run
  uint32_t ends_left = 0;         // dependencies that are not complete
  bool body_done = false, model_ended = false, running = false, dropped = false;
  bool announced = false;  // the arbiter knows it
  int code = 0;
  OpTimes times;
  uint64_t stall_ns = 0, functional_start_ns = 0, functional_end_ns = 0;
  std::atomic<bool> done{false};  // complete; release, pairs with the acquire in complete()
};

class Core : public std::enable_shared_from_this<Core> {
 public:
  Core(base::ScopedFd socket, DeviceInfo info, unsigned n_executors);
  ~Core();
  void start();  // receiver thread
  void stop();   // abandons what is outstanding; waits a bounded time for threads

  OpRef submit(OpSpec spec);
  void wait(const OpRef& op);
  OpTimes times(const OpRef& op);
  int code(const OpRef& op);
  void abort_all(int code);
  bool lost() const { return lost_.load(std::memory_order_acquire); }  // pairs with the release in lose()
  bool usable() const;  // false in a forked child, where no lock may be touched
  // Every operation that is not complete depends on the one whose body this thread runs.
  bool all_behind_running_body();
  static size_t waiting_threads();  // in wait(), of all engines
  void flush_trace() { trace_.flush(); }

  DeviceInfo info;

 private:
  // Foreign code that must not run, nor be destroyed, with the lock held.
  struct Callbacks {
    std::vector<std::pair<std::function<void(int)>, int>> calls;
    std::vector<Body> bodies;
  };
  struct Pool {  // threads that run bodies of one sort
    const char* name;
    size_t max_threads;
    std::set<std::pair<std::pair<int, uint64_t>, OpRef>> queue;  // by (priority, id)
    size_t n_threads = 0, n_idle = 0;
    uint64_t progress_ns = 0;  // when a body was last taken
    std::condition_variable work;
  };
  // One consequence of a change of state; they are worked off without recursion.
  struct Step {
    OpRef op;
    bool body;  // true: its body has run, false: it is complete
  };

  void bridge(OpRef& dep);
  void settle(std::deque<Step> steps, Callbacks& callbacks);
  void run_when_ready(const OpRef& op, std::deque<Step>& steps);
  void finish(const OpRef& op, int code, Callbacks& callbacks);
  void enqueue(Pool& pool, const OpRef& op);
  void pool_thread(Pool& pool);
  bool relieve(Pool& pool);
  void run_body(std::unique_lock<std::mutex>& lock, const OpRef& op);
  void body_ended(const OpRef& op, int result, Callbacks& callbacks);
  void run_instants(std::unique_lock<std::mutex>& lock);
  void poller_thread();
  bool poll_waits(std::unique_lock<std::mutex>& lock);
  void report(Op& op, const BlockWork& mean, BlockWork* last, bool* reported);
  void end_all(int code, Callbacks& callbacks);

  void receiver_thread();
  void receive(std::vector<char>& buffer);
  void lose();
  void announce(const OpRef& op, std::vector<uint64_t> deps);
  void announce_held();
  void send_submit(const Op& op, const std::vector<uint64_t>& deps);
  template <class T>
  void post(wire::Type type, const T& payload, const void* tail = nullptr, size_t tail_bytes = 0);
  bool flush_outbox();  // true: something is left to send
  void wake_receiver();
  void spawn(const char* name, void (Core::*function)(Pool*), Pool* pool);
  void receiver_entry(Pool*) { receiver_thread(); }
  void pool_entry(Pool* pool) { pool_thread(*pool); }
  void poller_entry(Pool*) { poller_thread(); }

  static void call(Callbacks& callbacks);

  base::ScopedFd socket_, wake_;
  const uint64_t generation_;  // forks before this process; see usable()
  Trace trace_;

  std::mutex send_mutex_;      // guards sending_
  std::vector<char> sending_;  // bytes taken from outbox_, not sent yet

  std::mutex mutex_;  // guards everything below
  std::condition_variable completed_, threads_gone_;
  std::vector<char> outbox_;
  std::unordered_map<uint64_t, OpRef> live_;
  std::deque<std::pair<OpRef, std::vector<uint64_t>>>
      held_;                // with dependencies; the arbiter does not know them yet
  size_t n_announced_ = 0;  // live operations that it knows
  uint64_t last_id_ = 0;
  size_t n_threads_ = 0;
  bool stopping_ = false;
  bool watched_ = false;  // the receiver looks at kernels_ every now and then
  Callbacks deferred_;    // for the receiver thread: completions found where no engine thread was
  Pool kernels_, copies_, actions_;
  std::deque<OpRef> instants_;  // instant and new polled actions whose time has come, for the next thread
  std::vector<OpRef> waits_;    // polled actions that have answered kNotYet
  std::condition_variable waiting_;  // waits_ is not empty any more
  bool has_poller_ = false;          // its thread was started
  std::atomic<bool> lost_{false};
};

}  // namespace tessera::softgpu::timing

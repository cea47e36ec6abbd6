// Work of one process on the software GPU: a DAG of operations, each with a functional body (executed on this
// process's CPU threads) and a modelled duration (decided by the arbiter that all processes on the device
// share). Called by softgpu/driver only; any thread. Streams, events and the legacy-stream rules are the
// driver's business: it turns them into dependencies.
//
// Two clocks. Functional: a kernel or copy body may run as soon as the bodies of its dependencies have run
// (early is good, that is the slack). Modelled: the arbiter starts the operation when its dependencies are
// complete and the device has room, and ends it after its modelled time. An operation is *complete* when both
// have happened; what exceeds the modelled end is lag and is reported. Timed actions (host functions, stream
// memory operations, event time stamps) run their body only when all dependencies are complete. Modelled time
// is CLOCK_MONOTONIC ns: the model runs in real time, or slower by a factor (DeviceInfo::stretch), so that
// all times here are what a program's own clock says.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "softgpu/timing/work.h"

namespace tessera::softgpu::timing {

class Op;  // opaque; kept alive by its references
using OpRef = std::shared_ptr<Op>;

// Functional body. Returns 0 or a CUresult-like code that poisons the context (the driver keeps it sticky).
// A kernel body calls report(mean work per block so far) as it learns it: after the first blocks and at the
// end.
using Report = std::function<void(const BlockWork&)>;
using Body = std::function<int(const Report& report)>;
inline constexpr int kNotYet = -1;  // answer of a polled body; see OpSpec::polled

struct OpSpec {
  OpKind kind = OpKind::kJoin;
  std::vector<OpRef> deps;  // may hold nulls, completed operations, and those of other engines
  Body body;                // may be empty
  std::string name;         // for the trace
  uint64_t stream = 0;      // for the trace: which stream it was submitted to
  uint64_t image_hash = 0;  // for the trace, kernels: of the program text; and the launch as it was made:
  std::array<uint32_t, 3> block{1, 1, 1};
  uint32_t dynamic_shared_bytes = 0;
  uint64_t tag = 0;  // whatever the launching thread says its launches belong to

  // kKernel
  uint64_t n_blocks = 1;
  uint32_t threads_per_block = 1, registers_per_thread = 16, shared_bytes_per_block = 0;
  int priority = 0;                  // stream priority, lower = sooner, as in CUDA
  uint32_t first_sm = 0, n_sms = 0;  // partition of the device that its blocks may use; n_sms 0: all
  uint64_t cost_key = 0;  // same key = same expected BlockWork (kernel, block, shared, parameters class)
  bool cooperative = false;
  bool work_known = false;  // `work` is the cost; nothing will be reported (a given cost table, tests)
  BlockWork work;

  // kAction
  bool instant = false;  // costs the device nothing (a stream write): what follows does not wait, in
                         // modelled time, for the body; bodies keep their order
  bool polled = false;   // the body asks whether something has come true, and never blocks; while it answers
                         // kNotYet it is called again, by one thread for all such operations of the engine

  // kCopy
  uint64_t bytes = 0;
  CopyDirection direction = CopyDirection::kDeviceToDevice;

  // Called once when the operation is complete (complete() says so already), from an engine thread; must not
  // block. Several may be called at the same time. Not called by ~Engine. May be empty.
  std::function<void(int code)> on_complete;
};

struct OpTimes {
  uint64_t enqueued_ns = 0;  // when submit() was called
  uint64_t start_ns = 0;     // modelled start of the first block
  uint64_t end_ns = 0;       // modelled end
};

// Code with which operations end when the arbiter is gone (CUDA_ERROR_DEVICE_UNAVAILABLE).
inline constexpr int kDeviceLost = 46;

// The arbiter's description of the device; the same for every process on it.
struct DeviceInfo {
  unsigned device = 0;           // which of several
  std::string description_path;  // the TOML that the arbiter was started with
  std::string mode;              // "timesliced" or "mps"
  double stretch = 1;            // how many times slower than the description it runs
  std::array<uint8_t, 16> uuid{};
};

// Counts the software GPU's threads in this process, one by one: none of them is the program's. Any thread.
class OwnThread {
 public:
  OwnThread();
  ~OwnThread();
  OwnThread(const OwnThread&) = delete;
  static size_t count();
};

class Engine {
 public:
  // Connects to the arbiter of this user and directory, starting it if there is none; see
  // softgpu/timing/README.md for the environment. `client_priority` as CUDA_MPS_CLIENT_PRIORITY (0 high, 1
  // low). Each device of a machine with several has its own arbiter; `description` as TESSERA_SOFTGPU_GPU,
  // empty: what that says.
  static base::Result<std::unique_ptr<Engine>> connect(int client_priority, unsigned device = 0,
                                                       const std::string& description = "");
  // The same model inside this process, for tests and for machines where no second process may be started.
  static base::Result<std::unique_ptr<Engine>> local(const std::string& description_path,
                                                     const std::string& mode, unsigned device = 0);

  // Abandons what is outstanding: waiters return, bodies that run get half a second to end, then are left
  // alone.
  virtual ~Engine() = default;
  virtual const DeviceInfo& info() const = 0;
  // The four questions about operations may be put to any engine of the process.
  virtual OpRef submit(OpSpec spec) = 0;             // never blocks
  virtual bool complete(const OpRef& op) const = 0;  // null counts as complete
  virtual int code(const OpRef& op) const = 0;       // of the body; 0 while not complete
  virtual void wait(const OpRef& op) = 0;            // blocks until complete
  virtual OpTimes times(const OpRef& op) const = 0;  // end 0 while not complete
  // After a context died (sticky error): drops everything not started, cancels the rest, completes all with
  // `code`. An operation whose body is running completes when the body returns; cancelling the body is the
  // driver's business.
  virtual void abort_all(int code) = 0;
  // The arbiter is gone: what was outstanding has ended with kDeviceLost, and what is submitted from now on
  // does too.
  virtual bool lost() const = 0;
};

// From inside a body: nothing else of this process can happen before the body ends. No operation of any engine
// can run before it, and every thread waits for operations or belongs to the engines, but for `more_threads`
// of the caller's own. False where that is not certain.
bool all_wait_for_this_body(unsigned more_threads);

}  // namespace tessera::softgpu::timing

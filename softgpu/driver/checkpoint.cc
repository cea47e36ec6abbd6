#include "softgpu/driver/checkpoint.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "softgpu/driver/memory.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/vmm.h"

namespace tessera::softgpu::driver::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

thread_local unsigned t_depth = 0;

// seq_cst: a call counts itself and looks at g_closed, a lock closes and looks at the count. One of them sees the other.
std::atomic<uint64_t> g_calls{0};
std::atomic<bool> g_closed{false};

struct Shared {
  std::mutex mutex;  // guards `state`, `busy`; with it g_closed is stored and the last call told
  std::condition_variable changed;  // g_closed or the number of calls
  CUprocessState state = CU_PROCESS_STATE_RUNNING;
  bool busy = false;  // one of the four is under way
};
Shared& shared() {
  static auto* made = new Shared;  // never destroyed: calls may block until the process is gone
  return *made;
}

// One of the four calls: begins in `from`, and ends in the state that it sets.
class Change {
 public:
  explicit Change(CUprocessState from) {
    std::lock_guard lock(shared().mutex);
    legal_ = !shared().busy && shared().state == from;
    if (legal_) shared().busy = true;
  }
  ~Change() {
    if (!legal_) return;
    std::lock_guard lock(shared().mutex);
    shared().busy = false;
  }
  Change(const Change&) = delete;
  bool legal() const { return legal_; }
  CUresult ends_in(CUprocessState state, CUresult answer = CUDA_SUCCESS) {
    std::lock_guard lock(shared().mutex);
    shared().state = state;
    return answer;
  }

 private:
  bool legal_ = false;
};

void set_closed(bool closed) {
  std::lock_guard lock(shared().mutex);
  g_closed.store(closed);
  shared().changed.notify_all();
}

// All that was enqueued has ended before the time comes. What is left behind a time-out holds itself.
bool work_ends_before(Clock::time_point until, bool limited) {
  struct End {
    std::mutex mutex;  // guards `reached`
    std::condition_variable told;
    bool reached = false;
  };
  const auto end = std::make_shared<End>();
  timing::OpSpec join;
  join.kind = timing::OpKind::kJoin;
  for (const auto& context : contexts_with_work()) {
    std::lock_guard lock(context->mutex);
    join.deps.insert(join.deps.end(), {context->legacy->tail, context->legacy->marker});
    for (const auto& stream : context->streams)
      join.deps.insert(join.deps.end(), {stream->tail, stream->marker});
  }
  join.on_complete = [end](int) {
    std::lock_guard lock(end->mutex);
    end->reached = true;
    end->told.notify_all();
  };
  const timing::OpRef op = driver().engine().submit(std::move(join));
  std::unique_lock lock(end->mutex);
  const auto reached = [&] { return end->reached; };
  if (limited) return end->told.wait_until(lock, until, reached);
  end->told.wait(lock, reached);
  return true;
}

// The first thing that no driver before 610 carries over a checkpoint; null: there is none.
const char* refused() {
  if (const char* memory = Memory::get().not_to_be_saved()) return memory;
  for (const PhysicalMemory& each : physical_memory())
    if (each.shared) return "physical memory that another process may have";
  for (const auto& event : driver().events.list())
    if (event->shared) return "interprocess events";
  return nullptr;
}

// A transfer over each device's host link takes the modelled time, whatever this machine does meanwhile to move it.
template <class F>
bool transferred(timing::CopyDirection direction, F&& move) {
  std::vector<timing::OpRef> ops;
  for (const auto& device : driver().devices) {
    timing::OpSpec copy;
    copy.kind = timing::OpKind::kCopy;
    copy.name = "checkpoint";
    copy.bytes = Memory::get().own_bytes(device->ordinal);
    copy.direction = direction;
    if (copy.bytes) ops.push_back(device->engine->submit(std::move(copy)));
  }
  const bool moved = move();
  for (const timing::OpRef& op : ops) driver().engine().wait(op);
  return moved;
}

}  // namespace

bool begin_call() {
  if (t_depth++ != 0) return true;
  for (;;) {
    g_calls.fetch_add(1);
    if (!g_closed.load()) return true;
    end_call();
    std::unique_lock lock(shared().mutex);
    shared().changed.wait(lock, [] { return !g_closed.load(); });
    ++t_depth;
  }
}

void end_call() {
  if (--t_depth != 0) return;
  g_calls.fetch_sub(1);
  if (!g_closed.load()) return;
  std::lock_guard lock(shared().mutex);
  shared().changed.notify_all();
}

CUprocessState state() {
  std::lock_guard lock(shared().mutex);
  return shared().state;
}

CUresult lock(std::chrono::milliseconds limit) {
  Change change(CU_PROCESS_STATE_RUNNING);
  if (!change.legal()) return CUDA_ERROR_ILLEGAL_STATE;
  const bool limited = limit.count() != 0;
  const Clock::time_point until = Clock::now() + limit;
  set_closed(true);
  const auto no_call = [] { return g_calls.load() == 0; };
  bool ended = true;
  {
    std::unique_lock lock(shared().mutex);
    if (limited)
      ended = shared().changed.wait_until(lock, until, no_call);
    else
      shared().changed.wait(lock, no_call);
  }
  if (ended && work_ends_before(until, limited)) return change.ends_in(CU_PROCESS_STATE_LOCKED);
  set_closed(false);
  return CUDA_ERROR_NOT_READY;
}

CUresult save() {
  Change change(CU_PROCESS_STATE_LOCKED);
  if (!change.legal()) return CUDA_ERROR_ILLEGAL_STATE;
  if (const char* reason = refused()) {
    report("a checkpoint meets %s", reason);
    return change.ends_in(CU_PROCESS_STATE_FAILED, CUDA_ERROR_NOT_SUPPORTED);
  }
  if (!transferred(timing::CopyDirection::kDeviceToHost, [] { return Memory::get().save(); }))
    return change.ends_in(CU_PROCESS_STATE_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
  return change.ends_in(CU_PROCESS_STATE_CHECKPOINTED);
}

CUresult restore(std::span<const CUcheckpointGpuPair> pairs) {
  // As driver 580.95 was seen to answer once a restore has failed (NVIDIA/cuda-checkpoint#44).
  if (state() == CU_PROCESS_STATE_FAILED) return CUDA_ERROR_OPERATING_SYSTEM;
  Change change(CU_PROCESS_STATE_CHECKPOINTED);
  if (!change.legal()) return CUDA_ERROR_ILLEGAL_STATE;
  if (!pairs.empty())
    if (CUresult refused = move_devices(pairs)) return refused;
  if (!Memory::get().take_back()) return change.ends_in(CU_PROCESS_STATE_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
  if (!transferred(timing::CopyDirection::kHostToDevice, [] { return Memory::get().restore(); }))
    return change.ends_in(CU_PROCESS_STATE_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
  return change.ends_in(CU_PROCESS_STATE_LOCKED);
}

CUresult unlock() {
  Change change(CU_PROCESS_STATE_LOCKED);
  if (!change.legal()) return CUDA_ERROR_ILLEGAL_STATE;
  const CUresult done = change.ends_in(CU_PROCESS_STATE_RUNNING);
  set_closed(false);
  return done;
}

}  // namespace tessera::softgpu::driver::checkpoint

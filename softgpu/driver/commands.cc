#include "softgpu/driver/commands.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/hash.h"
#include "softgpu/driver/code.h"
#include "softgpu/driver/graph.h"
#include "softgpu/driver/ipc.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/state.h"
#include "softgpu/faults/faults.h"

namespace tessera::softgpu::driver {
namespace {

std::atomic<int> g_running{0};

struct RunningBody {
  RunningBody() { g_running.fetch_add(1, std::memory_order_relaxed); }   // relaxed: only a count
  ~RunningBody() { g_running.fetch_sub(1, std::memory_order_release); }  // pairs with running_bodies()
};

timing::BlockWork per_block(const exec::Work& w, double scale) {
  return {double(w.warp_instructions) * scale, double(w.global_bytes) * scale,
          double(w.tensor_operations) * scale, double(w.fp64_operations) * scale,
          double(w.fp32_operations) * scale,   double(w.fp16_operations) * scale};
}

// Tells the engine the mean work per block of grids that still run, so that a kernel never seen before gets
// an end in modelled time while it executes. One thread, started with the first such grid, parked when there
// is none.
class Sampler {
 public:
  struct Entry {
    const exec::Progress* progress;
    const timing::Report* report;
    double factor;
    uint64_t next_blocks = 1;
  };
  static Sampler& get() {
    static Sampler* sampler = new Sampler;  // never destroyed: its thread may outlive main
    return *sampler;
  }
  void add(Entry* entry) {
    std::lock_guard lock(mutex_);
    entries_.push_back(entry);
    if (!started_) {
      started_ = true;
      std::thread([this] { loop(); }).detach();
    } else if (parked_) {
      wake_.notify_one();
    }
  }
  void remove(Entry* entry) {
    std::lock_guard lock(mutex_);
    std::erase(entries_, entry);
  }
  unsigned threads() {
    std::lock_guard lock(mutex_);
    return started_;
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      int idle_rounds = 0;
      while (idle_rounds < 20) {
        wake_.wait_for(lock, std::chrono::microseconds(500));
        idle_rounds = entries_.empty() ? idle_rounds + 1 : 0;
        for (Entry* entry : entries_) sample(*entry);
      }
      parked_ = true;
      wake_.wait(lock, [this] { return !entries_.empty(); });
      parked_ = false;
    }
  }
  static void sample(Entry& entry) {
    const uint64_t blocks = entry.progress->blocks_done.load(std::memory_order_acquire);
    if (blocks < entry.next_blocks) return;
    entry.next_blocks = blocks * 2;
    (*entry.report)(per_block(entry.progress->so_far(), entry.factor / double(blocks)));
  }

  std::mutex mutex_;  // guards all below; held while report is called
  std::condition_variable wake_;
  std::vector<Entry*> entries_;
  bool started_ = false, parked_ = false;
};

uint64_t block_order_seed() {
  static const uint64_t seed = [] {
    const char* text = std::getenv("TESSERA_SOFTGPU_BLOCK_ORDER");
    if (!text || !std::strcmp(text, "ascending")) return uint64_t(0);
    if (!std::strcmp(text, "reversed")) return uint64_t(1);
    return uint64_t(std::strtoull(text, nullptr, 10));
  }();
  return seed;
}

// Nobody can change what a grid polls if that is device memory which no other process knows of and the whole
// process waits for the grid. Anything else may: host memory is the host's, and a thread that does not wait
// may still copy.
bool may_be_released(const exec::EndlessPoll& poll) {
  for (const uint64_t begin : poll.allocations) {
    Allocation found;
    if (!Memory::get().find(begin, &found) || found.kind != MemoryKind::kDevice || found.exported)
      return true;
  }
  return !poll.allocations.empty() &&
         !timing::all_wait_for_this_body(poll.helpers + Sampler::get().threads());
}

// A program that hangs should say where. Once for a launch, and for few of them.
class PollNotice {
 public:
  void note(const exec::EndlessPoll& poll) {
    if (said_ || std::chrono::steady_clock::now() - begin_ < kPatience) return;
    said_ = true;
    static std::atomic<int> left{4};
    if (left.fetch_sub(1, std::memory_order_relaxed) <= 0) return;  // only a count
    const exec::Fault& at = poll.where;
    notice(
        "kernel %s polls since %d s what only the host can change and runs on: block (%u,%u,%u) thread "
        "(%u,%u,%u) PTX line %u address 0x%llx: %s",
        at.kernel.c_str(), int(kPatience.count()), at.block[0], at.block[1], at.block[2], at.thread[0],
        at.thread[1], at.thread[2], at.line, static_cast<unsigned long long>(at.address), at.text.c_str());
  }

 private:
  static constexpr std::chrono::seconds kPatience{2};
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  bool said_ = false;
};

int run_kernel(Context& context, const KernelCommand& kernel, faults::KernelFault scripted,
               const timing::Report& report_work) {
  if (const int code = context.poisoned.load(std::memory_order_acquire)) return code;
  RunningBody running;
  auto fail = [&](int code) {
    int none = 0;
    context.poisoned.compare_exchange_strong(none, code, std::memory_order_acq_rel);
    return code;
  };
  switch (scripted) {
    case faults::KernelFault::kNone:
      break;
    case faults::KernelFault::kFail:
      return fail(CUDA_ERROR_LAUNCH_FAILED);
    case faults::KernelFault::kHang:
      while (!context.cancel.load(std::memory_order_relaxed))  // a flag, nothing is published with it
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return 0;
  }
  exec::Launch launch;
  launch.grid = kernel.grid;
  launch.block = kernel.block;
  launch.dynamic_shared_bytes = kernel.dynamic_shared_bytes;
  launch.params = kernel.params.data();
  launch.block_order_seed = block_order_seed();
  launch.cooperative = kernel.cooperative;
  launch.cluster = kernel.cluster;
  launch.resident_blocks = resident_blocks(
      *kernel.function, kernel.block[0] * kernel.block[1] * kernel.block[2], kernel.dynamic_shared_bytes);
  PollNotice poll_notice;
  launch.may_be_released = [&](const exec::EndlessPoll& poll) {
    const bool may = may_be_released(poll);
    if (may) poll_notice.note(poll);
    return may;
  };
  const double n_blocks = double(kernel.grid[0]) * kernel.grid[1] * kernel.grid[2];
  const double factor = faults::slowness();

  exec::Work work;
  exec::Progress progress;
  Sampler::Entry entry{&progress, &report_work, factor};
  const bool sampled = n_blocks > 1;
  if (sampled) Sampler::get().add(&entry);
  const exec::Fault fault = kernel.function->module->program->run(
      *kernel.function->kernel, launch, driver().functional_threads, &work, &progress, &context.cancel);
  if (sampled) Sampler::get().remove(&entry);
  report_work(per_block(work, factor / n_blocks));
  if (fault.kind == exec::FaultKind::kNone) return 0;
  report_fault(fault);
  return fail(code_of(fault.kind));
}

void perform_memset(const MemsetCommand& set) {
  for (uint64_t row = 0; row < set.height; ++row) {
    uint8_t* to = reinterpret_cast<uint8_t*>(set.dst + row * set.pitch);
    switch (set.element_bytes) {
      case 1:
        std::memset(to, int(set.value & 0xff), set.width);
        break;
      case 2: {
        const uint16_t value = uint16_t(set.value);
        for (uint64_t i = 0; i < set.width; ++i) std::memcpy(to + 2 * i, &value, 2);
        break;
      }
      default:
        for (uint64_t i = 0; i < set.width; ++i) std::memcpy(to + 4 * i, &set.value, 4);
    }
  }
}

template <class T>
bool wait_satisfied(uint64_t address, T value, unsigned flags) {
  const T now = std::atomic_ref<T>(*reinterpret_cast<T*>(address)).load(std::memory_order_acquire);
  switch (flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return std::make_signed_t<T>(now - value) >= 0;  // cyclic, as documented
    case CU_STREAM_WAIT_VALUE_EQ:
      return now == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (now & value) != 0;
    default:
      return T(~(now | value)) != 0;
  }
}
template <class T>
void write_value(uint64_t address, T value) {
  std::atomic_ref<T>(*reinterpret_cast<T*>(address)).store(value, std::memory_order_release);
}

// True when the operation is done, false if its wait is not satisfied yet.
bool perform_mem_op(const CUstreamBatchMemOpParams& op) {
  switch (op.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      return wait_satisfied<uint32_t>(op.waitValue.address, op.waitValue.value, op.waitValue.flags);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      return wait_satisfied<uint64_t>(op.waitValue.address, op.waitValue.value64, op.waitValue.flags);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      write_value<uint32_t>(op.writeValue.address, op.writeValue.value);
      return true;
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      write_value<uint64_t>(op.writeValue.address, op.writeValue.value64);
      return true;
    default:
      return true;  // barrier, flush: every body is ordered already
  }
}

// Performs what it can from `next` on; kNotYet at a wait that is not satisfied, which the engine asks again.
// Ends with the context.
int run_mem_ops(Context& context, const MemOpCommand& batch, size_t* next) {
  for (; *next < batch.ops.size(); ++*next) {
    const CUstreamBatchMemOpParams& op = batch.ops[*next];
    const bool on_memory =
        op.operation != CU_STREAM_MEM_OP_BARRIER && op.operation != CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES;
    if (const int code = context.poisoned.load(std::memory_order_acquire)) return code;
    if (on_memory && !Memory::get().contains(op.waitValue.address, 4)) {
      int none = 0;
      context.poisoned.compare_exchange_strong(none, CUDA_ERROR_ILLEGAL_ADDRESS, std::memory_order_acq_rel);
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    if (!perform_mem_op(op)) return timing::kNotYet;
  }
  return 0;
}

uint64_t slowed(uint64_t bytes) {
  return faults::armed() ? uint64_t(double(bytes) * faults::slowness()) : bytes;
}

struct MakeOp {
  std::shared_ptr<Context> context;
  const Stream& stream;
  timing::OpSpec spec;

  void operator()(KernelCommand& kernel) {
    const exec::KernelInfo& info = *kernel.function->info;
    spec.kind = timing::OpKind::kKernel;
    spec.name = info.name;
    spec.n_blocks = uint64_t(kernel.grid[0]) * kernel.grid[1] * kernel.grid[2];
    spec.threads_per_block = kernel.block[0] * kernel.block[1] * kernel.block[2];
    spec.registers_per_thread = info.registers;
    spec.shared_bytes_per_block = info.static_shared_bytes + kernel.dynamic_shared_bytes;
    spec.cooperative = kernel.cooperative;
    spec.cost_key = cost_key(kernel);
    spec.image_hash = kernel.function->module->image_hash;
    spec.tag = kernel.tag;
    spec.block = kernel.block;
    spec.dynamic_shared_bytes = kernel.dynamic_shared_bytes;
    if (kernel.has_priority) spec.priority = kernel.priority;
    // Counted as submitted, not as run: kernels of several streams start in any order, and one that its
    // context's end overtakes never does.
    const auto scripted = faults::armed() ? faults::on_kernel() : faults::KernelFault::kNone;
    spec.body = [context = context, kernel = std::move(kernel), scripted](const timing::Report& report_work) {
      return run_kernel(*context, kernel, scripted, report_work);
    };
  }
  void operator()(CopyCommand& copy) {
    spec.kind = timing::OpKind::kCopy;
    spec.name = "copy";
    spec.bytes = slowed(copy.width * copy.height * copy.depth);
    spec.direction = copy.direction;
    guarded([copy = std::move(copy)] { perform_copy(copy); });
  }
  void operator()(MemsetCommand& set) {
    spec.kind = timing::OpKind::kCopy;  // the model has no fill engine: DRAM bandwidth, one way
    spec.name = "memset";
    spec.bytes = slowed(set.width * set.height * set.element_bytes / 2);
    spec.direction = timing::CopyDirection::kDeviceToDevice;
    guarded([set] { perform_memset(set); });
  }
  void operator()(HostCommand& host) {
    spec.kind = timing::OpKind::kAction;
    spec.name = "host function";
    spec.body = [context = context, host](const timing::Report&) {
      const int code = context->poisoned.load(std::memory_order_acquire);
      if (code && !host.callback) return code;
      thread().in_callback = true;
      if (host.callback)
        host.callback(host.stream, result(code), host.data);
      else
        host.function(host.data);
      thread().in_callback = false;
      return code;
    };
  }
  void operator()(MemOpCommand& batch) {
    spec.kind = timing::OpKind::kAction;
    spec.name = "stream memory operation";
    // A write costs a GPU next to nothing; a wait holds the stream until its body returns.
    spec.polled = batch.waits();
    spec.instant = !spec.polled;
    spec.body = [context = context, batch, next = size_t(0)](const timing::Report&) mutable {
      return run_mem_ops(*context, batch, &next);
    };
  }
  void operator()(FreeCommand& free) {
    spec.kind = timing::OpKind::kAction;
    spec.name = "free";
    if (!free.from_graph)
      spec.body = [address = free.address](const timing::Report&) {
        if (!close_ticket(address)) Memory::get().release(address);
        return 0;
      };
  }
  void operator()(AllocCommand&) {}
  void operator()(SharedRecordCommand& record) {
    spec.kind = timing::OpKind::kAction;
    spec.name = "event record";
    spec.instant = true;
    spec.body = [record](const timing::Report&) {  // whatever became of the context: others wait for it
      record.event->complete(record.number);
      return 0;
    };
  }
  void operator()(SharedWaitCommand& wait) {
    spec.kind = timing::OpKind::kAction;
    spec.name = "event wait";
    spec.body = [context = context, wait](const timing::Report&) {
      while (!wait.event->wait_some(wait.number))
        if (const int code = context->poisoned.load(std::memory_order_acquire)) return code;
      return 0;
    };
  }
  void operator()(EventRecordCommand&) {}
  void operator()(EventWaitCommand&) {}
  void operator()(ChildCommand&) {}
  void operator()(ConditionalCommand& conditional) {
    spec.kind = timing::OpKind::kAction;
    spec.name = "conditional";
    // The stream may be gone when the body runs: priority and number are all that is needed of it.
    auto inner = std::make_shared<Stream>();
    inner->context = context.get();
    inner->priority = stream.priority;
    inner->id = stream.id;
    inner->green = stream.green;
    spec.body = [context = context, conditional, inner](const timing::Report&) {
      if (const int code = context->poisoned.load(std::memory_order_acquire)) return code;
      return run_conditional(context, conditional, *inner);
    };
  }
  void operator()(SetConditionsCommand& set) {
    spec.kind = timing::OpKind::kAction;
    spec.name = "conditions";
    spec.instant = true;
    spec.body = [set](const timing::Report&) {
      for (const auto& condition : set.conditions)
        std::atomic_ref<uint32_t>(*condition->word)
            .store(condition->default_value, std::memory_order_release);
      return 0;
    };
  }
  void operator()(EmptyCommand& empty) {
    // A join's body never runs; it goes when the operation is complete, and what it holds goes with it.
    if (empty.keep) spec.body = [keep = std::move(empty.keep)](const timing::Report&) { return 0; };
  }

 private:
  template <class F>
  void guarded(F work) {
    spec.body = [context = context, work = std::move(work)](const timing::Report&) {
      if (const int code = context->poisoned.load(std::memory_order_acquire)) return code;
      RunningBody running;
      work();
      return 0;
    };
  }
};

// Numbers within about a quarter of each other fall together: bit length and the two bits below the first.
uint64_t magnitude(uint64_t value) {
  if (value < 8) return value;
  const int top = std::bit_width(value) - 1;
  return uint64_t(top) * 4 + ((value >> (top - 2)) & 3) + 8;
}

}  // namespace

int running_bodies() {
  return g_running.load(std::memory_order_acquire);
}

uint64_t cost_key(const KernelCommand& kernel) {
  uint64_t key = kernel.function->cost_seed;
  for (uint32_t n : kernel.block) key = base::combine(key, n);
  key = base::combine(key, kernel.dynamic_shared_bytes);
  key = base::combine(key, magnitude(uint64_t(kernel.grid[0]) * kernel.grid[1] * kernel.grid[2]));
  const uint8_t* bytes = kernel.params.data();
  for (const exec::Param& param : kernel.function->info->params) {
    for (uint32_t at = 0; at < param.size_bytes;) {
      uint64_t value = 0;
      const uint32_t left = param.size_bytes - at;
      uint32_t step = left >= 8 ? 8 : left >= 4 ? 4 : left;
      std::memcpy(&value, bytes + param.offset_bytes + at, step);
      // Addresses (heap, mappings) have 0x50..0x7f in bits 40-47; anything else in 8 bytes may be two
      // numbers.
      if (step == 8 && value > UINT32_MAX) {
        const bool address = (value >> 40) >= 0x50 && (value >> 40) <= 0x7f;
        if (!address) value = uint32_t(value), step = 4;
        key = base::combine(key, address ? 1 : magnitude(value));
      } else {
        key = base::combine(key, magnitude(value));
      }
      at += step;
    }
  }
  return key;
}

void perform_copy(const CopyCommand& copy) {
  for (uint64_t z = 0; z < copy.depth; ++z)
    for (uint64_t y = 0; y < copy.height; ++y)
      std::memmove(reinterpret_cast<void*>(copy.dst + z * copy.dst_slice + y * copy.dst_pitch),
                   reinterpret_cast<const void*>(copy.src + z * copy.src_slice + y * copy.src_pitch),
                   copy.width);
}

timing::OpSpec make_op(const std::shared_ptr<Context>& context, Command command, const Stream& stream) {
  MakeOp maker{context, stream, {}};
  maker.spec.priority = stream.priority;
  std::visit(maker, command);
  return std::move(maker.spec);
}

}  // namespace tessera::softgpu::driver

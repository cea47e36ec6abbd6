#include "softgpu/driver/state.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <thread>

#include "softgpu/driver/array.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/checkpoint.h"
#include "softgpu/driver/checkpoint_service.h"
#include "softgpu/driver/commands.h"
#include "softgpu/driver/green.h"
#include "softgpu/driver/logs.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/stream.h"
#include "softgpu/faults/faults.h"
#include "softgpu/timing/place.h"

namespace tessera::softgpu::driver {
namespace {

enum class Life : int { kPreinit, kLive, kForked, kDead };

std::atomic<Life> g_life{Life::kPreinit};
std::atomic<Driver*> g_driver{nullptr};
std::mutex g_init_mutex;
std::atomic<uint64_t> g_next_thread{1};

void after_fork_in_child() {
  // A store and closed files only: locks may be held by threads that do not exist here.
  if (g_life.load(std::memory_order_relaxed) != Life::kLive) return;
  g_life.store(Life::kForked, std::memory_order_relaxed);
  Memory::get().forget_others();
  checkpoint::leave_to_the_parent();
}

// Work may be outstanding at exit: nothing new is accepted, running kernels are told to stop, and what still
// copies gets a moment, so that no body touches memory of the program while the loader takes it apart.
__attribute__((destructor)) void on_unload() {
  if (g_life.load(std::memory_order_acquire) != Life::kLive) return;
  g_life.store(Life::kDead, std::memory_order_release);
  for (const auto& context : driver().contexts.remove_if([](const Context&) { return true; })) {
    context->poisoned.store(CUDA_ERROR_DEINITIALIZED, std::memory_order_release);
    context->cancel.store(true, std::memory_order_release);
  }
  for (int i = 0; i < 2000 && running_bodies() > 0; ++i)
    std::this_thread::sleep_for(std::chrono::microseconds(500));
}

int client_priority() {
  const char* text = std::getenv("CUDA_MPS_CLIENT_PRIORITY");
  return text && std::atoi(text) > 0 ? 1 : 0;
}

std::string environment(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

// TESSERA_SOFTGPU_LOCAL=<description.toml> keeps the device inside this process (tests); _MODE picks the
// model.
base::Result<std::unique_ptr<timing::Engine>> make_engine(unsigned index, const std::string& description) {
  if (const char* local = std::getenv("TESSERA_SOFTGPU_LOCAL")) {
    const std::string mode = environment("TESSERA_SOFTGPU_MODE");
    return timing::Engine::local(description.empty() ? local : description,
                                 mode.empty() ? "timesliced" : mode, index);
  }
  return timing::Engine::connect(client_priority(), index, description);
}

base::Result<PhysicalGpu> bring_up_gpu(unsigned index, const std::string& description) {
  auto engine = make_engine(index, description);
  if (!engine.ok()) return engine.error();
  auto gpu = profiles::load_gpu_description(engine.value()->info().description_path);
  if (!gpu.ok()) return gpu.error();
  PhysicalGpu made;
  made.engine = std::move(engine).value();
  made.gpu = std::move(gpu).value();
  made.gpu.uuid = made.engine->info().uuid;
  made.mps = made.engine->info().mode == "mps";
  // Times learnt on a stretched device are not those of the device itself: it has another name.
  if (const double stretch = made.engine->info().stretch; stretch != 1) {
    char text[48];
    std::snprintf(text, sizeof text, " (stretched %.3gx)", stretch);
    made.gpu.name += text;
  }
  timing::number(made.gpu, index);
  return made;
}

// Devices that CUDA_VISIBLE_DEVICES shows, in its order: indices or beginnings of UUIDs. The list ends at the first
// entry that is no device, and a device named twice hides all, as documented.
std::vector<size_t> visible_devices(const std::vector<PhysicalGpu>& devices) {
  std::vector<size_t> visible;
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!list) {
    for (size_t i = 0; i < devices.size(); ++i) visible.push_back(i);
    return visible;
  }
  for (const std::string& item : timing::split(list)) {
    size_t found = devices.size();
    if (timing::is_number(item) && item.size() < 4) found = size_t(std::atoi(item.c_str()));
    for (size_t i = 0; item.starts_with("GPU-") && i < devices.size(); ++i)
      if (timing::uuid_text(devices[i].gpu.uuid).starts_with(item)) found = i;
    if (found >= devices.size()) break;
    if (std::find(visible.begin(), visible.end(), found) != visible.end()) return {};
    visible.push_back(found);
  }
  return visible;
}

// But those for which `is_there(index)`.
template <class F>
base::Result<std::vector<PhysicalGpu>> bring_up_machine(F is_there) {
  const auto descriptions = timing::device_descriptions(size_t(kMaxDevices));
  if (!descriptions.ok()) return descriptions.error();
  std::vector<PhysicalGpu> machine;
  for (unsigned i = 0; i < descriptions.value().size(); ++i) {
    if (is_there(i)) continue;
    auto gpu = bring_up_gpu(i, descriptions.value()[i]);
    if (!gpu.ok()) return gpu.error();
    machine.push_back(std::move(gpu).value());
  }
  return machine;
}

std::vector<Memory::DeviceSpace> spaces_of(const std::vector<std::unique_ptr<Device>>& devices) {
  std::vector<Memory::DeviceSpace> spaces;
  for (const auto& device : devices)
    spaces.push_back({device->gpu.memory.bytes, timing::memory_count_of(device->engine->info().device)});
  return spaces;
}

CUresult bring_up() {
  if (std::string problem = faults::load(std::getenv("TESSERA_SOFTGPU_FAULTS")); !problem.empty())
    std::fprintf(stderr, "softgpu: TESSERA_SOFTGPU_FAULTS ignored: %s\n", problem.c_str());
  auto physical = bring_up_machine([](unsigned) { return false; });
  if (!physical.ok()) {
    std::fprintf(stderr, "softgpu: no device: %s\n", physical.error().text.c_str());
    return CUDA_ERROR_NO_DEVICE;
  }
  auto made = std::make_unique<Driver>();
  for (size_t index : visible_devices(physical.value())) {
    auto device = std::make_unique<Device>();
    static_cast<PhysicalGpu&>(*device) = std::move(physical.value()[index]);
    device->ordinal = CUdevice(made->devices.size());
    made->devices.push_back(std::move(device));
  }
  if (made->devices.empty()) return CUDA_ERROR_NO_DEVICE;
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  made->functional_threads = std::clamp(cores / 2, 1u, 8u);
  if (const char* threads = std::getenv("TESSERA_SOFTGPU_GRID_THREADS"))
    made->functional_threads = unsigned(std::clamp(std::atoi(threads), 1, 256));
  Memory::get().set_devices(spaces_of(made->devices));
  g_driver.store(made.release(), std::memory_order_release);  // pairs with driver()
  return CUDA_SUCCESS;
}

bool reporting() {
  static const bool on = [] {
    const char* text = std::getenv("TESSERA_SOFTGPU_REPORT");
    return text && *text && std::strcmp(text, "0") != 0;
  }();
  return on;
}

}  // namespace

Driver& driver() {
  return *g_driver.load(std::memory_order_acquire);
}

int Device::attribute(int number) const {
  int value = 0;
  (void)profiles::gpu_attribute(gpu, number, &value);
  return value;
}

Device* find_device(CUdevice ordinal) {
  const auto& devices = driver().devices;
  return ordinal >= 0 && size_t(ordinal) < devices.size() ? devices[size_t(ordinal)].get() : nullptr;
}

bool can_access_peer(CUdevice device, CUdevice peer) {
  return device != peer && find_device(device) && find_device(peer);
}

Device& device_of(const Context& context) {
  return *driver().devices[size_t(context.device)];
}

CUresult move_devices(std::span<const CUcheckpointGpuPair> pairs) {
  Driver& d = driver();
  const auto all_gpus = [&d] {
    std::vector<PhysicalGpu*> all;
    for (const auto& device : d.devices) all.push_back(device.get());
    for (PhysicalGpu& gpu : d.hidden) all.push_back(&gpu);
    return all;
  };
  const std::vector<PhysicalGpu*> known = all_gpus();
  auto more = bring_up_machine([&](unsigned index) {
    return std::ranges::any_of(known,
                               [&](const PhysicalGpu* gpu) { return gpu->engine->info().device == index; });
  });
  if (!more.ok()) return CUDA_ERROR_NO_DEVICE;
  std::ranges::move(more.value(), std::back_inserter(d.hidden));

  const std::vector<PhysicalGpu*> all = all_gpus();
  const auto named = [&](const CUuuid& uuid) {
    return std::ranges::find_if(all, [&](const PhysicalGpu* gpu) {
      return std::memcmp(gpu->gpu.uuid.data(), uuid.bytes, sizeof uuid.bytes) == 0;
    });
  };
  std::vector<PhysicalGpu*> goes_to(all.size());
  std::vector<bool> is_taken(all.size());
  if (pairs.size() != all.size()) return CUDA_ERROR_INVALID_VALUE;
  for (const CUcheckpointGpuPair& pair : pairs) {
    const auto from = named(pair.oldUuid), to = named(pair.newUuid);
    if (from == all.end() || to == all.end()) return CUDA_ERROR_INVALID_VALUE;
    const auto old_at = size_t(from - all.begin()), new_at = size_t(to - all.begin());
    if (goes_to[old_at] || is_taken[new_at]) return CUDA_ERROR_INVALID_VALUE;
    if ((*from)->gpu.name != (*to)->gpu.name) return CUDA_ERROR_NOT_SUPPORTED;
    goes_to[old_at] = *to;
    is_taken[new_at] = true;
  }
  std::vector<PhysicalGpu> moved;
  for (PhysicalGpu* to : goes_to) moved.push_back(std::move(*to));
  for (size_t i = 0; i < all.size(); ++i) *all[i] = std::move(moved[i]);
  Memory::get().move_to(spaces_of(d.devices));
  return CUDA_SUCCESS;
}

namespace {

// The per-thread streams of a thread that ends go on with their work and are then forgotten.
void end_thread(void* ended) {
  std::unique_ptr<Thread> self(static_cast<Thread*>(ended));
  if (g_life.load(std::memory_order_acquire) != Life::kLive) {
    (void)self.release();  // forked child or process end: locks may be held for ever
    return;
  }
  for (const std::weak_ptr<Context>& weak : self->stream_contexts) {
    const std::shared_ptr<Context> context = weak.lock();
    if (!context) continue;
    std::lock_guard lock(context->mutex);
    if (const auto it = context->per_thread.find(self->number); it != context->per_thread.end()) {
      abandon_capture_locked(*it->second);
      it->second->orphan = true;
      context->per_thread.erase(it);
      prune_orphans_locked(*context);
    }
  }
}

pthread_key_t thread_key() {
  static const pthread_key_t key = [] {
    pthread_key_t made = 0;
    pthread_key_create(&made, end_thread);
    return made;
  }();
  return key;
}

}  // namespace

// Not a thread_local object: those of the main thread are destroyed before the destructors of static objects
// run, and programs free device memory there. A pthread key's destructor does not run for the main thread at
// exit.
Thread& thread() {
  static thread_local Thread* self = nullptr;
  if (!self) {
    self = new Thread;
    self->number = g_next_thread.fetch_add(1, std::memory_order_relaxed);  // relaxed: only unique
    pthread_setspecific(thread_key(), self);
  }
  return *self;
}

CUresult initialise(unsigned flags) {
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  switch (g_life.load(std::memory_order_acquire)) {
    case Life::kLive:
      return CUDA_SUCCESS;
    case Life::kForked:
      return CUDA_ERROR_NOT_INITIALIZED;
    case Life::kDead:
      return CUDA_ERROR_DEINITIALIZED;
    case Life::kPreinit:
      break;
  }
  std::lock_guard lock(g_init_mutex);
  if (g_life.load(std::memory_order_acquire) == Life::kLive) return CUDA_SUCCESS;
  if (CUresult failed = bring_up()) return failed;
  pthread_atfork(nullptr, nullptr, after_fork_in_child);
  g_life.store(Life::kLive, std::memory_order_release);
  checkpoint::serve();
  return CUDA_SUCCESS;
}

Call::Call()
    : counted_(g_life.load(std::memory_order_acquire) == Life::kLive && !thread().in_callback &&
               checkpoint::begin_call()) {}
Call::~Call() {
  if (counted_) checkpoint::end_call();
}

CUresult enter(const char* symbol) {
  switch (g_life.load(std::memory_order_acquire)) {
    case Life::kLive:
      break;
    case Life::kPreinit:
    case Life::kForked:
      return CUDA_ERROR_NOT_INITIALIZED;
    case Life::kDead:
      return CUDA_ERROR_DEINITIALIZED;
  }
  if (thread().in_callback) return CUDA_ERROR_NOT_PERMITTED;
  if (faults::armed()) return result(faults::on_call(symbol));
  return CUDA_SUCCESS;
}

CUresult current_even_if_failed(std::shared_ptr<Context>* context) {
  const auto& stack = thread().stack;
  if (stack.empty() || !stack.back()) return CUDA_ERROR_INVALID_CONTEXT;
  if (stack.back()->destroyed.load(std::memory_order_acquire)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  const std::shared_ptr<Context>& top = stack.back();
  *context = top->green ? top->green->base : top;
  if ((*context)->destroyed.load(std::memory_order_acquire)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return CUDA_SUCCESS;
}

CUresult current(std::shared_ptr<Context>* context) {
  if (CUresult none = current_even_if_failed(context)) return none;
  return sticky(**context);
}

CUresult sticky(const Context& context) {
  return result(context.error.load(std::memory_order_acquire));
}

void poison(Context& context, int code) {
  int none = 0;
  context.poisoned.compare_exchange_strong(none, code, std::memory_order_acq_rel);
  none = 0;
  context.error.compare_exchange_strong(none, code, std::memory_order_acq_rel);
}

std::shared_ptr<Context> make_context(Device& device, unsigned flags, bool primary) {
  auto context = std::make_shared<Context>();
  Driver& d = driver();
  context->device = device.ordinal;
  context->id = d.next_id.fetch_add(1, std::memory_order_relaxed);  // relaxed: only unique
  context->primary = primary;
  context->flags.store(flags | CU_CTX_MAP_HOST, std::memory_order_relaxed);
  for (unsigned i = HardwareQueue::per_context(); i > 0; --i)
    context->queues.push_back(std::make_shared<HardwareQueue>());
  context->legacy = make_stream(*context);
  context->legacy->legacy = true;
  const struct {
    CUlimit limit;
    size_t value;
  } defaults[] = {
      {CU_LIMIT_STACK_SIZE, 1024},
      {CU_LIMIT_PRINTF_FIFO_SIZE, 1 << 20},
      {CU_LIMIT_MALLOC_HEAP_SIZE, 8 << 20},
      {CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 2},
      {CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, 2048},
      {CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 64},
      {CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0},
  };
  for (const auto& row : defaults) context->limits[row.limit].store(row.value, std::memory_order_relaxed);
  d.contexts.add(context);
  return context;
}

std::vector<std::shared_ptr<Context>> contexts_with_work() {
  std::vector<std::shared_ptr<Context>> all = driver().contexts.list();
  std::erase_if(all, [](const std::shared_ptr<Context>& each) { return each->green != nullptr; });
  return all;
}

void destroy_context(const std::shared_ptr<Context>& context) {
  Driver& d = driver();
  d.contexts.remove(context.get());
  if (context->green) return;  // a face has nothing of its own; cuGreenCtxDestroy takes it away
  if (context->destroyed.exchange(true, std::memory_order_acq_rel)) return;
  // Outstanding work is abandoned: bodies that have not begun do nothing, kernels that run are stopped.
  context->poisoned.store(CUDA_ERROR_CONTEXT_IS_DESTROYED, std::memory_order_release);
  context->cancel.store(true, std::memory_order_release);
  std::vector<OpRef> tails;
  {
    std::lock_guard lock(context->mutex);
    for (const auto& stream : context->streams) {
      abandon_capture_locked(*stream);
      tails.insert(tails.end(), {stream->tail, stream->marker});
    }
    tails.insert(tails.end(), {context->legacy->tail, context->legacy->marker});
  }
  for (const OpRef& tail : tails) d.engine().wait(tail);
  const Context* dead = context.get();
  d.streams.remove_if([&](const Stream& stream) { return stream.context == dead; });
  d.events.remove_if([&](const Event& event) { return event.context == dead; });
  d.functions.remove_if([&](const Function& function) { return function.module->context == dead; });
  for (const auto& module :
       d.modules.remove_if([&](const Module& module) { return module.context == dead; })) {
    std::lock_guard lock(module->mutex);
    module->functions.clear();
  }
  std::set<uint64_t> peers;
  {
    std::lock_guard lock(context->mutex);
    peers.swap(context->peers);
  }
  for (const auto& peer : d.contexts.list())
    if (peers.count(peer->id)) Memory::get().disable_peer(context->device, peer.get());
  forget_surfaces(context.get());
  forget_arrays(context.get());
  Memory::get().release_context(context.get());
  std::lock_guard lock(context->mutex);
  context->streams.clear();
  context->per_thread.clear();
  context->legacy->tail = context->legacy->marker = nullptr;
}

namespace {
void say(bool to_stderr, const char* format, va_list args) {
  char line[1024];
  const int begin = std::snprintf(line, sizeof line, "softgpu: ");
  int n = std::vsnprintf(line + begin, sizeof line - size_t(begin) - 1, format, args);
  n = std::min(begin + std::max(n, 0), int(sizeof line) - 2);
  log_line({line + begin, size_t(n - begin)});
  if (!to_stderr) return;
  line[n] = '\n';
  (void)!write(STDERR_FILENO, line, size_t(n) + 1);
}
}  // namespace

void report(const char* format, ...) {
  va_list args;
  va_start(args, format);
  say(reporting(), format, args);
  va_end(args);
}

void notice(const char* format, ...) {
  va_list args;
  va_start(args, format);
  say(true, format, args);
  va_end(args);
}

void report_fault(const exec::Fault& fault) {
  static const char* const kNames[] = {
      "none",      "illegal address", "misaligned address",      "illegal instruction", "trap",
      "assertion", "deadlock",        "invalid program counter", "stack overflow"};
  report("%s in kernel %s: block (%u,%u,%u) thread (%u,%u,%u) PTX line %u address 0x%llx: %s",
         kNames[size_t(fault.kind)], fault.kernel.c_str(), fault.block[0], fault.block[1], fault.block[2],
         fault.thread[0], fault.thread[1], fault.thread[2], fault.line,
         static_cast<unsigned long long>(fault.address), fault.text.c_str());
}

int code_of(exec::FaultKind kind) {
  switch (kind) {
    case exec::FaultKind::kNone:
      return CUDA_SUCCESS;
    case exec::FaultKind::kIllegalAddress:
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    case exec::FaultKind::kMisalignedAddress:
      return CUDA_ERROR_MISALIGNED_ADDRESS;
    case exec::FaultKind::kIllegalInstruction:
      return CUDA_ERROR_ILLEGAL_INSTRUCTION;
    case exec::FaultKind::kTrap:
      return CUDA_ERROR_LAUNCH_FAILED;
    case exec::FaultKind::kAssert:
      return CUDA_ERROR_ASSERT;
    case exec::FaultKind::kDeadlock:
      return CUDA_ERROR_LAUNCH_TIMEOUT;
    case exec::FaultKind::kInvalidPc:
      return CUDA_ERROR_INVALID_PC;
    case exec::FaultKind::kStackOverflow:
      return CUDA_ERROR_HARDWARE_STACK_ERROR;
  }
  return CUDA_ERROR_UNKNOWN;
}

}  // namespace tessera::softgpu::driver

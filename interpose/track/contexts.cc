// Resources of a best-effort client in its context: memory that the GPU can write (markers) and a few events
// (samples).
#include <pthread.h>
#include <sys/mman.h>

#include "base/raw_log.h"
#include "driver_api/ask.h"
#include "interpose/gate/device_gate.h"
#include "interpose/gate/pulse.h"
#include "interpose/gate/rates.h"
#include "interpose/gate/timing.h"
#include "interpose/gate/window.h"
#include "interpose/state/config.h"
#include "interpose/state/process.h"
#include "interpose/track/graphs.h"
#include "interpose/track/track.h"

namespace tessera::track {
namespace {

constexpr size_t kMarkerBytes = (gate::kAccounts + 1) * 64;  // the last line is of trials (interpose/slice)
pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;         // guards the two below, and gate::g_markers
constinit void* g_memory = nullptr;                          // one shared anonymous mapping, kept for ever
constinit uint32_t g_attempts = 0;

void* marker_memory() {
  if (g_memory) return g_memory;
  // Shared: a fork must not copy the page under the GPU's feet. Not inherited: the child has no business
  // here.
  void* p = mmap(nullptr, kMarkerBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  madvise(p, kMarkerBytes, MADV_DONTFORK);
  return g_memory = p;
}

bool memory_markers() {
  const auto& real = driver_api::real();
  CUdevice device = 0;
  if (real.cuCtxGetDevice(&device) != CUDA_SUCCESS) return false;
  const bool able = driver_api::attribute_or_zero(CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, device) ||
                    driver_api::attribute_or_zero(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device);
  void* memory = able ? marker_memory() : nullptr;
  CUdeviceptr at = 0;
  if (!memory) return false;
  const unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  const CUresult registered = real.cuMemHostRegister_v2(memory, kMarkerBytes, flags);
  if (registered != CUDA_SUCCESS && registered != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) return false;
  if (real.cuMemHostGetDevicePointer_v2(&at, memory, 0) != CUDA_SUCCESS) return false;
  gate::g_markers.device.store(at, std::memory_order_relaxed);
  gate::g_markers.use_events.store(0, std::memory_order_relaxed);
  gate::g_markers.host.store(static_cast<uint32_t*>(memory),
                             std::memory_order_release);  // pairs with marker_word
  return true;
}

bool event_markers() {
  const auto& real = driver_api::real();
  for (auto& account : gate::g_markers.events)
    for (CUevent& event : account)
      if (real.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return false;
  gate::g_markers.use_events.store(1, std::memory_order_release);
  return true;
}

bool sample_events() {
  const auto& real = driver_api::real();
  CUevent start[gate::kSamples], stop[gate::kSamples];
  for (uint32_t i = 0; i < gate::kSamples; i++)
    if (real.cuEventCreate(&start[i], CU_EVENT_DEFAULT) != CUDA_SUCCESS ||
        real.cuEventCreate(&stop[i], CU_EVENT_DEFAULT) != CUDA_SUCCESS)
      return false;
  gate::provide_events(start, stop);
  return true;
}

}  // namespace

void prepare_context() noexcept {
  const auto& real = driver_api::real();
  if (state::g_phase.load(std::memory_order_acquire) != state::Phase::kLive) return;
  CUcontext context = nullptr;
  if (real.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context) return;
  state::context_seen(context);
  CUdevice device = -1;
  if (real.cuCtxGetDevice(&device) == CUDA_SUCCESS) {
    state::device_seen(device);
    gate::use_rates_of(device);
  }
  if (state::config().priority != 0 || gate::g_markers.context.load(std::memory_order_acquire)) return;
  pthread_mutex_lock(&g_mutex);
  if (!gate::g_markers.context.load(std::memory_order_relaxed) && g_attempts < 8 && state::enter_driver()) {
    g_attempts++;
    const bool markers = memory_markers() || event_markers();
    if (!markers)
      base::raw_log(base::LogLevel::kInfo,
                    "no completion markers on this driver: only synchronise calls count");
    const bool samples = sample_events();
    state::leave_driver();
    if (markers || samples) gate::g_markers.context.store(context, std::memory_order_release);
  }
  pthread_mutex_unlock(&g_mutex);
}

void context_ended(CUcontext context, uint64_t kept) noexcept {
  state::context_gone(context);
  graphs_end_with(context);
  modules_end_with(context);
  captures_end_with(context);
  gate::unpin_device_gate(context);
  pthread_mutex_lock(&g_mutex);
  const bool markers_end = !context || gate::g_markers.context.load(std::memory_order_relaxed) == context;
  if (markers_end) {
    gate::g_markers.host.store(nullptr, std::memory_order_release);
    gate::g_markers.use_events.store(0, std::memory_order_release);
    gate::withdraw_events();
    gate::g_markers.context.store(nullptr, std::memory_order_release);
    g_attempts = 0;
  }
  pthread_mutex_unlock(&g_mutex);
  // Nothing that ran there will ever be seen to complete.
  gate::forget_accounts(kept, markers_end);
  gate::forgive_all();
  // Another context may get the same handle: variants are made equal to their originals anew.
  for (state::KernelSlot& slot : state::g_kernels) {
    if (slot.handle.load(std::memory_order_acquire) <= 1) continue;
    state::KernelRecord* record = slot.record.load(std::memory_order_acquire);  // pairs with set_kernel
    if (record && (!context || record->variant.mirrored_context.load(std::memory_order_relaxed) == context))
      record->variant.mirrored_context.store(nullptr, std::memory_order_relaxed);
  }
}

}  // namespace tessera::track

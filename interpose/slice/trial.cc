#include "interpose/slice/trial.h"

#include <utility>

#include "base/errno_guard.h"
#include "base/futex.h"
#include "base/hash.h"
#include "base/machine.h"
#include "driver_api/ask.h"
#include "interpose/gate/window.h"
#include "interpose/state/clock.h"
#include "interpose/state/config.h"

namespace tessera::cut {

struct TrialStreams {
  std::atomic<CUcontext> context;  // null = free
  CUstream streams[kRescueStreams];
  CUevent joins[kRescueStreams], mark;
};

namespace {

using driver_api::Flavour;
using gate::LaunchCall;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint32_t kContexts = 4, kShapes = 8;
constexpr uint64_t kBeforeNs = 200'000'000;  // for what the stream still had to do
constexpr uint64_t kSpinNs = 20'000, kSleepNs = 50'000, kMostStepNs = 10'000'000;
constexpr uint64_t kOpenNs = 200'000'000;  // for a mark in a stream with nothing before it; hosts are busy
constexpr uint64_t kBusyFactor = 10;       // of the limit, while other work of this process runs

constinit TrialStreams g_streams[kContexts] = {};  // written by the holder of g_trial
constinit std::atomic<uint32_t> g_trial{0};        // 1: a trial runs; acquire / release
constinit std::atomic<uint32_t> g_value{0};        // of markers in memory
constinit uint32_t g_never = 0;                    // slept on; nobody wakes it

// Under enter_driver, with the trial held.
TrialStreams* streams_of(CUcontext context) {
  const auto& real = driver_api::real();
  TrialStreams* free = nullptr;
  for (TrialStreams& s : g_streams) {
    if (s.context.load(kRelaxed) == context) return &s;
    if (!free && !s.context.load(kRelaxed)) free = &s;
  }
  if (!free) return nullptr;
  // The least priority: blocks of the rest must not come before those of a slice that they wait for.
  for (uint32_t i = 0; i < kRescueStreams; i++)
    if (!driver_api::made(free->streams[i], real.cuStreamCreate, unsigned(CU_STREAM_NON_BLOCKING)) ||
        !driver_api::made(free->joins[i], real.cuEventCreate, unsigned(CU_EVENT_DISABLE_TIMING)))
      return nullptr;
  if (!driver_api::made(free->mark, real.cuEventCreate, unsigned(CU_EVENT_DISABLE_TIMING))) return nullptr;
  free->context.store(context, kRelaxed);
  return free;
}

// The line behind those of the accounts; null: events.
uint32_t* marker_word() {
  uint32_t* host = gate::g_markers.host.load(std::memory_order_acquire);  // pairs with track/contexts.cc
  return host && gate::is_in_context({}, gate::g_markers.context) ? host + gate::kAccounts * 16 : nullptr;
}

bool other_work(const LaunchCall& launch) {
  const gate::StreamAccount* own = gate::account_of(launch.stream);
  for (const gate::StreamAccount& account : gate::g_accounts)
    if (&account != own && account.enqueued.load(kRelaxed) != account.done.load(kRelaxed)) return true;
  return false;
}

uint64_t shape_of(const LaunchCall& launch) {
  uint64_t h = base::kFnvBasis;
  for (uint32_t n : launch.grid) h = base::fnv1a_step(h, n);
  for (uint32_t n : launch.block) h = base::fnv1a_step(h, n);
  return h | 1;
}

}  // namespace

constinit std::atomic<uint32_t> g_watchdog_releases{0};

bool Trial::needed(const state::KernelRecord& kernel, const LaunchCall& launch) {
  const uint64_t shape = shape_of(launch);
  for (const auto& seen : kernel.cuts.proven_shapes)
    if (seen.load(kRelaxed) == shape) return false;
  return kernel.cuts.proven_shapes[kShapes - 1].load(kRelaxed) == 0;
}

void Trial::proven(state::KernelRecord& kernel, const LaunchCall& launch) {
  const uint64_t shape = shape_of(launch);
  for (auto& slot : kernel.cuts.proven_shapes) {
    uint64_t none = 0;
    if (slot.compare_exchange_strong(none, shape, kRelaxed) || none == shape) return;
  }
}

Trial::~Trial() {
  if (streams_) g_trial.store(0, std::memory_order_release);  // pairs with begin
}

bool Trial::begin(const LaunchCall& launch, CUcontext context) {
  uint32_t none = 0;
  if (!g_trial.compare_exchange_strong(none, 1, std::memory_order_acquire)) return false;
  if (state::enter_driver()) {
    streams_ = streams_of(context);
    state::leave_driver();
  }
  if (!streams_) {
    g_trial.store(0, std::memory_order_release);
    return false;
  }
  return mark(launch) && wait(launch, kBeforeNs, false);
}

bool Trial::ended(const LaunchCall& launch) {
  if (mark(launch) && wait(launch, state::config().slice_watchdog_ns, true)) return true;
  find_open();
  return false;
}

// Streams share queues of the device, and in the queue of the program's stream ours would wait behind the
// slice. Those in which a mark is reached come first; the others are used only if there are no such ones.
void Trial::find_open() {
  const base::ErrnoGuard keep_errno;
  const auto& real = driver_api::real();
  TrialStreams& s = *streams_;
  for (uint32_t i = 0; i < kRescueStreams; i++) real.cuEventRecord(s.joins[i], s.streams[i]);
  const uint64_t begin = state::clock_ns();
  while (n_open_ < kRescueStreams && state::clock_ns() - begin < kOpenNs) {
    base::futex_wait(&g_never, 0, kSleepNs);
    if (!state::enter_driver()) continue;
    for (uint32_t i = n_open_; i < kRescueStreams; i++) {
      if (real.cuEventQuery(s.joins[i]) != CUDA_SUCCESS) continue;
      std::swap(s.joins[i], s.joins[n_open_]);
      std::swap(s.streams[i], s.streams[n_open_++]);
    }
    state::leave_driver();
  }
}

bool Trial::mark(const LaunchCall& launch) {
  const auto& real = driver_api::real();
  const CUstream stream = driver_api::on(launch.stream);
  if (!marker_word()) return real.cuEventRecord(streams_->mark, stream) == CUDA_SUCCESS;
  value_ = g_value.fetch_add(1, kRelaxed) + 1;
  const CUdeviceptr at = gate::g_markers.device.load(kRelaxed) + gate::kAccounts * 64;
  return real.cuStreamWriteValue32_v2(stream, at, value_, 0) == CUDA_SUCCESS;
}

bool Trial::reached() const {
  if (uint32_t* word = marker_word())  // acquire: the GPU's write
    return int32_t(std::atomic_ref(*word).load(std::memory_order_acquire) - value_) >= 0;
  if (!state::enter_driver()) return false;
  const CUresult result = driver_api::real().cuEventQuery(streams_->mark);
  state::leave_driver();
  return result == CUDA_SUCCESS;
}

// `alone`: time counts while no other work of this process is under way. A process that was stopped has not
// waited.
bool Trial::wait(const LaunchCall& launch, uint64_t limit_ns, bool alone) const {
  const base::ErrnoGuard keep_errno;
  const uint64_t begin = state::clock_ns();
  uint64_t last = begin, waited = 0, busy = 0;
  while (!reached()) {
    const uint64_t now = state::clock_ns(), passed = now > last ? now - last : 0;
    last = now;
    (alone && other_work(launch) ? busy : waited) += passed < kMostStepNs ? passed : kMostStepNs;
    if (waited >= limit_ns || busy >= limit_ns * kBusyFactor) return reached();
    if (now - begin < kSpinNs) {
      base::cpu_relax();
      continue;
    }
    base::futex_wait(&g_never, 0, kSleepNs);
    gate::poll_accounts();
  }
  gate::poll_accounts();
  return true;
}

uint32_t Trial::open(uint32_t i) const {
  return i % (n_open_ ? n_open_ : kRescueStreams);
}
CUstream Trial::stream(uint32_t i) const {
  return streams_->streams[open(i)];
}

CUresult Trial::join(const LaunchCall& launch, uint32_t n_streams) {
  const auto& real = driver_api::real();
  for (uint32_t i = 0; i < n_streams && i < kRescueStreams; i++) {
    const CUevent end = streams_->joins[open(i)];
    CUresult result = real.cuEventRecord(end, stream(i));
    if (result == CUDA_SUCCESS) result = real.cuStreamWaitEvent(driver_api::on(launch.stream), end, 0);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

void forget_trials(CUcontext context) noexcept {
  for (TrialStreams& s : g_streams)
    if (!context || s.context.load(kRelaxed) == context) s.context.store(nullptr, kRelaxed);
}

}  // namespace tessera::cut

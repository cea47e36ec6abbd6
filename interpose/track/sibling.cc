#include "interpose/track/sibling.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

#include <new>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/raw_log.h"
#include "interpose/gate/device_gate.h"
#include "interpose/state/config.h"
#include "interpose/state/lock.h"
#include "interpose/state/process.h"
#include "interpose/track/reasons.h"
#include "interpose/track/sibling_load.h"
#include "interpose/track/sibling_text.h"
#include "interpose/track/track.h"

namespace tessera::track {
namespace {

using state::KernelRecord;
using state::kNoVariant;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint32_t kMaxSiblings = 64;
constexpr size_t kMaxSourceBytes = size_t(16) << 20, kMaxKeptBytes = size_t(64) << 20;
constexpr long kCaptureLookNs = 5'000'000;
constexpr uint64_t kExitWaitNs = 2'000'000'000;

struct Job {
  KernelRecord* kernel = nullptr;
  std::shared_ptr<const SiblingSource> source;
  CUcontext context = nullptr;
};

pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;  // guards all below; not held in the driver
pthread_cond_t g_changed = PTHREAD_COND_INITIALIZER;
constinit Job* g_queue[kMaxSiblings] = {};  // g_queued of them, oldest first; owned
constinit uint32_t g_queued = 0;
constinit Sibling g_siblings[kMaxSiblings] = {};
constinit uint32_t g_alive = 0;
constinit uint32_t g_paused = 0;                      // contexts being ended
constinit bool g_started = false, g_stopped = false;  // thread; exit handlers run
constinit const KernelRecord* g_current = nullptr;    // what the thread works at
constinit CUcontext g_current_context = nullptr;
constinit bool g_cancelled = false, g_in_driver = false;  // of g_current

constinit std::atomic<size_t> g_kept_bytes{0};

void wait_changed() {
  pthread_cond_wait(&g_changed, &g_mutex);
}
void wait_changed_ns(uint64_t ns) {
  timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  const uint64_t at = uint64_t(end.tv_nsec) + ns;
  end.tv_sec += time_t(at / 1'000'000'000);
  end.tv_nsec = long(at % 1'000'000'000);
  pthread_cond_timedwait(&g_changed, &g_mutex, &end);
}

void refuse(KernelRecord& kernel, Reason reason) {
  count_refusal(reason);
  g_refused_kernels.fetch_add(1, kRelaxed);
  kernel.variant.whole_outcome.store(outcome_of(reason), kRelaxed);
  kernel.variant.handle.store(kNoVariant, kRelaxed);
  kernel.variant.sibling_state.store(kSiblingRefused, std::memory_order_release);
}

// A module's load waits for what runs, and launches of the process wait for it: best while nothing is behind a gate.
bool may_enter(uint64_t asked_ns) {
  return g_paused == 0 && state::g_state.captures.load(std::memory_order_seq_cst) == 0 &&
         (gate::nothing_behind_gate() || base::now_ns() - asked_ns > gate::kQueuePatienceNs);
}

// One job, from the queue to its end. Called with the lock, returns with it.
void work(const Job& job) {
  KernelRecord& kernel = *job.kernel;
  g_current = job.kernel;
  g_current_context = job.context;
  g_cancelled = false;
  pthread_mutex_unlock(&g_mutex);
  const uint64_t begin = base::now_ns();
  const state::Config& config = state::config();
  const SiblingText text =
      sibling_text(*job.source, kernel.loaded.name, config.relaxed_bits || job.source->compiled_here,
                   config.allow_order_dependent);
  pthread_mutex_lock(&g_mutex);
  std::optional<Reason> reason;
  if (text.image.empty()) reason = text.refusal;
  while (!reason && !g_cancelled && !g_stopped && !may_enter(begin))
    wait_changed_ns(uint64_t(kCaptureLookNs));
  Sibling made;
  bool compiled = false;
  if (!reason && !g_cancelled && !g_stopped) {
    g_in_driver = true;
    pthread_mutex_unlock(&g_mutex);
    reason = load_sibling(kernel, job.context, text, &made);
    compiled = !reason;
    pthread_mutex_lock(&g_mutex);
    g_in_driver = false;
  }
  if (reason) {
    refuse(kernel, *reason);
  } else if (compiled) {
    g_siblings[g_alive++] = made;  // there is room: sibling_wanted counted queue and siblings
    g_cut_kernels.fetch_add(1, kRelaxed);
    kernel.variant.sibling_state.store(kSiblingReady,
                                       std::memory_order_release);  // pairs with resolve_variant
    base::raw_log(base::LogLevel::kInfo, "kernel %s: sibling ready after %llu us", kernel.loaded.name,
                  static_cast<unsigned long long>((base::now_ns() - begin) / 1000));
  } else {
    kernel.variant.sibling_state.store(kSiblingNone, kRelaxed);
  }
  g_current = nullptr;
  pthread_cond_broadcast(&g_changed);
}

void* sibling_main(void*) {
  prctl(PR_SET_NAME, "tessera-jit", 0, 0, 0);
  setpriority(PRIO_PROCESS, 0, 10);  // of this thread: the program comes first
  state::t_thread.inside =
      state::kAlwaysInside;  // what this thread asks of the driver is not the program's work
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (driver_api::real().cuThreadExchangeStreamCaptureMode)
    driver_api::real().cuThreadExchangeStreamCaptureMode(&mode);
  const state::Lock lock(g_mutex);
  for (;;) {
    while (g_queued == 0 || g_stopped) wait_changed();
    const std::unique_ptr<Job> job(g_queue[0]);
    for (uint32_t i = 1; i < g_queued; i++) g_queue[i - 1] = g_queue[i];
    g_queued--;
    work(*job);
  }
}

// An exit handler that was registered after the driver's runs before it: no compilation is torn down.
void at_exit() {
  if (state::g_phase.load(kRelaxed) == state::Phase::kDead) return;  // forked child: lock state unknown
  const state::Lock lock(g_mutex);
  g_stopped = true;
  const uint64_t end = base::now_ns() + kExitWaitNs;
  while (g_in_driver && base::now_ns() < end) wait_changed_ns(uint64_t(kCaptureLookNs));
}

bool start() {
  if (g_started) return true;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  g_started = pthread_create(&thread, &attributes, sibling_main, nullptr) == 0;
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (g_started) atexit(at_exit);
  return g_started;
}

// Takes queued jobs away, and marks the current one, for which `gone` says so.
template <class Gone>
void cancel(Gone&& gone) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < g_queued; i++) {
    if (gone(*g_queue[i]->kernel, g_queue[i]->context)) {
      g_queue[i]->kernel->variant.sibling_state.store(kSiblingNone, kRelaxed);
      delete g_queue[i];
      continue;
    }
    g_queue[kept++] = g_queue[i];
  }
  g_queued = kept;
  if (g_current && gone(*g_current, g_current_context)) g_cancelled = true;
}

}  // namespace

SiblingSource::SiblingSource(std::string text, image::Entry from, bool original_compiled_here,
                             cache::ProvedVariants proved_variants)
    : ptx(std::move(text)),
      entry(std::move(from)),
      compiled_here(original_compiled_here),
      proved(std::move(proved_variants)) {
  entry.stored_payload = {};  // the program's memory, which may go
  g_kept_bytes.fetch_add(ptx.size(), kRelaxed);
}
SiblingSource::~SiblingSource() {
  g_kept_bytes.fetch_sub(ptx.size(), kRelaxed);
}
bool SiblingSource::has_room(size_t bytes) {
  return bytes <= kMaxSourceBytes && g_kept_bytes.load(kRelaxed) + bytes <= kMaxKeptBytes;
}

void sibling_wanted(KernelRecord& kernel, std::shared_ptr<const SiblingSource> source,
                    CUcontext context) noexcept {
  uint32_t none = kSiblingNone;
  if (!kernel.variant.sibling_state.compare_exchange_strong(none, kSiblingAsked, kRelaxed)) return;
  const bool has_source = source != nullptr;
  const state::Lock lock(g_mutex);
  auto* job = new (std::nothrow) Job{&kernel, std::move(source), context};
  if (!job || !has_source || g_queued + g_alive + (g_current ? 1 : 0) >= kMaxSiblings || g_stopped ||
      !start()) {
    refuse(kernel, has_source ? RunTimeReason::kSiblingLimit : RunTimeReason::kNoSource);
    delete job;
    return;
  }
  g_queue[g_queued++] = job;
  pthread_cond_broadcast(&g_changed);
}

void siblings_unload(void* owner) noexcept {
  Sibling ended[kMaxSiblings];
  uint32_t n = 0;
  {
    const state::Lock lock(g_mutex);
    if (!g_started) return;
    const auto mine = [&](const KernelRecord& kernel, CUcontext) { return kernel.loaded.is_of(owner); };
    cancel(mine);
    while (g_in_driver && g_current && mine(*g_current, nullptr)) wait_changed();
    uint32_t kept = 0;
    for (uint32_t i = 0; i < g_alive; i++) {
      if (!mine(*g_siblings[i].kernel, nullptr)) {
        g_siblings[kept++] = g_siblings[i];
        continue;
      }
      g_siblings[i].kernel->variant.handle.store(kNoVariant, kRelaxed);
      g_siblings[i].kernel->variant.mirrored_context.store(nullptr, std::memory_order_release);
      ended[n++] = g_siblings[i];
    }
    g_alive = kept;
  }
  for (uint32_t i = 0; i < n; i++) unload_sibling(ended[i]);
}

void siblings_pause(CUcontext context) noexcept {
  const state::Lock lock(g_mutex);
  g_paused++;
  if (!g_started) return;
  while (g_in_driver && (!context || g_current_context == context)) wait_changed();
}

void siblings_resume(CUcontext context, bool has_ended) noexcept {
  Sibling ended[kMaxSiblings];
  uint32_t n = 0;
  {
    const state::Lock lock(g_mutex);
    g_paused--;
    if (has_ended) {
      const auto there = [&](const KernelRecord&, CUcontext in) { return !context || in == context; };
      cancel(there);
      uint32_t kept = 0;
      for (uint32_t i = 0; i < g_alive; i++) {
        Sibling& s = g_siblings[i];
        if (!there(*s.kernel, s.context)) {
          g_siblings[kept++] = s;
          continue;
        }
        // A library outlives the context: it may be asked for again in another one. A module does not.
        s.kernel->variant.handle.store(s.library ? nullptr : kNoVariant, kRelaxed);
        s.kernel->variant.mirrored_context.store(nullptr, kRelaxed);
        s.kernel->variant.sibling_state.store(s.library ? kSiblingNone : kSiblingRefused,
                                              std::memory_order_release);
        if (s.library) ended[n++] = s;
      }
      g_alive = kept;
    }
    pthread_cond_broadcast(&g_changed);
  }
  for (uint32_t i = 0; i < n; i++) unload_sibling(ended[i]);
}

bool siblings_idle() noexcept {
  const state::Lock lock(g_mutex);
  return g_queued == 0 && !g_current;
}

uint32_t siblings_alive() noexcept {
  const state::Lock lock(g_mutex);
  return g_alive;
}

}  // namespace tessera::track

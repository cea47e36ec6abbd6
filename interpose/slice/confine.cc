#include "interpose/slice/confine.h"

#include "base/futex.h"
#include "base/machine.h"
#include "driver_api/ask.h"
#include "interpose/gate/device_gate.h"
#include "interpose/gate/window.h"
#include "interpose/state/process.h"

namespace tessera::confine {
namespace {

using driver_api::Flavour;
using gate::LaunchCall;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint32_t kPaths = 16;  // a program has few streams, and the reserve few sizes
constexpr uint64_t kNobody = 0;  // no stream has this account key

struct Path {                        // of one stream of the program to some SMs
  std::atomic<uint32_t> used;        // 1: a thread launches through it or makes it; acquire / release
  std::atomic<CUcontext> context;    // null = free; written by who has `used`, like all below
  std::atomic<uint64_t> stream_key;  // kNobody: its stream has ended
  std::atomic<uint32_t> sms;
  bool failed;  // the driver made none: it is not asked again
  CUgreenCtx green;
  CUstream stream;
  CUevent before, after;

  bool leads(CUcontext from, uint64_t key, uint32_t to_sms) const {
    return context.load(std::memory_order_acquire) == from && stream_key.load(kRelaxed) == key &&
           sms.load(kRelaxed) == to_sms;
  }
  // A context that launches in `key` may own it: no work that others wait for can be on its way there.
  bool may_become(CUcontext from, uint64_t key) const {
    const CUcontext of_path = context.load(std::memory_order_acquire);
    const uint64_t owner = stream_key.load(kRelaxed);
    return !of_path || (of_path == from && (owner == kNobody || owner == key));
  }
  bool idle() const { return !stream || driver_api::real().cuStreamQuery(stream) == CUDA_SUCCESS; }
};
constinit Path g_paths[kPaths] = {};
constinit std::atomic<uint64_t> g_confined{0};

class Use {  // of one path; not waited for
 public:
  explicit Use(Path& path) : path_(path) {
    uint32_t none = 0;
    mine_ = path.used.compare_exchange_strong(none, 1, std::memory_order_acquire);
  }
  ~Use() {
    if (mine_) path_.used.store(0, std::memory_order_release);
  }
  Use(const Use&) = delete;
  explicit operator bool() const { return mine_; }

 private:
  Path& path_;
  bool mine_;
};

// All SMs of the device but at least that number of the first ones.
bool all_but_first(CUdevice device, uint32_t reserved, CUdevResource* rest) {
  const auto& real = driver_api::real();
  CUdevResource whole{}, first{};
  unsigned n = 1;
  return real.cuDeviceGetDevResource(device, &whole, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS &&
         whole.sm.smCount > reserved &&
         real.cuDevSmResourceSplitByCount(&first, &n, &whole, rest, 0, reserved) == CUDA_SUCCESS && n == 1 &&
         rest->type == CU_DEV_RESOURCE_TYPE_SM && rest->sm.smCount != 0;
}

bool is_primary(CUcontext context, CUdevice device) {
  const auto& real = driver_api::real();
  CUcontext primary = nullptr;
  if (real.cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS) return false;
  real.cuDevicePrimaryCtxRelease_v2(device);
  return primary == context;
}

void unmake(Path& path) {
  const auto& real = driver_api::real();
  if (path.after) real.cuEventDestroy_v2(path.after);
  if (path.before) real.cuEventDestroy_v2(path.before);
  if (path.stream) real.cuStreamDestroy_v2(path.stream);
  if (path.green) real.cuGreenCtxDestroy(path.green);
  path.after = path.before = nullptr;
  path.stream = nullptr;
  path.green = nullptr;
}

// Green contexts are made of the primary context, so that only its functions may run there.
bool make(Path& path, CUcontext context) {
  const auto& real = driver_api::real();
  CUdevice device = 0;
  CUdevResource rest{};
  CUdevResourceDesc description = nullptr;
  if (real.cuCtxGetDevice(&device) != CUDA_SUCCESS || !is_primary(context, device)) return false;
  const uint32_t reserved = state::sm_count() - path.sms.load(kRelaxed);
  const bool made = all_but_first(device, reserved, &rest) &&
                    real.cuDevResourceGenerateDesc(&description, &rest, 1) == CUDA_SUCCESS &&
                    driver_api::made(path.green, real.cuGreenCtxCreate, description, device,
                                     unsigned(CU_GREEN_CTX_DEFAULT_STREAM)) &&
                    driver_api::made(path.stream, real.cuGreenCtxStreamCreate, path.green,
                                     unsigned(CU_STREAM_NON_BLOCKING), 0) &&
                    driver_api::made(path.before, real.cuEventCreate, unsigned(CU_EVENT_DISABLE_TIMING)) &&
                    driver_api::made(path.after, real.cuEventCreate, unsigned(CU_EVENT_DISABLE_TIMING));
  if (!made) unmake(path);
  return made;
}

// Called by its only user; false: there is none for this launch.
bool prepare(Path& path, CUcontext context, uint64_t stream_key, uint32_t sms) {
  if (!path.may_become(context, stream_key) || !state::enter_driver()) return false;
  const bool idle = path.idle();
  if (idle) {
    if (path.failed || path.sms.load(kRelaxed) != sms || !path.context.load(kRelaxed)) {
      unmake(path);
      path.sms.store(sms, kRelaxed);
      path.failed = !make(path, context);
    }
    path.stream_key.store(stream_key, kRelaxed);
    path.context.store(context, std::memory_order_release);  // pairs with leads
  }
  state::leave_driver();
  return idle && !path.failed;
}

// The program's own stream belongs to the current context and to no part of the GPU.
CUcontext plain_context(const LaunchCall& launch) {
  const auto& real = driver_api::real();
  CUcontext current = nullptr, of_stream = nullptr;
  CUgreenCtx green = nullptr;
  if (real.cuCtxGetCurrent(&current) != CUDA_SUCCESS) return nullptr;
  const uint64_t stream = reinterpret_cast<uint64_t>(launch.stream.stream);
  if (stream <= reinterpret_cast<uint64_t>(CU_STREAM_PER_THREAD)) return current;
  const bool plain = real.cuStreamGetCtx(launch.stream.stream, &of_stream) == CUDA_SUCCESS &&
                     real.cuStreamGetGreenCtx(launch.stream.stream, &green) == CUDA_SUCCESS;
  return plain && of_stream == current && !green ? current : nullptr;
}

CUcontext current_context() {
  CUcontext current = nullptr;
  return driver_api::real().cuCtxGetCurrent(&current) == CUDA_SUCCESS ? current : nullptr;
}

Path* path_of(CUcontext context, uint64_t stream_key, uint32_t sms) {
  for (Path& p : g_paths)
    if (p.leads(context, stream_key, sms)) return &p;
  return nullptr;
}

// False: nothing was launched. What fails after the launch is the program's to know.
bool launch_through(Path& path, const LaunchCall& original, CUresult* result) {
  const auto& real = driver_api::real();
  const CUstream own = driver_api::on(original.stream);
  if (real.cuEventRecord(path.before, own) != CUDA_SUCCESS ||
      real.cuStreamWaitEvent(path.stream, path.before, 0) != CUDA_SUCCESS)
    return false;
  LaunchCall moved = original;
  CUlaunchConfig config{};
  if (original.config) {
    config = *original.config;
    config.hStream = path.stream;
    moved.config = &config;
  }
  moved.stream = {path.stream, Flavour::kLegacy};
  *result = gate::issue(moved);
  if (*result != CUDA_SUCCESS) {  // the program shall see what its own stream answers
    *result = gate::issue(original);
    path.failed = *result == CUDA_SUCCESS;
    return true;
  }
  g_confined.fetch_add(1, kRelaxed);
  *result = real.cuEventRecord(path.after, path.stream);
  if (*result == CUDA_SUCCESS) *result = real.cuStreamWaitEvent(own, path.after, 0);
  return true;
}

}  // namespace

bool any_reserved() {
  const state::DaemonLink* link = state::g_state.link.load(std::memory_order_acquire);
  // relaxed: a single word; a launch may see the lease before.
  return ipc::load(link->lease->reserved_sms, kRelaxed) != 0;
}

bool is_plain(const LaunchCall& launch) {
  return (!launch.config || launch.config->numAttrs == 0) && state::g_state.captures.load(kRelaxed) == 0;
}

// There is a path for such launches, or one is made. The driver makes a green context when what runs has ended, which
// could be behind a closed gate.
bool ready(const LaunchCall& launch, uint32_t sms) {
  const uint64_t key = gate::account_key(launch.stream);
  if (const Path* path = path_of(current_context(), key, sms)) return !path->failed;
  if (!gate::let_queue_end()) return false;
  const CUcontext context = plain_context(launch);
  if (!context) return false;
  // Two streams of the program never share a path: their kernels may wait for each other.
  Path* path = nullptr;
  for (Path& p : g_paths) {
    const bool better = !path || (path->context.load(kRelaxed) && !p.context.load(kRelaxed));
    if (better && p.may_become(context, key)) path = &p;
  }
  if (!path) return false;
  const Use use(*path);
  return use && prepare(*path, context, key, sms);
}

bool launch(const LaunchCall& original, uint32_t sms, CUresult* result) {
  const CUcontext context = current_context();
  const uint64_t key = gate::account_key(original.stream);
  Path* path = path_of(context, key, sms);
  if (!path) return false;
  const Use use(*path);
  return use && path->leads(context, key, sms) && !path->failed && launch_through(*path, original, result);
}

bool possible(CUdevice device) {
  CUdevResource rest{};
  return all_but_first(device, ipc::abi::kReserveStep, &rest);
}

void forget(CUcontext context) noexcept {
  for (Path& path : g_paths) {
    const CUcontext of_path = path.context.load(kRelaxed);
    if (!of_path || (context && of_path != context)) continue;
    for (;;) {
      const Use use(path);
      if (!use) {  // a launch that races with the end of its context
        base::cpu_relax();
        continue;
      }
      unmake(path);
      path.context.store(nullptr, kRelaxed);
      break;
    }
  }
}

void stream_ends(CUstream stream) noexcept {
  const uint64_t key = gate::account_key({stream, Flavour::kLegacy});
  for (Path& path : g_paths)
    if (uint64_t of = key; path.context.load(kRelaxed))
      path.stream_key.compare_exchange_strong(of, kNobody, kRelaxed);
}

void publish(ipc::abi::SignalLine& signals) {
  ipc::store(signals.confined_launches, g_confined.load(kRelaxed), kRelaxed);
}

}  // namespace tessera::confine

// libtessera_profile.so: CUPTI loads it into a program (CUDA_INJECTION64_PATH) and calls InitializeInjection
// at the first driver call. Observes kernels, copies, sets and graphs of every GPU that the process uses, and
// writes collected-<pid>.json into $TESSERA_PROFILE_DIR: every two seconds and at exit, always whole files.
// Children that execute inherit the variable and write their own; a fork that does not execute writes
// nothing. With TESSERA_PROFILE_METRICS=1 what kernels do is counted instead of only timed (range_counter.h);
// where that is not allowed they are timed and the reason is noted. Never prints, never ends the host: what
// is wrong goes into note-<pid>.txt, which `tessera profile` shows.
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>

#include "base/clock.h"
#include "base/kernel_key.h"
#include "kernels/image/image.h"
#include "profiles/collector/collector.h"
#include "profiles/collector/cupti_api.h"
#include "profiles/collector/cupti_decode.h"
#include "profiles/collector/range_counter.h"
#include "profiles/images.h"
#include "profiles/profile_file.h"

namespace tessera::profiles {
namespace {

constexpr size_t kBufferBytes = size_t(4) << 20, kAlignment = 8;
constexpr uint64_t kWriteEveryNs = 2'000'000'000;
constexpr size_t kMaxImageBytes = size_t(256) << 20;

struct Driver {  // the real one, already in the process
  decltype(&::cuDeviceGetName) name = nullptr;
  decltype(&::cuDeviceGetAttribute) attribute = nullptr;
  decltype(&::cuDriverGetVersion) version = nullptr;
  decltype(&::cuCtxGetDevice) device_of_context = nullptr;
  decltype(&::cuFuncGetAttribute) function_attribute = nullptr;
  decltype(&::cuStreamIsCapturing) is_capturing = nullptr;
};

struct State {  // leaked: CUPTI's threads may outlive main
  CuptiApi cupti;
  Driver driver;
  std::string folder;
  pid_t pid = 0;
  std::mutex mutex;  // guards what follows
  Collector collector;
  std::map<std::string, uint64_t> image_of;  // kernel name -> image; 0: in several
  std::map<const void*, uint64_t> loaded;    // module or library -> image
  bool metrics = false;
  std::map<CUcontext, std::unique_ptr<RangeCounter>> counters;
  uint64_t written_ns = 0;
  std::mutex launching;  // one counted launch at a time: ranges are matched by order
};
State* g_state = nullptr;

void note(const State& state, const std::string& line) {
  std::ofstream(state.folder + "/note-" + std::to_string(state.pid) + ".txt", std::ios::app) << line << "\n";
}

// Under the mutex.
void write_out(State& state) {
  if (getpid() != state.pid || state.collector.profile().kernels.empty()) return;
  (void)save_profile(state.collector.with_totals(),
                     state.folder + "/collected-" + std::to_string(state.pid) + ".json");
  state.written_ns = base::now_ns();
}

void learn_device(State& state, uint32_t ordinal) {
  DeviceFacts facts;
  char name[128] = {};
  int version = 0;
  if (state.driver.name && state.driver.name(name, sizeof name - 1, CUdevice(ordinal)) == CUDA_SUCCESS)
    facts.gpu = name;
  if (state.driver.version && state.driver.version(&version) == CUDA_SUCCESS)
    facts.driver = "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  facts.origin = Origin::kCupti;
  const auto attribute = [&](CUdevice_attribute which) {
    int value = 0;
    if (state.driver.attribute) state.driver.attribute(&value, which, CUdevice(ordinal));
    return uint32_t(value > 0 ? value : 0);
  };
  GpuDescription& g = facts.limits;
  g.sm.count = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  g.sm.max_threads = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  g.sm.max_blocks = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
  g.sm.registers = attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  g.sm.shared_bytes = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  state.collector.device(ordinal, std::move(facts));
}

// ---- CUPTI calls back

// A kernel that was observed, by whichever way. Under the mutex.
void add_kernel(State& state, Activity activity) {
  if (!state.collector.has_device(activity.device)) learn_device(state, activity.device);
  const auto image = state.image_of.find(activity.name);
  if (image != state.image_of.end()) activity.image_hash = image->second;
  state.collector.add(activity);
}

void CUPTIAPI buffer_wanted(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(aligned_alloc(kAlignment, kBufferBytes));
  *bytes = *buffer ? kBufferBytes : 0;  // none: CUPTI drops records and says so
  *most_records = 0;
}

void CUPTIAPI buffer_done(CUcontext context, uint32_t stream, uint8_t* buffer, size_t, size_t valid_bytes) {
  State& state = *g_state;
  const std::lock_guard lock(state.mutex);
  for_each_activity(state.cupti.cuptiActivityGetNextRecord, buffer, valid_bytes, [&](Activity activity) {
    if (activity.kind == ActivityKind::kKernel) return add_kernel(state, std::move(activity));
    state.collector.add(activity);
  });
  size_t dropped = 0;
  if (state.cupti.cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS)
    state.collector.dropped(dropped);
  free(buffer);
  if (base::now_ns() - state.written_ns > kWriteEveryNs) write_out(state);
}

unsigned sm_of_device(const State& state) {
  int major = 0, minor = 0;
  if (!state.driver.attribute) return 0;
  state.driver.attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
  state.driver.attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0);
  return unsigned(major * 10 + minor);
}

// The hash that the preload library computes: of the entry that the driver takes.
void image_loaded(State& state, const void* owner, const void* bytes) {
  auto entries = bytes ? image::list_unsized(bytes, kMaxImageBytes)
                       : base::Result<std::vector<image::Entry>>(base::error(base::Code::kInvalid, ""));
  const image::Entry* chosen = entries ? image::choose(*entries, sm_of_device(state)) : nullptr;
  uint64_t hash = 0;
  if (chosen)
    if (auto code = image::load(*chosen)) hash = base::fnv1a(code->data(), code->size());
  if (hash != 0)
    for (const image::Entry& entry : *entries)
      if (entry.kind == image::EntryKind::kPtx) {
        if (auto text = image::load(entry))
          keep_image(state.folder, hash, {reinterpret_cast<const char*>(text->data()), text->size()});
        break;
      }
  const std::lock_guard lock(state.mutex);
  state.loaded[owner] = hash;
}

void kernel_looked_up(State& state, const void* owner, const char* name) {
  const std::lock_guard lock(state.mutex);
  const auto image = state.loaded.find(owner);
  if (!name || image == state.loaded.end()) return;
  const auto [at, is_new] = state.image_of.try_emplace(name, image->second);
  if (!is_new && at->second != image->second) at->second = 0;
}

// How the parameters of these calls begin, as CUPTI hands them out (generated_cuda_meta.h does not compile
// beside a cuda.h of version 13).
struct LoadCall {
  void* const* owner;  // CUmodule or CUlibrary, set by the call
  const void* image;
};
struct LookUpCall {
  void* const* found;
  void* owner;
  const char* name;
};

struct LaunchCall {  // cuLaunchKernel, cuLaunchCooperativeKernel
  CUfunction function;
  unsigned grid[3], block[3], shared_bytes;
  CUstream stream;
};
struct LaunchExCall {
  const CUlaunchConfig* config;
  CUfunction function;
};

// ---- counting (--metrics)

constexpr CUpti_CallbackId kLaunches[] = {CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel,
                                          CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz,
                                          CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel,
                                          CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz,
                                          CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx,
                                          CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz};
// After these a context is no more, or may be.
constexpr CUpti_CallbackId kContextEnds[] = {CUPTI_DRIVER_TRACE_CBID_cuCtxDestroy,
                                             CUPTI_DRIVER_TRACE_CBID_cuCtxDestroy_v2,
                                             CUPTI_DRIVER_TRACE_CBID_cuDevicePrimaryCtxRelease,
                                             CUPTI_DRIVER_TRACE_CBID_cuDevicePrimaryCtxRelease_v2,
                                             CUPTI_DRIVER_TRACE_CBID_cuDevicePrimaryCtxReset,
                                             CUPTI_DRIVER_TRACE_CBID_cuDevicePrimaryCtxReset_v2};

template <size_t N>
bool among(CUpti_CallbackId id, const CUpti_CallbackId (&ids)[N]) {
  return std::find(std::begin(ids), std::end(ids), id) != std::end(ids);
}

bool is_extended(CUpti_CallbackId id) {
  return id == CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx ||
         id == CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz;
}

// A launch into a capture runs nothing: it is no range, and the profiler must not be started beside it.
bool is_captured(const State& state, CUpti_CallbackId id, const CUpti_CallbackData& call) {
  const CUstream stream = is_extended(id)
                              ? static_cast<const LaunchExCall*>(call.functionParams)->config->hStream
                              : static_cast<const LaunchCall*>(call.functionParams)->stream;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return state.driver.is_capturing && (state.driver.is_capturing(stream, &status) != CUDA_SUCCESS ||
                                       status != CU_STREAM_CAPTURE_STATUS_NONE);
}

Activity launch_of(const State& state, CUpti_CallbackId id, const CUpti_CallbackData& call) {
  Activity out;
  out.kind = ActivityKind::kKernel;
  out.name = call.symbolName ? call.symbolName : "";
  CUfunction function = nullptr;
  if (is_extended(id)) {
    const auto& p = *static_cast<const LaunchExCall*>(call.functionParams);
    const CUlaunchConfig& c = *p.config;
    function = p.function;
    const unsigned grid[] = {c.gridDimX, c.gridDimY, c.gridDimZ},
                   block[] = {c.blockDimX, c.blockDimY, c.blockDimZ};
    std::copy(std::begin(grid), std::end(grid), out.grid);
    std::copy(std::begin(block), std::end(block), out.block);
    out.dynamic_shared_bytes = c.sharedMemBytes;
  } else {
    const auto& p = *static_cast<const LaunchCall*>(call.functionParams);
    function = p.function;
    std::copy(std::begin(p.grid), std::end(p.grid), out.grid);
    std::copy(std::begin(p.block), std::end(p.block), out.block);
    out.dynamic_shared_bytes = p.shared_bytes;
  }
  const auto attribute = [&](CUfunction_attribute which) {
    int value = 0;
    if (state.driver.function_attribute) state.driver.function_attribute(&value, which, function);
    return uint32_t(value > 0 ? value : 0);
  };
  out.registers_per_thread = attribute(CU_FUNC_ATTRIBUTE_NUM_REGS);
  out.static_shared_bytes = attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
  CUdevice device = 0;
  if (state.driver.device_of_context && state.driver.device_of_context(&device) == CUDA_SUCCESS)
    out.device = uint32_t(device);
  return out;
}

// Kernels are timed instead.
void without_counters(State& state, const std::string& why) {
  state.metrics = false;
  note(state, "bytes and operations are not counted: " + why + ". Kernels are timed only.");
  state.cupti.cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
}

void take_counted(State& state, std::vector<Activity> launches) {
  for (Activity& launch : launches) add_kernel(state, std::move(launch));
  if (base::now_ns() - state.written_ns > kWriteEveryNs) write_out(state);
}

void finish_counting(State& state) {
  uint64_t lost = 0;
  for (auto& [context, counter] : state.counters) {
    take_counted(state, counter->finish());
    lost += counter->lost();
  }
  state.counters.clear();
  if (lost != 0)
    note(state, std::to_string(lost) +
                    " launches were counted by CUPTI in another way than they were launched (graphs, "
                    "several ranges for one): left out");
}

void launch_begins(State& state, CUpti_CallbackId id, const CUpti_CallbackData& call) {
  const CUcontext context = call.context;
  state.launching.lock();
  const std::lock_guard lock(state.mutex);
  if (!state.metrics || state.counters.contains(context) || is_captured(state, id, call)) return;
  CUdevice device = 0;
  if (state.driver.device_of_context) state.driver.device_of_context(&device);
  auto counter = RangeCounter::start(state.cupti, context, uint32_t(device));
  if (!counter) return without_counters(state, counter.error().text);
  state.counters.emplace(context, std::move(*counter));
}

void launch_ends(State& state, CUpti_CallbackId id, const CUpti_CallbackData& call) {
  {
    const std::lock_guard lock(state.mutex);
    const auto at = state.counters.find(call.context);
    const bool launched =
        call.functionReturnValue && *static_cast<const CUresult*>(call.functionReturnValue) == CUDA_SUCCESS;
    if (at != state.counters.end() && launched && !is_captured(state, id, call)) {
      RangeCounter& counter = *at->second;
      counter.launched(launch_of(state, id, call));
      if (counter.full()) take_counted(state, counter.read());
      if (!counter.problem().empty()) {
        const std::string why = counter.problem();
        finish_counting(state);
        without_counters(state, why);
      }
    }
  }
  state.launching.unlock();
}

void CUPTIAPI driver_called(void*, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
  if (domain != CUPTI_CB_DOMAIN_DRIVER_API) return;
  const auto& call = *static_cast<const CUpti_CallbackData*>(data);
  const bool enters = call.callbackSite == CUPTI_API_ENTER;
  if (among(id, kLaunches))
    return enters ? launch_begins(*g_state, id, call) : launch_ends(*g_state, id, call);
  if (enters && among(id, kContextEnds)) {
    const std::lock_guard lock(g_state->mutex);
    return finish_counting(*g_state);
  }
  if (call.callbackSite != CUPTI_API_EXIT || !call.functionReturnValue ||
      *static_cast<const CUresult*>(call.functionReturnValue) != CUDA_SUCCESS)
    return;
  State& state = *g_state;
  switch (id) {
    case CUPTI_DRIVER_TRACE_CBID_cuModuleLoadData:
    case CUPTI_DRIVER_TRACE_CBID_cuModuleLoadDataEx:
    case CUPTI_DRIVER_TRACE_CBID_cuModuleLoadFatBinary:
    case CUPTI_DRIVER_TRACE_CBID_cuLibraryLoadData: {
      const auto& p = *static_cast<const LoadCall*>(call.functionParams);
      return image_loaded(state, *p.owner, p.image);
    }
    case CUPTI_DRIVER_TRACE_CBID_cuModuleGetFunction:
    case CUPTI_DRIVER_TRACE_CBID_cuLibraryGetKernel: {
      const auto& p = *static_cast<const LookUpCall*>(call.functionParams);
      return kernel_looked_up(state, p.owner, p.name);
    }
    default:
      return;
  }
}

void at_exit() {
  State& state = *g_state;
  if (getpid() != state.pid) return;
  state.cupti.cuptiActivityFlushAll(1);  // also what is not complete
  const std::lock_guard lock(state.mutex);
  finish_counting(state);
  write_out(state);
}

// ---- start

Driver open_driver() {
  Driver out;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!library) return out;
  out.name = reinterpret_cast<decltype(out.name)>(dlsym(library, "cuDeviceGetName"));
  out.attribute = reinterpret_cast<decltype(out.attribute)>(dlsym(library, "cuDeviceGetAttribute"));
  out.version = reinterpret_cast<decltype(out.version)>(dlsym(library, "cuDriverGetVersion"));
  out.device_of_context = reinterpret_cast<decltype(out.device_of_context)>(dlsym(library, "cuCtxGetDevice"));
  out.function_attribute =
      reinterpret_cast<decltype(out.function_attribute)>(dlsym(library, "cuFuncGetAttribute"));
  out.is_capturing = reinterpret_cast<decltype(out.is_capturing)>(dlsym(library, "cuStreamIsCapturing"));
  return out;
}

void start(State& state) {
  std::string problem;
  if (!open_cupti(&state.cupti, &problem)) return note(state, problem);
  CUpti_SubscriberHandle subscriber = nullptr;
  const CUptiResult subscribed = state.cupti.cuptiSubscribe(&subscriber, driver_called, nullptr);
  if (subscribed == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED)
    return note(state,
                "another profiler is attached to this program and CUPTI serves one at a time: nothing was "
                "collected here; run it without the other one");
  if (subscribed != CUPTI_SUCCESS)
    return note(state, "CUPTI does not start: " + cupti_text(state.cupti, subscribed) +
                           "; nothing was collected (is there an NVIDIA driver of at least CUDA 13?)");
  const CUpti_CallbackId calls[] = {
      CUPTI_DRIVER_TRACE_CBID_cuModuleLoadData,      CUPTI_DRIVER_TRACE_CBID_cuModuleLoadDataEx,
      CUPTI_DRIVER_TRACE_CBID_cuModuleLoadFatBinary, CUPTI_DRIVER_TRACE_CBID_cuLibraryLoadData,
      CUPTI_DRIVER_TRACE_CBID_cuModuleGetFunction,   CUPTI_DRIVER_TRACE_CBID_cuLibraryGetKernel};
  for (CUpti_CallbackId id : calls)
    state.cupti.cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id);
  CUptiResult result = state.cupti.cuptiActivityRegisterCallbacks(buffer_wanted, buffer_done);
  if (result != CUPTI_SUCCESS)
    return note(state, "CUPTI takes no activity buffers: " + cupti_text(state.cupti, result));
  const char* metrics = getenv("TESSERA_PROFILE_METRICS");
  state.metrics = metrics && *metrics == '1';
  if (state.metrics) {  // the counters are tried at the first launch, when there is a context
    for (CUpti_CallbackId id : kLaunches)
      state.cupti.cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id);
    for (CUpti_CallbackId id : kContextEnds)
      state.cupti.cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id);
  }
  const struct {
    CUpti_ActivityKind kind;
    const char* what;
  } kinds[] = {{CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, "kernels"},
               {CUPTI_ACTIVITY_KIND_MEMCPY, "copies"},
               {CUPTI_ACTIVITY_KIND_MEMCPY2, "copies between GPUs"},
               {CUPTI_ACTIVITY_KIND_MEMSET, "sets"}};
  for (const auto& row : kinds) {
    if (state.metrics && row.kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    if (result = state.cupti.cuptiActivityEnable(row.kind); result != CUPTI_SUCCESS)
      note(state, std::string("no durations of ") + row.what + ": " + cupti_text(state.cupti, result));
  }
  // A graph traced as a whole hides its kernels: only by wish.
  if (const char* graphs = getenv("TESSERA_PROFILE_GRAPHS"); graphs && *graphs == '1')
    state.cupti.cuptiActivityEnable(CUPTI_ACTIVITY_KIND_GRAPH_TRACE);
  atexit(at_exit);
}

}  // namespace
}  // namespace tessera::profiles

// Returns 1 in any case: 0 would make the driver fail the program's first call.
extern "C" __attribute__((visibility("default"))) int InitializeInjection(void) {
  using namespace tessera::profiles;
  const char* folder = getenv("TESSERA_PROFILE_DIR");
  if (g_state || !folder || !*folder) return 1;
  try {
    g_state = new State;
    g_state->folder = folder;
    g_state->pid = getpid();
    g_state->driver = open_driver();
    start(*g_state);
  } catch (...) {  // out of memory: the program runs unprofiled
  }
  return 1;
}

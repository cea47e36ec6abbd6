// Hooks of slow calls: life of contexts and streams, captures, modules, graphs, cuInit. They keep
// interpose/track's books around the driver's own call, whose result is always what the program gets. Not
// part of the hot path.
#include <stdlib.h>

#include "base/errno_guard.h"
#include "interpose/entry/hooks.h"
#include "interpose/gate/pulse.h"
#include "interpose/gate/timing.h"
#include "interpose/gate/window.h"
#include "interpose/lifecycle/config.h"
#include "interpose/lifecycle/lifecycle.h"
#include "interpose/track/track.h"

namespace {

using namespace tessera;
using driver_api::Flavour;
using driver_api::real;
using driver_api::StreamArg;

bool live() {
  return lifecycle::g_phase.load(std::memory_order_relaxed) == lifecycle::Phase::kLive;
}

// Contexts. Whatever makes one current is a chance to prepare it; whatever may end one must find the helper
// outside.
template <class F>
CUresult current_changes(F&& call) {
  const CUresult result = call();
  if (result == CUDA_SUCCESS && live()) {
    const base::ErrnoGuard keep_errno;
    track::prepare_context();
  }
  return result;
}

template <class F>
CUresult context_ends(CUcontext context, F&& call) {
  if (!live()) return call();
  lifecycle::enter_exclusive();
  const CUresult result = call();
  lifecycle::leave_exclusive();
  if (result == CUDA_SUCCESS) track::context_ended(context);
  return result;
}

// Primary contexts by device: released ones end with their last reference, which only the driver counts.
constexpr int kDevices = 64;
constinit std::atomic<CUcontext> g_primary[kDevices] = {};

template <class F>
CUresult primary_ends(CUdevice device, bool always, F&& call) {
  if (!live()) return call();
  lifecycle::enter_exclusive();
  const CUresult result = call();
  unsigned flags = 0;
  int active = 0;
  if (result == CUDA_SUCCESS && !always) real().cuDevicePrimaryCtxGetState(device, &flags, &active);
  lifecycle::leave_exclusive();
  if (result == CUDA_SUCCESS && !active)
    track::context_ended(device >= 0 && device < kDevices ? g_primary[device].load() : nullptr);
  return result;
}

template <class F>
CUresult stream_ends(CUstream stream, F&& call) {
  if (!live()) return call();
  lifecycle::enter_exclusive();
  const CUresult result = call();
  lifecycle::leave_exclusive();
  if (result == CUDA_SUCCESS) track::stream_gone(stream);
  return result;
}

template <class F>
CUresult capture_opens(StreamArg stream, F&& call) {
  if (!live()) return call();
  track::capture_begins();
  const CUresult result = call();
  track::capture_began(stream, result);
  return result;
}

// Images. `load(text)` loads our text instead; the original is the fallback, and the only one for protected
// clients, whose kernels are merely recorded.
template <class Owner, class Load>
CUresult load_image(Owner* owner, const void* bytes, const void* caller, bool is_library, Load&& load) {
  if (!live()) return load(bytes);
  const base::ErrnoGuard keep_errno;
  auto image = track::inspect(bytes, caller);
  CUresult result = CUDA_ERROR_UNKNOWN;
  if (image && !image->text.empty()) {
    result = load(static_cast<const void*>(image->text.c_str()));
    if (result != CUDA_SUCCESS)
      for (auto& kernel : image->kernels) kernel.has_variant = false;
  }
  if (result != CUDA_SUCCESS) result = load(bytes);
  if (result == CUDA_SUCCESS && owner) track::image_loaded(*owner, is_library, std::move(image));
  return result;
}

// The result of the last load of a graph's shape says nothing about the new one.
void forget_timing(CUgraphExec graph) {
  gate::Timing* t = gate::timing_of(gate::timing_key({reinterpret_cast<uint64_t>(graph), 1, 0, 0}));
  if (!t) return;
  t->block_ps.store(0, std::memory_order_relaxed);
  t->samples.store(0, std::memory_order_relaxed);
  t->launches.store(0, std::memory_order_relaxed);
}

bool best_effort() {
  return live() && lifecycle::config().priority == 0;
}

}  // namespace

#define TS_AROUND(wrapper, symbol, params, args)        \
  extern "C" CUresult hook_##symbol params noexcept {   \
    return wrapper([&] { return real().symbol args; }); \
  }
#define TS_AROUND_1(wrapper, first, symbol, params, args)      \
  extern "C" CUresult hook_##symbol params noexcept {          \
    return wrapper(first, [&] { return real().symbol args; }); \
  }

TS_AROUND(current_changes, cuCtxCreate, (CUcontext * c, unsigned flags, CUdevice d), (c, flags, d))
TS_AROUND(current_changes, cuCtxCreate_v2, (CUcontext * c, unsigned flags, CUdevice d), (c, flags, d))
TS_AROUND(current_changes, cuCtxCreate_v3,
          (CUcontext * c, CUexecAffinityParam* p, int n, unsigned f, CUdevice d), (c, p, n, f, d))
TS_AROUND(current_changes, cuCtxCreate_v4, (CUcontext * c, CUctxCreateParams* p, unsigned f, CUdevice d),
          (c, p, f, d))
TS_AROUND(current_changes, cuCtxSetCurrent, (CUcontext c), (c))
TS_AROUND(current_changes, cuCtxPushCurrent, (CUcontext c), (c))
TS_AROUND(current_changes, cuCtxPushCurrent_v2, (CUcontext c), (c))
TS_AROUND(current_changes, cuStreamCreate, (CUstream * s, unsigned flags), (s, flags))
TS_AROUND(current_changes, cuStreamCreateWithPriority, (CUstream * s, unsigned f, int priority),
          (s, f, priority))

TS_AROUND_1(context_ends, ctx, cuCtxDestroy, (CUcontext ctx), (ctx))
TS_AROUND_1(context_ends, ctx, cuCtxDestroy_v2, (CUcontext ctx), (ctx))
TS_AROUND_1(context_ends, ctx, cuCtxDetach, (CUcontext ctx), (ctx))
TS_AROUND_1(stream_ends, stream, cuStreamDestroy, (CUstream stream), (stream))
TS_AROUND_1(stream_ends, stream, cuStreamDestroy_v2, (CUstream stream), (stream))

extern "C" CUresult hook_cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice device) noexcept {
  const CUresult result = real().cuDevicePrimaryCtxRetain(c, device);
  if (result == CUDA_SUCCESS && live() && c && device >= 0 && device < kDevices) {
    g_primary[device].store(*c);
    lifecycle::device_seen(device);
  }
  return result;
}
#define TS_PRIMARY(symbol, always)                                              \
  extern "C" CUresult hook_##symbol(CUdevice device) noexcept {                 \
    return primary_ends(device, always, [&] { return real().symbol(device); }); \
  }
TS_PRIMARY(cuDevicePrimaryCtxRelease, false)
TS_PRIMARY(cuDevicePrimaryCtxRelease_v2, false)
TS_PRIMARY(cuDevicePrimaryCtxReset, true)
TS_PRIMARY(cuDevicePrimaryCtxReset_v2, true)

#define TS_BEGIN(symbol, family, params, args)                                           \
  extern "C" CUresult hook_##symbol params noexcept {                                    \
    return capture_opens({stream, Flavour::family}, [&] { return real().symbol args; }); \
  }
TS_BEGIN(cuStreamBeginCapture, kLegacy, (CUstream stream), (stream))
TS_BEGIN(cuStreamBeginCapture_ptsz, kPerThread, (CUstream stream), (stream))
TS_BEGIN(cuStreamBeginCapture_v2, kLegacy, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
TS_BEGIN(cuStreamBeginCapture_v2_ptsz, kPerThread, (CUstream stream, CUstreamCaptureMode mode),
         (stream, mode))
TS_BEGIN(cuStreamBeginCaptureToGraph, kLegacy,
         (CUstream stream, CUgraph graph, const CUgraphNode* from, const CUgraphEdgeData* edges, size_t n,
          CUstreamCaptureMode mode),
         (stream, graph, from, edges, n, mode))
TS_BEGIN(cuStreamBeginCaptureToGraph_ptsz, kPerThread,
         (CUstream stream, CUgraph graph, const CUgraphNode* from, const CUgraphEdgeData* edges, size_t n,
          CUstreamCaptureMode mode),
         (stream, graph, from, edges, n, mode))
#define TS_END(symbol, family)                                                  \
  extern "C" CUresult hook_##symbol(CUstream stream, CUgraph* graph) noexcept { \
    const CUresult result = real().symbol(stream, graph);                       \
    if (live()) track::capture_ended({stream, Flavour::family}, result);        \
    return result;                                                              \
  }
TS_END(cuStreamEndCapture, kLegacy)
TS_END(cuStreamEndCapture_ptsz, kPerThread)

extern "C" CUresult hook_cuModuleLoadData(CUmodule* module, const void* image) noexcept {
  return load_image(module, image, __builtin_return_address(0), false,
                    [&](const void* bytes) { return real().cuModuleLoadData(module, bytes); });
}
extern "C" CUresult hook_cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned n,
                                            CUjit_option* options, void** values) noexcept {
  return load_image(module, image, __builtin_return_address(0), false, [&](const void* bytes) {
    return real().cuModuleLoadDataEx(module, bytes, n, options, values);
  });
}
extern "C" CUresult hook_cuModuleLoadFatBinary(CUmodule* module, const void* image) noexcept {
  // Our text is PTX, which this entry point does not take.
  return load_image(module, image, __builtin_return_address(0), false, [&](const void* bytes) {
    return bytes == image ? real().cuModuleLoadFatBinary(module, bytes)
                          : real().cuModuleLoadData(module, bytes);
  });
}
extern "C" CUresult hook_cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jit,
                                           void** jit_values, unsigned n_jit, CUlibraryOption* options,
                                           void** values, unsigned n) noexcept {
  return load_image(library, code, __builtin_return_address(0), true, [&](const void* bytes) {
    return real().cuLibraryLoadData(library, bytes, jit, jit_values, n_jit, options, values, n);
  });
}
extern "C" CUresult hook_cuModuleUnload(CUmodule module) noexcept {
  const CUresult result = real().cuModuleUnload(module);
  if (result == CUDA_SUCCESS && live()) track::image_unloaded(module);
  return result;
}
extern "C" CUresult hook_cuLibraryUnload(CUlibrary library) noexcept {
  const CUresult result = real().cuLibraryUnload(library);
  if (result == CUDA_SUCCESS && live()) track::image_unloaded(library);
  return result;
}

extern "C" CUresult hook_cuModuleGetFunction(CUfunction* function, CUmodule module,
                                             const char* name) noexcept {
  const CUresult result = real().cuModuleGetFunction(function, module, name);
  if (result == CUDA_SUCCESS && live()) track::kernel_found(*function, module, false, name);
  return result;
}
extern "C" CUresult hook_cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) noexcept {
  const CUresult result = real().cuLibraryGetKernel(kernel, library, name);
  if (result == CUDA_SUCCESS && live()) track::kernel_found(*kernel, library, true, name);
  return result;
}
extern "C" CUresult hook_cuLibraryGetModule(CUmodule* module, CUlibrary library) noexcept {
  const CUresult result = real().cuLibraryGetModule(module, library);
  if (result == CUDA_SUCCESS && live()) track::module_of_library(*module, library);
  return result;
}
extern "C" CUresult hook_cuKernelGetFunction(CUfunction* function, CUkernel kernel) noexcept {
  const CUresult result = real().cuKernelGetFunction(function, kernel);
  if (result == CUDA_SUCCESS && live()) track::kernel_function(kernel, *function);
  return result;
}

// Enumeration does not show what we added: ask for all, hand out the program's own.
template <class Handle, class Owner, class Ask, class NameOf>
static CUresult enumerate(Handle* out, unsigned wanted, Owner owner, Ask&& ask, NameOf&& name_of) {
  const uint32_t added = best_effort() ? track::variants_in(owner) : 0;
  if (added == 0 || wanted == 0 || !out) return ask(out, wanted);
  const unsigned all = wanted + added;
  Handle* buffer = static_cast<Handle*>(calloc(all, sizeof(Handle)));
  if (!buffer) return ask(out, wanted);
  const CUresult result = ask(buffer, all);
  unsigned kept = 0;
  for (unsigned i = 0; result == CUDA_SUCCESS && i < all && kept < wanted; i++) {
    const char* name = nullptr;
    if (!buffer[i] || (name_of(&name, buffer[i]) == CUDA_SUCCESS && name && track::is_variant_name(name)))
      continue;
    out[kept++] = buffer[i];
  }
  free(buffer);
  return result;
}
extern "C" CUresult hook_cuModuleEnumerateFunctions(CUfunction* functions, unsigned n,
                                                    CUmodule module) noexcept {
  return enumerate(
      functions, n, module,
      [&](CUfunction* out, unsigned k) { return real().cuModuleEnumerateFunctions(out, k, module); },
      [](const char** name, CUfunction f) { return real().cuFuncGetName(name, f); });
}
extern "C" CUresult hook_cuLibraryEnumerateKernels(CUkernel* kernels, unsigned n,
                                                   CUlibrary library) noexcept {
  return enumerate(
      kernels, n, library,
      [&](CUkernel* out, unsigned k) { return real().cuLibraryEnumerateKernels(out, k, library); },
      [](const char** name, CUkernel k) { return real().cuKernelGetName(name, k); });
}
extern "C" CUresult hook_cuModuleGetFunctionCount(unsigned* count, CUmodule module) noexcept {
  const CUresult result = real().cuModuleGetFunctionCount(count, module);
  if (result == CUDA_SUCCESS && best_effort()) *count -= track::variants_in(module);
  return result;
}
extern "C" CUresult hook_cuLibraryGetKernelCount(unsigned* count, CUlibrary library) noexcept {
  const CUresult result = real().cuLibraryGetKernelCount(count, library);
  if (result == CUDA_SUCCESS && best_effort()) *count -= track::variants_in(library);
  return result;
}

extern "C" CUresult hook_cuGraphExecDestroy(CUgraphExec graph) noexcept {
  forget_timing(graph);
  return real().cuGraphExecDestroy(graph);
}
extern "C" CUresult hook_cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* node,
                                           CUgraphExecUpdateResult* info) noexcept {
  forget_timing(exec);
  return real().cuGraphExecUpdate(exec, graph, node, info);
}
extern "C" CUresult hook_cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph,
                                              CUgraphExecUpdateResultInfo* info) noexcept {
  forget_timing(exec);
  return real().cuGraphExecUpdate_v2(exec, graph, info);
}

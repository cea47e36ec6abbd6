// Contexts: primary and created ones, the stack of the calling thread, flags and limits.
#include "softgpu/driver/capture.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"

using namespace tessera::softgpu::driver;  // entry points are global by nature

namespace {

constexpr unsigned kFlagsMask = CU_CTX_FLAGS_MASK;

CUcontext handle(const std::shared_ptr<Context>& context) {
  return reinterpret_cast<CUcontext>(context.get());
}

bool valid_flags(unsigned flags) {
  const unsigned sched = flags & CU_CTX_SCHED_MASK;
  return !(flags & ~kFlagsMask) && (sched == 0 || sched == 1 || sched == 2 || sched == 4);
}

CUresult create(CUcontext* out, unsigned flags, CUdevice device, unsigned version) {
  if (!out || !valid_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
  Device* on = find_device(device);
  if (!on) return CUDA_ERROR_INVALID_DEVICE;
  if (CUresult unsafe = check_unsafe()) return unsafe;
  std::shared_ptr<Context> context = make_context(*on, flags, false);
  context->api_version = version;
  thread().stack.push_back(context);
  *out = handle(context);
  return CUDA_SUCCESS;
}

CUresult reset_primary_locked(Device& device) {
  const std::shared_ptr<Context> old = std::move(device.primary);
  device.primary = nullptr;
  if (old) destroy_context(old);
  return CUDA_SUCCESS;
}

// The context named, or the calling thread's for null.
CUresult pick(CUcontext named, std::shared_ptr<Context>* context) {
  if (!named) return current(context);
  *context = driver().contexts.find(named);
  return *context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult synchronize_checked(Context& context) {
  if (CUresult unsafe = check_unsafe()) return unsafe;
  {
    std::lock_guard lock(context.mutex);
    bool capturing = false;
    for (const auto& stream : context.streams)
      if (stream->capture) capturing = true, invalidate(*stream->capture);
    if (capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return synchronize(context);
}

}  // namespace

CUresult cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  TS_ENTER(cuDevicePrimaryCtxRetain);
  if (!pctx) return CUDA_ERROR_INVALID_VALUE;
  Device* device = find_device(dev);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard lock(device->primary_mutex);
  if (!device->primary) device->primary = make_context(*device, device->primary_flags, true);
  ++device->primary_retained;
  *pctx = handle(device->primary);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  TS_ENTER(cuDevicePrimaryCtxRelease_v2);
  Device* device = find_device(dev);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard lock(device->primary_mutex);
  if (device->primary_retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  return --device->primary_retained == 0 ? reset_primary_locked(*device) : CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
  return cuDevicePrimaryCtxRelease_v2(dev);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  TS_ENTER(cuDevicePrimaryCtxReset_v2);
  Device* device = find_device(dev);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard lock(device->primary_mutex);
  return reset_primary_locked(*device);
}
CUresult cuDevicePrimaryCtxReset(CUdevice dev) {
  return cuDevicePrimaryCtxReset_v2(dev);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
  TS_ENTER(cuDevicePrimaryCtxSetFlags_v2);
  Device* device = find_device(dev);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  if (!valid_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(device->primary_mutex);
  device->primary_flags = flags;
  if (device->primary) device->primary->flags.store(flags | CU_CTX_MAP_HOST, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
  return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int* flags, int* active) {
  TS_ENTER(cuDevicePrimaryCtxGetState);
  Device* device = find_device(dev);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(device->primary_mutex);
  *flags = device->primary ? device->primary->flags.load(std::memory_order_relaxed) : device->primary_flags;
  *active = device->primary != nullptr;
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  TS_ENTER(cuCtxCreate_v2);
  return create(pctx, flags, dev, 3020);
}
CUresult cuCtxCreate(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  TS_ENTER(cuCtxCreate);
  return create(pctx, flags, dev, 3010);
}
CUresult cuCtxCreate_v3(CUcontext* pctx, CUexecAffinityParam* paramsArray, int numParams, unsigned int flags,
                        CUdevice dev) {
  TS_ENTER(cuCtxCreate_v3);
  if (paramsArray || numParams) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return create(pctx, flags, dev, 3020);
}
CUresult cuCtxCreate_v4(CUcontext* pctx, CUctxCreateParams* ctxCreateParams, unsigned int flags,
                        CUdevice dev) {
  TS_ENTER(cuCtxCreate_v4);
  if (ctxCreateParams && ctxCreateParams->numExecAffinityParams) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  if (ctxCreateParams && ctxCreateParams->cigParams) return CUDA_ERROR_NOT_SUPPORTED;
  return create(pctx, flags, dev, 3020);
}

CUresult cuCtxDestroy_v2(CUcontext ctx) {
  TS_ENTER(cuCtxDestroy_v2);
  if (!ctx) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context = driver().contexts.find(ctx);
  if (!context || context->primary || context->green) return CUDA_ERROR_INVALID_CONTEXT;
  auto& stack = thread().stack;
  if (!stack.empty() && stack.back() == context) stack.pop_back();
  destroy_context(context);
  return CUDA_SUCCESS;
}
CUresult cuCtxDestroy(CUcontext ctx) {
  return cuCtxDestroy_v2(ctx);
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
  TS_ENTER(cuCtxPushCurrent_v2);
  std::shared_ptr<Context> context = driver().contexts.find(ctx);
  if (!context) return ctx ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
  thread().stack.push_back(std::move(context));
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext ctx) {
  return cuCtxPushCurrent_v2(ctx);
}

CUresult cuCtxPopCurrent_v2(CUcontext* pctx) {
  TS_ENTER(cuCtxPopCurrent_v2);
  auto& stack = thread().stack;
  if (stack.empty() || !stack.back()) return CUDA_ERROR_INVALID_CONTEXT;
  if (pctx) *pctx = handle(stack.back());
  stack.pop_back();
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext* pctx) {
  return cuCtxPopCurrent_v2(pctx);
}

CUresult cuCtxSetCurrent(CUcontext ctx) {
  TS_ENTER(cuCtxSetCurrent);
  auto& stack = thread().stack;
  if (!ctx) {
    if (!stack.empty()) stack.pop_back();
    return CUDA_SUCCESS;
  }
  std::shared_ptr<Context> context = driver().contexts.find(ctx);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (stack.empty())
    stack.push_back(std::move(context));
  else
    stack.back() = std::move(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* pctx) {
  TS_ENTER(cuCtxGetCurrent);
  if (!pctx) return CUDA_ERROR_INVALID_VALUE;
  const auto& stack = thread().stack;
  *pctx = stack.empty() ? nullptr : handle(stack.back());
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  TS_ENTER(cuCtxGetDevice);
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (CUresult none = current_even_if_failed(&context)) return none;
  *device = context->device;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext ctx) {
  TS_ENTER(cuCtxGetDevice_v2);
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (CUresult none = pick(ctx, &context)) return none;
  *device = context->device;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int* flags) {
  TS_CONTEXT(cuCtxGetFlags, context);
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  *flags = context->flags.load(std::memory_order_relaxed);
  return CUDA_SUCCESS;
}
CUresult cuCtxSetFlags(unsigned int flags) {
  TS_CONTEXT(cuCtxSetFlags, context);
  if (!valid_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
  context->flags.store(flags | CU_CTX_MAP_HOST, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long* ctxId) {
  TS_ENTER(cuCtxGetId);
  if (!ctxId) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (CUresult none = pick(ctx, &context)) return none;
  *ctxId = context->id;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int* version) {
  TS_ENTER(cuCtxGetApiVersion);
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (CUresult none = pick(ctx, &context)) return none;
  *version = context->primary ? 3020 : context->api_version;
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
  TS_CONTEXT(cuCtxSynchronize, context);
  return synchronize_checked(*context);
}
CUresult cuCtxSynchronize_v2(CUcontext ctx) {
  TS_ENTER(cuCtxSynchronize_v2);
  std::shared_ptr<Context> context;
  if (CUresult none = pick(ctx, &context)) return none;
  return synchronize_checked(*context);
}

CUresult cuCtxGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
  TS_CONTEXT(cuCtxGetStreamPriorityRange, context);
  if (leastPriority) *leastPriority = kLeastPriority;
  if (greatestPriority) *greatestPriority = kGreatestPriority;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  TS_CONTEXT(cuCtxSetLimit, context);
  if (unsigned(limit) >= CU_LIMIT_MAX) return CUDA_ERROR_INVALID_VALUE;
  if (limit >= CU_LIMIT_SHMEM_SIZE || limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH)
    return CUDA_ERROR_UNSUPPORTED_LIMIT;
  context->limits[limit].store(value, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetLimit(size_t* pvalue, CUlimit limit) {
  TS_CONTEXT(cuCtxGetLimit, context);
  if (!pvalue || unsigned(limit) >= CU_LIMIT_MAX) return CUDA_ERROR_INVALID_VALUE;
  if (limit >= CU_LIMIT_SHMEM_SIZE || limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH)
    return CUDA_ERROR_UNSUPPORTED_LIMIT;
  *pvalue = context->limits[limit].load(std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache* pconfig) {
  TS_CONTEXT(cuCtxGetCacheConfig, context);
  if (!pconfig) return CUDA_ERROR_INVALID_VALUE;
  *pconfig = CUfunc_cache(context->cache_config.load(std::memory_order_relaxed));
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
  TS_CONTEXT(cuCtxSetCacheConfig, context);
  if (unsigned(config) > CU_FUNC_CACHE_PREFER_EQUAL) return CUDA_ERROR_INVALID_VALUE;
  context->cache_config.store(config, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetSharedMemConfig(CUsharedconfig* pConfig) {
  TS_CONTEXT(cuCtxGetSharedMemConfig, context);
  if (!pConfig) return CUDA_ERROR_INVALID_VALUE;
  *pConfig = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
  TS_CONTEXT(cuCtxSetSharedMemConfig, context);
  return unsigned(config) > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_ERROR_INVALID_VALUE
                                                                      : CUDA_SUCCESS;
}
CUresult cuCtxResetPersistingL2Cache() {
  TS_CONTEXT(cuCtxResetPersistingL2Cache, context);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetExecAffinity(CUexecAffinityParam* pExecAffinity, CUexecAffinityType type) {
  TS_CONTEXT(cuCtxGetExecAffinity, context);
  (void)pExecAffinity, (void)type;
  return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
}
CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags) {
  TS_CONTEXT(cuCtxEnablePeerAccess, context);
  if (Flags) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Context> peer = driver().contexts.find(peerContext);
  if (!peer || peer == context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!can_access_peer(context->device, peer->device)) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  std::lock_guard lock(context->mutex);
  if (!context->peers.insert(peer->id).second) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  Memory::get().enable_peer(context->device, peer.get());
  return CUDA_SUCCESS;
}
CUresult cuCtxDisablePeerAccess(CUcontext peerContext) {
  TS_CONTEXT(cuCtxDisablePeerAccess, context);
  const std::shared_ptr<Context> peer = driver().contexts.find(peerContext);
  if (!peer) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(context->mutex);
  if (!context->peers.erase(peer->id)) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  Memory::get().disable_peer(context->device, peer.get());
  return CUDA_SUCCESS;
}

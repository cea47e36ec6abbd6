// Entry points of device resources and green contexts.
#include "softgpu/driver/green.h"

#include <algorithm>
#include <cstring>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"

namespace tessera::softgpu::driver {
namespace {

Registry<GreenContext>& greens() {
  static auto* registry = new Registry<GreenContext>;  // never destroyed
  return *registry;
}

// The state of a resource between calls, in its padding: the opaque part of CUdevResource.
struct Partition {
  uint32_t magic, device, first_sm, n_sms;
};
constexpr uint32_t kPartitionMagic = 0x534d5350;

struct Granularity {
  uint32_t least, multiple;
};
// By architecture, as documented; a device too small for two of its parts is cut by twos.
Granularity granularity(const Device& device, bool fine) {
  const uint32_t count = device.gpu.sm.count;
  const Granularity usual = device.gpu.cc_major >= 9   ? Granularity{8, 8}
                            : device.gpu.cc_major == 8 ? Granularity{4, 2}
                                                       : Granularity{2, 2};
  return fine || count < 2 * usual.least ? Granularity{2, 2} : usual;
}

CUdevResource make_resource(const Device& device, uint32_t first, uint32_t n) {
  CUdevResource r;
  std::memset(&r, 0, sizeof r);
  r.type = CU_DEV_RESOURCE_TYPE_SM;
  const Partition p{kPartitionMagic, uint32_t(device.ordinal), first, n};
  std::memcpy(r._internal_padding, &p, sizeof p);
  r.sm.smCount = n;
  r.sm.minSmPartitionSize = granularity(device, false).least;
  r.sm.smCoscheduledAlignment = granularity(device, false).multiple;
  return r;
}

bool read_resource(const CUdevResource& r, Partition* p) {
  std::memcpy(p, r._internal_padding, sizeof *p);
  if (r.type != CU_DEV_RESOURCE_TYPE_SM || p->magic != kPartitionMagic) return false;
  const Device* device = find_device(CUdevice(p->device));
  return device && p->n_sms && uint64_t(p->first_sm) + p->n_sms <= device->gpu.sm.count;
}

// CUdevResourceDesc: lives until the process ends, as there is no call that destroys it; one per partition.
struct Description {
  Partition partition;
};
std::mutex g_mutex;  // guards descriptions
std::map<std::tuple<uint32_t, uint32_t, uint32_t>, std::unique_ptr<Description>>& descriptions() {
  static auto* map = new std::map<std::tuple<uint32_t, uint32_t, uint32_t>, std::unique_ptr<Description>>;
  return *map;
}

CUresult resource_of(const Device& device, uint32_t first, uint32_t n, CUdevResource* out,
                     CUdevResourceType type) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  *out = make_resource(device, first, n);
  return CUDA_SUCCESS;
}

std::shared_ptr<Stream> add_stream(const std::shared_ptr<GreenContext>& green, unsigned flags, int priority) {
  std::shared_ptr<Stream> stream = make_stream(*green->base, flags, priority);
  stream->green = green;
  std::lock_guard lock(green->base->mutex);
  green->base->streams.push_back(stream);
  return stream;
}

// Streams of a green context, or all of an ordinary one. Context::mutex held.
std::vector<std::shared_ptr<Stream>> streams_locked(Context& context, const GreenContext* green) {
  std::vector<std::shared_ptr<Stream>> mine;
  for (const auto& stream : context.streams)
    if (!green || stream->green.get() == green) mine.push_back(stream);
  if (!green) mine.push_back(context.legacy);
  return mine;
}

CUresult record_all(const std::shared_ptr<Context>& context, const GreenContext* green, CUevent handle) {
  const std::shared_ptr<Event> event = driver().events.find(handle);
  if (!event || event->context != context.get()) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(context->mutex);
  std::vector<OpRef> deps;
  for (const auto& stream : streams_locked(*context, green)) {
    if (stream->capture) {
      invalidate(*stream->capture);
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    deps.insert(deps.end(), {stream->tail, stream->marker});
  }
  submit_record(context, *event, std::move(deps), *context->legacy);
  return CUDA_SUCCESS;
}

CUresult wait_all_streams(const std::shared_ptr<Context>& context, const GreenContext* green,
                          CUevent handle) {
  const std::shared_ptr<Event> event = driver().events.find(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(context->mutex);
  {
    std::lock_guard event_lock(event->mutex);
    if (event->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  const auto streams = streams_locked(*context, green);
  for (const auto& stream : streams) {
    if (!stream->capture) continue;
    invalidate(*stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  for (const auto& stream : streams) {
    std::vector<OpRef> deps = {stream->tail, stream->marker, wait_for_event(context, *event, *stream)};
    stream->tail = submit_join(context, std::move(deps), *stream);
  }
  return CUDA_SUCCESS;
}

// The context that work of this handle goes to, and its green context if it is the face of one.
CUresult open(CUcontext handle, std::shared_ptr<Context>* context, std::shared_ptr<GreenContext>* green) {
  const std::shared_ptr<Context> named = driver().contexts.find(handle);
  if (!named) return CUDA_ERROR_INVALID_CONTEXT;
  *green = named->green;
  *context = named->green ? named->green->base : named;
  return sticky(**context);
}

}  // namespace

std::shared_ptr<GreenContext> current_green() {
  const auto& stack = thread().stack;
  return stack.empty() || !stack.back() ? nullptr : stack.back()->green;
}

}  // namespace tessera::softgpu::driver

using namespace tessera::softgpu::driver;  // entry points are global by nature

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource* resource, CUdevResourceType type) {
  TS_ENTER(cuDeviceGetDevResource);
  const Device* mine = find_device(device);
  if (!mine) return CUDA_ERROR_INVALID_DEVICE;
  return resource_of(*mine, 0, mine->gpu.sm.count, resource, type);
}

CUresult cuCtxGetDevResource(CUcontext hCtx, CUdevResource* resource, CUdevResourceType type) {
  TS_ENTER(cuCtxGetDevResource);
  std::shared_ptr<Context> context;
  std::shared_ptr<GreenContext> green;
  if (CUresult bad = open(hCtx, &context, &green)) return bad;
  const Device& device = device_of(*context);
  return green ? resource_of(device, green->first_sm, green->n_sms, resource, type)
               : resource_of(device, 0, device.gpu.sm.count, resource, type);
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx hCtx, CUdevResource* resource, CUdevResourceType type) {
  TS_ENTER(cuGreenCtxGetDevResource);
  const std::shared_ptr<GreenContext> green = greens().find(hCtx);
  if (!green) return CUDA_ERROR_INVALID_CONTEXT;
  return resource_of(device_of(*green->base), green->first_sm, green->n_sms, resource, type);
}

CUresult cuDevSmResourceSplitByCount(CUdevResource* result, unsigned int* nbGroups,
                                     const CUdevResource* input, CUdevResource* remaining,
                                     unsigned int useFlags, unsigned int minCount) {
  TS_ENTER(cuDevSmResourceSplitByCount);
  constexpr unsigned kFlags =
      CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING | CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
  Partition whole;
  if (!nbGroups || !input || (useFlags & ~kFlags) || (result && !*nbGroups)) return CUDA_ERROR_INVALID_VALUE;
  if (input->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  if (!read_resource(*input, &whole) || minCount > whole.n_sms) return CUDA_ERROR_INVALID_VALUE;
  const Device& device = *find_device(CUdevice(whole.device));
  const Granularity g = granularity(device, useFlags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING);
  const uint32_t size = (std::max(minCount, g.least) + g.multiple - 1) / g.multiple * g.multiple;
  const uint32_t most = whole.n_sms / size;
  if (most == 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  const uint32_t n = result ? std::min<uint32_t>(*nbGroups, most) : most;
  *nbGroups = n;
  for (uint32_t i = 0; result && i < n; ++i)
    result[i] = make_resource(device, whole.first_sm + i * size, size);
  if (remaining) {
    const uint32_t left = whole.n_sms - n * size;
    std::memset(remaining, 0, sizeof *remaining);
    if (left) *remaining = make_resource(device, whole.first_sm + n * size, left);
  }
  return CUDA_SUCCESS;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* phDesc, CUdevResource* resources,
                                   unsigned int nbResources) {
  TS_ENTER(cuDevResourceGenerateDesc);
  Partition p;
  if (!phDesc || !resources || !nbResources) return CUDA_ERROR_INVALID_VALUE;
  if (nbResources != 1) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;  // one set of SMs
  if (resources->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  if (!read_resource(*resources, &p)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(g_mutex);
  auto& description = descriptions()[{p.device, p.first_sm, p.n_sms}];
  if (!description) description = std::make_unique<Description>(Description{p});
  *phDesc = reinterpret_cast<CUdevResourceDesc>(description.get());
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(CUgreenCtx* phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags) {
  TS_ENTER(cuGreenCtxCreate);
  if (!phCtx || flags != CU_GREEN_CTX_DEFAULT_STREAM)
    return CUDA_ERROR_INVALID_VALUE;  // required, as documented
  Device* device = find_device(dev);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  Partition p{};
  {
    std::lock_guard lock(g_mutex);
    for (const auto& [key, description] : descriptions())
      if (reinterpret_cast<CUdevResourceDesc>(description.get()) == desc) p = description->partition;
  }
  if (!p.n_sms || p.device != uint32_t(dev)) return CUDA_ERROR_INVALID_VALUE;
  CUcontext base = nullptr;
  if (CUresult failed = cuDevicePrimaryCtxRetain(&base, dev)) return failed;
  auto made = std::make_shared<GreenContext>();
  made->id = driver().next_id.fetch_add(1, std::memory_order_relaxed);
  made->base = driver().contexts.find(base);
  (void)synchronize(*made->base);  // as an H200 does; launches go on
  made->first_sm = p.first_sm;
  made->n_sms = p.n_sms;
  made->default_stream = add_stream(made, 0, 0);
  made->face = std::make_shared<Context>();
  made->face->id = driver().next_id.fetch_add(1, std::memory_order_relaxed);
  made->face->device = dev;
  made->face->green = made;  // a cycle, taken apart by cuGreenCtxDestroy
  driver().contexts.add(made->face);
  greens().add(made);
  *phCtx = reinterpret_cast<CUgreenCtx>(made.get());
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxDestroy(CUgreenCtx hCtx) {
  TS_ENTER(cuGreenCtxDestroy);
  const std::shared_ptr<GreenContext> green = greens().remove(hCtx);
  if (!green) return CUDA_ERROR_INVALID_CONTEXT;
  driver().contexts.remove(green->face.get());
  green->face->destroyed.store(true, std::memory_order_release);
  {
    std::lock_guard lock(green->base->mutex);
    green->default_stream->orphan = true;
    prune_orphans_locked(*green->base);
  }
  green->default_stream = nullptr;
  green->face = nullptr;  // stacks that still hold it find it destroyed
  return cuDevicePrimaryCtxRelease_v2(green->base->device);
}

CUresult cuCtxFromGreenCtx(CUcontext* pContext, CUgreenCtx hCtx) {
  TS_ENTER(cuCtxFromGreenCtx);
  const std::shared_ptr<GreenContext> green = greens().find(hCtx);
  if (!pContext) return CUDA_ERROR_INVALID_VALUE;
  if (!green) return CUDA_ERROR_INVALID_CONTEXT;
  *pContext = reinterpret_cast<CUcontext>(green->face.get());
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxGetId(CUgreenCtx greenCtx, unsigned long long* greenCtxId) {
  TS_ENTER(cuGreenCtxGetId);
  const std::shared_ptr<GreenContext> green = greens().find(greenCtx);
  if (!green) return CUDA_ERROR_INVALID_CONTEXT;
  if (!greenCtxId) return CUDA_ERROR_INVALID_VALUE;
  *greenCtxId = green->id;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxStreamCreate(CUstream* phStream, CUgreenCtx greenCtx, unsigned int flags, int priority) {
  TS_ENTER(cuGreenCtxStreamCreate);
  const std::shared_ptr<GreenContext> green = greens().find(greenCtx);
  if (!green) return CUDA_ERROR_INVALID_CONTEXT;
  if (!phStream || flags != CU_STREAM_NON_BLOCKING)
    return CUDA_ERROR_INVALID_VALUE;  // required, as documented
  const std::shared_ptr<Stream> stream = add_stream(green, flags, priority);
  driver().streams.add(stream);
  *phStream = reinterpret_cast<CUstream>(stream.get());
  return CUDA_SUCCESS;
}

CUresult cuStreamGetGreenCtx(CUstream hStream, CUgreenCtx* phCtx) {
  TS_CONTEXT(cuStreamGetGreenCtx, context);
  std::shared_ptr<Stream> stream;
  if (!phCtx) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = resolve(*context, hStream, NullStream::kLegacy, &stream)) return bad;
  *phCtx = reinterpret_cast<CUgreenCtx>(stream->green.get());  // null: the stream has all SMs
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxRecordEvent(CUgreenCtx hCtx, CUevent hEvent) {
  TS_ENTER(cuGreenCtxRecordEvent);
  const std::shared_ptr<GreenContext> green = greens().find(hCtx);
  return green ? record_all(green->base, green.get(), hEvent) : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuGreenCtxWaitEvent(CUgreenCtx hCtx, CUevent hEvent) {
  TS_ENTER(cuGreenCtxWaitEvent);
  const std::shared_ptr<GreenContext> green = greens().find(hCtx);
  return green ? wait_all_streams(green->base, green.get(), hEvent) : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuCtxRecordEvent(CUcontext hCtx, CUevent hEvent) {
  TS_ENTER(cuCtxRecordEvent);
  std::shared_ptr<Context> context;
  std::shared_ptr<GreenContext> green;
  if (CUresult bad = open(hCtx, &context, &green)) return bad;
  return record_all(context, green.get(), hEvent);
}
CUresult cuCtxWaitEvent(CUcontext hCtx, CUevent hEvent) {
  TS_ENTER(cuCtxWaitEvent);
  std::shared_ptr<Context> context;
  std::shared_ptr<GreenContext> green;
  if (CUresult bad = open(hCtx, &context, &green)) return bad;
  return wait_all_streams(context, green.get(), hEvent);
}

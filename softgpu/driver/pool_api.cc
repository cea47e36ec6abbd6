// Stream-ordered allocation and memory pools. Memory is taken when the call is made and given back when the
// stream reaches the free; pools count, they do not hold memory back. A pool made with a handle type can be
// exported: another process then opens its allocations, one by one (ipc.h).
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/graph.h"
#include "softgpu/driver/ipc.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"
#include "softgpu/faults/faults.h"

namespace tessera::softgpu::driver {
namespace {

constexpr int kHostPool = -1;

struct Pool {
  int device = 0;  // kHostPool: in host memory, which every device reaches
  bool is_default = false, imported = false;
  bool exportable = false;                // made with a POSIX descriptor as handle type
  uint64_t number = 0;                    // in tickets; an imported pool has its exporter's
  std::atomic<int> reuse[3] = {1, 1, 1};  // CU_MEMPOOL_ATTR_REUSE_*
  std::atomic<uint64_t> release_threshold{0}, max_bytes{0};
  std::atomic<uint64_t> used_high{0};
};

Registry<Pool>& pools() {
  static auto* registry = new Registry<Pool>;  // never destroyed
  return *registry;
}

// Default and current pool of each device, and of host memory.
struct DevicePools {
  std::shared_ptr<Pool> standard;
  std::atomic<Pool*> current{nullptr};  // null: the default one
};
DevicePools& pools_of(int device) {
  static auto* all = [] {
    auto* made = new std::array<DevicePools, kMaxDevices + 1>;
    for (int i = kHostPool; i < int(driver().devices.size()); ++i) {
      auto pool = std::make_shared<Pool>();
      pool->device = i;
      pool->is_default = true;
      pools().add(pool);
      (*made)[size_t(i - kHostPool)].standard = std::move(pool);
    }
    return made;
  }();
  return (*all)[size_t(device - kHostPool)];
}

std::shared_ptr<Pool> find_pool(CUmemoryPool handle) {
  (void)pools_of(0);  // the default pools exist from the start
  return pools().find(handle);
}

std::shared_ptr<Pool> current_pool(int device) {
  DevicePools& mine = pools_of(device);
  Pool* set = mine.current.load(std::memory_order_acquire);
  std::shared_ptr<Pool> pool = set ? pools().find(set) : nullptr;
  return pool ? pool : mine.standard;
}

// `pool` null: the current one of the calling thread's device.
CUresult allocate(CUdeviceptr* out, size_t bytes, std::shared_ptr<Pool> pool, CUstream handle,
                  NullStream null_stream) {
  std::shared_ptr<Context> context;
  if (CUresult none = current(&context)) return none;
  if (!out || !bytes) return CUDA_ERROR_INVALID_VALUE;
  if (!pool) pool = current_pool(context->device);
  if (pool->imported) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream;
  if (CUresult bad = resolve(*context, handle, null_stream, &stream)) return bad;
  if (faults::on_allocation()) return CUDA_ERROR_OUT_OF_MEMORY;
  std::lock_guard lock(context->mutex);
  if (CUresult implicit = check_implicit_locked(*context, *stream)) return implicit;
  const uint64_t limit = pool->max_bytes.load(std::memory_order_relaxed);
  if (limit && Memory::get().used_by_pool(pool.get()) + bytes > limit) return CUDA_ERROR_OUT_OF_MEMORY;
  Context* owner = context.get();
  std::shared_ptr<Context> other;
  const bool on_host = pool->device == kHostPool;
  if (!on_host && pool->device != context->device) {  // the memory lies on the pool's device
    for (const auto& each : contexts_with_work())
      if (each->device == pool->device && (!other || each->primary)) other = each;
    if (!other) return CUDA_ERROR_INVALID_CONTEXT;
    owner = other.get();
  }
  uint64_t address = 0;
  const MemoryKind kind = on_host ? MemoryKind::kHost : MemoryKind::kDevice;
  if (CUresult failed = Memory::get().allocate(kind, bytes, owner, 0, &address)) return failed;
  const bool captured = stream->capture != nullptr;
  Memory::get().annotate(address, pool.get(), captured);
  const uint64_t used = Memory::get().used_by_pool(pool.get());
  if (used > pool->used_high.load(std::memory_order_relaxed))
    pool->used_high.store(used, std::memory_order_relaxed);  // a statistic: a lost race is a little too low
  if (captured) {
    AllocCommand command{address, bytes, graph_memory(address)};
    if (CUresult failed = add_captured_node_locked(*stream, std::move(command))) return failed;
  }
  *out = address;
  return CUDA_SUCCESS;
}

// The record behind an exported pool's descriptor.
struct PoolRecord {
  uint64_t magic, number, device;
};
constexpr uint64_t kPoolMagic = 0x4c4f4f5031475354ull;  // "TSG1POOL"

bool is_host(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST || location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}
// The device that a location means: an ordinal, or -1 for what is no device.
int device_in(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE && find_device(location.id) ? location.id : -1;
}

}  // namespace

std::shared_ptr<void> graph_memory(uint64_t address) {
  return std::shared_ptr<void>(reinterpret_cast<void*>(address), [](void* memory) {
    Memory::get().release(reinterpret_cast<uint64_t>(memory));
  });
}

}  // namespace tessera::softgpu::driver

using namespace tessera::softgpu::driver;  // entry points are global by nature

TS_PAIR(cuMemAllocAsync, _ptsz, (CUdeviceptr * dptr, size_t bytesize, CUstream hStream),
        (dptr, bytesize, hStream)) {
  TS_ENTER(cuMemAllocAsync);
  return allocate(dptr, bytesize, nullptr, hStream, null_stream);
}
TS_PAIR(cuMemAllocFromPoolAsync, _ptsz,
        (CUdeviceptr * dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream),
        (dptr, bytesize, pool, hStream)) {
  TS_ENTER(cuMemAllocFromPoolAsync);
  const std::shared_ptr<Pool> named = find_pool(pool);
  return named ? allocate(dptr, bytesize, named, hStream, null_stream) : CUDA_ERROR_INVALID_VALUE;
}
TS_PAIR(cuMemFreeAsync, _ptsz, (CUdeviceptr dptr, CUstream hStream), (dptr, hStream)) {
  TS_CONTEXT(cuMemFreeAsync, context);
  std::shared_ptr<Stream> stream;
  if (CUresult bad = resolve(*context, hStream, null_stream, &stream)) return bad;
  if (!dptr) return CUDA_SUCCESS;
  Allocation found;
  const bool known = Memory::get().find(dptr, &found) && found.begin == dptr && found.context;
  const bool ours =
      known && (found.kind == MemoryKind::kDevice || (found.kind == MemoryKind::kHost && found.pool));
  const bool imported = known && found.kind == MemoryKind::kImported && found.pool;
  if (!ours && !imported) return CUDA_ERROR_INVALID_VALUE;
  FreeCommand command;
  command.address = dptr;
  command.from_graph = found.graph_owned;
  return enqueue(context, stream, command);
}

namespace {

CUresult default_pool(CUmemoryPool* out, int device) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUmemoryPool>(pools_of(device).standard.get());
  return CUDA_SUCCESS;
}
CUresult get_pool(CUmemoryPool* out, int device) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUmemoryPool>(current_pool(device).get());
  return CUDA_SUCCESS;
}
CUresult set_pool(int device, CUmemoryPool pool) {
  const std::shared_ptr<Pool> named = find_pool(pool);
  if (!named || named->imported || named->device != device) return CUDA_ERROR_INVALID_VALUE;
  pools_of(device).current.store(named.get(), std::memory_order_release);
  return CUDA_SUCCESS;
}

// Finds the place of a location's pools: a device or kHostPool. There are none of managed memory.
CUresult located(const CUmemLocation* location, CUmemAllocationType type, int* device) {
  if (!location || type == CU_MEM_ALLOCATION_TYPE_INVALID) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_NOT_SUPPORTED;
  *device = kHostPool;
  if (is_host(*location)) return CUDA_SUCCESS;
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  *device = location->id;
  return find_device(location->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool_out, CUdevice dev) {
  TS_ENTER(cuDeviceGetDefaultMemPool);
  return find_device(dev) ? default_pool(pool_out, dev) : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice dev) {
  TS_ENTER(cuDeviceGetMemPool);
  return find_device(dev) ? get_pool(pool, dev) : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
  TS_ENTER(cuDeviceSetMemPool);
  return find_device(dev) ? set_pool(dev, pool) : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool_out, CUmemLocation* location, CUmemAllocationType type) {
  TS_ENTER(cuMemGetDefaultMemPool);
  int device = 0;
  if (CUresult bad = located(location, type, &device)) return bad;
  return default_pool(pool_out, device);
}
CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  TS_ENTER(cuMemGetMemPool);
  int device = 0;
  if (CUresult bad = located(location, type, &device)) return bad;
  return get_pool(pool, device);
}
CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  TS_ENTER(cuMemSetMemPool);
  int device = 0;
  if (CUresult bad = located(location, type, &device)) return bad;
  return set_pool(device, pool);
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* poolProps) {
  TS_ENTER(cuMemPoolCreate);
  if (!pool || !poolProps || poolProps->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (poolProps->handleTypes & ~unsigned(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
    return CUDA_ERROR_NOT_SUPPORTED;
  const bool on_host = is_host(poolProps->location);
  if (!on_host && poolProps->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  if (!on_host && device_in(poolProps->location) < 0) return CUDA_ERROR_INVALID_DEVICE;
  if (on_host && poolProps->handleTypes) return CUDA_ERROR_NOT_SUPPORTED;  // no memfd stands behind it
  auto made = std::make_shared<Pool>();
  made->device = on_host ? kHostPool : poolProps->location.id;
  made->exportable = poolProps->handleTypes != CU_MEM_HANDLE_TYPE_NONE;
  made->max_bytes.store(poolProps->maxSize, std::memory_order_relaxed);
  made->number = driver().next_id.fetch_add(1, std::memory_order_relaxed);  // relaxed: only unique
  pools().add(made);
  *pool = reinterpret_cast<CUmemoryPool>(made.get());
  return CUDA_SUCCESS;
}
CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  TS_ENTER(cuMemPoolDestroy);
  const std::shared_ptr<Pool> mine = find_pool(pool);
  if (!mine || mine->is_default) return CUDA_ERROR_INVALID_VALUE;
  pools().remove(pool);
  return CUDA_SUCCESS;
}
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t) {
  TS_ENTER(cuMemPoolTrimTo);
  return find_pool(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
  TS_ENTER(cuMemPoolSetAttribute);
  const std::shared_ptr<Pool> mine = find_pool(pool);
  if (!mine || !value) return CUDA_ERROR_INVALID_VALUE;
  switch (int(attr)) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      mine->reuse[attr - 1].store(*static_cast<int*>(value), std::memory_order_relaxed);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      mine->release_threshold.store(*static_cast<cuuint64_t*>(value), std::memory_order_relaxed);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:  // 0 starts the high-water mark anew
      if (*static_cast<cuuint64_t*>(value)) return CUDA_ERROR_INVALID_VALUE;
      mine->used_high.store(Memory::get().used_by_pool(mine.get()), std::memory_order_relaxed);
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
  TS_ENTER(cuMemPoolGetAttribute);
  const std::shared_ptr<Pool> mine = find_pool(pool);
  if (!mine || !value) return CUDA_ERROR_INVALID_VALUE;
  auto* number = static_cast<cuuint64_t*>(value);
  switch (int(attr)) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      *static_cast<int*>(value) = mine->reuse[attr - 1].load(std::memory_order_relaxed);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *number = mine->release_threshold.load(std::memory_order_relaxed);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      *number = Memory::get().used_by_pool(mine.get());
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *number = mine->used_high.load(std::memory_order_relaxed);
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* map, size_t count) {
  TS_ENTER(cuMemPoolSetAccess);
  const std::shared_ptr<Pool> mine = find_pool(pool);
  if (!mine || (count && !map)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const int device = device_in(map[i].location);
    if (mine->device == kHostPool && is_host(map[i].location)) continue;
    if (device < 0) return CUDA_ERROR_INVALID_DEVICE;
    // The owner's own access cannot be taken away, as documented.
    if (device == mine->device && map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
      return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < count && mine->device != kHostPool; ++i)
    Memory::get().set_pool_access(mine.get(), map[i].location.id, access_of(map[i].flags));
  return CUDA_SUCCESS;
}
CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool memPool, CUmemLocation* location) {
  TS_ENTER(cuMemPoolGetAccess);
  const std::shared_ptr<Pool> mine = find_pool(memPool);
  if (!flags || !location || !mine) return CUDA_ERROR_INVALID_VALUE;
  const int device = device_in(*location);
  const bool on_host = mine->device == kHostPool;
  if (device < 0 && !(on_host && is_host(*location))) return CUDA_ERROR_INVALID_DEVICE;
  const Access access =
      on_host || device == mine->device ? Access::kReadWrite : Memory::get().pool_access(mine.get(), device);
  *flags = flags_of(access);
  return CUDA_SUCCESS;
}

// ---- pools of other processes

CUresult cuMemPoolExportToShareableHandle(void* handle_out, CUmemoryPool pool, CUmemAllocationHandleType type,
                                          unsigned long long flags) {
  TS_CONTEXT(cuMemPoolExportToShareableHandle, context);
  const std::shared_ptr<Pool> mine = find_pool(pool);
  if (!handle_out || !mine || flags || !mine->exportable || mine->imported ||
      type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_INVALID_VALUE;
  const int fd = memfd_create("softgpu-pool", MFD_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const PoolRecord record{kPoolMagic, mine->number, device_hash(*context)};
  if (pwrite(fd, &record, sizeof record, 0) != ssize_t(sizeof record)) {
    close(fd);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *static_cast<int*>(handle_out) = fd;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool_out, void* handle,
                                            CUmemAllocationHandleType type, unsigned long long flags) {
  TS_CONTEXT(cuMemPoolImportFromShareableHandle, context);
  if (!pool_out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  PoolRecord record{};
  const int fd = int(reinterpret_cast<intptr_t>(handle));
  if (pread(fd, &record, sizeof record, 0) != ssize_t(sizeof record) || record.magic != kPoolMagic)
    return CUDA_ERROR_INVALID_VALUE;
  if (record.device != device_hash(*context)) return CUDA_ERROR_INVALID_DEVICE;
  auto made = std::make_shared<Pool>();
  made->device = context->device;
  made->imported = true;
  made->number = record.number;
  pools().add(made);
  *pool_out = reinterpret_cast<CUmemoryPool>(made.get());
  return CUDA_SUCCESS;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* shareData_out, CUdeviceptr ptr) {
  TS_CONTEXT(cuMemPoolExportPointer, context);
  Allocation found;
  MemoryTicket ticket;
  if (!shareData_out || !Memory::get().find(ptr, &found) || found.begin != ptr)
    return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Pool> pool = pools().find(found.pool);
  if (!pool || !pool->exportable) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = make_ticket(*found.context, ptr, pool->number, &ticket)) return bad;
  *shareData_out = {};
  std::memcpy(shareData_out->reserved, &ticket, sizeof ticket);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolImportPointer(CUdeviceptr* ptr_out, CUmemoryPool pool, CUmemPoolPtrExportData* shareData) {
  TS_CONTEXT(cuMemPoolImportPointer, context);
  const std::shared_ptr<Pool> mine = find_pool(pool);
  if (!ptr_out || !shareData || !mine || !mine->imported) return CUDA_ERROR_INVALID_VALUE;
  MemoryTicket ticket;
  std::memcpy(&ticket, shareData->reserved, sizeof ticket);
  if (ticket.pool != mine->number) return CUDA_ERROR_INVALID_VALUE;
  uint64_t address = 0;
  if (CUresult bad = open_ticket(context, ticket, mine.get(), &address)) return bad;
  *ptr_out = address;
  return CUDA_SUCCESS;
}

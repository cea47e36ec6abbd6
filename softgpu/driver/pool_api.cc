// Stream-ordered allocation and memory pools. Memory is taken when the call is made and given back when the
// stream reaches the free; pools count, they do not hold memory back.
#include <algorithm>
#include <cstring>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/graph.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"
#include "softgpu/faults/faults.h"

namespace tessera::softgpu::driver {
namespace {

struct Pool {
  bool is_default = false;
  std::atomic<int> reuse[3] = {1, 1, 1};  // CU_MEMPOOL_ATTR_REUSE_*
  std::atomic<uint64_t> release_threshold{0};
};

Registry<Pool>& pools() {
  static auto* registry = new Registry<Pool>;  // never destroyed
  return *registry;
}
const std::shared_ptr<Pool>& default_pool() {
  static const auto* pool = [] {
    auto* made = new std::shared_ptr<Pool>(std::make_shared<Pool>());
    (*made)->is_default = true;
    pools().add(*made);
    return made;
  }();
  return *pool;
}
std::atomic<Pool*> g_current_pool{nullptr};

std::shared_ptr<Pool> current_pool() {
  Pool* set = g_current_pool.load(std::memory_order_acquire);
  std::shared_ptr<Pool> pool = set ? pools().find(set) : nullptr;
  return pool ? pool : default_pool();
}

CUresult allocate(CUdeviceptr* out, size_t bytes, const std::shared_ptr<Pool>& pool, CUstream handle,
                  NullStream null_stream) {
  std::shared_ptr<Context> context;
  if (CUresult none = current(&context)) return none;
  if (!out || !bytes) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream;
  if (CUresult bad = resolve(*context, handle, null_stream, &stream)) return bad;
  if (faults::on_allocation()) return CUDA_ERROR_OUT_OF_MEMORY;
  std::lock_guard lock(context->mutex);
  if (CUresult implicit = check_implicit_locked(*context, *stream)) return implicit;
  uint64_t address = 0;
  if (CUresult failed = Memory::get().allocate(MemoryKind::kDevice, bytes, context.get(), 0, &address))
    return failed;
  const bool captured = stream->capture != nullptr;
  Memory::get().annotate(address, pool.get(), captured);
  if (captured) {
    AllocCommand command{address, bytes, graph_memory(address)};
    if (CUresult failed = add_captured_node_locked(*stream, std::move(command))) return failed;
  }
  *out = address;
  return CUDA_SUCCESS;
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
  return allocate(dptr, bytesize, current_pool(), hStream, null_stream);
}
TS_PAIR(cuMemAllocFromPoolAsync, _ptsz,
        (CUdeviceptr * dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream),
        (dptr, bytesize, pool, hStream)) {
  TS_ENTER(cuMemAllocFromPoolAsync);
  (void)default_pool();
  const std::shared_ptr<Pool> named = pools().find(pool);
  return named ? allocate(dptr, bytesize, named, hStream, null_stream) : CUDA_ERROR_INVALID_VALUE;
}
TS_PAIR(cuMemFreeAsync, _ptsz, (CUdeviceptr dptr, CUstream hStream), (dptr, hStream)) {
  TS_CONTEXT(cuMemFreeAsync, context);
  std::shared_ptr<Stream> stream;
  if (CUresult bad = resolve(*context, hStream, null_stream, &stream)) return bad;
  if (!dptr) return CUDA_SUCCESS;
  Allocation found;
  if (!Memory::get().find(dptr, &found) || found.begin != dptr || found.kind != MemoryKind::kDevice ||
      !found.context)
    return CUDA_ERROR_INVALID_VALUE;
  FreeCommand command;
  command.address = dptr;
  command.from_graph = found.graph_owned;
  return enqueue(context, stream, command);
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool_out, CUdevice dev) {
  TS_ENTER(cuDeviceGetDefaultMemPool);
  if (!pool_out) return CUDA_ERROR_INVALID_VALUE;
  if (dev != 0) return CUDA_ERROR_INVALID_DEVICE;
  *pool_out = reinterpret_cast<CUmemoryPool>(default_pool().get());
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice dev) {
  TS_ENTER(cuDeviceGetMemPool);
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  if (dev != 0) return CUDA_ERROR_INVALID_DEVICE;
  *pool = reinterpret_cast<CUmemoryPool>(current_pool().get());
  return CUDA_SUCCESS;
}
CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
  TS_ENTER(cuDeviceSetMemPool);
  if (dev != 0) return CUDA_ERROR_INVALID_DEVICE;
  (void)default_pool();
  if (!pools().find(pool)) return CUDA_ERROR_INVALID_VALUE;
  g_current_pool.store(reinterpret_cast<Pool*>(pool), std::memory_order_release);
  return CUDA_SUCCESS;
}
CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* poolProps) {
  TS_ENTER(cuMemPoolCreate);
  if (!pool || !poolProps || poolProps->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (poolProps->handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;  // no IPC
  auto made = std::make_shared<Pool>();
  pools().add(made);
  *pool = reinterpret_cast<CUmemoryPool>(made.get());
  return CUDA_SUCCESS;
}
CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  TS_ENTER(cuMemPoolDestroy);
  const std::shared_ptr<Pool> mine = pools().find(pool);
  if (!mine || mine->is_default) return CUDA_ERROR_INVALID_VALUE;
  pools().remove(pool);
  return CUDA_SUCCESS;
}
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t) {
  TS_ENTER(cuMemPoolTrimTo);
  (void)default_pool();
  return pools().find(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
  TS_ENTER(cuMemPoolSetAttribute);
  (void)default_pool();
  const std::shared_ptr<Pool> mine = pools().find(pool);
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
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return *static_cast<cuuint64_t*>(value) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
  TS_ENTER(cuMemPoolGetAttribute);
  (void)default_pool();
  const std::shared_ptr<Pool> mine = pools().find(pool);
  if (!mine || !value) return CUDA_ERROR_INVALID_VALUE;
  switch (int(attr)) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      *static_cast<int*>(value) = mine->reuse[attr - 1].load(std::memory_order_relaxed);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *static_cast<cuuint64_t*>(value) = mine->release_threshold.load(std::memory_order_relaxed);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *static_cast<cuuint64_t*>(value) = Memory::get().used_by_pool(mine.get());
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* map, size_t count) {
  TS_ENTER(cuMemPoolSetAccess);
  (void)default_pool();
  if (!pools().find(pool) || (count && !map)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i)
    if (map[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && map[i].location.id != 0)
      return CUDA_ERROR_INVALID_DEVICE;
  return CUDA_SUCCESS;
}
CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool memPool, CUmemLocation* location) {
  TS_ENTER(cuMemPoolGetAccess);
  (void)default_pool();
  if (!flags || !location || !pools().find(memPool)) return CUDA_ERROR_INVALID_VALUE;
  *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return CUDA_SUCCESS;
}

// Virtual memory management: addresses (reservations), physical memory (handles), and what is mapped where
// with which access. Physical memory is a memfd; a mapping puts it at its address with mmap; access is
// entered into the maps of the devices that may touch it, so that a kernel without it faults. A shareable
// handle is a descriptor of the memfd: its name carries the properties that the importer needs.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cstdio>
#include <cstring>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/ipc.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"
#include "softgpu/driver/vmm.h"
#include "softgpu/faults/faults.h"

namespace tessera::softgpu::driver {
namespace {

constexpr uint64_t kGranularity = uint64_t(2) << 20;
constexpr char kNameFormat[] = "softgpu-vmm:%016llx";

struct Physical;
std::mutex g_all_mutex;  // guards all(); innermost
std::set<const Physical*>& all() {
  static auto* set = new std::set<const Physical*>;  // never destroyed
  return *set;
}

struct Physical {
  int fd = -1;
  uint64_t bytes = 0;
  int device = 0;
  CUmemAllocationProp prop = {};
  bool charged = false;     // counts as memory of this process's device (imported memory is its maker's)
  unsigned references = 1;  // cuMemCreate, Retain, Import against Release; guarded by g_mutex
  std::atomic<bool> shared{false};  // imported, or exported
  Physical() {
    std::lock_guard lock(g_all_mutex);
    all().insert(this);
  }
  Physical(const Physical&) = delete;
  ~Physical() {
    {
      std::lock_guard lock(g_all_mutex);
      all().erase(this);
    }
    if (fd >= 0) close(fd);
    if (charged) Memory::get().uncharge(device, bytes);
  }
};

Registry<Physical>& handles() {
  static auto* registry = new Registry<Physical>;  // never destroyed
  return *registry;
}
std::shared_ptr<Physical> find_handle(CUmemGenericAllocationHandle handle) {
  return handles().find(reinterpret_cast<const void*>(handle));
}
CUmemGenericAllocationHandle handle_of(const std::shared_ptr<Physical>& physical) {
  return reinterpret_cast<CUmemGenericAllocationHandle>(physical.get());
}

std::mutex g_mutex;                             // guards reservations and references
std::map<uint64_t, uint64_t>& reservations() {  // begin -> bytes
  static auto* map = new std::map<uint64_t, uint64_t>;
  return *map;
}

bool granular(uint64_t value) {
  return value && value % kGranularity == 0;
}

bool reserve_at(void* where, uint64_t bytes, int extra, void** got) {
  *got = mmap(where, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | extra, -1, 0);
  return *got != MAP_FAILED;
}

bool reserved_locked(uint64_t begin, uint64_t bytes) {
  auto it = reservations().upper_bound(begin);
  if (it == reservations().begin()) return false;
  --it;
  return begin + bytes <= it->first + it->second && begin + bytes > begin;
}

// The mappings that make up the range exactly.
bool mappings_in(uint64_t begin, uint64_t bytes, std::vector<Allocation>* mappings) {
  if (!granular(bytes)) return false;
  uint64_t at = begin;
  Memory::get().starts_in(begin, bytes, mappings);
  for (const Allocation& each : *mappings) {
    if (each.kind != MemoryKind::kMapped || each.begin != at) return false;
    at += each.bytes;
  }
  return at == begin + bytes;
}

// Physical memory can lie on a device only; host memory would need an attribute that says so.
CUresult check_prop(const CUmemAllocationProp& prop) {
  if (prop.type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (unsigned(prop.requestedHandleTypes) & ~unsigned(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (prop.location.type == CU_MEM_LOCATION_TYPE_INVALID) return CUDA_ERROR_INVALID_VALUE;
  if (prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  return find_device(prop.location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

uint64_t hash_of_device(int ordinal) {
  Context on_it;
  on_it.device = ordinal;
  return device_hash(on_it);
}

}  // namespace

std::vector<PhysicalMemory> physical_memory() {
  std::lock_guard lock(g_all_mutex);
  std::vector<PhysicalMemory> found;
  for (const Physical* each : all())
    found.push_back({each->fd, each->bytes, each->shared.load(std::memory_order_relaxed)});
  return found;
}

}  // namespace tessera::softgpu::driver

using namespace tessera::softgpu::driver;  // entry points are global by nature

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                       CUmemAllocationGranularity_flags option) {
  TS_ENTER(cuMemGetAllocationGranularity);
  if (!granularity || !prop || unsigned(option) > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
    return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = check_prop(*prop)) return bad;
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags) {
  TS_ENTER(cuMemAddressReserve);
  if (!ptr || !granular(size) || flags || (alignment && !std::has_single_bit(alignment)))
    return CUDA_ERROR_INVALID_VALUE;
  if (size > uint64_t(1) << 46) return CUDA_ERROR_OUT_OF_MEMORY;
  void* got = nullptr;
  // A wish is taken if the place is free and fits.
  const bool wish = addr && granular(addr) && (!alignment || addr % alignment == 0);
  if (!wish || !reserve_at(reinterpret_cast<void*>(addr), size, MAP_FIXED_NOREPLACE, &got) ||
      reinterpret_cast<uint64_t>(got) != addr) {
    const uint64_t align = std::max<uint64_t>(alignment, kGranularity);
    if (!reserve_at(nullptr, size + align, 0, &got)) return CUDA_ERROR_OUT_OF_MEMORY;
    const uint64_t begin = reinterpret_cast<uint64_t>(got), aligned = (begin + align - 1) / align * align;
    if (aligned > begin) munmap(got, aligned - begin);
    if (begin + align > aligned) munmap(reinterpret_cast<void*>(aligned + size), begin + align - aligned);
    got = reinterpret_cast<void*>(aligned);
  }
  std::lock_guard lock(g_mutex);
  reservations()[reinterpret_cast<uint64_t>(got)] = size;
  *ptr = reinterpret_cast<CUdeviceptr>(got);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
  TS_ENTER(cuMemAddressFree);
  std::lock_guard lock(g_mutex);
  const auto it = reservations().find(ptr);
  if (it == reservations().end() || it->second != size) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Allocation> mapped;
  if (Memory::get().starts_in(ptr, size, &mapped)) return CUDA_ERROR_INVALID_VALUE;  // unmap first
  munmap(reinterpret_cast<void*>(ptr), size);
  reservations().erase(it);
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* prop,
                     unsigned long long flags) {
  TS_ENTER(cuMemCreate);
  if (!handle || !prop || flags || !granular(size)) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = check_prop(*prop)) return bad;
  if (CUresult unsafe = check_unsafe()) return unsafe;
  if (tessera::softgpu::faults::on_allocation()) return CUDA_ERROR_OUT_OF_MEMORY;
  auto made = std::make_shared<Physical>();
  made->bytes = size;
  made->device = prop->location.id;
  made->prop = *prop;
  if (!Memory::get().charge(made->device, size)) return CUDA_ERROR_OUT_OF_MEMORY;
  made->charged = true;
  char name[64];
  std::snprintf(name, sizeof name, kNameFormat,
                static_cast<unsigned long long>(hash_of_device(made->device)));
  made->fd = memfd_create(name, MFD_CLOEXEC);
  if (made->fd < 0 || ftruncate(made->fd, off_t(size)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  handles().add(made);
  *handle = handle_of(made);
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  TS_ENTER(cuMemRelease);
  const std::shared_ptr<Physical> physical = find_handle(handle);
  if (!physical) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(g_mutex);
  if (--physical->references == 0) handles().remove(physical.get());  // mappings hold it further
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  TS_ENTER(cuMemMap);
  const std::shared_ptr<Physical> physical = find_handle(handle);
  if (!physical || !granular(ptr) || !granular(size) || offset || flags || size > physical->bytes)
    return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(g_mutex);
  std::vector<Allocation> there;
  Allocation before;
  if (!reserved_locked(ptr, size) || Memory::get().starts_in(ptr, size, &there) ||
      Memory::get().find(ptr, &before))
    return CUDA_ERROR_INVALID_VALUE;
  void* where = reinterpret_cast<void*>(ptr);
  if (mmap(where, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, physical->fd, 0) == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation made;
  made.begin = ptr;
  made.bytes = size;
  made.kind = MemoryKind::kMapped;
  made.device = physical->device;
  // When it goes the address stays reserved: nothing else may come to lie there.
  made.pages = std::shared_ptr<void>(physical.get(), [physical, where, size](void*) {
    mmap(where, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  });
  Memory::get().adopt(std::move(made));
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
  TS_ENTER(cuMemUnmap);
  if (CUresult unsafe = check_unsafe()) return unsafe;
  std::vector<Allocation> mappings;
  if (!mappings_in(ptr, size, &mappings)) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& context : contexts_with_work()) (void)synchronize(*context);  // as documented
  for (const Allocation& each : mappings) Memory::get().release(each.begin);
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc, size_t count) {
  TS_ENTER(cuMemSetAccess);
  if (!desc || !count) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    if (!find_device(desc[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
    if (desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
      return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<Allocation> mappings;
  if (!mappings_in(ptr, size, &mappings)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i)
    for (const Allocation& each : mappings)
      Memory::get().set_access(each.begin, desc[i].location.id, access_of(desc[i].flags));
  return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr ptr) {
  TS_ENTER(cuMemGetAccess);
  Allocation found;
  if (!flags || !location || !Memory::get().find(ptr, &found) || found.kind != MemoryKind::kMapped)
    return CUDA_ERROR_INVALID_VALUE;
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  if (!find_device(location->id)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = flags_of(found.access[size_t(location->id)]);
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
  TS_ENTER(cuMemRetainAllocationHandle);
  Allocation found;
  if (!handle || !Memory::get().find(reinterpret_cast<uint64_t>(addr), &found) ||
      found.kind != MemoryKind::kMapped)
    return CUDA_ERROR_INVALID_VALUE;
  // The pages point at their Physical, which the mapping keeps alive; it may have no handle any more.
  auto* physical = static_cast<Physical*>(found.pages.get());
  std::lock_guard lock(g_mutex);
  if (physical->references++ == 0) handles().add(std::shared_ptr<Physical>(found.pages, physical));
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(physical);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                CUmemGenericAllocationHandle handle) {
  TS_ENTER(cuMemGetAllocationPropertiesFromHandle);
  const std::shared_ptr<Physical> physical = find_handle(handle);
  if (!prop || !physical) return CUDA_ERROR_INVALID_VALUE;
  *prop = physical->prop;
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* shareableHandle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handleType, unsigned long long flags) {
  TS_ENTER(cuMemExportToShareableHandle);
  const std::shared_ptr<Physical> physical = find_handle(handle);
  if (!shareableHandle || !physical || flags || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_INVALID_VALUE;
  if (!(unsigned(physical->prop.requestedHandleTypes) & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
    return CUDA_ERROR_INVALID_VALUE;  // not asked for at creation
  const int copy = fcntl(physical->fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(shareableHandle) = copy;
  physical->shared.store(true, std::memory_order_relaxed);  // relaxed: asked while no call is under way
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* osHandle,
                                        CUmemAllocationHandleType shHandleType) {
  TS_ENTER(cuMemImportFromShareableHandle);
  if (!handle || shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  const int fd = int(reinterpret_cast<intptr_t>(osHandle));
  char path[64], target[128] = {};
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  unsigned long long hash = 0;
  struct stat status {};
  const char prefix[] = "/memfd:";
  if (readlink(path, target, sizeof target - 1) <= 0 ||
      std::strncmp(target, prefix, sizeof prefix - 1) != 0 ||
      std::sscanf(target + sizeof prefix - 1, "softgpu-vmm:%16llx", &hash) != 1 || fstat(fd, &status) != 0 ||
      !granular(uint64_t(status.st_size)))
    return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_shared<Physical>();
  made->device = -1;
  for (const auto& device : driver().devices)
    if (hash_of_device(device->ordinal) == hash) made->device = device->ordinal;
  if (made->device < 0) return CUDA_ERROR_INVALID_DEVICE;
  made->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (made->fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  made->bytes = uint64_t(status.st_size);
  made->shared.store(true, std::memory_order_relaxed);
  made->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  made->prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, made->device};
  made->prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  handles().add(made);
  *handle = handle_of(made);
  return CUDA_SUCCESS;
}

#include "softgpu/driver/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "softgpu/driver/pinning.h"
#include "softgpu/driver/vmm.h"

namespace tessera::softgpu::driver {
namespace {

constexpr uint64_t kAlignment = exec::kGlobalGranuleBytes;  // cuMemAlloc promises 256; hardware gives 512
constexpr uint64_t kRedZone = 512;
constexpr uint64_t kChunkBytes = 64ull << 20;
constexpr uint64_t kReturnToHostBytes = 1ull << 20;  // pages of larger freed ranges go back to the host

uint64_t round_up(uint64_t value, uint64_t to) {
  return (value + to - 1) / to * to;
}

// A file in memory of that size, or -1: then the memory cannot be shared with other processes.
int make_memfd(uint64_t bytes, const char* name = "softgpu-memory") {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) return -1;  // would raise SIGXFSZ
  const int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd < 0) return -1;
  if (ftruncate(fd, off_t(bytes)) == 0) return fd;
  close(fd);
  return -1;
}

// Moves to the second file all that was written to the first one, and only that.
bool move_contents(int from, int to, uint64_t bytes) {
  std::vector<char> buffer(1 << 20);
  off_t end = 0;
  for (off_t at = lseek(from, 0, SEEK_DATA); at >= 0 && uint64_t(at) < bytes;
       at = lseek(from, end, SEEK_DATA)) {
    end = lseek(from, at, SEEK_HOLE);
    while (at < end) {
      const ssize_t n = pread(from, buffer.data(), std::min(buffer.size(), size_t(end - at)), at);
      if (n <= 0 || pwrite(to, buffer.data(), size_t(n), at) != n) return false;
      at += n;
    }
  }
  return fallocate(from, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, off_t(bytes)) == 0;
}

}  // namespace

Memory& Memory::get() {
  static Memory* memory = new Memory;  // never destroyed: bodies may run until the process is gone
  return *memory;
}

uint64_t page_bytes() {
  return uint64_t(sysconf(_SC_PAGESIZE));
}

void Memory::set_devices(const std::vector<DeviceSpace>& devices) {
  using Bounds = exec::AllocationMap::Bounds;
  const char* strict = std::getenv("TESSERA_SOFTGPU_STRICT");
  const Bounds bounds = strict && std::string_view(strict) == "1" ? Bounds::kExact : Bounds::kHardware;
  for (const DeviceSpace& device : devices) {
    devices_.push_back({std::make_unique<timing::DeviceMemory>(device.bytes, device.shared_count), 0, 0, {}});
    maps_.push_back(std::make_unique<exec::AllocationMap>(bounds));
  }
}

uint64_t Memory::Heap::take(uint64_t bytes) {
  auto fit = std::find_if(free.begin(), free.end(), [&](const auto& range) { return range.second >= bytes; });
  if (fit == free.end()) {
    const uint64_t size = std::max(kChunkBytes, round_up(bytes, uint64_t(2) << 20));
    const int fd = shared ? make_memfd(size) : -1;
    void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                        (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED) | MAP_NORESERVE, fd, 0);
    if (mapped == MAP_FAILED) {
      if (fd >= 0) close(fd);
      return 0;
    }
    const uint64_t begin = reinterpret_cast<uint64_t>(mapped);
    chunks[begin] = {size, fd};
    fit = free.emplace(begin, size).first;
  }
  const auto [begin, size] = *fit;
  free.erase(fit);
  if (size > bytes) free.emplace(begin + bytes, size - bytes);
  return begin;
}

void Memory::Heap::give(uint64_t begin, uint64_t bytes) {
  if (bytes >= kReturnToHostBytes) {
    const uint64_t page = page_bytes(), first = round_up(begin, page), last = (begin + bytes) / page * page;
    if (last > first)
      madvise(reinterpret_cast<void*>(first), last - first, shared ? MADV_REMOVE : MADV_DONTNEED);
  }
  auto next = free.lower_bound(begin);
  // Neighbours in another chunk stay apart: a range must never span two mappings.
  if (next != free.end() && begin + bytes == next->first && !chunks.count(next->first)) {
    bytes += next->second;
    next = free.erase(next);
  }
  if (next != free.begin() && !chunks.count(begin)) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == begin) {
      previous->second += bytes;
      return;
    }
  }
  free.emplace(begin, bytes);
}

void Memory::show_locked(Allocation& allocation, int device, Access access) {
  Access& now = allocation.access[size_t(device)];
  if (now == access) return;
  exec::AllocationMap& map = *maps_[size_t(device)];
  if (now != Access::kNone) map.remove(allocation.begin);
  if (access != Access::kNone)
    map.add(allocation.begin, allocation.bytes, access == Access::kReadWrite, exec::kGlobalGranuleBytes);
  now = access;
}

void Memory::place_locked(Allocation allocation) {
  const uint64_t begin = allocation.begin;
  allocation.id = next_id_++;
  const std::array<Access, kMaxDevices> wanted = std::exchange(allocation.access, {});
  Allocation& placed = live_[begin] = allocation;
  for (int device = 0; device < int(devices_.size()); ++device) {
    const auto& peers = devices_[size_t(device)].peers;
    switch (placed.kind) {
      case MemoryKind::kRegistered:
        show_locked(placed, device,
                    placed.flags & CU_MEMHOSTREGISTER_READ_ONLY ? Access::kRead : Access::kReadWrite);
        break;
      case MemoryKind::kHost:
      case MemoryKind::kManaged:
        show_locked(placed, device, Access::kReadWrite);
        break;
      case MemoryKind::kDevice:
      case MemoryKind::kImported:
        if (device == placed.device || peers.count(placed.context))
          show_locked(placed, device, Access::kReadWrite);
        break;
      case MemoryKind::kArray:
        break;
      case MemoryKind::kMapped:
        show_locked(placed, device, wanted[size_t(device)]);
        break;
    }
  }
}

CUresult Memory::allocate(MemoryKind kind, uint64_t bytes, Context* context, unsigned flags,
                          uint64_t* address) {
  std::lock_guard lock(mutex_);
  Allocation made;
  made.bytes = bytes;
  made.kind = kind;
  made.context = context;
  made.device = context->device;
  made.flags = flags;
  Device& device = devices_[size_t(context->device)];
  if (bytes > (uint64_t(1) << 46)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (made.on_device() && !device.space->take(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  made.begin = heap(kind).take(round_up(bytes, kAlignment) + kRedZone);
  if (!made.begin) {
    if (made.on_device()) device.space->give(bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  place_locked(made);
  *address = made.begin;
  return CUDA_SUCCESS;
}

CUresult Memory::register_host(uint64_t address, uint64_t bytes, Context* context, unsigned flags) {
  constexpr unsigned kNotPinnedForWriting = CU_MEMHOSTREGISTER_READ_ONLY | CU_MEMHOSTREGISTER_IOMEMORY;
  if (!(flags & kNotPinnedForWriting) && !can_be_pinned(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(mutex_);
  auto next = live_.lower_bound(address);
  if (next != live_.end() && next->first < address + bytes) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  if (next != live_.begin()) {
    const Allocation& previous = std::prev(next)->second;
    if (previous.begin + previous.bytes > address) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  Allocation made;
  made.begin = address;
  made.bytes = bytes;
  made.kind = MemoryKind::kRegistered;
  made.context = context;
  made.device = context->device;
  made.flags = flags;
  place_locked(made);
  return CUDA_SUCCESS;
}

void Memory::adopt(Allocation allocation) {
  std::lock_guard lock(mutex_);
  place_locked(std::move(allocation));
}

bool Memory::release(uint64_t begin, Allocation* freed) {
  std::lock_guard lock(mutex_);
  auto it = live_.find(begin);
  if (it == live_.end()) return false;
  for (int device = 0; device < int(devices_.size()); ++device)
    show_locked(it->second, device, Access::kNone);
  const Allocation allocation = it->second;
  live_.erase(it);
  const bool ours = allocation.kind == MemoryKind::kDevice || allocation.kind == MemoryKind::kManaged ||
                    allocation.kind == MemoryKind::kHost || allocation.kind == MemoryKind::kArray;
  if (ours) heap(allocation.kind).give(begin, round_up(allocation.bytes, kAlignment) + kRedZone);
  if (ours && allocation.on_device()) devices_[size_t(allocation.device)].space->give(allocation.bytes);
  if (allocation.graph_owned) devices_[size_t(allocation.device)].graph_used -= allocation.bytes;
  if (freed) *freed = allocation;
  return true;
}

bool Memory::find(uint64_t address, Allocation* out) const {
  {
    std::lock_guard lock(mutex_);
    auto it = live_.upper_bound(address);
    if (it != live_.begin()) {
      const Allocation& candidate = std::prev(it)->second;
      if (address < candidate.begin + candidate.bytes) {
        *out = candidate;
        return true;
      }
    }
  }
  for (int device = 0; device < int(maps_.size()); ++device) {
    exec::AllocationMap::Range range;
    if (!maps_[size_t(device)]->find(address, &range)) continue;
    *out = Allocation{};
    out->begin = range.begin;
    out->bytes = range.end - range.begin;
    out->device = device;
    out->access[size_t(device)] = Access::kReadWrite;
    return true;
  }
  return false;
}

bool Memory::contains(uint64_t address, uint64_t bytes, Access need) const {
  Allocation allocation;
  for (;;) {
    if (!find(address, &allocation)) return false;
    if (allocation.kind == MemoryKind::kMapped &&
        *std::max_element(allocation.access.begin(), allocation.access.end()) < need)
      return false;
    const uint64_t left = allocation.begin + allocation.bytes - address;
    if (bytes <= left) return true;
    if (allocation.kind != MemoryKind::kMapped) return false;
    address += left;
    bytes -= left;
  }
}

bool Memory::starts_in(uint64_t begin, uint64_t bytes, std::vector<Allocation>* out) const {
  std::lock_guard lock(mutex_);
  for (auto it = live_.lower_bound(begin); it != live_.end() && it->first < begin + bytes; ++it)
    out->push_back(it->second);
  return !out->empty();
}

bool Memory::backing(uint64_t begin, int* fd, uint64_t* offset) {
  std::lock_guard lock(mutex_);
  const auto it = live_.find(begin);
  if (it == live_.end() || it->second.kind != MemoryKind::kDevice) return false;
  const auto chunk = std::prev(device_heap_.chunks.upper_bound(begin));
  *fd = chunk->second.fd;
  *offset = begin - chunk->first;
  it->second.exported = *fd >= 0;
  return *fd >= 0;
}

void Memory::annotate(uint64_t begin, const void* pool, bool graph_owned) {
  std::lock_guard lock(mutex_);
  auto it = live_.find(begin);
  if (it == live_.end()) return;
  it->second.pool = pool;
  if (graph_owned && !it->second.graph_owned) {
    Device& device = devices_[size_t(it->second.device)];
    device.graph_used += it->second.bytes;
    device.graph_high = std::max(device.graph_high, device.graph_used);
  }
  it->second.graph_owned = graph_owned;
  if (const auto rules = pool_access_.find(pool); pool && rules != pool_access_.end())
    for (const auto& [device, access] : rules->second) show_locked(it->second, device, access);
}

void Memory::set_sync_memops(uint64_t begin, bool on) {
  std::lock_guard lock(mutex_);
  if (const auto it = live_.find(begin); it != live_.end()) it->second.sync_memops = on;
}

void Memory::set_access(uint64_t begin, int device, Access access) {
  std::lock_guard lock(mutex_);
  if (const auto it = live_.find(begin); it != live_.end()) show_locked(it->second, device, access);
}

void Memory::enable_peer(int device, Context* owner) {
  std::lock_guard lock(mutex_);
  if (devices_[size_t(device)].peers[owner]++) return;
  for (auto& [begin, allocation] : live_)
    if (allocation.context == owner && allocation.kind == MemoryKind::kDevice)
      show_locked(allocation, device, Access::kReadWrite);
}

void Memory::disable_peer(int device, Context* owner) {
  std::lock_guard lock(mutex_);
  auto& peers = devices_[size_t(device)].peers;
  const auto it = peers.find(owner);
  if (it == peers.end() || --it->second) return;
  peers.erase(it);
  for (auto& [begin, allocation] : live_)
    if (allocation.context == owner && allocation.kind == MemoryKind::kDevice && allocation.device != device)
      show_locked(allocation, device, Access::kNone);
}

void Memory::set_pool_access(const void* pool, int device, Access access) {
  std::lock_guard lock(mutex_);
  pool_access_[pool][device] = access;
  for (auto& [begin, allocation] : live_)
    if (allocation.pool == pool) show_locked(allocation, device, access);
}

Access Memory::pool_access(const void* pool, int device) const {
  std::lock_guard lock(mutex_);
  const auto rules = pool_access_.find(pool);
  if (rules == pool_access_.end()) return Access::kNone;
  const auto rule = rules->second.find(device);
  return rule == rules->second.end() ? Access::kNone : rule->second;
}

void Memory::release_context(Context* context) {
  std::vector<uint64_t> mine;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [begin, allocation] : live_)
      if (allocation.context == context) mine.push_back(begin);
    for (Device& device : devices_) device.peers.erase(context);
  }
  for (uint64_t begin : mine) release(begin);
}

bool Memory::charge(int device, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  return devices_[size_t(device)].space->take(bytes);
}

void Memory::uncharge(int device, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  devices_[size_t(device)].space->give(bytes);
}

uint64_t Memory::used_by_pool(const void* pool) const {
  std::lock_guard lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& [begin, allocation] : live_)
    if (allocation.pool == pool) bytes += allocation.bytes;
  return bytes;
}

uint64_t Memory::used_by_graphs(int device, bool high) const {
  std::lock_guard lock(mutex_);
  const Device& d = devices_[size_t(device)];
  return high ? d.graph_high : d.graph_used;
}

void Memory::reset_graph_high(int device) {
  std::lock_guard lock(mutex_);
  devices_[size_t(device)].graph_high = devices_[size_t(device)].graph_used;
}

uint64_t Memory::used_bytes(int device) const {
  std::lock_guard lock(mutex_);
  return devices_[size_t(device)].space->used();
}

uint64_t Memory::own_bytes(int device) const {
  std::lock_guard lock(mutex_);
  return devices_[size_t(device)].space->mine();
}

void Memory::forget_others() {
  for (Device& device : devices_) device.space->forget();
}

const char* Memory::not_to_be_saved() const {
  std::lock_guard lock(mutex_);
  for (const auto& [begin, allocation] : live_) {
    if (allocation.kind == MemoryKind::kManaged) return "managed memory";
    if (allocation.kind == MemoryKind::kImported) return "memory of another process";
    if (allocation.exported) return "memory that another process may have";
  }
  return nullptr;
}

bool Memory::protect_locked(int rights) {
  bool done = true;
  const auto protect = [&](uint64_t begin, uint64_t bytes) {
    done = mprotect(reinterpret_cast<void*>(begin), bytes, rights) == 0 && done;
  };
  for (const auto& [begin, chunk] : device_heap_.chunks) protect(begin, chunk.bytes);
  for (const auto& [begin, allocation] : live_)
    if (allocation.kind == MemoryKind::kMapped) protect(begin, allocation.bytes);
  return done;
}

bool Memory::save() {
  std::lock_guard lock(mutex_);
  bool done = protect_locked(PROT_NONE);
  const auto move = [&](int fd, uint64_t bytes) {
    if (fd < 0 || !done) return;
    const int file = make_memfd(bytes, "softgpu-checkpoint");
    done = file >= 0 && move_contents(fd, file, bytes);
    if (file >= 0) saved_.push_back({file, fd, bytes});
  };
  for (const auto& [begin, chunk] : device_heap_.chunks) move(chunk.fd, chunk.bytes);
  for (const PhysicalMemory& each : physical_memory()) move(each.fd, each.bytes);
  for (Device& device : devices_) device.space->give_all();
  return done;
}

void Memory::move_to(const std::vector<DeviceSpace>& devices) {
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < devices_.size(); ++i)
    devices_[i].space->move_to(devices[i].bytes, devices[i].shared_count);
}

bool Memory::take_back() {
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].space->take_back()) continue;
    for (size_t taken = 0; taken < i; ++taken) devices_[taken].space->give_all();
    return false;
  }
  return true;
}

bool Memory::restore() {
  std::lock_guard lock(mutex_);
  bool done = true;
  for (const Saved& each : saved_) {
    done = move_contents(each.file, each.of, each.bytes) && done;
    close(each.file);
  }
  saved_.clear();
  return protect_locked(PROT_READ | PROT_WRITE) && done;
}

}  // namespace tessera::softgpu::driver

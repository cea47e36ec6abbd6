#include "softgpu/driver/memory.h"

#include <sys/mman.h>

#include <algorithm>

namespace tessera::softgpu::driver {
namespace {

constexpr uint64_t kAlignment = 512;  // cuMemAlloc promises 256; hardware gives 512
constexpr uint64_t kRedZone = 512;
constexpr uint64_t kChunkBytes = 64ull << 20;
constexpr uint64_t kReturnToHostBytes = 1ull << 20;  // pages of larger freed ranges go back to the host

uint64_t round_up(uint64_t value, uint64_t to) {
  return (value + to - 1) / to * to;
}

}  // namespace

Memory& Memory::get() {
  static Memory* memory = new Memory;  // never destroyed: bodies may run until the process is gone
  return *memory;
}

uint64_t Memory::take(uint64_t bytes) {
  auto fit =
      std::find_if(free_.begin(), free_.end(), [&](const auto& range) { return range.second >= bytes; });
  if (fit == free_.end()) {
    const uint64_t size = std::max(kChunkBytes, round_up(bytes, uint64_t(2) << 20));
    void* mapped =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return 0;
    const uint64_t begin = reinterpret_cast<uint64_t>(mapped);
    chunks_[begin] = size;
    fit = free_.emplace(begin, size).first;
  }
  const auto [begin, size] = *fit;
  free_.erase(fit);
  if (size > bytes) free_.emplace(begin + bytes, size - bytes);
  return begin;
}

void Memory::give(uint64_t begin, uint64_t bytes) {
  if (bytes >= kReturnToHostBytes) {
    const uint64_t first = round_up(begin, 4096), last = (begin + bytes) / 4096 * 4096;
    if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }
  auto next = free_.lower_bound(begin);
  // Neighbours in another chunk stay apart: a range must never span two mappings.
  if (next != free_.end() && begin + bytes == next->first && !chunks_.count(next->first)) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin() && !chunks_.count(begin)) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == begin) {
      previous->second += bytes;
      return;
    }
  }
  free_.emplace(begin, bytes);
}

CUresult Memory::allocate(MemoryKind kind, uint64_t bytes, Context* context, unsigned flags,
                          uint64_t* address) {
  std::lock_guard lock(mutex_);
  const bool on_device = kind == MemoryKind::kDevice || kind == MemoryKind::kManaged;
  if (bytes > (uint64_t(1) << 46)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (on_device && (bytes > capacity_ || used_ > capacity_ - bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t begin = take(round_up(bytes, kAlignment) + kRedZone);
  if (!begin) return CUDA_ERROR_OUT_OF_MEMORY;
  live_[begin] = Allocation{begin, bytes, kind, context, next_id_++, flags, nullptr, false};
  if (on_device) used_ += bytes;
  map_.add(begin, bytes, true);
  *address = begin;
  return CUDA_SUCCESS;
}

CUresult Memory::register_host(uint64_t address, uint64_t bytes, Context* context, unsigned flags) {
  std::lock_guard lock(mutex_);
  auto next = live_.lower_bound(address);
  if (next != live_.end() && next->first < address + bytes) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  if (next != live_.begin()) {
    const Allocation& previous = std::prev(next)->second;
    if (previous.begin + previous.bytes > address) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  live_[address] =
      Allocation{address, bytes, MemoryKind::kRegistered, context, next_id_++, flags, nullptr, false};
  map_.add(address, bytes, !(flags & CU_MEMHOSTREGISTER_READ_ONLY));
  return CUDA_SUCCESS;
}

bool Memory::release(uint64_t begin, Allocation* freed) {
  std::lock_guard lock(mutex_);
  auto it = live_.find(begin);
  if (it == live_.end()) return false;
  const Allocation allocation = it->second;
  live_.erase(it);
  map_.remove(begin);
  if (allocation.kind != MemoryKind::kRegistered)
    give(begin, round_up(allocation.bytes, kAlignment) + kRedZone);
  if (allocation.kind == MemoryKind::kDevice || allocation.kind == MemoryKind::kManaged)
    used_ -= allocation.bytes;
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
  exec::AllocationMap::Range range;
  if (!map_.find(address, &range)) return false;
  *out = Allocation{};
  out->begin = range.begin;
  out->bytes = range.end - range.begin;
  return true;
}

bool Memory::contains(uint64_t address, uint64_t bytes) const {
  Allocation allocation;
  return find(address, &allocation) && bytes <= allocation.begin + allocation.bytes - address;
}

void Memory::annotate(uint64_t begin, const void* pool, bool graph_owned) {
  std::lock_guard lock(mutex_);
  auto it = live_.find(begin);
  if (it == live_.end()) return;
  it->second.pool = pool;
  it->second.graph_owned = graph_owned;
}

void Memory::release_context(Context* context) {
  std::vector<uint64_t> mine;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [begin, allocation] : live_)
      if (allocation.context == context) mine.push_back(begin);
  }
  for (uint64_t begin : mine) release(begin);
}

uint64_t Memory::used_by_pool(const void* pool) const {
  std::lock_guard lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& [begin, allocation] : live_)
    if (allocation.pool == pool) bytes += allocation.bytes;
  return bytes;
}

uint64_t Memory::used_bytes() const {
  std::lock_guard lock(mutex_);
  return used_;
}

}  // namespace tessera::softgpu::driver

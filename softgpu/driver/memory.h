// Device, managed and page-locked host memory of this process. A device address is a host address;
// allocations lie in chunks mapped on demand, 512-byte aligned and at least 512 bytes apart, so that an
// access that runs over the end of one hits the red zone between them and is reported by the interpreter. Any
// thread; one mutex, innermost but for the AllocationMap's own.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "softgpu/driver/objects.h"

namespace tessera::softgpu::driver {

enum class MemoryKind : uint8_t { kDevice, kManaged, kHost, kRegistered };

struct Allocation {
  uint64_t begin = 0, bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
  Context* context = nullptr;  // owner; its destruction frees the memory
  uint64_t id = 0;             // CU_POINTER_ATTRIBUTE_BUFFER_ID
  unsigned flags = 0;          // of cuMemHostAlloc / Register / Managed
  const void* pool = nullptr;  // memory pool, or null
  bool graph_owned = false;    // made by an allocation node
};

class Memory {
 public:
  static Memory& get();
  // CUDA_ERROR_OUT_OF_MEMORY beyond `capacity` (device and managed) or when the host has no more.
  CUresult allocate(MemoryKind kind, uint64_t bytes, Context* context, unsigned flags, uint64_t* address);
  CUresult register_host(uint64_t address, uint64_t bytes, Context* context, unsigned flags);
  bool release(uint64_t begin, Allocation* freed = nullptr);  // false: no allocation begins there
  // The allocation that holds address; variables of modules are found too, as device memory without a
  // context.
  bool find(uint64_t address, Allocation* out) const;
  bool contains(uint64_t address, uint64_t bytes) const;  // wholly inside one allocation or variable
  void annotate(uint64_t begin, const void* pool, bool graph_owned);
  void release_context(Context* context);
  uint64_t used_bytes() const;
  uint64_t used_by_pool(const void* pool) const;
  exec::AllocationMap& map() { return map_; }
  void set_capacity(uint64_t bytes) { capacity_ = bytes; }

 private:
  uint64_t take(uint64_t bytes);  // from the free ranges, or a new chunk; 0 if the host refuses
  void give(uint64_t begin, uint64_t bytes);

  mutable std::mutex mutex_;             // guards all below but map_
  std::map<uint64_t, Allocation> live_;  // by begin
  std::map<uint64_t, uint64_t> free_;    // begin -> bytes, coalesced within chunks
  std::map<uint64_t, uint64_t> chunks_;
  uint64_t used_ = 0, capacity_ = 0, next_id_ = 1;
  exec::AllocationMap map_;
};

}  // namespace tessera::softgpu::driver

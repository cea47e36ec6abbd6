// Device, managed and page-locked host memory of this process. A device address is a host address;
// allocations lie in chunks mapped on demand, 512-byte aligned and at least 512 bytes apart, so that an
// access that runs over the end of one hits the red zone between them and is reported by the interpreter.
// Chunks of device memory are memfds, so that another process can map what is exported to it (ipc.h).
// Each device sees what is its own, what peers let it see, and all host memory: one AllocationMap per device.
// Any thread; one mutex, innermost but for the AllocationMaps' own.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "softgpu/driver/objects.h"
#include "softgpu/timing/device_memory.h"

namespace tessera::softgpu::driver {

inline constexpr int kMaxDevices = 16;

// Size of a page of the machine that runs this: 64 KiB on some of aarch64.
uint64_t page_bytes();

enum class MemoryKind : uint8_t {
  kDevice,
  kManaged,
  kHost,
  kRegistered,
  kMapped,    // a range of a reservation with physical memory behind it (vmm.h)
  kImported,  // memory of another process (ipc.h)
  kArray,     // of a CUDA array: no kernel may touch it by address
};
enum class Access : uint8_t { kNone, kRead, kReadWrite };

inline Access access_of(CUmemAccess_flags flags) {
  return flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? Access::kReadWrite
         : flags == CU_MEM_ACCESS_FLAGS_PROT_READ    ? Access::kRead
                                                     : Access::kNone;
}
inline CUmemAccess_flags flags_of(Access access) {
  return access == Access::kReadWrite ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
         : access == Access::kRead    ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                      : CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

struct Advice {  // about managed memory; type 0 of a location: none was given
  bool read_mostly = false;
  CUmemLocation preferred = {}, prefetched = {};
  uint32_t accessed_by = 0;  // bit 0: host, bit n + 1: device n
};

struct Allocation {
  uint64_t begin = 0, bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
  Context* context = nullptr;                // owner; its destruction frees the memory
  int device = 0;                            // where it lies; -1: host
  uint64_t id = 0;                           // CU_POINTER_ATTRIBUTE_BUFFER_ID
  unsigned flags = 0;                        // of cuMemHostAlloc / Register / Managed
  const void* pool = nullptr;                // memory pool, or null
  bool graph_owned = false;                  // made by an allocation node
  bool exported = false;                     // another process may have it
  bool sync_memops = false;                  // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
  std::array<Access, kMaxDevices> access{};  // by device
  Advice advice;
  std::shared_ptr<void> pages;  // kMapped, kImported: keeps what lies there

  bool on_device() const {
    return kind == MemoryKind::kDevice || kind == MemoryKind::kManaged || kind == MemoryKind::kMapped ||
           kind == MemoryKind::kImported || kind == MemoryKind::kArray;
  }
};

class Memory {
 public:
  static Memory& get();
  struct DeviceSpace {
    uint64_t bytes;
    std::string shared_count;  // device_memory.h
  };
  void set_devices(const std::vector<DeviceSpace>& devices);  // before first use

  // CUDA_ERROR_OUT_OF_MEMORY beyond the device's capacity (device and managed) or when the host has no more.
  CUresult allocate(MemoryKind kind, uint64_t bytes, Context* context, unsigned flags, uint64_t* address);
  CUresult register_host(uint64_t address, uint64_t bytes, Context* context, unsigned flags);
  // Memory that lies elsewhere: kMapped, kImported; the caller keeps the pages.
  void adopt(Allocation allocation);
  bool release(uint64_t begin, Allocation* freed = nullptr);  // false: no allocation begins there
  void release_context(Context* context);

  // The allocation that holds address; variables of modules are found too, as device memory without a
  // context.
  bool find(uint64_t address, Allocation* out) const;
  // Wholly inside one allocation or variable, or inside mappings that touch and that some device has at least
  // that access to (for copies and fills).
  bool contains(uint64_t address, uint64_t bytes, Access need = Access::kNone) const;
  bool starts_in(uint64_t begin, uint64_t bytes, std::vector<Allocation>* out) const;  // all that begin there
  // Memfd behind a device allocation, which is exported, and where it begins in it; false: not such memory.
  bool backing(uint64_t begin, int* fd, uint64_t* offset);

  void annotate(uint64_t begin, const void* pool, bool graph_owned);
  void set_sync_memops(uint64_t begin, bool on);
  template <class F>
  void advise(uint64_t address, F change) {  // of the allocation that holds address
    std::lock_guard lock(mutex_);
    auto it = live_.upper_bound(address);
    if (it != live_.begin()) change(std::prev(it)->second.advice);
  }
  void set_access(uint64_t begin, int device, Access access);
  // Kernels of `device` may (not) touch what belongs to `owner` now and in future; counted.
  void enable_peer(int device, Context* owner);
  void disable_peer(int device, Context* owner);
  void set_pool_access(const void* pool, int device, Access access);
  Access pool_access(const void* pool, int device) const;

  // Physical memory that is no allocation (vmm.h).
  bool charge(int device, uint64_t bytes);
  void uncharge(int device, uint64_t bytes);
  uint64_t used_bytes(int device) const;  // by all processes
  uint64_t own_bytes(int device) const;
  uint64_t used_by_pool(const void* pool) const;
  uint64_t used_by_graphs(int device, bool high) const;  // allocation nodes; now, or at most so far
  void reset_graph_high(int device);

  // Checkpoints (checkpoint.h), while no call and no work is under way. What is refused, or null.
  const char* not_to_be_saved() const;
  bool save();  // contents go to files of the host, bytes back to the devices; false: the host refused
  void move_to(const std::vector<DeviceSpace>& devices);  // what is saved; by ordinal
  bool take_back();      // the bytes; false: some device has not so much left, and nothing was taken
  bool restore();        // the contents
  void forget_others();  // in the child of a fork; takes no lock

  exec::AllocationMap& map(int device) { return *maps_[size_t(device)]; }

 private:
  // Address space cut into chunks. Guarded by Memory::mutex_.
  struct Heap {
    bool shared = false;                // chunks are memfds
    std::map<uint64_t, uint64_t> free;  // begin -> bytes, coalesced within chunks
    struct Chunk {
      uint64_t bytes;
      int fd;  // -1: anonymous
    };
    std::map<uint64_t, Chunk> chunks;

    uint64_t take(uint64_t bytes);  // from the free ranges, or a new chunk; 0 if the host refuses
    void give(uint64_t begin, uint64_t bytes);
  };
  Heap& heap(MemoryKind kind) { return kind == MemoryKind::kDevice ? device_heap_ : host_heap_; }
  bool protect_locked(int rights);           // of device memory that host threads see
  void place_locked(Allocation allocation);  // decides who sees it and lets them
  void show_locked(Allocation& allocation, int device, Access access);

  mutable std::mutex mutex_;             // guards all below but maps_
  std::map<uint64_t, Allocation> live_;  // by begin
  Heap device_heap_{true, {}, {}}, host_heap_{};
  struct Device {
    std::unique_ptr<timing::DeviceMemory> space;
    uint64_t graph_used = 0, graph_high = 0;   // by allocation nodes
    std::map<const Context*, unsigned> peers;  // owners whose memory it may touch, how often enabled
  };
  std::vector<Device> devices_;  // constant but for what is in them
  struct Saved {
    int file, of;    // descriptors: contents of `of` lie in `file`
    uint64_t bytes;  // of both
  };
  std::vector<Saved> saved_;
  std::map<const void*, std::map<int, Access>> pool_access_;
  uint64_t next_id_ = 1;
  std::vector<std::unique_ptr<exec::AllocationMap>> maps_;  // by device; constant after set_devices()
};

}  // namespace tessera::softgpu::driver

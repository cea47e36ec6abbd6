// The books of device memory: which address or handle stands for how many bytes of which device, and the sums. Pure: no
// driver, no lock, no clock; memory.h keeps one of it under a lock. Nothing here throws: what finds no place is counted
// as untracked.
//
// What counts (`Figures::used`):
//   memory with an address, and arrays   while it lives
//   physical memory                      while a handle or a mapping refers to it, once however often it is mapped
//   pools                                what they hold, whoever uses it
//   graphs                               what the driver says that they hold
// What does not count: managed memory, imports, pinned host memory; these have sums of their own. From a pool of one of these
// each allocation is an item by itself.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ipc/abi/memory.h"

namespace tessera::memory {

inline constexpr int kDevices = 64;   // by CUdevice
inline constexpr int kNoDevice = -1;  // host memory

enum class Space : uint8_t { kAddress, kPhysical, kArray, kExternal };  // numbers of two spaces may be equal
enum class Kind : uint8_t { kDevice, kManaged, kPinned, kImported, kPooled, kPhysical, kMapping };

struct Item {
  uint64_t value = 0;    // address or handle
  uint64_t bytes = 0;    // that count while it lives; kPooled: of the pool
  uint64_t context = 0;  // whose end frees it; 0: none
  uint32_t of = 0;       // kPhysical, kMapping: its Piece; kPooled: its Pool
  uint32_t opened = 1;   // imports: how often, each needs a close
  Space space = Space::kAddress;
  Kind kind = Kind::kDevice;
  int8_t device = kNoDevice;
  bool shared = false;   // another process may have it
  bool managed = false;  // the driver moves it, or would; kManaged always is
};

// Figures of one device, by the names of ipc/abi/memory.h.
struct Figures {
#define TS_ROW(field, name, meaning) uint64_t field = 0;
  TS_MEMORY_FIGURES(TS_ROW)
#undef TS_ROW
};

// Items by space and value: open addressing, so that an allocation costs no allocation.
class Items {
 public:
  Items() = default;
  Items(const Items&) = delete;
  bool add(const Item& item);  // false: no memory for it
  Item* find(Space space, uint64_t value);
  void remove(Item* item);
  uint32_t size() const { return size_; }
  template <class F>
  bool any(F&& f) const {
    return std::any_of(slots_, slots_ + capacity_,
                       [&](const Item& item) { return item.value != 0 && f(item); });
  }
  // Removes every item of which `f(item)` is true.
  template <class F>
  void remove_if(F&& f) {
    for (uint32_t i = 0; i < capacity_;)
      if (used(i) && f(slots_[i]))
        remove(&slots_[i]);  // what moves here is looked at, too
      else
        ++i;
  }

 private:
  bool used(uint32_t i) const { return slots_[i].value != 0; }  // no address and no handle is 0
  uint32_t home(Space space, uint64_t value) const;
  bool grow();
  Item* slots_ = nullptr;  // never freed
  uint32_t capacity_ = 0, size_ = 0;
};

// An array that grows and keeps indices; elements are used again. Elements: a member `bool live`.
template <class T>
class Growing {
 public:
  Growing() = default;
  Growing(const Growing&) = delete;
  T& operator[](uint32_t i) { return elements_[i]; }
  template <class F>
  bool any(F&& f) const {
    return std::any_of(elements_, elements_ + size_,
                       [&](const T& element) { return element.live && f(element); });
  }
  uint32_t size() const { return size_; }
  uint32_t take();  // index of one that is live now; kNone: no memory for it
  void give(uint32_t i) {
    elements_[i].live = false;
    if (i < first_free_) first_free_ = i;
  }
  static constexpr uint32_t kNone = UINT32_MAX;

 private:
  T* elements_ = nullptr;  // never freed
  uint32_t capacity_ = 0, size_ = 0;
  uint32_t first_free_ = 0;  // all before it are live
};

struct Piece {  // physical memory
  bool live;
  bool imported, shared;
  int8_t device;
  uint32_t references, mappings;
  uint64_t bytes;
};

struct Pool {
  bool live;
  bool destroyed;  // its handle stands for nothing any more
  bool shared;     // another process may have it
  Kind
      kind;  // of its memory: kDevice, kManaged, kPinned; kImported: another process's, holds nothing of ours
  int8_t device;  // of kDevice; else kNoDevice
  uint8_t looks;  // how often it is worth asking what it holds, after something was freed
  uint64_t handle;
  uint64_t used;   // by allocations that were made and not freed
  uint64_t holds;  // as the driver said last
};

// Reasons why a checkpoint would not carry the process over.
struct Ties {
  bool managed = false;  // it has managed memory, or a pool of such
  bool foreign = false;  // it has another process's memory, or another process may have some of its
};

class Ledger {
 public:
  // Memory with an address or handle of its own. Two of the same value: opened twice (an import).
  void add(const Item& item);
  // Takes it out for the call that frees it, so that nobody else's of the same value is confused with it. False: not known.
  bool take(Space space, uint64_t value, Item* out);
  void mark_shared(Space space, uint64_t value);
  void context_ended(uint64_t context);

  // Physical memory. `device`: kNoDevice in the host.
  void created(uint64_t handle, int device, uint64_t bytes, bool imported);
  void retained(uint64_t handle, uint64_t mapped_at);  // by an address at which a mapping begins
  void released(uint64_t handle);
  void mapped(uint64_t address, uint64_t bytes, uint64_t handle);
  void unmapped(uint64_t address, uint64_t bytes);
  int device_of_physical(uint64_t handle);  // kNoDevice: not known, or in the host

  // Pools by index.
  uint32_t pool(uint64_t handle);  // Growing<Pool>::kNone: not known
  // `kind`: of Pool. What is known already stays as it is.
  uint32_t learn_pool(uint64_t handle, Kind kind, int device);
  void pool_shared(uint64_t handle);
  Pool& pool_at(uint32_t i) { return pools_[i]; }
  uint32_t pools() const { return pools_.size(); }
  uint64_t would_grow(uint32_t pool, uint64_t bytes) const;  // by how much at least
  void pool_allocated(uint32_t pool, uint64_t address, uint64_t bytes);
  void pool_freed(const Item& item);
  void pool_holds(uint32_t pool, uint64_t bytes);  // as the driver says
  void pool_destroyed(uint64_t handle);

  void graphs_hold(int device, uint64_t bytes);  // as the driver says
  void refused(int device) { ++at(device).refusals; }
  void cannot_count() { ++untracked_; }

  const Figures& of(int device) const { return figures_[device]; }
  uint64_t pinned_bytes() const { return pinned_; }
  uint64_t untracked() const { return untracked_; }
  Ties ties() const;

 private:
  Figures& at(int device) { return figures_[device]; }
  static bool counts(int device) { return device >= 0 && device < kDevices; }
  void count(const Item& item, bool comes);
  void charge(int device, uint64_t bytes);
  void discharge(int device, uint64_t bytes);
  void drop(Item* item);  // of memory that is gone
  void settle_piece(uint32_t piece);
  void settle_pool(uint32_t pool, uint64_t bytes);

  Items items_;
  Growing<Piece> pieces_;
  Growing<Pool> pools_;
  Figures figures_[kDevices] = {};
  uint64_t pinned_ = 0, untracked_ = 0;
};

}  // namespace tessera::memory

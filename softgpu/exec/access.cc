// Memory: the allocation map, address windows, and the handlers that deal with every space, mask and fault.
// fast.cc takes the regular global and shared accesses and comes here for the rest.
#include <sys/mman.h>

#include <bit>
#include <cstdio>
#include <map>
#include <shared_mutex>

#include "softgpu/exec/access.h"
#include "softgpu/exec/core.h"
#include "softgpu/exec/scalar.h"

namespace tessera::softgpu::exec {

using lane::get;
using lane::put;

// --- AllocationMap -----------------------------------------------------------------------------------------

struct AllocationMap::State {
  mutable std::shared_mutex mutex;  // guards ranges
  std::map<uint64_t, Range> ranges;
  uint64_t generation = 1;  // atomic; bumped by remove, read relaxed: a stale read means "concurrent with it"
};
AllocationMap::AllocationMap(Bounds bounds) : state_(std::make_unique<State>()), bounds_(bounds) {}
AllocationMap::~AllocationMap() = default;

void AllocationMap::add(uint64_t begin, uint64_t bytes, bool writable, uint64_t granule_bytes,
                        bool constant) {
  if (!bytes) return;
  if (bounds_ == Bounds::kExact) granule_bytes = 1;
  const uint64_t end = begin + bytes;
  std::unique_lock lock(state_->mutex);
  state_->ranges[begin] =
      Range{begin, end, writable, constant, (end + granule_bytes - 1) / granule_bytes * granule_bytes};
}
bool AllocationMap::remove(uint64_t begin) {
  std::unique_lock lock(state_->mutex);
  if (!state_->ranges.erase(begin)) return false;
  __atomic_fetch_add(&state_->generation, 1, __ATOMIC_RELEASE);
  return true;
}
bool AllocationMap::find(uint64_t address, Range* range) const {
  return reachable(address, range) && address < range->end;
}
bool AllocationMap::reachable(uint64_t address, Range* range) const {
  std::shared_lock lock(state_->mutex);
  auto it = state_->ranges.upper_bound(address);
  if (it == state_->ranges.begin()) return false;
  --it;
  if (address >= it->second.reach_end) return false;
  *range = it->second;
  return true;
}
bool AllocationMap::nearest(uint64_t address, Range* range) const {
  std::shared_lock lock(state_->mutex);
  if (state_->ranges.empty()) return false;
  const auto distance = [address](const Range& r) {
    return address < r.begin ? r.begin - address : address >= r.end ? address - r.end + 1 : 0;
  };
  auto it = state_->ranges.upper_bound(address);
  const Range* best = it == state_->ranges.end() ? nullptr : &it->second;
  if (it != state_->ranges.begin()) {
    const Range& below = std::prev(it)->second;
    if (!best || distance(below) <= distance(*best)) best = &below;
  }
  *range = *best;
  return true;
}
uint64_t AllocationMap::generation() const {
  return __atomic_load_n(&state_->generation, __ATOMIC_ACQUIRE);
}
const uint64_t* AllocationMap::generation_word() const {
  return &state_->generation;
}

bool find_range(Warp& w, uint64_t begin, uint64_t end, bool write, unsigned entry) {
  if (begin >= end) return false;
  Worker& worker = *w.worker;
  MemoryView& v = worker.memory;
  const uint64_t now = __atomic_load_n(v.generation_now, __ATOMIC_ACQUIRE);
  if (now != v.generation) {
    for (CachedRange& r : v.ranges) r = CachedRange{};
    v.generation = now;
  }
  for (const CachedRange* own : {&worker.params_range, &worker.workspace_range})
    if (begin >= own->begin && end <= own->end && own->begin != own->end) {
      if (worker.audit && write) worker.audit->note_write(begin, end);
      return !write || own->writable;
    }
  AllocationMap::Range found;
  if (!worker.grid->memory->reachable(begin, &found) || end > found.reach_end || (write && !found.writable))
    return false;
  if (worker.audit) {  // keeps no range: every access comes here
    if (write) worker.audit->note_write(begin, end);
    worker.audit->note_access(w, begin, found.begin);
    return true;
  }
  v.ranges[entry] = CachedRange{found.begin, found.reach_end, found.writable};
  return true;
}

// --- windows -----------------------------------------------------------------------------------------------
// Generic addresses of shared and local memory: address space that nothing else can get, never accessed
// itself.

namespace {
uint64_t reserve_windows() {
  void* p = mmap(nullptr, kWindowsBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? 0 : reinterpret_cast<uint64_t>(p);
}
}  // namespace
uint64_t shared_window() {
  static const uint64_t base = reserve_windows();
  return base;
}
uint64_t local_window() {
  return shared_window() + kSharedBytes;
}

// --- faults ------------------------------------------------------------------------------------------------

Fault fault_at(const Warp& w, const Op* op, FaultKind kind, unsigned lane_index, uint64_t address,
               std::string text) {
  const Grid& grid = *w.block->grid;
  Fault f;
  f.kind = kind;
  f.kernel = grid.kernel->info.name;
  for (unsigned i = 0; i < 3; ++i) f.block[i] = w.block->id[i];
  const uint32_t linear = w.index * kLanes + lane_index;
  const auto& dim = grid.launch.block;
  f.thread = {linear % dim[0], linear / dim[0] % dim[1], linear / (dim[0] * dim[1])};
  f.line = op->line;
  f.address = address;
  f.text = std::move(text);
  return f;
}

const Op* raise(Warp& w, const Op* op, FaultKind kind, unsigned lane_index, uint64_t address,
                std::string text) {
  Grid& grid = *w.block->grid;
  w.stop = Stop::kFault;
  std::lock_guard lock(grid.fault_mutex);
  grid.stop.store(true,
                  std::memory_order_relaxed);  // other workers end at their next check; no data depends on it
  if (grid.fault.kind == FaultKind::kNone)
    grid.fault = fault_at(w, op, kind, lane_index, address, std::move(text));
  return nullptr;
}

std::string hex(uint64_t x) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(x));
  return text;
}
void raise_access(Warp& w, const Op* op, Space space, unsigned lane_index, uint64_t address, unsigned bytes,
                  bool write) {
  static constexpr const char* kSpaces[] = {"generic", "global", "shared", "local", "param", "const"};
  std::string text = std::string(write ? "write" : "read") + " of " + std::to_string(bytes) + " bytes at " +
                     hex(address) + " (" + kSpaces[static_cast<unsigned>(space)] + ")";
  if (space == Space::kShared) {
    text += " is outside the block's " + std::to_string(w.shared_bytes) + " bytes of shared memory";
  } else if (space == Space::kLocal) {
    text += " is outside the thread's " + std::to_string(w.local_bytes) + " bytes of local memory";
  } else {
    AllocationMap::Range near;
    AllocationMap& memory = *w.block->grid->memory;
    if (memory.find(address, &near)) {
      text += !near.writable && write ? " hits read-only memory " : " runs past the end of allocation ";
      text += hex(near.begin) + " + " + std::to_string(near.end - near.begin);
    } else if (memory.nearest(address, &near)) {
      text += ": nearest allocation is " + hex(near.begin) + " + " + std::to_string(near.end - near.begin) +
              ", " +
              (address >= near.end ? std::to_string(address - near.end) + " bytes before the address"
                                   : std::to_string(near.begin - address) + " bytes after the address");
    } else {
      text += ": there is no live allocation";
    }
  }
  raise(w, op, FaultKind::kIllegalAddress, lane_index, address, std::move(text));
}

namespace {

Ty element_type(const Op* op) {
  return op->type;
}
// Lane registers of a vector access: d, d2, b, c, then extra.
uint32_t element(Warp& w, const Op* op, unsigned k) {
  if (k >= 4) return w.frame->code->extra[op->extra + k - 4];
  return k == 0 ? op->d : k == 1 ? op->d2 : k == 2 ? op->b : op->c;
}

template <class T>
T read(const char* p, bool atomic) {
  const T* t = reinterpret_cast<const T*>(p);
  return atomic ? __atomic_load_n(t, __ATOMIC_ACQUIRE) : *t;
}
template <class T>
void write(char* p, T value, bool atomic) {
  T* t = reinterpret_cast<T*>(p);
  if (atomic)
    __atomic_store_n(t, value, __ATOMIC_RELEASE);
  else
    *t = value;
}
void load_element(Warp& w, const Op* op, uint32_t d, unsigned i, const char* p) {
  const bool atomic = op->flags & kVolatile;
  switch (element_type(op)) {
    case Ty::kU8:
      return put<uint8_t>(w, d, i, read<uint8_t>(p, atomic));
    case Ty::kS8:
      return put<int8_t>(w, d, i, read<int8_t>(p, atomic));
    case Ty::kU16:
    case Ty::kF16:
    case Ty::kBf16:
      return put<uint16_t>(w, d, i, read<uint16_t>(p, atomic));
    case Ty::kS16:
      return put<int16_t>(w, d, i, read<int16_t>(p, atomic));
    case Ty::kU64:
    case Ty::kS64:
    case Ty::kF64:
      return put<uint64_t>(w, d, i, read<uint64_t>(p, atomic));
    default:
      return put<uint32_t>(w, d, i, read<uint32_t>(p, atomic));
  }
}
void store_element(Warp& w, const Op* op, uint32_t s, unsigned i, char* p) {
  const bool atomic = op->flags & kVolatile;
  switch (element_bytes(element_type(op))) {
    case 1:
      return write<uint8_t>(p, get<uint8_t>(w, s, i), atomic);
    case 2:
      return write<uint16_t>(p, get<uint16_t>(w, s, i), atomic);
    case 8:
      return write<uint64_t>(p, get<uint64_t>(w, s, i), atomic);
    default:
      return write<uint32_t>(p, get<uint32_t>(w, s, i), atomic);
  }
}
template <bool kStore>
const Op* access_any(Warp& w, const Op* op) {
  const Space space = static_cast<Space>(op->space);
  const unsigned each = element_bytes(element_type(op)), bytes = each * op->count;
  uint64_t last_sector = ~uint64_t{0};
  for (Mask left = w.mask; left; left &= left - 1) {
    const unsigned i = static_cast<unsigned>(std::countr_zero(left));
    const uint64_t address = address_of(w, op, i);
    char* p = reach(w, op, space, i, address, bytes, kStore, bytes);
    if (!p) return nullptr;
    if (is_global(space, address)) {
      if (address >> 5 != last_sector) w.worker->memory.global_bytes += sectors(address, address + bytes);
      last_sector = (address + bytes - 1) >> 5;
    }
    for (unsigned k = 0; k < op->count; ++k) {
      if (element(w, op, k) == kNoOperand) continue;  // a sink
      if constexpr (kStore)
        store_element(w, op, element(w, op, k), i, p + k * each);
      else
        load_element(w, op, element(w, op, k), i, p + k * each);
    }
  }
  return op + 1;
}

}  // namespace

char* reach(Warp& w, const Op* op, Space space, unsigned i, uint64_t address, unsigned bytes, bool write,
            unsigned alignment) {
  uint64_t offset = address;
  if (space == Space::kGeneric) {
    const uint64_t in_shared = address - shared_window(), in_local = address - local_window();
    if (in_shared < kSharedBytes)
      space = Space::kShared, offset = in_shared;
    else if (in_local < kWindowBytes)
      space = Space::kLocal, offset = in_local;
    else
      space = Space::kGlobal;
  }
  if (address & (alignment - 1)) {
    raise(w, op, FaultKind::kMisalignedAddress, i, address,
          std::string(write ? "write" : "read") + " of " + std::to_string(bytes) + " bytes at " +
              hex(address) + " needs an alignment of " + std::to_string(alignment));
    return nullptr;
  }
  switch (space) {
    case Space::kShared:
      if (offset <= w.shared_bytes && bytes <= w.shared_bytes - offset) return w.shared + offset;
      if (const uint64_t rank = offset / kWindowBytes - 1;
          offset >= kWindowBytes && rank < w.block->grid->cluster_blocks) {
        offset %= kWindowBytes;
        if (offset <= w.shared_bytes && bytes <= w.shared_bytes - offset)
          return w.block->cluster->blocks[rank]->shared.data() + offset;
      }
      break;
    case Space::kLocal:
      if (offset <= w.local_bytes && bytes <= w.local_bytes - offset)
        return w.local + static_cast<size_t>(i) * w.local_bytes + offset;
      break;
    default:
      if (check_range(w, address, address + bytes, write, op->cache)) return reinterpret_cast<char*>(address);
      break;
  }
  raise_access(w, op, space, i, address, bytes, write);
  return nullptr;
}

const Op* load_any(Warp& w, const Op* op) {
  return access_any<false>(w, op);
}
const Op* store_any(Warp& w, const Op* op) {
  return access_any<true>(w, op);
}

// Generic accesses: usually global; the fast handler for that is in op->target.
namespace {
bool all_global(Warp& w, const Op* op) {
  const uint64_t* a = at<uint64_t>(w, op->a);
  const uint64_t window = shared_window() - static_cast<uint64_t>(op->imm);
  bool inside = false;
  for (Mask left = w.mask; left; left &= left - 1)
    inside |= a[std::countr_zero(left)] - window < kWindowsBytes;
  return !inside;
}
}  // namespace
const Op* op_load_generic(Warp& w, const Op* op) {
  if (op->target && all_global(w, op)) return reinterpret_cast<Handler>(const_cast<Op*>(op->target))(w, op);
  return load_any(w, op);
}
const Op* op_store_generic(Warp& w, const Op* op) {
  if (op->target && all_global(w, op)) return reinterpret_cast<Handler>(const_cast<Op*>(op->target))(w, op);
  return store_any(w, op);
}

const Op* op_load_param(Warp& w, const Op* op) {
  const char* p = w.block->grid->params + op->imm;
  const unsigned bytes = element_bytes(op->type);
  for (unsigned k = 0; k < op->count; ++k, p += bytes) {
    const uint32_t d = element(w, op, k);
    if (d == kNoOperand) continue;
    if (bytes == 8) {
      uint64_t value;
      std::memcpy(&value, p, 8);
      uint64_t* out = at<uint64_t>(w, d);
      if (w.mask == ~0u)
        for (unsigned i = 0; i < kLanes; ++i) out[i] = value;
      else
        lane::each(w, op, [&](unsigned i) { out[i] = value; });
    } else {
      uint32_t value = 0;
      std::memcpy(&value, p, bytes);
      if (op->type == Ty::kS8) value = static_cast<uint32_t>(static_cast<int8_t>(value));
      if (op->type == Ty::kS16) value = static_cast<uint32_t>(static_cast<int16_t>(value));
      uint32_t* out = at<uint32_t>(w, d);
      if (w.mask == ~0u)
        for (unsigned i = 0; i < kLanes; ++i) out[i] = value;
      else
        lane::each(w, op, [&](unsigned i) { out[i] = value; });
    }
  }
  return op + 1;
}

// sub 0: space address -> generic; 1: generic -> space.
const Op* op_cvta(Warp& w, const Op* op) {
  const Space space = static_cast<Space>(op->space);
  const uint64_t base = space == Space::kShared  ? shared_window()
                        : space == Space::kLocal ? local_window()
                                                 : 0;
  return lane::each(w, op, [&](unsigned i) {
    const uint64_t a = get<uint64_t>(w, op->a, i);
    put<uint64_t>(w, op->d, i, op->sub ? a - base : a + base);
  });
}
const Op* op_isspacep(Warp& w, const Op* op) {
  Mask r = 0;
  lane::each(w, op, [&](unsigned i) {
    const uint64_t a = get<uint64_t>(w, op->a, i);
    const uint64_t reach_of_shared = op->sub ? kSharedBytes : kWindowBytes;
    const bool cluster = a - shared_window() < kSharedBytes;
    const bool own = cluster && (a - shared_window()) / kWindowBytes == w.block->rank + 1;
    const bool shared = a - shared_window() < reach_of_shared || own,
               local = a - local_window() < kWindowBytes;
    const uint64_t params = reinterpret_cast<uint64_t>(w.block->grid->params);
    const bool param = a - params < w.block->grid->kernel->info.param_bytes;
    bool yes = false;
    switch (static_cast<Space>(op->space)) {
      case Space::kShared:
        yes = shared;
        break;
      case Space::kLocal:
        yes = local;
        break;
      case Space::kParam:
        yes = param;
        break;
      case Space::kConst: {
        AllocationMap::Range range;
        yes = !cluster && !local && w.block->grid->memory->find(a, &range) && range.constant;
        break;
      }
      default:
        yes = !cluster && !local && !param;
        break;
    }
    r |= static_cast<Mask>(yes) << i;
  });
  Mask& d = *at<Mask>(w, op->d);
  d = (d & ~w.mask) | r;
  return op + 1;
}
const Op* op_map_shared(Warp& w, const Op* op) {
  const bool generic = op->type == Ty::kU64;
  const uint64_t base = generic ? shared_window() : 0;
  for (Mask left = w.mask; left; left &= left - 1) {
    const unsigned i = static_cast<unsigned>(std::countr_zero(left));
    const uint64_t a = (generic ? get<uint64_t>(w, op->a, i) : get<uint32_t>(w, op->a, i)) - base;
    const uint32_t rank = get<uint32_t>(w, op->b, i);
    if (a >= kSharedBytes || rank >= w.block->grid->cluster_blocks) {
      raise_access(w, op, Space::kShared, i, a, 1, false);
      return nullptr;
    }
    const uint64_t to = base + (rank + 1) * kWindowBytes + a % kWindowBytes;
    if (generic)
      put<uint64_t>(w, op->d, i, to);
    else
      put<uint32_t>(w, op->d, i, static_cast<uint32_t>(to));
  }
  return op + 1;
}
const Op* op_shared_rank(Warp& w, const Op* op) {
  const bool generic = op->type == Ty::kU64;
  return lane::each(w, op, [&](unsigned i) {
    const uint64_t a = generic ? get<uint64_t>(w, op->a, i) - shared_window() : get<uint32_t>(w, op->a, i);
    const uint64_t window = a / kWindowBytes;
    put<uint32_t>(w, op->d, i, window == 0 ? w.block->rank : static_cast<uint32_t>(window - 1));
  });
}

}  // namespace tessera::softgpu::exec

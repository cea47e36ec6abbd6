#include "interpose/operations/table.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/scoped_fd.h"
#include "interpose/operations/loaded_library.h"
#include "operations/table.h"

namespace tessera::library {
namespace {

using operations::TableHeader;
using operations::TableSlot;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint32_t kProbes = 32;

constinit std::atomic<operations::TagLaunches> g_tag{nullptr};

bool is_of(const TableSlot& slot, const Operation& o) {
  return slot.entry == uint32_t(o.entry) && slot.n_dims == o.shape.n_dims && slot.count == o.shape.count &&
         slot.flop == o.cost.flop && slot.bytes == o.cost.bytes && slot.types[0] == int32_t(o.types.a) &&
         slot.types[1] == int32_t(o.types.b) && slot.types[2] == int32_t(o.types.c) &&
         slot.computed_as == int32_t(o.computed_as) &&
         std::equal(slot.dims, slot.dims + slot.n_dims, o.shape.dims);
}

void fill(TableSlot& slot, const Operation& o) {
  slot.entry = uint32_t(o.entry);
  std::copy_n(o.shape.dims, o.shape.n_dims, slot.dims);
  slot.count = o.shape.count;
  slot.n_dims = o.shape.n_dims;
  slot.types[0] = int32_t(o.types.a);
  slot.types[1] = int32_t(o.types.b);
  slot.types[2] = int32_t(o.types.c);
  slot.computed_as = int32_t(o.computed_as);
  slot.flop = o.cost.flop;
  slot.bytes = o.cost.bytes;
}

TableSlot* slots_of(TableHeader& table) {
  return reinterpret_cast<TableSlot*>(&table + 1);
}

// The slot of an operation, taken if it is new; null if its neighbourhood is full.
TableSlot* slot_of(TableHeader& table, const Operation& o) {
  TableSlot* const slots = slots_of(table);
  const uint64_t at = hash_of(o) >> 32;
  for (uint32_t i = 0; i < kProbes; i++) {
    TableSlot& slot = slots[(at + i) % operations::kTableSlots];
    std::atomic_ref<uint32_t> state(slot.state);
    uint32_t seen = state.load(std::memory_order_acquire);  // pairs with the release below
    if (seen == operations::kSlotFree &&
        state.compare_exchange_strong(seen, operations::kSlotWriting, std::memory_order_acquire)) {
      fill(slot, o);
      state.store(operations::kSlotReady, std::memory_order_release);
      return &slot;
    }
    // One that is being written may be the same: then there will be two, which readers add up.
    if (seen == operations::kSlotReady && is_of(slot, o)) return &slot;
  }
  return nullptr;
}

void find_tags() {
  void* tag = symbol_of(opened_library("libcuda.so.1"), operations::kTagLaunches);
  g_tag.store(reinterpret_cast<operations::TagLaunches>(tag), kRelaxed);  // published with the table
}

}  // namespace

constinit std::atomic<TableHeader*> g_table{nullptr};

bool open_table(const char* path) {
  if (!path || !*path) return false;
  const base::ScopedFd fd(open(path, O_RDWR | O_CLOEXEC));
  struct stat file {};
  if (!fd.valid() || fstat(fd.get(), &file) != 0 || uint64_t(file.st_size) != operations::kTableBytes)
    return false;
  void* memory = mmap(nullptr, operations::kTableBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return false;
  auto* header = static_cast<TableHeader*>(memory);
  if (memcmp(header->magic, operations::kTableMagic, sizeof header->magic) != 0 ||
      header->version != operations::kTableVersion || header->slots != operations::kTableSlots) {
    munmap(memory, operations::kTableBytes);
    return false;
  }
  find_tags();
  g_table.store(header, std::memory_order_release);
  return true;
}

void tag_launches(uint64_t slot) {
  if (const operations::TagLaunches tag = g_tag.load(kRelaxed)) tag(slot);
}

void call_ends(uint64_t slot) {
  const operations::TagLaunches tag = g_tag.load(kRelaxed);
  if (!tag || tag(0) == 0) return;
  TableHeader* table = g_table.load(std::memory_order_acquire);  // pairs with open_table
  std::atomic_ref<uint64_t>(slots_of(*table)[slot - 1].calls).fetch_sub(1, kRelaxed);
}

uint64_t count_call(const Operation& operation) {
  TableHeader* table = g_table.load(std::memory_order_acquire);  // pairs with open_table
  if (!table) return 0;
  TableSlot* slot = slot_of(*table, operation);
  // relaxed: read after the processes have ended
  std::atomic_ref<uint64_t>(slot ? slot->calls : table->further_calls).fetch_add(1, kRelaxed);
  return slot ? uint64_t(slot - slots_of(*table)) + 1 : 0;
}

}  // namespace tessera::library

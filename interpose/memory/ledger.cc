#include "interpose/memory/ledger.h"

#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <bit>

namespace tessera::memory {
namespace {

constexpr uint32_t kFirstItems = 1024;  // a power of two
constexpr uint32_t kFirstElements = 64;
constexpr uint8_t kLooksAfterFree = 8;  // a free that no synchronise call reaches is not asked about for ever

// Sums that never run below zero: what is wrong once must not be wrong by 2^64.
void subtract(uint64_t& from, uint64_t n) {
  from -= std::min(from, n);
}

}  // namespace

// ---- Items

uint32_t Items::home(Space space, uint64_t value) const {
  // Fibonacci hashing: the upper bits of the product depend on all bits of the value.
  const uint64_t mixed = (value ^ uint64_t(space) << 60) * 0x9e3779b97f4a7c15ull;
  return uint32_t(mixed >> (64 - std::countr_zero(capacity_)));
}

bool Items::grow() {
  const uint32_t before = capacity_;
  Item* old = slots_;
  auto* slots = static_cast<Item*>(calloc(before ? 2 * size_t(before) : kFirstItems, sizeof(Item)));
  if (!slots) return false;
  slots_ = slots;
  capacity_ = before ? 2 * before : kFirstItems;
  size_ = 0;
  for (uint32_t i = 0; i < before; ++i)
    if (old[i].value != 0) add(old[i]);
  free(old);
  return true;
}

bool Items::add(const Item& item) {
  if (4 * (uint64_t(size_) + 1) > 3 * uint64_t(capacity_) && !grow()) return false;
  uint32_t i = home(item.space, item.value);
  while (used(i)) i = (i + 1) & (capacity_ - 1);
  slots_[i] = item;
  ++size_;
  return true;
}

Item* Items::find(Space space, uint64_t value) {
  if (capacity_ == 0 || value == 0) return nullptr;
  for (uint32_t i = home(space, value); used(i); i = (i + 1) & (capacity_ - 1))
    if (slots_[i].value == value && slots_[i].space == space) return &slots_[i];
  return nullptr;
}

// Closes the gap with what was put behind it because its place was taken.
void Items::remove(Item* item) {
  uint32_t gap = uint32_t(item - slots_);
  const uint32_t mask = capacity_ - 1;
  for (uint32_t i = (gap + 1) & mask; used(i); i = (i + 1) & mask) {
    const uint32_t wanted = home(slots_[i].space, slots_[i].value);
    if (((i - wanted) & mask) < ((i - gap) & mask))
      continue;  // it stands behind its home, not behind the gap
    slots_[gap] = slots_[i];
    gap = i;
  }
  slots_[gap] = {};
  --size_;
}

// ---- Growing

template <class T>
uint32_t Growing<T>::take() {
  for (; first_free_ < size_; ++first_free_)
    if (!elements_[first_free_].live) return elements_[first_free_] = {.live = true}, first_free_++;
  if (size_ == capacity_) {
    const uint32_t wanted = capacity_ ? 2 * capacity_ : kFirstElements;
    auto* moved = static_cast<T*>(realloc(elements_, wanted * sizeof(T)));
    if (!moved) return kNone;
    elements_ = moved;
    capacity_ = wanted;
  }
  elements_[size_] = {.live = true};
  first_free_ = size_ + 1;
  return size_++;
}

// ---- sums

void Ledger::charge(int device, uint64_t bytes) {
  if (!counts(device)) return;
  Figures& f = at(device);
  f.used_bytes += bytes;
  f.peak_bytes = std::max(f.peak_bytes, f.used_bytes);
}

void Ledger::discharge(int device, uint64_t bytes) {
  if (counts(device)) subtract(at(device).used_bytes, bytes);
}

void Ledger::count(const Item& item, bool comes) {
  const auto move = [comes](uint64_t& sum, uint64_t bytes) {
    if (comes)
      sum += bytes;
    else
      subtract(sum, bytes);
  };
  if (item.kind == Kind::kPinned) return move(pinned_, item.bytes);
  if (!counts(item.device)) return;
  Figures& f = at(item.device);
  if (item.shared) move(f.shared_bytes, item.bytes);
  switch (item.kind) {
    case Kind::kDevice:
      return comes ? charge(item.device, item.bytes) : discharge(item.device, item.bytes);
    case Kind::kManaged:
      return move(f.managed_bytes, item.bytes);
    case Kind::kImported:
      return move(f.imported_bytes, item.bytes);
    case Kind::kPinned:
    case Kind::kPooled:
    case Kind::kPhysical:
    case Kind::kMapping:
      return;
  }
}

// ---- memory with an address or a handle of its own

void Ledger::add(const Item& item) {
  if (item.value == 0) return;
  if (Item* known = items_.find(item.space, item.value)) {
    if (known->kind == Kind::kImported && item.kind == Kind::kImported) {
      known->opened += item.opened;
      return;
    }
    drop(known);  // freed on a way that nobody saw
  }
  if (items_.add(item))
    count(item, true);
  else
    ++untracked_;
}

void Ledger::drop(Item* item) {
  const Item gone = *item;
  items_.remove(item);
  if (gone.kind == Kind::kPooled) pool_freed(gone);
  if (gone.kind == Kind::kMapping && pieces_[gone.of].mappings != 0) --pieces_[gone.of].mappings;
  if (gone.kind == Kind::kPhysical && pieces_[gone.of].references != 0) --pieces_[gone.of].references;
  if (gone.kind == Kind::kMapping || gone.kind == Kind::kPhysical) settle_piece(gone.of);
  count(gone, false);
}

bool Ledger::take(Space space, uint64_t value, Item* out) {
  Item* known = items_.find(space, value);
  if (!known || known->kind == Kind::kPhysical || known->kind == Kind::kMapping) return false;
  *out = *known;
  out->opened = 1;
  if (--known->opened != 0) return true;
  count(*known, false);
  items_.remove(known);
  return true;
}

void Ledger::mark_shared(Space space, uint64_t value) {
  Item* known = items_.find(space, value);
  if (!known || known->shared) return;
  if (known->kind == Kind::kPhysical) {
    Piece& piece = pieces_[known->of];
    if (!piece.shared && counts(piece.device)) at(piece.device).shared_bytes += piece.bytes;
    piece.shared = true;
    return;
  }
  known->shared = true;
  if (counts(known->device)) at(known->device).shared_bytes += known->bytes;
}

void Ledger::context_ended(uint64_t context) {
  items_.remove_if([&](const Item& item) {
    if (context == 0 || item.context != context) return false;
    count(item, false);
    return true;
  });
}

// ---- physical memory

void Ledger::settle_piece(uint32_t i) {
  const Piece& piece = pieces_[i];
  if (piece.references != 0 || piece.mappings != 0) return;
  if (piece.device == kNoDevice && !piece.imported) subtract(pinned_, piece.bytes);
  if (counts(piece.device)) {
    if (piece.imported)
      subtract(at(piece.device).imported_bytes, piece.bytes);
    else
      discharge(piece.device, piece.bytes);
    if (piece.shared) subtract(at(piece.device).shared_bytes, piece.bytes);
  }
  pieces_.give(i);
}

void Ledger::created(uint64_t handle, int device, uint64_t bytes, bool imported) {
  if (handle == 0) return;
  if (Item* known = items_.find(Space::kPhysical, handle)) drop(known);
  const uint32_t i = pieces_.take();
  if (i == Growing<Piece>::kNone ||
      !items_.add({.value = handle, .of = i, .space = Space::kPhysical, .kind = Kind::kPhysical})) {
    if (i != Growing<Piece>::kNone) pieces_.give(i);
    ++untracked_;
    return;
  }
  pieces_[i] = {.live = true,
                .imported = imported,
                .shared = false,
                .device = int8_t(device),
                .references = 1,
                .mappings = 0,
                .bytes = bytes};
  if (!imported) charge(device, bytes);
  if (!imported && device == kNoDevice) pinned_ += bytes;
  if (imported && counts(device)) at(device).imported_bytes += bytes;
}

void Ledger::retained(uint64_t handle, uint64_t mapped_at) {
  if (const Item* known = items_.find(Space::kPhysical, handle)) {
    ++pieces_[known->of].references;
    return;
  }
  const Item* mapping = items_.find(Space::kAddress, mapped_at);
  if (!mapping || handle == 0 || mapping->kind != Kind::kMapping) return;
  const uint32_t of = mapping->of;
  if (items_.add({.value = handle, .of = of, .space = Space::kPhysical, .kind = Kind::kPhysical}))
    ++pieces_[of].references;
}

void Ledger::released(uint64_t handle) {
  Item* known = items_.find(Space::kPhysical, handle);
  if (!known) return;
  if (pieces_[known->of].references > 1)
    --pieces_[known->of].references;
  else
    drop(known);  // its number may stand for something else from now on
}

void Ledger::mapped(uint64_t address, uint64_t bytes, uint64_t handle) {
  const Item* known = items_.find(Space::kPhysical, handle);
  if (!known || address == 0) return;
  const uint32_t of = known->of;
  if (Item* stale = items_.find(Space::kAddress, address)) drop(stale);
  if (!items_.add({.value = address, .bytes = bytes, .of = of, .kind = Kind::kMapping})) {
    ++untracked_;
    return;
  }
  Piece& piece = pieces_[of];
  ++piece.mappings;
  if (!piece.imported || piece.bytes != 0) return;
  piece.bytes = bytes;  // the driver says how large an import is only by what can be mapped
  if (counts(piece.device)) at(piece.device).imported_bytes += bytes;
}

void Ledger::unmapped(uint64_t address, uint64_t bytes) {
  for (uint64_t at = address, end = address + bytes; at < end;) {
    Item* mapping = items_.find(Space::kAddress, at);
    if (!mapping || mapping->kind != Kind::kMapping || mapping->bytes == 0) return;
    at += mapping->bytes;
    drop(mapping);
  }
}

int Ledger::device_of_physical(uint64_t handle) {
  const Item* known = items_.find(Space::kPhysical, handle);
  return known ? pieces_[known->of].device : kNoDevice;
}

// ---- pools and graphs

uint32_t Ledger::pool(uint64_t handle) {
  for (uint32_t i = 0; i < pools_.size(); ++i)
    if (pools_[i].live && !pools_[i].destroyed && pools_[i].handle == handle) return i;
  return Growing<Pool>::kNone;
}

uint32_t Ledger::learn_pool(uint64_t handle, Kind kind, int device) {
  if (const uint32_t known = pool(handle); known != Growing<Pool>::kNone) return known;
  const uint32_t i = pools_.take();
  if (i == Growing<Pool>::kNone) return ++untracked_, i;
  pools_[i].handle = handle;
  pools_[i].kind = kind;
  pools_[i].device = int8_t(device);
  return i;
}

void Ledger::pool_shared(uint64_t handle) {
  if (const uint32_t i = pool(handle); i != Growing<Pool>::kNone) pools_[i].shared = true;
}

uint64_t Ledger::would_grow(uint32_t i, uint64_t bytes) const {
  const Pool& pool = const_cast<Ledger*>(this)->pools_[i];
  if (!counts(pool.device)) return 0;
  return pool.used + bytes > pool.holds ? pool.used + bytes - pool.holds : 0;
}

void Ledger::settle_pool(uint32_t i, uint64_t bytes) {
  Pool& pool = pools_[i];
  if (counts(pool.device)) {
    Figures& f = at(pool.device);
    subtract(f.pool_bytes, pool.holds);
    discharge(pool.device, pool.holds);
    f.pool_bytes += bytes;
    charge(pool.device, bytes);
  }
  pool.holds = bytes;
  if (pool.destroyed && pool.used == 0) pools_.give(i);
}

void Ledger::pool_allocated(uint32_t i, uint64_t address, uint64_t bytes) {
  if (address == 0) return;
  Pool& pool = pools_[i];
  if (Item* known = items_.find(Space::kAddress, address)) drop(known);
  if (!items_.add(
          {.value = address, .bytes = bytes, .of = i, .kind = Kind::kPooled, .device = pool.device})) {
    ++untracked_;
    return;
  }
  pool.used += bytes;
  if (pool.used > pool.holds) settle_pool(i, pool.used);  // the driver may say more
}

void Ledger::pool_freed(const Item& item) {
  Pool& pool = pools_[item.of];
  subtract(pool.used, item.bytes);
  pool.looks = kLooksAfterFree;
  if (pool.destroyed) settle_pool(item.of, pool.used);  // nobody can be asked any more
}

void Ledger::pool_holds(uint32_t i, uint64_t bytes) {
  Pool& pool = pools_[i];
  if (!pool.live || pool.destroyed) return;
  settle_pool(i, bytes);
  if (pool.looks != 0 && pool.holds > pool.used)
    --pool.looks;
  else
    pool.looks = 0;
}

void Ledger::pool_destroyed(uint64_t handle) {
  const uint32_t i = pool(handle);
  if (i == Growing<Pool>::kNone) return;
  pools_[i].destroyed = true;
  settle_pool(i, pools_[i].used);
}

// By what there is and not by the sums: the size of an import may be 0 because nobody says it.
Ties Ledger::ties() const {
  const auto live = [](const Pool& pool) { return !pool.destroyed; };
  return {
      .managed = items_.any([](const Item& item) { return item.managed || item.kind == Kind::kManaged; }) ||
                 pools_.any([&](const Pool& pool) { return live(pool) && pool.kind == Kind::kManaged; }),
      .foreign = items_.any([](const Item& item) { return item.shared || item.kind == Kind::kImported; }) ||
                 pieces_.any([](const Piece& piece) { return piece.shared || piece.imported; }) ||
                 pools_.any([&](const Pool& pool) {
                   return live(pool) && (pool.shared || pool.kind == Kind::kImported);
                 }),
  };
}

void Ledger::graphs_hold(int device, uint64_t bytes) {
  if (!counts(device)) return;
  Figures& f = at(device);
  discharge(device, f.graph_bytes);
  charge(device, bytes);
  f.graph_bytes = bytes;
}

}  // namespace tessera::memory

#include "scheduler_daemon/core/memory.h"

#include <algorithm>
#include <cstring>

#include "base/futex.h"
#include "ipc/channel/atomic.h"
#include "scheduler_daemon/core/limits.h"
#include "scheduler_daemon/core/park.h"

namespace tessera::core {
namespace {

namespace abi = ipc::abi;
constexpr auto relaxed = std::memory_order_relaxed;  // single numbers: nothing is ordered by them

int64_t left_in(const abi::MemoryDevice& row) {
  return std::clamp(ipc::load(row.left_bytes, relaxed), -int64_t(kMostBytes), int64_t(kMostBytes));
}

uint64_t used(const Client& client, uint32_t row) {
  return uint64_t(
      std::max<int64_t>(0, int64_t(client.memory_granted[row]) - left_in(client.memory_row(row))));
}

// Takes back what a client does not use of its grant, at most that many bytes.
uint64_t take_back(Client& client, uint32_t row, uint64_t most) {
  std::atomic_ref<int64_t> left(client.memory_row(row).left_bytes);
  int64_t now = left.load(relaxed);
  for (;;) {
    const int64_t taken = std::min({now, int64_t(most), int64_t(client.memory_granted[row])});
    if (taken <= 0) return 0;
    if (!left.compare_exchange_weak(now, now - taken, relaxed)) continue;
    client.memory_granted[row] -= uint64_t(taken);
    return uint64_t(taken);
  }
}

uint64_t spare(uint64_t limit, uint64_t sum) {
  return limit > sum ? limit - sum : 0;
}

const MemoryLimit* configured_for(const Settings& settings, const Client& client) {  // null: none
  return first_that_fits(settings.memory_limits, client.identity);
}

}  // namespace

std::vector<Memory::Bound> Memory::bounds_of(const Client& client, const abi::MemoryDevice& row) const {
  const Uuid device = std::to_array(row.uuid);
  std::vector<Bound> bounds;
  const auto add = [&](uint64_t limit_bytes, auto&& shares) {
    Bound& bound = bounds.emplace_back();
    bound.limit_bytes = std::min(limit_bytes, kMostBytes);
    for (const auto& [connection, other] : common_.clients)
      if (other.get() == &client || shares(*other))
        for_each_device(*other, [&, &other = other](const abi::MemoryDevice& its, const Uuid& d) {
          if (d == device) bound.sharers.emplace_back(other.get(), other->number_of(its));
        });
  };
  if (client.memory_limit_bytes != 0)
    add(client.memory_limit_bytes, [&](const Client& other) {
      return client.memory_group != 0 && other.memory_group == client.memory_group &&
             other.identity.uid == client.identity.uid;
    });
  if (const MemoryLimit* limit = configured_for(common_.settings, client))
    add(limit->bytes, [&](const Client& other) { return configured_for(common_.settings, other) == limit; });
  add_rest(client, row, &bounds);
  return bounds;
}

// All that is wanted, and something ahead of the next question where there is room; or nothing.
bool Memory::grant(Client& client, abi::MemoryDevice& row, std::vector<Bound>& bounds) {
  const int64_t wanted = int64_t(std::min(ipc::load(row.wanted_bytes, relaxed), kMostBytes));
  const int64_t missing = wanted - left_in(row);
  if (missing <= 0) return true;
  const auto free_in = [](const Bound& bound) {
    uint64_t granted = bound.ungranted_bytes;
    for (const auto& [sharer, i] : bound.sharers) granted += sharer->memory_granted[i];
    return spare(bound.limit_bytes, granted);
  };
  uint64_t most = uint64_t(missing) + common_.settings.memory_ahead_bytes;
  for (const Bound& bound : bounds) {
    for (const auto& [sharer, i] : bound.sharers) {
      const uint64_t has = free_in(bound);
      if (has >= uint64_t(missing)) break;
      if (sharer != &client) (void)take_back(*sharer, i, uint64_t(missing) - has);
    }
    most = std::min(most, free_in(bound));
  }
  if (most < uint64_t(missing)) return false;
  client.memory_granted[client.number_of(row)] += most;
  std::atomic_ref<int64_t>(row.left_bytes).fetch_add(int64_t(most), relaxed);
  return true;
}

void Memory::answer(Client& client) {
  forget_reserved();
  for_each_device(client, [&](abi::MemoryDevice& row, const Uuid& device) {
    const uint32_t question = ipc::load(row.question, std::memory_order_acquire);  // pairs with its release
    if (question == ipc::load(row.answered, relaxed)) return;
    ipc::store(row.kept, parking_.kept_on(device),
               std::memory_order_seq_cst);  // its first question: it was not told
    std::vector<Bound> bounds = bounds_of(client, row);
    const bool granted = bounds.empty() || grant(client, row, bounds);
    uint64_t limit = 0, free_bytes = 0;
    for (const Bound& bound : bounds) {
      uint64_t sum = bound.ungranted_bytes;
      for (const auto& [sharer, at] : bound.sharers) sum += used(*sharer, at);
      const bool first = limit == 0;
      limit = first ? bound.limit_bytes : std::min(limit, bound.limit_bytes);
      free_bytes =
          first ? spare(bound.limit_bytes, sum) : std::min(free_bytes, spare(bound.limit_bytes, sum));
    }
    ipc::store(row.limit_bytes, limit, relaxed);
    ipc::store(row.free_bytes, free_bytes, relaxed);
    ipc::store(row.refused, granted ? 0u : 1u, relaxed);
    ipc::store(row.answered, question, std::memory_order_release);  // pairs with the client's acquire
    base::futex_wake_all(&row.answered);
  });
}

void Memory::tell_limits() {
  for (const auto& [connection, client] : common_.clients)
    for_each_device(*client, [&, &client = client](abi::MemoryDevice& row, const Uuid&) {
      ipc::store(row.limit_bytes, limit_of(*client, row), relaxed);
    });
}

uint64_t Memory::limit_of(const Client& client, const abi::MemoryDevice& row) const {
  uint64_t limit = 0;
  for (const Bound& bound : bounds_of(client, row))
    limit = limit == 0 ? bound.limit_bytes : std::min(limit, bound.limit_bytes);
  return limit;
}

void Memory::add_limits(const Client& client, stats::ClientRow& out) const {
  const MemoryLimit* configured = configured_for(common_.settings, client);
  for_each_device(client, [&](const abi::MemoryDevice& at, const Uuid& device) {
    for (stats::MemoryRow& row : out.memory) {
      if (row.gpu != uuid_text(device)) continue;
      row.limit_bytes = limit_of(client, at);
      row.limit_by_kernel = configured != nullptr && kept_by_kernel_.contains(configured->cgroup);
      if (const Reserved* own = reservation_of(client, device)) row.reserved_bytes = own->bytes;
      if (row.gpu == out.gpu) out.counters.memory_limit_bytes = row.limit_bytes;
    }
  });
}

}  // namespace tessera::core

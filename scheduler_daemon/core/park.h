// Reads what is known of clients that are parked or need room (ipc/abi/park.h, ipc/abi/memory.h). For park.cc, which
// carries it out, and park_policy.cc, which decides who leaves. All of it is untrusted.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>

#include "base/units.h"
#include "ipc/channel/atomic.h"
#include "scheduler_daemon/core/client.h"

namespace tessera::core {

// A client that is seldom looked for tells of its launches so late (interpose/lifecycle/completion.h).
inline constexpr uint64_t kToldLateNs = base::ms(1000);
inline constexpr uint64_t kUncountedPart = 64;  // of a device: contexts and code, which nobody counts

inline uint32_t park_state(const Client& client) {
  // Pairs with the client's release.
  const uint32_t state = ipc::load(client.park_untrusted().report.state, std::memory_order_acquire);
  return std::min<uint32_t>(state, ipc::abi::kParkLost);
}

// Its memory is not on the devices, and no room is kept for it.
inline bool is_away(const Client& client) {
  const uint32_t state = park_state(client);
  if (state != ipc::abi::kParkParked && state != ipc::abi::kParkWaits) return false;
  const ipc::abi::ParkLines& park = client.park_untrusted();
  return state == ipc::abi::kParkParked ||
         client.granted_return != ipc::load(park.report.need, std::memory_order_relaxed);
}

inline uint64_t bytes_of(const uint64_t& untrusted) {
  return std::min(ipc::load(untrusted, std::memory_order_relaxed), kMostBytes);
}

template <class F>
void for_each_device(const Client& client, F&& f) {
  for (uint32_t i = 0; i < ipc::abi::kMemoryDevices; ++i) {
    ipc::abi::MemoryDevice& row = client.memory_row(i);
    if (ipc::load(row.ready, std::memory_order_acquire) != 1) continue;  // pairs with the client's release
    std::array<uint8_t, 16> uuid;
    std::memcpy(uuid.data(), row.uuid, sizeof row.uuid);
    f(row, uuid);
  }
}

// How much is missing for `more_bytes` on that device, of which `taken_bytes` are taken.
inline uint64_t missing_bytes(const ipc::abi::MemoryDevice& row, uint64_t taken_bytes, uint64_t more_bytes) {
  const uint64_t total = bytes_of(row.total_bytes);
  const uint64_t needed = taken_bytes + more_bytes + total / kUncountedPart;
  return total == 0 || more_bytes == 0 || needed <= total ? 0 : needed - total;
}

// A client that cannot go on before there is room: to return, to wake, or for an allocation.
struct MemoryNeed {
  Client* client;
  bool returns;
  uint64_t since_ns;
  bool wakes = false;  // its engine is to wake (engines.h)
  uint64_t bytes(const ipc::abi::MemoryDevice& row) const {
    return wakes ? client->slept_bytes(row) : bytes_of(returns ? row.used_bytes : row.waits_bytes);
  }
};

}  // namespace tessera::core

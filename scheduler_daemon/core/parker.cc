// Calls of the driver's checkpoint interface that clients want made for them (ParkCall, ipc/abi/park.h): looked at, numbered, handed
// to the parker process by the transport, and answered. A client can have such a call made on its own process alone.
#include <algorithm>
#include <cstring>

#include "base/futex.h"
#include "ipc/channel/atomic.h"
#include "scheduler_daemon/core/learnt.h"
#include "scheduler_daemon/core/parking.h"

namespace tessera::core {
namespace {

namespace abi = ipc::abi;
constexpr auto relaxed = std::memory_order_relaxed;
constexpr uint32_t kMostLockMs = 60'000;  // a lock without a limit may never end

}  // namespace

bool Parking::parked_by_parker(const Client& client) const {
  if (common_.settings.park_by != ParkBy::kAuto) return common_.settings.park_by == ParkBy::kParker;
  const auto known = std::ranges::find_if(common_.settings.checkpoints, [&](const CheckpointRule& rule) {
    return rule.gpu == client.user_gpu.gpu && driver_name(rule.driver) == client.user_gpu.driver;
  });
  return known != common_.settings.checkpoints.end() && known->by_parker;
}

// One call of a client at a time: what it writes meanwhile is looked at when that one has ended.
void Parking::take_call(Client& client) {
  const abi::ParkCall& untrusted = client.park_untrusted().call;
  const uint32_t number = ipc::load(untrusted.number, std::memory_order_acquire);  // pairs with its release
  if (client.park_call != 0 || number == client.park_calls_seen) return;
  client.park_calls_seen = number;
  parker::Request request{};
  request.pid = client.identity.pid;
  request.step = ipc::load(untrusted.step, relaxed);
  request.within_ms = std::clamp(ipc::load(untrusted.within_ms, relaxed), 1u, kMostLockMs);
  std::memcpy(request.from, untrusted.from, sizeof request.from);
  std::memcpy(request.to, untrusted.to, sizeof request.to);
  request.number = client.park_call = ++n_calls_;
  if (request.step >= abi::kParkSteps || request.pid <= 0)
    return parker_answered({request.number, abi::kStepNotAnswered, 0});
  common_.peers.ask_parker(request);
}

void Parking::parker_answered(const parker::Answer& answer) {
  const auto found = std::ranges::find_if(
      common_.clients, [&](const auto& row) { return row.second->park_call == answer.number; });
  if (answer.number == 0 || found == common_.clients.end()) return;  // it has ended
  Client& client = *found->second;
  client.park_call = 0;
  abi::ParkOrder& order = client.park_untrusted().order;
  ipc::store(order.result, answer.result, relaxed);
  ipc::store(order.driver_state, answer.state, relaxed);
  ipc::store(order.answered, client.park_calls_seen, std::memory_order_release);  // pairs with its acquire
  base::futex_wake_all(&order.answered);
}

}  // namespace tessera::core

#include "scheduler_daemon/core/placement.h"

#include <algorithm>
#include <cstring>

#include "base/units.h"
#include "ipc/abi/placement.h"
#include "scheduler_daemon/core/limits.h"

namespace tessera::core {
namespace {

namespace abi = ipc::abi;

constexpr uint64_t kOnItsWayNs = base::ms(60'000);  // a framework starts in less
constexpr size_t kMostPlaced = 1024, kMostPlacedOfAUser = 64;
constexpr uint64_t kNeededForLoadNs = base::ms(10'000);  // before, a service counts as always busy

policy::Program program_of(const Client& client, const Uuid& gpu, uint64_t now_ns) {
  const stats::ClientRow row = client.row(now_ns);
  const auto memory = std::ranges::find(row.memory, uuid_text(gpu), &stats::MemoryRow::gpu);
  const uint64_t used_bytes = memory == row.memory.end() ? 0 : memory->used_bytes;
  policy::Program p{.priority = client.priority,
                    .resource_class = policy::ResourceClass(row.counters.resource_class),
                    .memory_bytes = std::max(client.on(gpu).placed_bytes, std::min(used_bytes, kMostBytes))};
  if (client.is_protected() && row.attached_ns >= kNeededForLoadNs)
    p.load = std::min(1.0, double(row.counters.busy_ns) / double(row.attached_ns));
  return p;
}

}  // namespace

std::optional<stats::Placement> Placement::answer(const ipc::PeerIdentity& asks, const ipc::Packet& packet) {
  const auto* question = ipc::packet_as<abi::PlaceQuery>(packet);
  if (question == nullptr || question->n_gpus == 0 || question->n_gpus > abi::kMostPlaceGpus ||
      question->priority > abi::kMaxPriority ||
      packet.bytes < sizeof *question + question->n_gpus * sizeof(abi::PlaceGpu))
    return std::nullopt;
  const policy::Program newcomer{.priority = allowed_priority(common_.settings, asks, question->priority),
                                 .resource_class = policy::ResourceClass(question->resource_class & 3u),
                                 .memory_bytes = std::min(question->memory_bytes, kMostBytes)};
  // A program that asks again has changed its mind.
  std::erase_if(placed_, [&](const Placed& p) { return asks.pid != 0 && p.identity.pid == asks.pid; });
  forget_late();
  std::vector<policy::GpuPrograms> programs;
  std::vector<Uuid> uuids;
  stats::Placement answer;
  for (uint32_t i = 0; i < question->n_gpus; ++i) {
    abi::PlaceGpu gpu;
    std::memcpy(&gpu, packet.data + sizeof *question + i * sizeof gpu, sizeof gpu);
    Uuid uuid;
    std::memcpy(uuid.data(), gpu.uuid, uuid.size());
    policy::GpuPrograms here{.memory_bytes = std::min(gpu.memory_bytes, kMostBytes)};
    // 0 would be unknown.
    if (here.memory_bytes != 0)
      here.memory_bytes -= std::min(here.memory_bytes - 1, memory_.reserved_and_unused(uuid));
    for (const auto& [connection, client] : common_.clients)
      if (!client->dying && client->find_on(uuid) != nullptr)
        here.programs.push_back(program_of(*client, uuid, common_.now_ns));
    for (const Placed& p : placed_)
      if (p.uuid == uuid) here.programs.push_back(p.program);
    answer.gpus.push_back({.uuid = uuid_text(gpu.uuid),
                           .cost = policy::placement_cost(newcomer, here, policy::kAssumedContention),
                           .memory_fits = policy::memory_suffices(newcomer, here),
                           .programs = here.programs.size()});
    programs.push_back(std::move(here));
    uuids.push_back(uuid);
  }
  answer.chosen = policy::place(newcomer, programs, policy::kAssumedContention);
  placed_.push_back({asks, uuids[answer.chosen], newcomer, common_.now_ns});
  return answer;
}

// Those that never came, and the oldest of a user who asks too often.
void Placement::forget_late() {
  std::erase_if(placed_, [&](const Placed& p) { return common_.now_ns >= p.since_ns + kOnItsWayNs; });
  std::map<uid_t, size_t> of_users;
  for (const Placed& p : placed_) ++of_users[p.identity.uid];
  std::erase_if(placed_, [&](const Placed& p) { return of_users[p.identity.uid]-- >= kMostPlacedOfAUser; });
  if (placed_.size() >= kMostPlaced) placed_.erase(placed_.begin());
}

void Placement::arrived(const Client& client, OnGpu& on) {
  const auto is_it = [&](const Placed& p) {
    return client.identity.pid != 0 && p.identity.pid == client.identity.pid &&
           p.identity.uid == client.identity.uid && p.uuid == on.uuid;
  };
  const auto placed = std::find_if(placed_.begin(), placed_.end(), is_it);
  if (placed == placed_.end()) return;
  on.placed_bytes = placed->program.memory_bytes;
  placed_.erase(placed);
}

}  // namespace tessera::core

// Memory that a run has for itself (`tessera run --memory-reserve`): whoever is not of that run shares what is left of the device, as
// under a limit. A reservation is made before the program starts, all or nothing, and ends with the process that asked for
// it and the clients of its group. What others have they say themselves.
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/printable.h"
#include "ipc/abi/placement.h"
#include "scheduler_daemon/core/memory.h"
#include "scheduler_daemon/core/park.h"

namespace tessera::core {
namespace {

namespace abi = ipc::abi;
constexpr size_t kMostReserved = 1024, kMostReservedOfAUser = 64;
constexpr size_t kMostNamed = 8;  // holders, in a refusal

uint64_t spare(uint64_t limit, uint64_t sum) {
  return limit > sum ? limit - sum : 0;
}
uint64_t for_programs(uint64_t device_bytes) {
  return device_bytes - device_bytes / kUncountedPart;
}

// A client's memory on a device. It may have more than it was granted if nothing limited it so far.
uint64_t memory_of(const Client& client, const Uuid& device) {
  uint64_t sum = 0;
  for_each_device(client, [&](const abi::MemoryDevice& row, const Uuid& d) {
    if (d == device) sum += std::max(client.memory_granted[client.number_of(row)], bytes_of(row.used_bytes));
  });
  return sum;
}

std::string gib(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", double(bytes) / double(1024 * base::kMiB));
  return text;
}

struct Holder {
  uint64_t bytes;
  std::string name;
};

std::string too_little(const abi::PlaceGpu& gpu, uint64_t taken, std::vector<Holder> holders) {
  std::string text = uuid_text(gpu.uuid) + " has " + gib(for_programs(gpu.memory_bytes)) + " for programs, " +
                     gib(taken) + " are taken";
  std::ranges::stable_sort(holders, std::greater(), &Holder::bytes);
  for (size_t i = 0; i < std::min(holders.size(), kMostNamed); ++i)
    text += (i == 0 ? ": " : ", ") + holders[i].name + " " + gib(holders[i].bytes);
  if (holders.size() > kMostNamed) text += " and " + std::to_string(holders.size() - kMostNamed) + " more";
  return text;
}

}  // namespace

bool Memory::Reserved::is_on(const Uuid& device) const {
  return std::ranges::find(devices, device) != devices.end();
}
bool Memory::Reserved::is_for(const Client& client) const {
  return client.memory_group != 0 && client.memory_group == group && client.identity.uid == owner.uid;
}

const Memory::Reserved* Memory::reservation_of(const Client& client, const Uuid& device) const {
  const auto found =
      std::ranges::find_if(reserved_, [&](const Reserved& r) { return r.is_for(client) && r.is_on(device); });
  return found == reserved_.end() ? nullptr : &*found;
}

uint64_t Memory::memory_of(const Reserved& reserved, const Uuid& device) const {
  uint64_t sum = 0;
  for (const auto& [connection, client] : common_.clients)
    if (reserved.is_for(*client)) sum += core::memory_of(*client, device);
  return sum;
}

uint64_t Memory::reserved_and_unused(const Uuid& device) const {
  uint64_t sum = 0;
  for (const Reserved& r : reserved_)
    if (r.is_on(device)) sum += spare(r.bytes, memory_of(r, device));
  return sum;
}

// Others' reservations are not there for this client. It shares the rest with all who reserved nothing.
void Memory::add_rest(const Client& client, const abi::MemoryDevice& row, std::vector<Bound>* bounds) const {
  if (reserved_.empty()) return;
  const Uuid device = std::to_array(row.uuid);
  const Reserved* own = reservation_of(client, device);
  uint64_t reserved = 0;
  Bound rest;
  for (const Reserved& r : reserved_) {
    if (&r == own || !r.is_on(device)) continue;
    reserved += r.bytes;
    rest.ungranted_bytes += spare(memory_of(r, device), r.bytes);
  }
  const uint64_t total = bytes_of(row.total_bytes);
  if (reserved == 0 || total == 0) return;
  rest.limit_bytes = std::max<uint64_t>(1, spare(for_programs(total), reserved));  // 0 would be none
  for (const auto& [connection, other] : common_.clients) {
    const Reserved* its = reservation_of(*other, device);
    if (its != nullptr && its != own) continue;
    for_each_device(*other, [&, &other = other](const abi::MemoryDevice& at, const Uuid& d) {
      if (d != device) return;
      const Row i = rest.sharers.emplace_back(other.get(), other->number_of(at)).second;
      if (other.get() != &client)
        rest.ungranted_bytes += spare(bytes_of(at.used_bytes), other->memory_granted[i]);
    });
  }
  bounds->push_back(std::move(rest));
}

std::optional<std::string> Memory::reserve(const ipc::PeerIdentity& asks, const ipc::Packet& packet) {
  const auto* question = ipc::packet_as<abi::ReserveQuery>(packet);
  if (question == nullptr || question->n_gpus == 0 || question->n_gpus > abi::kMostPlaceGpus ||
      question->memory_bytes == 0 || question->memory_group == 0 ||
      packet.bytes < sizeof *question + question->n_gpus * sizeof(abi::PlaceGpu))
    return std::nullopt;
  Reserved wanted{asks,
                  base::ScopedFd(int(syscall(SYS_pidfd_open, asks.pid, 0))),
                  question->memory_group,
                  std::min(question->memory_bytes, kMostBytes),
                  {}};
  if (!wanted.process.valid()) return "tesserad does not see the process that asks";
  const auto same = [&](const Reserved& r) { return r.owner.uid == asks.uid && r.group == wanted.group; };
  forget_reserved();
  std::erase_if(reserved_, same);
  const auto of_user =
      std::ranges::count_if(reserved_, [&](const Reserved& r) { return r.owner.uid == asks.uid; });
  if (reserved_.size() >= kMostReserved || size_t(of_user) >= kMostReservedOfAUser)
    return "there are too many reservations";
  for (uint32_t i = 0; i < question->n_gpus; ++i) {
    abi::PlaceGpu gpu;
    std::memcpy(&gpu, packet.data + sizeof *question + i * sizeof gpu, sizeof gpu);
    gpu.memory_bytes = std::min(gpu.memory_bytes, kMostBytes);
    if (gpu.memory_bytes == 0) return "how much memory " + uuid_text(gpu.uuid) + " has is unknown";
    Uuid& device = wanted.devices.emplace_back();
    std::memcpy(device.data(), gpu.uuid, sizeof gpu.uuid);
    std::vector<Holder> holders;
    for (const Reserved& r : reserved_)
      if (r.is_on(device))
        holders.push_back({std::max(r.bytes, memory_of(r, device)),
                           "the run of pid " + std::to_string(r.owner.pid) + ", reserved,"});
    for (const auto& [connection, client] : common_.clients)
      if (const uint64_t bytes = core::memory_of(*client, device);
          bytes != 0 && !wanted.is_for(*client) && reservation_of(*client, device) == nullptr)
        holders.push_back(
            {bytes, base::printable(client->name) + " (pid " + std::to_string(client->identity.pid) + ")"});
    uint64_t taken = 0;
    for (const Holder& holder : holders) taken += holder.bytes;
    if (taken + wanted.bytes > for_programs(gpu.memory_bytes))
      return too_little(gpu, taken, std::move(holders));
  }
  reserved_.push_back(std::move(wanted));
  tell_limits();
  return "";
}

void Memory::forget_reserved() {
  const size_t n = std::erase_if(reserved_, [&](const Reserved& r) {
    pollfd ended{r.process.get(), POLLIN, 0};
    return poll(&ended, 1, 0) > 0 &&
           std::ranges::none_of(common_.clients, [&](const auto& row) { return r.is_for(*row.second); });
  });
  if (n != 0) tell_limits();
}

}  // namespace tessera::core

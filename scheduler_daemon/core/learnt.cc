#include "scheduler_daemon/core/learnt.h"

#include <algorithm>
#include <cstring>

#include "base/kernel_key.h"
#include "base/printable.h"
#include "scheduler_daemon/learning/store.h"

namespace tessera::core {

namespace abi = ipc::abi;

std::string driver_name(uint32_t version) {
  return "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

bool on_profile_wanted(Common& common, Client& client, const ipc::Packet& packet) {
  const auto* wanted = ipc::packet_as<abi::ProfileWanted>(packet);
  if (wanted == nullptr || common.settings.learning == nullptr || !client.user_gpu.gpu.empty()) return false;
  client.user_gpu.uid = uint32_t(client.identity.uid);
  client.user_gpu.gpu.assign(wanted->gpu, ::strnlen(wanted->gpu, sizeof wanted->gpu));
  if (client.user_gpu.gpu.empty() || !base::is_printable(client.user_gpu.gpu)) return false;
  client.user_gpu.driver = driver_name(wanted->driver);
  abi::Learnt answer{};
  answer.header = ipc::make_header(abi::kLearnt, sizeof answer);
  auto table = common.settings.learning->table(client.user_gpu);
  const bool any = table.ok() && table->fd.valid();  // out of memory: the client starts cold
  answer.bytes = any ? table->bytes : 0;
  common.tell(client.connection, answer, any ? table->fd.get() : -1);
  return true;
}

bool on_kernel_seen(const Common& common, const Client& client, const ipc::Packet& packet) {
  constexpr uint64_t kMostThreads = 1024;
  const auto* seen = ipc::packet_as<abi::KernelSeen>(packet);
  if (seen == nullptr || common.settings.learning == nullptr || client.user_gpu.gpu.empty()) return false;
  if (seen->name_bytes == 0 || seen->name_bytes > abi::kMaxKernelNameBytes ||
      packet.bytes < sizeof *seen + seen->name_bytes)
    return false;
  learning::Seen what;
  what.key = seen->key;
  what.image_hash = seen->image_hash;
  what.blocks = seen->blocks;
  std::copy(std::begin(seen->block), std::end(seen->block), std::begin(what.block));
  what.shared_bytes = seen->shared_bytes;
  what.name.assign(reinterpret_cast<const char*>(packet.data) + sizeof *seen, seen->name_bytes);
  for (uint32_t n : what.block)
    if (n == 0 || n > kMostThreads) return false;
  const uint64_t threads = uint64_t(what.block[0]) * what.block[1] * what.block[2];
  const uint64_t kernel = base::kernel_hash(what.image_hash, what.name.data(), what.name.size());
  if (threads > kMostThreads || !base::is_printable(what.name) ||
      what.key !=
          base::launch_key(kernel, base::grid_bucket(what.blocks), uint32_t(threads), what.shared_bytes))
    return false;
  common.settings.learning->seen(client.user_gpu, what);
  return true;
}

void count_learning(const Settings& settings, stats::DaemonCounters& out) {
  if (settings.learning == nullptr) return;
  constexpr auto relaxed = std::memory_order_relaxed;  // statistics
  const learning::StoreCounters& c = settings.learning->counters();
  out.records_learnt = c.records.load(relaxed);
  out.records_ignored = c.ignored.load(relaxed);
  out.tables_given = c.tables_given.load(relaxed);
  out.profile_files = c.files.load(relaxed);
  out.profile_files_broken = c.broken_files.load(relaxed);
  out.profile_writes = c.writes.load(relaxed);
  out.profile_writes_failed = c.failed_writes.load(relaxed);
}

}  // namespace tessera::core

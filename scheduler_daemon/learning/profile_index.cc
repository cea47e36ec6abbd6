#include "scheduler_daemon/learning/profile_index.h"

#include <algorithm>
#include <unordered_map>

#include "scheduler_daemon/learning/records.h"

namespace tessera::learning {
namespace {

static_assert(uint32_t(profiles::Class::kLatency) == ipc::abi::kResourceLatency &&
              uint32_t(profiles::Class::kMemory) == ipc::abi::kResourceMemory &&
              uint32_t(profiles::Class::kCompute) == ipc::abi::kResourceCompute);

// A grid whose size is not known exactly: the middle of its bucket.
double blocks_of(const profiles::KernelKey& key, const profiles::KernelProfile& record) {
  if (record.n_blocks >= 1) return record.n_blocks;
  return key.grid_bucket == 0 ? 0 : 0.75 * double(uint64_t(1) << std::min(key.grid_bucket, 62u));
}

struct Best {
  Known what;
  size_t source = SIZE_MAX;
};

}  // namespace

ByGpu known_of(const profiles::Profile& profile) {
  ByGpu out;
  for (const auto& [key, record] : profile.kernels) {
    if (key.image_hash == 0 || key.gpu.empty()) continue;  // cannot be joined
    Known known;
    known.launch_key = profiles::launch_key(key);
    known.kernel_hash = profiles::kernel_hash(key);
    known.block_ps = block_ps(record.duration, blocks_of(key, record));
    known.total_ns = record.duration.total_ns;
    known.bound = record.bound;
    known.online = key.origin == profiles::Origin::kOnline;
    out[key.gpu].push_back(known);
  }
  return out;
}

std::vector<ipc::abi::LearntSlot> ProfileIndex::slots(const std::vector<Source>& sources, uint32_t uid,
                                                      const std::string& gpu, size_t most) {
  std::unordered_map<uint64_t, Best> launches, kernels;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].uid && *sources[i].uid != uid) continue;
    const auto found = sources[i].known->find(gpu);
    if (found == sources[i].known->end()) continue;
    for (const Known& k : found->second) {
      if (k.block_ps != 0) {
        Best& best = launches[k.launch_key];
        if (best.source == SIZE_MAX || (best.source == i && k.online && !best.what.online)) best = {k, i};
      }
      if (k.bound != profiles::Class::kUnknown) {
        Best& best = kernels[k.kernel_hash];
        if (best.source == SIZE_MAX || (best.source == i && k.total_ns > best.what.total_ns)) best = {k, i};
      }
    }
  }
  std::vector<std::pair<double, ipc::abi::LearntSlot>> all;
  for (const auto& [key, best] : launches)
    all.push_back({best.what.total_ns, {key, best.what.block_ps, 0, {}}});
  for (const auto& [key, best] : kernels)
    all.push_back({best.what.total_ns, {key, 0, uint32_t(best.what.bound), {}}});
  if (all.size() > most) {
    std::nth_element(all.begin(), all.begin() + ptrdiff_t(most), all.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    all.resize(most);
  }
  std::vector<ipc::abi::LearntSlot> out;
  for (const auto& [weight, slot] : all) out.push_back(slot);
  return out;
}

}  // namespace tessera::learning

#include "scheduler_daemon/learning/records.h"

#include <algorithm>
#include <bit>

#include "base/kernel_key.h"

namespace tessera::learning {
namespace {

constexpr double kTrueQuantile = 0.25;
constexpr uint64_t kMaxBlocks = uint64_t(1) << 53;

}  // namespace

uint64_t block_ps(const profiles::DurationHistogram& durations, double blocks) {
  if (durations.samples == 0 || !(blocks >= 1)) return 0;
  const double ps = double(durations.quantile_ns(kTrueQuantile)) * 1000 / blocks;
  return ps < 1 ? 1 : ps > 1e18 ? uint64_t(1e18) : uint64_t(ps);
}

void coarsen(profiles::DurationHistogram& h, size_t most) {
  for (uint32_t width = 2; h.buckets.size() > most && width <= profiles::kMaxDurationBucket; width *= 2) {
    std::map<uint32_t, uint64_t> joined;
    for (auto [bucket, n] : h.buckets) joined[bucket / width * width] += n;
    h.buckets = std::move(joined);
  }
}

bool Records::device_of(const UserGpu& from, uint32_t* device) {
  for (size_t i = 0; i < devices_.size(); ++i) {
    const UserGpu& d = devices_[i];
    if (d.uid == from.uid && d.gpu == from.gpu && d.driver == from.driver) {
      *device = uint32_t(i);
      return true;
    }
  }
  if (from.gpu.empty() || devices_.size() >= limits_.devices) return false;
  *device = uint32_t(devices_.size());
  devices_.push_back(from);
  return true;
}

Records::Entry& Records::entry_of(uint32_t device, uint64_t key) {
  if (entries_.size() >= limits_.keys && !entries_.contains({device, key})) forget_some();
  Entry& entry = entries_[{device, key}];
  entry.heard = ++clock_;
  return entry;
}

// An eighth at once, so that a flood of new keys costs little per key.
void Records::forget_some() {
  std::vector<uint64_t> heard;
  for (const auto& [id, entry] : entries_) heard.push_back(entry.heard);
  const auto last = heard.begin() + ptrdiff_t(heard.size() / 8);
  std::nth_element(heard.begin(), last, heard.end());
  const uint64_t oldest = *last;
  std::erase_if(entries_, [&](const auto& item) { return item.second.heard <= oldest; });
}

void Records::add(Entry& entry, uint64_t blocks, uint64_t duration_ns) {
  if (base::grid_bucket(blocks) != entry.key.grid_bucket) {  // a slice stands for its launch
    duration_ns = uint64_t(double(duration_ns) * double(entry.grid_blocks) / double(blocks));
    blocks = entry.grid_blocks;
  }
  entry.fresh.add(duration_ns);
  entry.fresh_blocks += double(blocks);
  if (entry.fresh.buckets.size() > limits_.buckets) coarsen(entry.fresh, limits_.buckets / 2);
  fresh_ = true;
}

bool Records::record(const UserGpu& from, const ipc::abi::Record& r) {
  uint32_t device;
  if (r.duration_ns == 0 || r.blocks == 0 || r.blocks > kMaxBlocks || r.key == 0 || !device_of(from, &device))
    return false;
  Entry& entry = entry_of(device, r.key);
  if (entry.named) {
    add(entry, r.blocks, r.duration_ns);
    return true;
  }
  if (entry.pending.size() >= limits_.pending) return false;
  entry.pending.push_back({r.blocks, r.duration_ns});
  return true;
}

void Records::seen(const UserGpu& from, const Seen& what) {
  uint32_t device;
  if (what.blocks == 0 || what.blocks > kMaxBlocks || !device_of(from, &device)) return;
  Entry& entry = entry_of(device, what.key);
  if (entry.named) return;
  entry.named = true;
  entry.grid_blocks = what.blocks;
  profiles::KernelKey& key = entry.key;
  key.image_hash = what.image_hash;
  key.kernel = what.name;
  std::copy(std::begin(what.block), std::end(what.block), key.block.begin());
  key.grid_bucket = base::grid_bucket(what.blocks);
  key.dynamic_shared_bytes = what.shared_bytes;
  key.gpu = from.gpu;
  key.driver = from.driver;
  key.origin = profiles::Origin::kOnline;
  for (const Pending& p : entry.pending) add(entry, p.blocks, p.duration_ns);
  entry.pending = {};
}

std::map<uint32_t, profiles::Profile> Records::take() {
  std::map<uint32_t, profiles::Profile> out;
  for (auto& [id, entry] : entries_) {
    if (entry.fresh.samples == 0) continue;
    const double blocks = entry.fresh_blocks / double(entry.fresh.samples);
    entry.block_ps = block_ps(entry.fresh, blocks);
    profiles::KernelProfile& record = out[devices_[id.device].uid].kernels[entry.key];
    record.work_samples = entry.fresh.samples;
    record.n_blocks = blocks;
    record.duration = std::move(entry.fresh);
    entry.fresh = {};
    entry.fresh_blocks = 0;
  }
  fresh_ = false;
  return out;
}

void Records::put_back(uint32_t uid, const profiles::Profile& profile) {
  for (const auto& [key, record] : profile.kernels) {
    uint32_t device;
    if (!device_of({uid, key.gpu, key.driver}, &device)) continue;
    Entry& entry = entry_of(device, profiles::launch_key(key));
    entry.named = true;
    entry.key = key;
    if (entry.grid_blocks == 0) entry.grid_blocks = uint64_t(std::max(1.0, record.n_blocks));
    entry.fresh.merge(record.duration);
    entry.fresh_blocks += record.n_blocks * double(record.duration.samples);
    if (entry.fresh.buckets.size() > limits_.buckets) coarsen(entry.fresh, limits_.buckets / 2);
    fresh_ = true;
  }
}

std::vector<ipc::abi::LearntSlot> Records::known(uint32_t uid, const std::string& gpu) const {
  std::vector<ipc::abi::LearntSlot> out;
  for (const auto& [id, entry] : entries_) {
    const UserGpu& device = devices_[id.device];
    if (device.uid != uid || device.gpu != gpu || !entry.named) continue;
    const uint64_t ps = entry.fresh.samples
                            ? block_ps(entry.fresh, entry.fresh_blocks / double(entry.fresh.samples))
                            : entry.block_ps;
    if (ps != 0) out.push_back({id.key, ps, 0, {}});
  }
  return out;
}

}  // namespace tessera::learning

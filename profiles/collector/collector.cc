#include "profiles/collector/collector.h"

#include <algorithm>
#include <cstdio>

namespace tessera::profiles {
namespace {

constexpr uint64_t kMostNs = 3'600'000'000'000;  // an hour: no launch or copy is longer

double occupancy(const GpuDescription& gpu, uint32_t threads, uint32_t registers, uint32_t shared) {
  if (gpu.sm.count == 0) return 0;
  return std::min(1.0, double(blocks_per_sm(gpu, threads, registers, shared)) * threads / gpu.sm.max_threads);
}

}  // namespace

const char* activity_name(ActivityKind kind) {
  switch (kind) {
    case ActivityKind::kKernel:
      return "kernel";
    case ActivityKind::kCopy:
      return "copy";
    case ActivityKind::kSet:
      return "set";
    case ActivityKind::kGraph:
      return "graph";
    case ActivityKind::kUnknown:
      return "unknown";
  }
  return "unknown";
}

void Collector::add(const Activity& a) {
  KindTotals& totals = totals_[size_t(a.kind)];
  ++totals.count;
  totals.bytes += a.bytes;
  if (a.kind == ActivityKind::kUnknown) return;
  if (a.end_ns <= a.start_ns || a.end_ns - a.start_ns > kMostNs) {
    ++untimed_;
    return;
  }
  totals.total_ns += double(a.end_ns - a.start_ns);
  if (a.kind != ActivityKind::kKernel) return;
  static const DeviceFacts kNobody;
  const auto found = devices_.find(a.device);
  const DeviceFacts& device = found == devices_.end() ? kNobody : found->second;
  const uint64_t n_blocks = a.n_blocks ? a.n_blocks : uint64_t(a.grid[0]) * a.grid[1] * a.grid[2];
  KernelKey key;
  key.image_hash = a.image_hash;
  key.kernel = a.name;
  std::copy(std::begin(a.block), std::end(a.block), key.block.begin());
  key.grid_bucket = grid_bucket(n_blocks);
  key.dynamic_shared_bytes = a.dynamic_shared_bytes;
  key.gpu = device.gpu;
  key.driver = device.driver;
  key.origin = device.origin;
  KernelProfile& record = profile_.kernels[key];
  record.duration.add(a.end_ns - a.start_ns);
  record.registers_per_thread = a.registers_per_thread;
  record.shared_bytes_per_block = a.static_shared_bytes + a.dynamic_shared_bytes;
  record.occupancy = occupancy(device.limits, a.block[0] * a.block[1] * a.block[2], a.registers_per_thread,
                               record.shared_bytes_per_block);
  if (a.counted) add_work(record, double(n_blocks), a.memory_bytes, a.warp_instructions, a.operations);
}

Profile Collector::with_totals() const {
  Profile out = profile_;
  std::string text = "{\"activity\": {";
  char field[160];
  for (size_t i = 0; i < totals_.size(); ++i) {
    snprintf(field, sizeof field, "\"%s\": {\"count\": %llu, \"bytes\": %llu, \"total_ns\": %.0f}, ",
             activity_name(ActivityKind(i)), (unsigned long long)totals_[i].count,
             (unsigned long long)totals_[i].bytes, totals_[i].total_ns);
    text += field;
  }
  snprintf(field, sizeof field, "\"dropped\": %llu, \"untimed\": %llu}}", (unsigned long long)dropped_,
           (unsigned long long)untimed_);
  out.unknown_fields = text + field;
  return out;
}

}  // namespace tessera::profiles

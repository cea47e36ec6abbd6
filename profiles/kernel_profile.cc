// Records in memory: keys, merging, classification. The JSON form is profile_json.cc.
#include "profiles/kernel_profile.h"

#include <algorithm>
#include <cstdio>

#include "base/kernel_key.h"

namespace tessera::profiles {

const char* origin_name(Origin origin) {
  switch (origin) {
    case Origin::kUnknown:
      return "unknown";
    case Origin::kOnline:
      return "online";
    case Origin::kCupti:
      return "cupti";
    case Origin::kSoftwareGpu:
      return "software_gpu";
  }
  return "unknown";
}

const char* cut_name(Cut cut) {
  switch (cut) {
    case Cut::kUnknown:
      return "unknown";
    case Cut::kYes:
      return "yes";
    case Cut::kNo:
      return "no";
  }
  return "unknown";
}

uint32_t grid_bucket(uint64_t n_blocks) {
  return base::grid_bucket(n_blocks);
}

uint64_t kernel_hash(const KernelKey& key) {
  return base::kernel_hash(key.image_hash, key.kernel.data(), key.kernel.size());
}

uint64_t launch_key(const KernelKey& key) {
  return base::launch_key(kernel_hash(key), key.grid_bucket, key.block[0] * key.block[1] * key.block[2],
                          key.dynamic_shared_bytes);
}

void merge(KernelProfile& into, const KernelProfile& from) {
  into.duration.merge(from.duration);
  if (from.registers_per_thread) into.registers_per_thread = from.registers_per_thread;
  if (from.shared_bytes_per_block) into.shared_bytes_per_block = from.shared_bytes_per_block;
  if (from.occupancy > 0) into.occupancy = from.occupancy;
  if (from.work_samples) {
    const double total = double(into.work_samples) + double(from.work_samples);
    const double old_share = double(into.work_samples) / total, new_share = double(from.work_samples) / total;
    const auto mean = [&](double& a, double b) { a = a * old_share + b * new_share; };
    mean(into.n_blocks, from.n_blocks);
    mean(into.memory_bytes, from.memory_bytes);
    mean(into.warp_instructions, from.warp_instructions);
    for (auto& [pipe, operations] : into.operations)
      if (!from.operations.count(pipe)) operations *= old_share;
    for (const auto& [pipe, operations] : from.operations) mean(into.operations[pipe], operations);
    into.work_samples = std::min(into.work_samples + from.work_samples, kMaxSamples);
  }
  if (from.slowdown_beside_memory > 0) into.slowdown_beside_memory = from.slowdown_beside_memory;
  if (from.slowdown_beside_compute > 0) into.slowdown_beside_compute = from.slowdown_beside_compute;
  if (from.bound != Class::kUnknown || into.bound == Class::kUnknown) {
    into.bound = from.bound;
    if (!from.bound_reason.empty()) into.bound_reason = from.bound_reason;
    if (from.bound != Class::kUnknown) {
      into.compute_utilisation = from.compute_utilisation;
      into.memory_utilisation = from.memory_utilisation;
    }
  }
  if (from.cut != Cut::kUnknown) {
    into.cut = from.cut;
    into.cut_reason = from.cut_reason;
  } else if (into.cut == Cut::kUnknown && into.cut_reason.empty()) {
    into.cut_reason = from.cut_reason;
  }
}

OperationShares::OperationShares(const Profile& profile) {
  for (const auto& [key, kernel] : profile.kernels) kernels_ns_ += kernel.duration.total_ns;
  for (const auto& [key, operation] : profile.operations) {
    at_least_ns_ += operation.at_least_ns;
    measured_ |= operation.gpu_ns > 0;
  }
}

double OperationShares::of(const OperationProfile& operation) const {
  const double part_ns = measured_ ? operation.gpu_ns : operation.at_least_ns;
  const double whole_ns = measured_ ? kernels_ns_ : at_least_ns_;
  return whole_ns > 0 ? part_ns / whole_ns : 0;
}

void add_work(KernelProfile& record, double n_blocks, double memory_bytes, double warp_instructions,
              const std::map<std::string, double>& operations) {
  KernelProfile one;
  one.work_samples = 1;
  one.n_blocks = n_blocks;
  one.memory_bytes = memory_bytes;
  one.warp_instructions = warp_instructions;
  one.operations = operations;
  merge(record, one);
}

void forget_work(KernelProfile& record) {
  record.work_samples = 0;
  record.n_blocks = record.memory_bytes = record.warp_instructions = 0;
  record.operations.clear();
  record.bound = Class::kUnknown;
  record.bound_reason.clear();
  record.compute_utilisation = record.memory_utilisation = 0;
}

void classify_all(Profile& profile, const GpuDescription& gpu) {
  for (auto& [key, record] : profile.kernels) {
    if (key.gpu != gpu.name || record.work_samples == 0) continue;
    // The median: a first launch, or one beside a neighbour, says little about the kernel.
    const RooflineInput in{double(record.duration.quantile_ns(0.5)),
                           std::min(record.duration.samples, record.work_samples), record.memory_bytes,
                           record.warp_instructions, record.operations};
    const Roofline r = classify(in, gpu, record.bound);
    record.bound = r.bound;
    record.bound_reason = r.reason;
    record.compute_utilisation = r.compute_utilisation;
    record.memory_utilisation = r.memory_utilisation;
  }
}

void classify_uncounted(Profile& profile) {
  for (auto& [key, record] : profile.kernels) {
    const double memory = record.slowdown_beside_memory, compute = record.slowdown_beside_compute;
    if (record.work_samples != 0 || memory == 0 || compute == 0) continue;
    record.bound = classify_by_sensitivity(memory, compute, record.bound);
    char reason[96];
    std::snprintf(reason, sizeof reason,
                  "takes %.2f times as long beside memory work, %.2f beside arithmetic", memory, compute);
    record.bound_reason = reason;
  }
}

void note_slowdowns(Profile& alone, const Profile& beside, Neighbour neighbour) {
  for (auto& [key, record] : alone.kernels) {
    const auto found = beside.kernels.find(key);
    if (found == beside.kernels.end() || record.duration.samples < kMinSamples ||
        found->second.duration.samples < kMinSamples)
      continue;
    const double before = double(record.duration.quantile_ns(0.5));
    const double after = double(found->second.duration.quantile_ns(0.5));
    if (before > 0)
      (neighbour == Neighbour::kMemory ? record.slowdown_beside_memory : record.slowdown_beside_compute) =
          after / before;
  }
}

}  // namespace tessera::profiles

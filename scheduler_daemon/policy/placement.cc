#include "scheduler_daemon/policy/placement.h"

#include <tuple>

namespace tessera::policy {
namespace {

uint64_t memory_taken(const GpuPrograms& gpu) {
  uint64_t sum = 0;
  for (const Program& p : gpu.programs) sum += p.memory_bytes;
  return sum;
}

}  // namespace

bool memory_suffices(const Program& newcomer, const GpuPrograms& gpu) {
  if (gpu.memory_bytes == 0) return true;
  const uint64_t taken = memory_taken(gpu);
  return taken <= gpu.memory_bytes && newcomer.memory_bytes <= gpu.memory_bytes - taken;
}

double placement_cost(const Program& newcomer, const GpuPrograms& gpu, const ContentionBetween& contention) {
  double cost = 0;
  for (const Program& other : gpu.programs) {
    const double slower = contention[size_t(newcomer.resource_class)][size_t(other.resource_class)];
    // Its own level and higher ones keep it waiting while they work; lower ones make way, and only disturb.
    const double waits = other.priority >= newcomer.priority ? 1 : 0;
    cost += other.load * (waits + slower);
  }
  return cost;
}

size_t place(const Program& newcomer, std::span<const GpuPrograms> gpus,
             const ContentionBetween& contention) {
  const auto rank = [&](const GpuPrograms& gpu) {
    return std::tuple(!memory_suffices(newcomer, gpu), placement_cost(newcomer, gpu, contention),
                      memory_taken(gpu));
  };
  size_t best = 0;
  auto least = rank(gpus[0]);
  for (size_t i = 1; i < gpus.size(); ++i)
    if (auto here = rank(gpus[i]); here < least) least = here, best = i;
  return best;
}

}  // namespace tessera::policy

#include "interpose/track/cluster.h"

namespace tessera::track {
namespace {

constexpr uint64_t kNoShape = 0, kShapeOfLaunch = ~uint64_t{0};  // the launch must say it
constexpr uint32_t kShapeBits = 16, kMostOfAxis = (1u << kShapeBits) - 1;

}  // namespace

bool pack_cluster(const int shape[3], bool must_be_set, uint64_t* packed) {
  *packed = must_be_set ? kShapeOfLaunch : kNoShape;
  if (shape[0] == 0 && shape[1] == 0 && shape[2] == 0) return true;
  *packed = 0;
  for (uint32_t axis = 0; axis < 3; axis++) {
    if (shape[axis] <= 0 || uint32_t(shape[axis]) > kMostOfAxis) return false;
    *packed |= uint64_t(shape[axis]) << (axis * kShapeBits);
  }
  return true;
}

bool cluster_of(const gate::LaunchCall& launch, const state::KernelRecord& kernel,
                admission::Cluster* cluster) {
  uint64_t asked = kNoShape;
  for (unsigned i = 0; launch.config && i < launch.config->numAttrs; i++) {
    const CUlaunchAttribute& attribute = launch.config->attrs[i];
    if (attribute.id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
    if (asked != kNoShape) return false;  // which one counts is documented nowhere
    const auto& shape = attribute.value.clusterDim;
    const int of_launch[3] = {int(shape.x), int(shape.y), int(shape.z)};
    if (!pack_cluster(of_launch, false, &asked) || asked == kNoShape) return false;
  }
  const uint64_t fixed =
      kernel.variant.cluster.load(std::memory_order_relaxed);  // one word: no half of a shape
  const bool has = fixed != kNoShape && fixed != kShapeOfLaunch;
  if (asked == kNoShape ? fixed == kShapeOfLaunch : has && asked != fixed) return false;
  const uint64_t packed = has ? fixed : asked;
  for (uint32_t axis = 0; packed != kNoShape && axis < 3; axis++) {
    cluster->shape[axis] = uint32_t(packed >> (axis * kShapeBits) & kMostOfAxis);
    if (launch.grid[axis] % cluster->shape[axis] != 0) return false;
  }
  return true;
}

}  // namespace tessera::track

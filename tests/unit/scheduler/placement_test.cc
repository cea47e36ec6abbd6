// The GPU for a program on a node with several.
#include "scheduler_daemon/policy/placement.h"

#include <gtest/gtest.h>

namespace tessera::policy {
namespace {

constexpr uint64_t kGib = 1 << 30;
constexpr Program kService{
    .priority = 7, .resource_class = ResourceClass::kCompute, .load = 0.5, .memory_bytes = 10 * kGib};
constexpr Program kTraining{.resource_class = ResourceClass::kCompute, .memory_bytes = 30 * kGib};
constexpr Program kStream{.resource_class = ResourceClass::kMemory, .memory_bytes = 30 * kGib};

ContentionBetween contention() {
  ContentionBetween c{};
  c[1] = {0, 0.75, 0.3, 0};
  c[2] = {0, 0.3, 1.1, 0};
  return c;
}

TEST(Placement, EmptyOnesFirstAndInOrder) {
  std::vector<GpuPrograms> gpus(3, {.memory_bytes = 80 * kGib});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(place(kService, gpus, contention()), i);
    gpus[i].programs.push_back(kService);
  }
  EXPECT_EQ(place(kService, gpus, contention()), 0u);
}

TEST(Placement, MemoryComesBeforeEverything) {
  const std::vector<GpuPrograms> gpus = {{80 * kGib, {kTraining, kTraining}},
                                         {80 * kGib, {kService, kService, kService}}};
  EXPECT_EQ(place(kTraining, gpus, contention()), 1u);  // 60 + 30 > 80
  const std::vector<GpuPrograms> full = {{8 * kGib, {kService}}, {8 * kGib, {}}};
  EXPECT_EQ(place(kTraining, full, contention()), 1u);  // fits nowhere: the least cost
  const std::vector<GpuPrograms> unknown = {{0, {kTraining}}, {0, {}}};
  EXPECT_EQ(place(kTraining, unknown, contention()), 1u);
}

TEST(Placement, ProtectedProgramsMindTheirOwnKindMost) {
  const std::vector<GpuPrograms> gpus = {{0, {kService, kService}}, {0, {kTraining}}};
  EXPECT_EQ(place(kService, gpus, contention()), 1u);  // the training makes way
  EXPECT_EQ(place(kTraining, gpus, contention()),
            0u);  // 2 x 0.5 x 1.75 = 1 x 1.75, and less memory is taken there
}

TEST(Placement, ClassesThatDisturbEachOtherAreKeptApart) {
  const std::vector<GpuPrograms> gpus = {{0, {kTraining}}, {0, {kStream}}};
  EXPECT_EQ(place(kService, gpus, contention()), 1u);
  EXPECT_EQ(place(kStream, gpus, contention()), 0u);
  EXPECT_DOUBLE_EQ(placement_cost(kService, gpus[0], contention()), 0.75);
  EXPECT_DOUBLE_EQ(placement_cost(kTraining, gpus[1], contention()), 1.3);
}

}  // namespace
}  // namespace tessera::policy

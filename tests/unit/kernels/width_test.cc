// Against the occupancy of known launches: the runtime's occupancy functions on hardware follow the same
// table.
#include "kernels/slice/width.h"

#include <gtest/gtest.h>

#include "kernels/ptx/parser.h"

namespace tessera::slice {
namespace {

TEST(Width, BlocksPerMultiprocessor) {
  const SmLimits a100 = sm_limits(80), h100 = sm_limits(90), t4 = sm_limits(75);
  EXPECT_EQ(blocks_per_sm(a100, {.threads = 256}), 8u);  // 64 warps
  EXPECT_EQ(blocks_per_sm(a100, {.threads = 32}), 32u);  // blocks
  EXPECT_EQ(blocks_per_sm(t4, {.threads = 32}), 16u);
  EXPECT_EQ(blocks_per_sm(a100, {.threads = 256, .registers = 64}), 4u);  // 65536 / (64 * 256)
  EXPECT_EQ(blocks_per_sm(a100, {.threads = 256, .registers = 65}), 3u);  // 65 * 32 -> 2304 per warp
  EXPECT_EQ(blocks_per_sm(a100, {.threads = 128, .shared_bytes = 48 * 1024}), 3u);  // 164 / 49
  EXPECT_EQ(blocks_per_sm(h100, {.threads = 128, .shared_bytes = 227 * 1024}), 1u);
  EXPECT_EQ(blocks_per_sm(h100, {.threads = 128, .shared_bytes = 228 * 1024}), 0u);  // cannot be launched
  EXPECT_EQ(blocks_per_sm(h100, {.threads = 1024, .registers = 255}), 0u);
}

TEST(Width, EveryStepIsTheLeastThatHasItsEffect) {
  for (unsigned sm : {75u, 80u, 86u, 89u, 90u, 120u})
    for (uint32_t threads : {32u, 128u, 256u, 1024u})
      for (uint64_t shared : {0u, 1000u, 20'000u, 60'000u}) {
        const SmLimits limits = sm_limits(sm);
        const BlockNeeds needs{threads, 32, shared};
        const auto steps = width_steps(limits, needs);
        if (blocks_per_sm(limits, needs) == 0) {
          EXPECT_TRUE(steps.empty());
          continue;
        }
        ASSERT_FALSE(steps.empty());
        EXPECT_EQ(steps[0].added_shared_bytes, 0u);
        for (size_t i = 1; i < steps.size(); ++i) {
          EXPECT_LT(steps[i].blocks, steps[i - 1].blocks);
          BlockNeeds more = needs;
          more.shared_bytes += steps[i].added_shared_bytes;
          EXPECT_EQ(blocks_per_sm(limits, more), steps[i].blocks) << sm << " " << threads << " " << shared;
          more.shared_bytes -= 1;
          EXPECT_GT(blocks_per_sm(limits, more), steps[i].blocks) << sm << " " << threads << " " << shared;
        }
        EXPECT_EQ(steps.back().blocks, 1u) << sm << " " << threads << " " << shared;
      }
}

std::string obstacle(const std::string& body) {
  auto module = ptx::parse(
      ".version 8.1\n.target sm_80\n.address_size 64\n.extern .func elsewhere();\n"
      ".func asks(.param .b32 out) { .reg .b32 %r<2>; mov.u32 %r1, %dynamic_smem_size; ret; }\n"
      ".visible .entry k() {\n .reg .b32 %r<4>; .reg .b64 %rd<2>;\n" +
      body + "\n ret;\n}\n");
  EXPECT_TRUE(module.ok()) << body;
  return module.ok() ? width_obstacle(*module, "k") : "unparsed";
}

TEST(Width, KernelsThatCanSeeTheSizeAreLeftAlone) {
  EXPECT_EQ(obstacle("mov.u32 %r1, %tid.x;"), "");
  EXPECT_NE(obstacle("mov.u32 %r1, %dynamic_smem_size;"), "");
  EXPECT_NE(obstacle("mov.u32 %r1, %total_smem_size;"), "");
  EXPECT_NE(obstacle("{ .param .b32 o; call asks, (o); }"), "");
  EXPECT_NE(obstacle("call elsewhere;"), "");
}

}  // namespace
}  // namespace tessera::slice

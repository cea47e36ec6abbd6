// `tessera demo --workload jax`, where `scripts/frameworks.sh jax` was run: minutes, so it is not among the tests of every
// change.
#include <gtest/gtest.h>

#include "cli/demo/workload.h"
#include "tests/integration/sharing/run_demo.h"

namespace tessera {
namespace {

TEST(JaxDemo, ComputesTheSameInEveryRegime) {
  if (const auto found = cli::find_workload("jax", cli::Layout{.softgpu = TESSERA_PREFIX "/lib/softgpu",
                                                               .share = TESSERA_PREFIX "/share/tessera"});
      !found.ok())
    GTEST_SKIP() << found.error().text;
  const Ended ended = run_demo({"--workload", "jax", "--seconds", "2"}, {});
  // 3: measured, but on a machine too busy for its figures.
  ASSERT_TRUE(ended.status == 0 || ended.status == 3) << ended.said;
  ASSERT_TRUE(ended.result.is_object());
  EXPECT_EQ(ended.result.value("workload", ""), "jax");
  for (const auto& [name, regime] : ended.result["regimes"].items()) {
    EXPECT_TRUE(regime.value("checksums_equal", false)) << name;
    EXPECT_GT(regime.value("trainer_share", 0.0), 0) << name;
    if (regime.contains("preemptions")) {
      EXPECT_GT(regime["preemptions"].get<int>(), 0) << name;
    }
  }
  EXPECT_EQ(ended.result["regimes"].size(), 5u);
}

}  // namespace
}  // namespace tessera

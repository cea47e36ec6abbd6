// Which launches keep to some SMs.
#include "admission/confine.h"

#include <gtest/gtest.h>

namespace tessera::admission {
namespace {

TEST(Confine, LongLaunchesOfMoreThanAWaveKeepToTheLimit) {
  const LeaseView lease{.grant = Grant::kGranted, .slice_ns = 200'000, .sm_limit = 92};
  const WholeLaunch wide_and_long{.blocks = 1000, .wave_blocks = 864, .expected_ns = 3'000'000};
  EXPECT_EQ(confined_to_sms(wide_and_long, lease), 92u);
  const auto but = [&](auto change) {
    WholeLaunch launch = wide_and_long;
    LeaseView other = lease;
    change(launch, other);
    return confined_to_sms(launch, other);
  };
  EXPECT_EQ(but([](auto&, auto& l) { l.sm_limit = 0; }), 0u);
  EXPECT_EQ(but([](auto&, auto& l) { l.grant = Grant::kFree; }), 0u);
  EXPECT_EQ(but([](auto&, auto& l) { l.passthrough = true; }), 0u);
  EXPECT_EQ(but([](auto& w, auto&) { w.expected_ns = 200'000; }), 0u);  // over before it disturbs
  EXPECT_EQ(but([](auto& w, auto&) { w.expected_ns = 0; }), 0u);
  EXPECT_EQ(but([](auto& w, auto&) { w.blocks = 864; }), 0u);  // its blocks may wait for each other
  EXPECT_EQ(but([](auto& w, auto&) { w.wave_blocks = 0; }), 0u);
}

}  // namespace
}  // namespace tessera::admission

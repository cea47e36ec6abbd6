// Launches that keep to some SMs.
#include "admission/confine.h"

#include <gtest/gtest.h>

#include "ipc/channel/lease.h"

namespace tessera::admission {
namespace {

TEST(Confine, LongLaunchesOfMoreThanAWaveKeepToTheLimit) {
  const LeaseView lease{
      .grant = Grant::kGranted, .window_ns = 100'000, .long_block_ns = 200'000, .reserved_sms = 16};
  const WholeLaunch wide_and_long{
      .blocks = 1000, .wave_blocks = 864, .expected_ns = 3'000'000, .sm_count = 108};
  EXPECT_EQ(confined_to_sms(wide_and_long, lease), 92u);
  const auto but = [&](auto change) {
    WholeLaunch launch = wide_and_long;
    LeaseView other = lease;
    change(launch, other);
    return confined_to_sms(launch, other);
  };
  EXPECT_EQ(but([](auto&, auto& l) { l.reserved_sms = 0; }), 0u);
  EXPECT_EQ(but([](auto&, auto& l) { l.reserved_sms = 108; }), 0u);
  EXPECT_EQ(but([](auto&, auto& l) { l.grant = Grant::kFree; }), 0u);
  EXPECT_EQ(but([](auto&, auto& l) { l.passthrough = true; }), 0u);
  EXPECT_EQ(but([](auto& w, auto&) { w.expected_ns = 200'000; }), 0u);  // found to be harmless
  EXPECT_EQ(but([](auto&, auto& l) { l.window_ns = 3'000'000; }),
            0u);  // may be in flight when a burst begins
  EXPECT_EQ(but([](auto& w, auto&) { w.expected_ns = 0; }), 0u);
  EXPECT_EQ(but([](auto& w, auto&) { w.blocks = 864; }), 0u);  // its blocks may wait for each other
  EXPECT_EQ(but([](auto& w, auto&) { w.wave_blocks = 0; }), 0u);
}

TEST(Confine, SlicesOfLongBlocksKeepToTheLimitHoweverNarrow) {
  LeaseView lease{
      .grant = Grant::kGranted, .slice_ns = 200'000, .long_block_ns = 1'000'000, .reserved_sms = 16};
  EXPECT_EQ(confined_to_sms(1'000'001, 108, lease), 92u);
  EXPECT_EQ(confined_to_sms(1'000'000, 108, lease), 0u);
  EXPECT_EQ(confined_to_sms(1'000'001, 16, lease), 0u);  // nothing would be left
  EXPECT_EQ(confined_to_sms(0, 108, lease), 0u);         // not known
  lease.reserved_sms = 0;
  EXPECT_EQ(confined_to_sms(1'000'001, 108, lease), 0u);
  lease.reserved_sms = 16;
  lease.passthrough = true;
  EXPECT_EQ(confined_to_sms(1'000'001, 108, lease), 0u);
}

TEST(Confine, ApartAllButTheShortestKeepToTheLimit) {
  const LeaseView lease{.grant = Grant::kGranted,
                        .window_ns = 1'000'000,
                        .slice_ns = 500'000,
                        .reserved_sms = 88,
                        .confine_all = true};
  const auto sms = [&](uint64_t blocks, uint64_t expected_ns) {
    return confined_to_sms(
        {.blocks = blocks, .wave_blocks = 864, .expected_ns = expected_ns, .sm_count = 108}, lease);
  };
  EXPECT_EQ(sms(128, 150'000), 20u);
  EXPECT_EQ(sms(160, 150'000), 20u);          // just resident on 20 SMs
  EXPECT_EQ(sms(161, 150'000), 0u);           // it may need more at once
  EXPECT_EQ(sms(128, kLeastConfinedNs), 0u);  // not worth two events
  EXPECT_EQ(sms(1000, 150'000), 20u);
  EXPECT_EQ(sms(1000, 300'000), 0u);     // 4.4 times as long would hold up what follows the burst
  EXPECT_EQ(sms(1000, 1'000'001), 20u);  // longer than the window: a burst could not wait for it
  EXPECT_EQ(confined_to_sms(1'000, 108, lease), 20u);  // slices, however short their blocks are
}

TEST(Confine, ALeaseLineCarriesReservedSmsInStepsOfEight) {
  abi::LeaseLine line{};
  uint32_t word = 0;
  ipc::lease_publish(line, word, {.packed = true, .tell_busy = true, .burst_classes = 2, .reserved_sms = 24});
  const LeaseView lease = decode(line);
  EXPECT_EQ(lease.reserved_sms, 24u);
  EXPECT_EQ(lease.burst_classes, 0u) << "only with confine_all";
  EXPECT_TRUE(lease.tell_busy);
  EXPECT_FALSE(lease.defers);
  ipc::lease_publish(line, word, {.defers = true, .reserved_sms = 248, .long_block_us = 0xffff});
  EXPECT_EQ(decode(line).reserved_sms, 248u);
  EXPECT_EQ(decode(line).long_block_ns, 65'535'000u);
  EXPECT_FALSE(decode(line).packed);
  EXPECT_FALSE(decode(line).confine_all);
  ipc::lease_publish(line, word, {.confine_all = true, .burst_classes = 4, .reserved_sms = 88});
  EXPECT_TRUE(decode(line).confine_all);
  EXPECT_FALSE(decode(line).packed);
  EXPECT_EQ(decode(line).burst_classes, 4u);
}

}  // namespace
}  // namespace tessera::admission

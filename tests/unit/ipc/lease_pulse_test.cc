#include <gtest/gtest.h>

#include "ipc/channel/lease.h"
#include "ipc/channel/pulse.h"

namespace tessera::ipc {
namespace {

constexpr uint64_t kSecond_ns = 1'000'000'000;

TEST(Lease, PublishedTermsAreReadBackAndEachPublicationIsANewWord) {
  abi::LeaseLine line{};
  uint32_t word = 0;
  LeaseTerms terms{.state = abi::kLeaseGranted,
                   .packed = true,
                   .tell_busy = true,
                   .defers = true,
                   .packed_classes = 4,
                   .expires_ns = 50,
                   .window_ns = 1,
                   .slice_ns = 2,
                   .width_blocks = 3,
                   .marker_spacing_ns = 4,
                   .max_hold_ms = 5,
                   .priority = 6,
                   .watch_spin_us = 7,
                   .passthrough = 1,
                   .long_width_percent = 50,
                   .long_block_us = 1234,
                   .slo_us = 9};
  lease_publish(line, word, terms);
  LeaseSnapshot s = lease_snapshot(line);
  EXPECT_EQ(s.terms, terms);
  EXPECT_EQ(s.word, word);
  uint32_t before = word;
  lease_publish(line, word, terms);
  EXPECT_NE(lease_snapshot(line).word, before);
  EXPECT_EQ(lease_snapshot(line).terms.state, uint32_t(abi::kLeaseGranted));
  terms.long_block_us = 1'000'000;  // more than its place holds: as long as can be
  lease_publish(line, word, terms);
  EXPECT_EQ(lease_snapshot(line).terms.long_block_us, abi::kMaxLongBlockUs);
  EXPECT_TRUE(lease_snapshot(line).terms.packed);
}

TEST(Lease, AGrantIsAHoldAfterItsEndAndARenewalMovesTheEnd) {
  abi::LeaseLine line{};
  uint32_t word = 0;
  lease_publish(line, word, {.state = abi::kLeaseGranted, .expires_ns = 100});
  EXPECT_EQ(lease_state(line, word, 99), uint32_t(abi::kLeaseGranted));
  EXPECT_EQ(lease_state(line, word, 100), uint32_t(abi::kLeaseHold));
  uint32_t before = line.word;
  lease_renew(line, 200);
  EXPECT_EQ(lease_state(line, word, 199), uint32_t(abi::kLeaseGranted));
  EXPECT_EQ(line.word, before);  // nobody is woken by a renewal
  lease_publish(line, word, {.state = abi::kLeaseFree});
  EXPECT_EQ(lease_state(line, word, UINT64_MAX), uint32_t(abi::kLeaseFree));
}

TEST(Lease, AllZeroIsAHoldAndTheUnusedStateToo) {
  abi::LeaseLine line{};
  EXPECT_EQ(lease_state(line, line.word, 0), uint32_t(abi::kLeaseHold));
  EXPECT_EQ(lease_state(line, 3, 0), uint32_t(abi::kLeaseHold));
}

TEST(Pulse, BusyUntilIdleAndTheCompareExchangeFailsAfterAnotherLaunch) {
  abi::PulsePage page{};
  EXPECT_FALSE(pulse_is_busy(page, 0));
  pulse_set_busy(page, 1, 2, 7, 1000);
  EXPECT_TRUE(pulse_is_busy(page, 2000));
  EXPECT_EQ(page.burst, 7u);
  pulse_set_busy(page, 2, 2, 8, 1500);          // a new generation
  EXPECT_FALSE(pulse_try_idle(page, 1, 1600));  // what the helper saw is over
  EXPECT_TRUE(pulse_is_busy(page, 1700));
  EXPECT_TRUE(pulse_try_idle(page, 2, 1800));
  EXPECT_FALSE(pulse_is_busy(page, 1900));
  EXPECT_EQ(page.idle_since_ns, 1800u);
  EXPECT_FALSE(pulse_try_idle(page, 0, 2000));  // idle already
}

TEST(Pulse, StaleWithoutABeatForASecondAndFreshByTheStartOfABurst) {
  abi::PulsePage page{};
  uint64_t t = 100 * kSecond_ns;
  pulse_set_busy(page, 1, 0, 1, t);  // never beaten: a long idle time before must not make it stale
  EXPECT_TRUE(pulse_is_busy(page, t + kSecond_ns));
  EXPECT_FALSE(pulse_is_busy(page, t + kSecond_ns + 1));
  pulse_beat(page, t + kSecond_ns);
  EXPECT_TRUE(pulse_is_busy(page, t + 2 * kSecond_ns));
}

TEST(Pulse, APageThatClaimsTheFutureIsStale) {
  abi::PulsePage page{};
  pulse_set_busy(page, 1, 0, 1, UINT64_MAX);
  EXPECT_FALSE(pulse_is_busy(page, kSecond_ns));
  pulse_set_busy(page, 1, 0, 1, 2 * kSecond_ns);  // clocks read at different moments differ a little
  EXPECT_TRUE(pulse_is_busy(page, 2 * kSecond_ns - 1000));
}

}  // namespace
}  // namespace tessera::ipc

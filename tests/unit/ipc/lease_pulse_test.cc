#include <gtest/gtest.h>

#include "admission/lease.h"
#include "ipc/channel/lease.h"
#include "ipc/channel/pulse.h"

namespace tessera::ipc {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

TEST(Lease, PublishedTermsAreReadBackAndEachPublicationIsANewWord) {
  abi::LeaseLine line{};
  uint32_t word = 0;
  LeaseTerms terms{.state = abi::kLeaseGranted,
                   .packed = true,
                   .confine_all = true,
                   .tell_busy = true,
                   .defers = true,
                   .burst_classes = 5,
                   .reserved_sms = 264,
                   .expires_ns = 50,
                   .window_ns = 1,
                   .slice_ns = 2,
                   .marker_spacing_ns = 4,
                   .max_hold_ms = 5,
                   .priority = 6,
                   .watch_spin_us = 7,
                   .passthrough = true,
                   .long_width_percent = 50,
                   .long_block_us = 1234,
                   .quantum_us = 20,
                   .keeps_closed = true,
                   .slo_us = 9,
                   .ends_by_us = 10};
  lease_publish(line, word, terms);
  const abi::LeaseLine copy = lease_copy(line);
  const admission::LeaseView view = admission::decode(copy);
  EXPECT_EQ(view.word, word);
  EXPECT_EQ(view.grant, admission::Grant::kGranted);
  EXPECT_TRUE(view.packed && view.tell_busy && view.defers && view.passthrough && view.keeps_closed &&
              view.confine_all);
  EXPECT_EQ(view.burst_classes, 5u);
  EXPECT_EQ(view.reserved_sms, 264u);
  EXPECT_EQ(view.quantum_ns, 20'000u);
  EXPECT_EQ(view.expires_ns, 50u);
  EXPECT_EQ(view.window_ns, 1u);
  EXPECT_EQ(view.slice_ns, 2u);
  EXPECT_EQ(view.marker_spacing_ns, 4u);
  EXPECT_EQ(view.max_hold_ns, 5'000'000u);
  EXPECT_EQ(view.priority, 6u);
  EXPECT_EQ(view.watch_spin_ns, 7'000u);
  EXPECT_EQ(view.long_width_percent, 50u);
  EXPECT_EQ(view.long_block_ns, 1'234'000u);
  EXPECT_EQ(view.slo_ns, 9'000u);
  EXPECT_EQ(view.ends_by_us, 10u);
  const uint32_t before = word;
  lease_publish(line, word, terms);
  EXPECT_NE(lease_copy(line).word, before);
  terms.long_block_us = 1'000'000;  // more than its place holds: as long as can be
  lease_publish(line, word, terms);
  EXPECT_EQ(admission::decode(lease_copy(line)).long_block_ns, uint64_t(UINT16_MAX) * 1'000);
  EXPECT_TRUE(admission::decode(lease_copy(line)).packed);
}

admission::Grant grant_at(const abi::LeaseLine& line, uint64_t now_ns) {
  return admission::grant_at(admission::decode(lease_copy(line)), now_ns);
}

TEST(Lease, AGrantIsAHoldAfterItsEndAndARenewalMovesTheEnd) {
  abi::LeaseLine line{};
  uint32_t word = 0;
  lease_publish(line, word, {.state = abi::kLeaseGranted, .expires_ns = 100});
  EXPECT_EQ(grant_at(line, 99), admission::Grant::kGranted);
  EXPECT_EQ(grant_at(line, 100), admission::Grant::kHold);
  uint32_t before = line.word;
  lease_renew(line, 200);
  EXPECT_EQ(grant_at(line, 199), admission::Grant::kGranted);
  EXPECT_EQ(line.word, before);  // nobody is woken by a renewal
  lease_publish(line, word, {.state = abi::kLeaseFree});
  EXPECT_EQ(grant_at(line, UINT64_MAX), admission::Grant::kFree);
}

TEST(Lease, AllZeroIsAHoldAndTheUnusedStateToo) {
  abi::LeaseLine line{};
  EXPECT_EQ(grant_at(line, 0), admission::Grant::kHold);
  line.word = 3;
  EXPECT_EQ(grant_at(line, 0), admission::Grant::kHold);
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
  uint64_t t = 100 * kSecondNs;
  pulse_set_busy(page, 1, 0, 1, t);  // never beaten: a long idle time before must not make it stale
  EXPECT_TRUE(pulse_is_busy(page, t + kSecondNs));
  EXPECT_FALSE(pulse_is_busy(page, t + kSecondNs + 1));
  pulse_beat(page, t + kSecondNs);
  EXPECT_TRUE(pulse_is_busy(page, t + 2 * kSecondNs));
}

TEST(Pulse, APageThatClaimsTheFutureIsStale) {
  abi::PulsePage page{};
  pulse_set_busy(page, 1, 0, 1, UINT64_MAX);
  EXPECT_FALSE(pulse_is_busy(page, kSecondNs));
  pulse_set_busy(page, 1, 0, 1, 2 * kSecondNs);  // clocks read at different moments differ a little
  EXPECT_TRUE(pulse_is_busy(page, 2 * kSecondNs - 1000));
}

}  // namespace
}  // namespace tessera::ipc

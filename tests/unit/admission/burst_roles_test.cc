// Prefills and steps of a decoder, told apart by what was launched. Time is the test's.
#include "admission/burst_roles.h"

#include <gtest/gtest.h>

#include <vector>

namespace tessera::admission {
namespace {

constexpr uint64_t kUs = 1'000;

struct Roles : ::testing::Test {
  // A burst begins `gap_us` after the end of the one before. Returns its role.
  BurstRole burst(uint64_t signature, uint64_t length_us, uint64_t gap_us = 10) {
    now_ns += gap_us * kUs;
    const BurstRoles::Burst b{signature, now_ns, now_ns += length_us * kUs};
    const BurstRole role =
        roles.add(b, [&](const BurstRoles::Burst& p) { prefills_us.push_back(p.length_ns() / kUs); });
    steps += role == BurstRole::kStep;
    return role;
  }
  // Prompts of every length launch something else; steps are alike.
  void request(uint64_t prompt, int n_steps) {
    burst(1000 + prompt, 5000 + prompt, 100'000);
    for (int i = 0; i < n_steps; i++) burst(7, 2000);
  }
  void clear() { prefills_us.clear(), steps = 0; }

  BurstRoles roles;
  uint64_t now_ns = 1'000'000'000;
  std::vector<uint64_t> prefills_us;
  int steps = 0;
};

TEST_F(Roles, TwoRequestsTeachThem) {
  request(1, 9);
  EXPECT_EQ(steps, 0);
  for (uint64_t i = 2; i < 100; i++) request(i, 9);
  EXPECT_EQ(prefills_us.size(), 98u);  // all but the first
  EXPECT_EQ(prefills_us.back(), 5099u);
  EXPECT_EQ(steps, 98 * 9);
}

TEST_F(Roles, APromptThatCameBeforeIsKnownAtOnce) {
  for (int i = 0; i < 3; i++) request(1, 9);
  EXPECT_EQ(burst(1001, 5001, 100'000), BurstRole::kPrefill);
  EXPECT_EQ(burst(1002, 5001, 100'000), BurstRole::kNone);
}

TEST_F(Roles, LongTextsAndManyOfThemAreNotForgotten) {
  for (uint64_t i = 0; i < 50; i++) request(i % 3, 3000);
  clear();
  request(77, 3000);
  EXPECT_EQ(prefills_us.size(), 1u);
  EXPECT_EQ(steps, 3000);
}

// Continuous batching: requests join while others are decoded, and the graph of a step is that of its batch.
TEST_F(Roles, PrefillsAmongStepsAndStepsOfSeveralBatches) {
  for (uint64_t i = 0; i < 40; i++) {
    burst(1000 + i, 9000);
    for (int s = 0; s < 6; s++) burst(7, 2000);
    burst(2000 + i, 9500);
    for (int s = 0; s < 6; s++) burst(8, 2500);
    for (int s = 0; s < 6; s++) burst(7, 2000);  // one has ended: a longer step is no prefill
    if (i == 19) clear();
  }
  EXPECT_EQ(prefills_us.size(), 40u);
  EXPECT_EQ(steps, 20 * 18);
}

TEST_F(Roles, PrefillsInARowAreSeveral) {
  for (uint64_t i = 0; i < 10; i++) {
    if (i == 5) clear();
    request(i, 9);
    burst(1000 + i, 9000);
    burst(3000 + i, 8000);
    for (int s = 0; s < 9; s++) burst(7, 2000);
  }
  EXPECT_EQ(prefills_us.size(),
            5u * 3);  // what waited for nothing after the first one of five is no request's
}

// Sampling and a check for the end of the text, each waited for.
TEST_F(Roles, ShortBurstsBehindEachDoNotMatter) {
  const auto item = [&](uint64_t signature, uint64_t length_us, uint64_t gap_us) {
    const BurstRole role = burst(signature, length_us, gap_us);
    burst(50, 40, 30);
    burst(51, 25, 30);
    return role;
  };
  for (uint64_t i = 0; i < 20; i++) {
    if (i == 10) clear();
    item(1000 + i, 9000, 100'000);
    for (int s = 0; s < 9; s++) item(7, 2000, 200);
  }
  EXPECT_EQ(prefills_us.size(), 10u);
  EXPECT_EQ(steps, 10 * 9);
}

TEST_F(Roles, OtherServicesHaveNone) {
  for (int i = 0; i < 500; i++) burst(1, 3000);                        // always at work, all alike
  for (int i = 0; i < 500; i++) burst(1 + i % 2, 3000);                // two stages
  for (int i = 0; i < 500; i++) burst(4 + i % 3, 1000 * (1 + i % 3));  // three of them
  for (int i = 0; i < 900; i++)  // a heavy model among light requests, which come one by one
    burst(i % 9 == 0 ? 10 : 11, i % 9 == 0 ? 9000 : 1000, 20'000);
  for (int i = 0; i < 900; i++)  // full batches, and smaller ones among them
    burst(i % 9 == 0 ? 20 : 21, i % 9 == 0 ? 2000 : 5000);
  EXPECT_TRUE(prefills_us.empty());
  EXPECT_EQ(steps, 0);
}

TEST_F(Roles, AWarmUpIsNoPrefill) {
  for (uint64_t i = 0; i < 5; i++) burst(100 + i, 50'000 - i * 1000);
  for (int i = 0; i < 1000; i++) burst(1, 3000);
  EXPECT_EQ(steps, 0);
}

// Hundreds of prompts have a row each; the steps keep theirs.
TEST_F(Roles, ManySignaturesDoNotPushTheStepsOut) {
  for (uint64_t i = 0; i < 1000; i++) request(i, 9);
  EXPECT_EQ(prefills_us.size(), 999u);
}

}  // namespace
}  // namespace tessera::admission

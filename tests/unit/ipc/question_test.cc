// When does a client take a daemon for gone that says nothing?
#include "ipc/channel/question.h"

#include <gtest/gtest.h>

namespace tessera::ipc {
namespace {

using State = Questions::State;
constexpr uint64_t kMs = 1'000'000;

struct QuestionTest : ::testing::Test {
  // Looks every 50 ms for that time; the first answer that is not kNothing.
  State look_for(bool needed, uint64_t ms) {
    for (const uint64_t end_ns = now_ns + ms * kMs; now_ns < end_ns; now_ns += 50 * kMs)
      if (const State s = questions.check(needed, now_ns); s != State::kNothing) return s;
    return State::kNothing;
  }
  void answer() { line.answered = signals.question; }

  abi::SignalLine signals{};
  abi::AnswerLine line{};
  uint64_t now_ns = 7'000'000 * kMs;
  Questions questions{&signals, &line, 1000 * kMs};
};

TEST_F(QuestionTest, SilenceOfADaemonThatNobodyNeedsMeansNothing) {
  EXPECT_EQ(look_for(false, 100'000), State::kNothing);
  EXPECT_EQ(signals.question, 0u);
}

TEST_F(QuestionTest, AnsweredQuestionsAreFollowedByFewOthers) {
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(look_for(true, 300), State::kAsked) << i;
    answer();
  }
  EXPECT_GE(now_ns, 7'000'000 * kMs + 99 * 200 * kMs);
}

TEST_F(QuestionTest, AnOpenQuestionIsOverdueAlsoWhenNobodyWaitsAnyMore) {
  ASSERT_EQ(look_for(true, 50), State::kAsked);
  EXPECT_EQ(look_for(false, 900), State::kNothing);
  EXPECT_EQ(look_for(false, 200), State::kOverdue);
}

TEST_F(QuestionTest, ALateAnswerIsStillOne) {
  ASSERT_EQ(look_for(true, 50), State::kAsked);
  EXPECT_EQ(look_for(true, 900), State::kNothing);
  answer();
  EXPECT_EQ(look_for(false, 100'000), State::kNothing);
}

TEST_F(QuestionTest, WhoWasStoppedItselfBlamesNobody) {
  ASSERT_EQ(look_for(true, 50), State::kAsked);
  now_ns += 3'600'000 * kMs;
  EXPECT_EQ(look_for(true, 800), State::kNothing);
}

}  // namespace
}  // namespace tessera::ipc

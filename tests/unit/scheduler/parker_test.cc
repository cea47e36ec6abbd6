// Tests of calls that the parker process makes for clients: what the core takes from their shared memory (core/parker.cc), and what
// becomes of a process that ends (parker/parker.cc). The processes are shells.
#include <poll.h>

#include "scheduler_daemon/parker/parker.h"
#include "tests/unit/scheduler/core_fixture.h"

namespace tessera::core {
namespace {

class ParkCalls : public CoreTest {
 protected:
  static abi::ParkLines& park(const Peer& p) { return p.region.as<abi::Region>()->park; }
  void call(const Peer& p, uint32_t step, uint32_t within_ms = 0) {
    park(p).call.step = step;
    park(p).call.within_ms = within_ms;
    ++park(p).call.number;
    notify(p);
  }
  std::vector<parker::Request>& asked() { return peers_.parker_requests; }
};

TEST_F(ParkCalls, AreMadeOnTheClientsOwnProcessOneAtATime) {
  host();
  const Peer p = attach(77, 0, 1);
  call(p, abi::kStepLock, 5000);
  ASSERT_EQ(asked().size(), 1u);
  EXPECT_EQ(asked()[0].pid, 77);
  EXPECT_EQ(asked()[0].step, abi::kStepLock);
  EXPECT_EQ(asked()[0].within_ms, 5000u);
  call(p, abi::kStepSave);
  EXPECT_EQ(asked().size(), 1u);
  core_->parker_answered({asked()[0].number, 600, 0});
  EXPECT_EQ(park(p).order.result, 600);
  EXPECT_EQ(park(p).order.answered, 1u);
  notify(p);
  ASSERT_EQ(asked().size(), 2u);
  EXPECT_EQ(asked()[1].step, abi::kStepSave);
}

TEST_F(ParkCalls, AreBoundedWhateverTheClientWrites) {
  host();
  const Peer p = attach(77, 0, 1);
  call(p, abi::kParkSteps);
  EXPECT_TRUE(asked().empty());
  EXPECT_EQ(park(p).order.answered, 1u);
  EXPECT_EQ(park(p).order.result, abi::kStepNotAnswered);
  call(p, abi::kStepLock, 0);  // no limit
  ASSERT_EQ(asked().size(), 1u);
  EXPECT_GT(asked()[0].within_ms, 0u);
  core_->parker_answered({asked()[0].number, 0, 0});
  call(p, abi::kStepLock, ~0u);
  EXPECT_LE(asked().at(1).within_ms, 60'000u);
}

TEST_F(ParkCalls, OfAClientThatEndedAreForgotten) {
  host();
  const Peer p = attach(77, 0, 1), other = attach(78, 0, 1);
  call(p, abi::kStepSave);
  core_->disconnected(p.connection);
  core_->parker_answered({asked().at(0).number, 0, 0});
  core_->parker_answered({0, 0, 0});
  EXPECT_EQ(park(other).order.answered, 0u);
}

TEST_F(ParkCalls, AreOrderedAsConfigured) {
  for (const auto& [by, expected] :
       {std::pair(ParkBy::kAuto, 0u), {ParkBy::kClient, 0u}, {ParkBy::kParker, 1u}}) {
    Settings settings = temporal();
    settings.park_by = by;
    host(settings);
    const Peer p = attach(77, 0, 1);
    ASSERT_TRUE(core_->park_client(core_->find_clients(77, "").at(0), true).ok());
    EXPECT_EQ(park(p).order.by_parker, expected);
  }
}

// As the daemon does: poll, then take.
std::vector<parker::Answer> answers_of(parker::Parker& parker) {
  std::vector<parker::Answer> all = parker.take_answers();
  while (all.empty() && parker.process() >= 0) {
    pollfd either[] = {{parker.socket(), POLLIN, 0}, {parker.process(), POLLIN, 0}};
    poll(either, 2, -1);
    parker.ended();
    all = parker.take_answers();
  }
  return all;
}

TEST(Parker, WhatEndsEveryOneIsGivenUp) {
  parker::Parker parker({"/bin/sh", "-c", "exit 1"});
  EXPECT_EQ(parker.starts(), 0u);
  parker.ask({.number = 5});
  const auto answers = answers_of(parker);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].number, 5u);
  EXPECT_EQ(answers[0].result, ipc::abi::kStepNotAnswered);
  EXPECT_EQ(parker.starts(), 3u);
  EXPECT_NE(parker.take_news().find("has ended"), std::string::npos);
}

TEST(Parker, ThatCannotBeStartedIsSaid) {
  parker::Parker parker({"/nowhere/tesserad"});
  parker.ask({.number = 5});
  const auto answers = answers_of(parker);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].result, ipc::abi::kStepNotAnswered);
  EXPECT_NE(parker.take_news().find("cannot be started"), std::string::npos);
}

// It has our end of the socket and none of the variables that stand before the driver.
TEST(Parker, HasNothingOfOursInFrontOfTheDriver) {
  setenv("LD_AUDIT", "", 1);
  setenv("CUDA_VISIBLE_DEVICES", "1", 1);
  // As many bytes as an answer has: all zero but the first, which is 1.
  parker::Parker parker(
      {"/bin/sh", "-c",
       "test -z \"${LD_AUDIT+x}${LD_PRELOAD+x}${CUDA_VISIBLE_DEVICES+x}\" && "
       "printf '\\001\\000\\000\\000\\000\\000\\000\\000\\000\\000\\000\\000\\000\\000\\000\\000' >&0"});
  parker.ask({.number = 1});
  const auto answers = answers_of(parker);
  unsetenv("LD_AUDIT");
  unsetenv("CUDA_VISIBLE_DEVICES");
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].number, 1u);
  EXPECT_EQ(answers[0].result, 0);
}

}  // namespace
}  // namespace tessera::core

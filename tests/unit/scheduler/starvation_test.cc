// Starving clients, the causes, and how the daemon reports them.
#include "scheduler_daemon/policy/starvation.h"

#include <nlohmann/json.hpp>

#include "ipc/channel/pulse.h"
#include "tests/unit/scheduler/core_fixture.h"

namespace tessera::policy {
namespace {

using base::ms;

struct Watched {
  StarvationWatch watch;
  StarvationWatch::Look at{.now_ns = ms(1), .wants = true};
  // Six seconds of the same, in steps of 10 ms, of which the services work this part.
  Starvation after(double services_busy, HeldBy held_by, bool confined = false,
                   uint64_t used_per_step_ns = 0) {
    at.held_by = held_by;
    at.confined = confined;
    for (int i = 0; i < 1100; ++i) {
      watch.look(at);
      at.now_ns += ms(10);
      at.services_busy_ns += uint64_t(services_busy * double(ms(10)));
      at.used_ns += used_per_step_ns;
    }
    return watch.latest(at.now_ns);
  }
};

TEST(Starvation, TheLargestReasonCounts) {
  const struct {
    double services_busy;
    HeldBy held_by;
    bool confined;
    StarvedBy by;
  } kCases[] = {{0.95, HeldBy::kNothing, false, StarvedBy::kServices},
                {0.95, HeldBy::kGap, true, StarvedBy::kServices},
                {0.3, HeldBy::kGap, false, StarvedBy::kGaps},
                {0, HeldBy::kTurn, false, StarvedBy::kTurns},
                {0.1, HeldBy::kShare, false, StarvedBy::kShares},
                {0.1, HeldBy::kCrowd, false, StarvedBy::kShares},
                {0.1, HeldBy::kNothing, true, StarvedBy::kLongBlocks},
                {0, HeldBy::kNothing, false, StarvedBy::kNothing}};
  for (const auto& c : kCases) {
    Watched w;
    const Starvation found = w.after(c.services_busy, c.held_by, c.confined);
    EXPECT_EQ(found.by, c.by) << c.services_busy << " " << int(c.held_by);
    EXPECT_NEAR(found.services_busy, c.services_busy, 0.01);
  }
}

TEST(Starvation, WhoHasEnoughOrWantsLittleDoesNot) {
  EXPECT_EQ(Watched().after(0.9, HeldBy::kNothing, false, ms(1)).by, StarvedBy::kNothing);  // it had 10 %
  Watched idle;
  idle.at.wants = false;
  EXPECT_EQ(idle.after(0.9, HeldBy::kNothing).by, StarvedBy::kNothing);
  Watched later;
  EXPECT_EQ(later.after(0.9, HeldBy::kNothing).by, StarvedBy::kServices);
  EXPECT_EQ(later.after(0, HeldBy::kNothing, false, ms(5)).by, StarvedBy::kNothing);  // it is over
  EXPECT_EQ(later.watch.latest(later.at.now_ns + ms(60'000)).by, StarvedBy::kNothing);
}

}  // namespace
}  // namespace tessera::policy

namespace tessera::core {
namespace {

struct Starving : CoreTest {
  nlohmann::json client(pid_t pid) {
    const auto state = nlohmann::json::parse(stats::to_json(core_->snapshot(now_ns_)));
    for (const auto& row : state["clients"])
      if (row["pid"] == pid) return row;
    return {};
  }
};

TEST_F(Starving, BesideAServiceThatNeverRestsWithReasonRemedyAndPrice) {
  Settings s;
  s.policy_name = "tessera";
  host(s);
  Peer service = attach(1, 7, 1, true), trainer = attach(2, 0, 1, true);
  EXPECT_TRUE(client(2)["starved"].is_null());
  ipc::pulse_set_busy(service.pulse(), 1, 0, 1, now_ns_);
  trainer.usage().waiting = 1;
  trainer.usage().waiting_since_ns = now_ns_;
  for (int i = 0; i < 7000; ++i) {
    ipc::pulse_beat(service.pulse(), now_ns_);
    notify(trainer);
    run(ms(1));
  }
  const auto starved = client(2)["starved"];
  ASSERT_TRUE(starved.is_object()) << client(2);
  EXPECT_EQ(starved["by"], "services");
  EXPECT_NE(std::string(starved["why"]).find("work 100 % of the time, most of it 'test' (1)"),
            std::string::npos)
      << starved;
  EXPECT_NE(std::string(starved["remedy"])
                .find("policy.min_share_percent = 5 (now 0); its price: a burst may take up to 5 ms longer"),
            std::string::npos)
      << starved;
  EXPECT_TRUE(client(1)["starved"].is_null());
}

}  // namespace
}  // namespace tessera::core

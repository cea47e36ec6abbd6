// Gangs in virtual time: the daemon's core with clients that act as gates do, and whose notices come late. Nobody may wait
// for ever, and the members of a gang start together.
#include <algorithm>
#include <functional>
#include <random>

#include "tests/unit/scheduler/core_fixture.h"

namespace tessera::core {
namespace {

class GangModel : public CoreTest, public testing::WithParamInterface<unsigned> {
 protected:
  static constexpr uint64_t kHoldLimitNs = ms(200);

  struct Rank;
  struct Job {
    std::vector<Rank*> alive;
    uint64_t begun = 0;  // the highest collective that a member has begun
  };
  struct Rank {  // of a job, or a program by itself
    Peer peer;
    uint8_t gpu = 0;
    Job* job = nullptr;
    uint64_t begun = 0, steps = 0;  // collectives that it has begun; those that have ended
    bool computes = true;           // what it is at: work, else a collective
    bool runs = false, dead = false;
    uint64_t waits_since_ns = 0, work_ns = 0;
    uint32_t told_word = 0, drained_word = 0;
  };

  uint64_t up_to(uint64_t most_ns) { return random_() % (most_ns + 1); }
  void at(uint64_t after_ns, std::function<void()> what) {
    events_.emplace(now_ns_ + after_ns, std::move(what));
  }
  void notify_late(Rank& r, uint64_t most_ns) {
    at(up_to(most_ns), [&] {
      if (!r.dead) notify(r.peer);
    });
  }

  Rank& add(uint8_t gpu, Job* job, const char* gang) {
    Rank& r = *ranks_.emplace_back(std::make_unique<Rank>());
    r.peer.connection = connect(pid_t(ranks_.size()));
    abi::Hello h = hello(0);
    std::strcpy(h.gang, gang);
    say(r.peer.connection, h);
    r.peer.region = ipc::map_shared(peers_.last(r.peer.connection, abi::kWelcome)->fds[0].get(),
                                    abi::kRegionBytes, ipc::Access::kReadWrite)
                        .value();
    say(r.peer.connection, device(gpu));
    r.gpu = gpu;
    r.job = job;
    if (job != nullptr) job->alive.push_back(&r);
    at(up_to(ms(5)), [&] { ask(r); });
    return r;
  }

  // ---- a gate
  void ask(Rank& r) {
    if (r.dead || r.runs) return;
    const bool follows = !r.computes && r.job->begun > r.begun;
    const bool granted =
        r.peer.state() == kFree || (r.peer.state() == kGranted && r.peer.lease().expires_ns > now_ns_);
    if (r.waits_since_ns == 0) r.waits_since_ns = now_ns_;
    const uint64_t waited_ns = now_ns_ - r.waits_since_ns;
    if (follows || granted || waited_ns >= kHoldLimitNs) {
      if (!follows) longest_wait_ns_ = std::max(longest_wait_ns_, waited_ns);
      return start(r);
    }
    r.peer.usage().waiting = 1;
    r.peer.usage().waiting_since_ns = r.waits_since_ns;
    if (const uint32_t word = r.peer.lease().word; r.told_word != word) {
      r.told_word = word;
      notify_late(r, late_ns_);
    }
    at(us(100), [&] { ask(r); });
  }
  void start(Rank& r) {
    r.waits_since_ns = 0;
    r.runs = true;
    r.work_ns = r.computes ? us(50) + up_to(ms(3)) : us(200);
    r.peer.usage().waiting = 0;
    r.peer.usage().waiting_since_ns = 0;
    r.peer.usage().in_flight_ns = r.work_ns;
    if (r.computes) return at(r.work_ns, [&] { end(r); });
    r.job->begun = std::max(r.job->begun, ++r.begun);
    meet(*r.job);
  }
  // Ends the collective that all members have begun.
  void meet(Job& job) {
    for (const Rank* r : job.alive)
      if (r->computes || !r->runs) return;
    for (Rank* r : job.alive) at(r->work_ns, [this, r] { end(*r); });
  }
  void end(Rank& r) {
    if (r.dead || !r.runs) return;
    r.runs = false;
    r.peer.usage().completed_ns += r.work_ns;
    r.peer.usage().in_flight_ns = 0;
    r.steps += !r.computes || r.job == nullptr;
    r.computes = r.job == nullptr || !r.computes;
    drain(r, late_ns_);
    at(up_to(us(100)), [&] { ask(r); });
  }
  void drain(Rank& r, uint64_t late_ns) {
    const uint32_t word = r.peer.lease().word;
    if (r.dead || r.peer.state() != kHold || r.peer.usage().in_flight_ns != 0 || r.drained_word == word)
      return;
    r.drained_word = r.peer.usage().drained_word = word;
    notify_late(r, late_ns);
  }

  void run_until(uint64_t end_ns) {
    uint64_t next_ns = run();
    while (now_ns_ < end_ns) {
      const bool decides = next_ns != 0 && (events_.empty() || next_ns < events_.begin()->first);
      now_ns_ = std::max(now_ns_, decides ? next_ns : events_.begin()->first);
      const uint64_t before = counters().notifications;
      while (!events_.empty() && events_.begin()->first <= now_ns_) {
        auto what = std::move(events_.begin()->second);
        events_.erase(events_.begin());
        what();
      }
      if (!decides && before == counters().notifications && !someone_left_) continue;
      someone_left_ = false;
      next_ns = core_->run(now_ns_);
      for (auto& r : ranks_)  // its helper thread looks every 10 ms while something waits
        if (!r->dead && r->peer.state() == kHold) at(up_to(ms(10)), [this, &r] { drain(*r, late_ns_); });
      expect_together();
    }
  }
  void expect_together() {
    for (const auto& job : jobs_)
      for (const Rank* a : job->alive)
        for (const Rank* b : job->alive)
          ASSERT_TRUE(a->gpu == b->gpu || (a->peer.state() == kHold) == (b->peer.state() == kHold))
              << "at " << now_ns_;
  }
  void kill(Rank& r) {
    r.dead = someone_left_ = true;
    core_->disconnected(r.peer.connection);
    if (r.job == nullptr) return;
    std::erase(r.job->alive, &r);
    if (!r.job->alive.empty()) meet(*r.job);
  }

  std::mt19937 random_{GetParam()};
  std::multimap<uint64_t, std::function<void()>> events_;
  std::vector<std::unique_ptr<Job>> jobs_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  uint64_t late_ns_ = us(200), longest_wait_ns_ = 0;
  bool someone_left_ = false;
};

TEST_P(GangModel, NobodyWaitsForEver) {
  const auto n_gpus = uint8_t(2 + random_() % 3);
  const char* names[] = {"first", "second"};
  for (const char* name : names) {
    jobs_.push_back(std::make_unique<Job>());
    std::vector<uint8_t> gpus;
    for (uint8_t gpu = 1; gpu <= n_gpus; ++gpu) gpus.push_back(gpu);
    std::shuffle(gpus.begin(), gpus.end(), random_);
    gpus.resize(2 + random_() % (n_gpus - 1));
    for (const uint8_t gpu : gpus) add(gpu, jobs_.back().get(), name);
  }
  for (uint8_t gpu = 1; gpu <= n_gpus; ++gpu)
    if (random_() % 2 == 0) add(gpu, nullptr, "");
  late_ns_ = random_() % 2 == 0 ? us(200) : ms(5);
  run_until(now_ns_ + ms(3000));
  std::vector<uint64_t> before;
  for (const auto& r : ranks_) {
    EXPECT_GT(r->steps, 20u) << "gpu " << int(r->gpu);
    before.push_back(r->steps);
  }
  EXPECT_LT(longest_wait_ns_, kHoldLimitNs);
  kill(*ranks_[random_() % ranks_.size()]);
  run_until(now_ns_ + ms(3000));
  for (size_t i = 0; i < ranks_.size(); ++i)
    EXPECT_TRUE(ranks_[i]->dead || ranks_[i]->steps > before[i] + 20) << i;
  EXPECT_LT(longest_wait_ns_, kHoldLimitNs);
}

// A job on eight GPUs, each with a trainer: all have their turns.
TEST_P(GangModel, EightTurnsMeet) {
  jobs_.push_back(std::make_unique<Job>());
  for (uint8_t gpu = 1; gpu <= 8; ++gpu) {
    add(gpu, jobs_.back().get(), "job");
    add(gpu, nullptr, "");
  }
  run_until(now_ns_ + ms(6000));
  for (const auto& r : ranks_) EXPECT_GT(r->steps, r->job != nullptr ? 500u : 1000u) << int(r->gpu);
  EXPECT_LT(longest_wait_ns_, kHoldLimitNs);
}

INSTANTIATE_TEST_SUITE_P(Seeds, GangModel, testing::Range(0u, 12u));

}  // namespace
}  // namespace tessera::core

// A job of several ranks that reduce over as many software GPUs, beside a service on the first and a trainer on the second.
// Its rings wait for each other on the GPUs, so that a rank which is held for ever stops them all.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <optional>
#include <random>
#include <thread>

#include "base/scoped_fd.h"
#include "tests/integration/sharing/fixture.h"

namespace tessera {
namespace {

using test::eventually;
using test::kPatienceS;

// A few by default; TESSERA_GANG_STEPS says how many.
int steps_of_a_job() {
  const char* text = getenv("TESSERA_GANG_STEPS");
  return text ? atoi(text) : 12;
}

// Stops one process after another at random places, each for up to 10 ms, as long as it lives.
class RandomHolds {
 public:
  // Children that were not waited for yet.
  explicit RandomHolds(const std::vector<pid_t>& processes) {
    for (const pid_t process : processes) processes_.emplace_back(int(syscall(SYS_pidfd_open, process, 0)));
    thread_ = std::thread([this] { hold(); });
  }
  ~RandomHolds() {
    ends_ = true;
    thread_.join();
  }

 private:
  void hold() {
    std::mt19937 random(unsigned(processes_.size()));
    while (!ends_) {
      const int process = processes_[random() % processes_.size()].get();
      for (const int signal : {SIGSTOP, SIGCONT}) {
        syscall(SYS_pidfd_send_signal, process, signal, nullptr, 0);
        poll(nullptr, 0, int(random() % 10));
      }
    }
  }

  std::vector<base::ScopedFd> processes_;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

class Job : public test::SharingFixture, public testing::WithParamInterface<int> {
 protected:
  void TearDown() override {
    ring_waits_for_nobody();
    others_.clear();
    ranks_.clear();
    SharingFixture::TearDown();
  }
  void ring_waits_for_nobody() const { std::ofstream(path("stop")) << ""; }

  static std::string rank_name(int rank) { return "rank" + std::to_string(rank); }
  cli::Process load(const std::string& name, const std::string& priority, int device,
                    std::vector<std::string> work) const {
    work.insert(work.begin(), TESSERA_SHARING_LOAD);
    work.push_back(path(name + ".steps"));
    return run(name, priority, {}, work, {devices_, "CUDA_VISIBLE_DEVICES=" + std::to_string(device)});
  }
  bool has_gpu(int rank) const { return !client(rank_name(rank)).value("gpu", "").empty(); }
  // All are at work: ranks, service and trainer.
  void start(int size, int steps) {
    devices_ = "TESSERA_SOFTGPU_DEVICES=" + std::to_string(size);
    start_daemon("[daemon]\nprofiles = \"off\"\n");
    others_.push_back(load("service", "high", 0, {"memory", "16", "4", "1", "0", "5000"}));
    others_.push_back(load("trainer", "best-effort", 1, {"compute", "256", "10", "1", "0", "0"}));
    for (int rank = 0; rank < size; ++rank)
      ranks_.push_back(run(rank_name(rank), "best-effort", {"--gang", "job"},
                           {TESSERA_GANG_RANK, std::to_string(rank), std::to_string(size),
                            std::to_string(steps), std::string(scratch_)},
                           {devices_}));
    for (int rank = 0; rank < size; ++rank)
      ASSERT_TRUE(eventually([&] { return has_gpu(rank) || !ranks_[size_t(rank)].running(); }) &&
                  ranks_[size_t(rank)].running())
          << rank << ": " << test::read_file(path(rank_name(rank) + ".err"));
    std::ofstream(path("go")) << "";
  }
  // Exit status; -1: it does not get on. A job may take as long as it does.
  int end_of(int rank) {
    size_t before = 0;
    do {
      before = steps(rank_name(rank));
      if (const auto status = ranks_[size_t(rank)].wait(kPatienceS); status.ok()) return *status;
    } while (steps(rank_name(rank)) > before);
    return -1;
  }

  std::string devices_;
  std::vector<cli::Process> ranks_, others_;
};

TEST_P(Job, ReducesBesideAServiceAndATrainer) {
  start(GetParam(), steps_of_a_job());
  for (int rank = 0; rank < GetParam(); ++rank)
    EXPECT_EQ(end_of(rank), 0) << test::read_file(path(rank_name(rank) + ".out"));
  EXPECT_TRUE(steps_grow("service", 1));
  EXPECT_TRUE(steps_grow("trainer", 1));
  EXPECT_EQ(client("service").value("holds", -1), 0);
}

TEST_P(Job, ReducesWhileEverybodyIsStoppedAtRandom) {
  start(GetParam(), steps_of_a_job());
  std::vector<pid_t> everybody{daemon_.pid()};
  for (const auto* processes : {&ranks_, &others_})
    for (const cli::Process& process : *processes) everybody.push_back(process.pid());
  std::optional<RandomHolds> holds(everybody);
  for (int rank = 0; rank < GetParam(); ++rank)
    EXPECT_EQ(end_of(rank), 0) << test::read_file(path(rank_name(rank) + ".out"));
  holds.reset();
  EXPECT_TRUE(steps_grow("service", 1));
  EXPECT_TRUE(steps_grow("trainer", 1));
}

TEST_P(Job, WaitsForNoRankThatWasKilled) {
  const int killed = GetParam() - 1;
  start(GetParam(), 0);
  for (int rank = 0; rank < GetParam(); ++rank)
    ASSERT_TRUE(eventually([&] { return steps(rank_name(rank)) >= 5; })) << rank;
  ranks_[size_t(killed)].kill_now();
  ring_waits_for_nobody();
  EXPECT_TRUE(eventually([&] { return client(rank_name(killed)).empty(); }));
  for (int rank = 0; rank < killed; ++rank) EXPECT_TRUE(steps_grow(rank_name(rank), 5)) << rank;
  for (int rank = 0; rank < killed; ++rank) {
    const auto status = ranks_[size_t(rank)].stop(kPatienceS);
    EXPECT_TRUE(status.ok() && *status == 0) << rank;
  }
  EXPECT_TRUE(steps_grow("service", 1));
  EXPECT_TRUE(steps_grow("trainer", 1));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Job, testing::Values(2, 4, 8));

}  // namespace
}  // namespace tessera

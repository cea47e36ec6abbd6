// A job of several ranks that reduce over as many software GPUs, beside a service on the first and a trainer on the second.
// Its rings wait for each other on the GPUs, so that a rank which is held for ever stops them all.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "base/scoped_fd.h"
#include "tests/integration/sharing/fixture.h"

namespace tessera {
namespace {

using test::eventually;
using test::kPatienceS;

// A few by default; TESSERA_GANG_STEPS says how many.
unsigned steps_of_a_job() {
  const char* text = getenv("TESSERA_GANG_STEPS");
  return text ? unsigned(atoi(text)) : 12;
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
  void ring_waits_for_nobody() const { std::ofstream(folder() + "/stop") << ""; }

  static std::string rank_name(int rank) { return "rank" + std::to_string(rank); }
  // The ranks of the job's present life meet there, and tell there how far they got.
  std::string folder() const { return path(job()); }
  std::string job() const { return "job" + std::to_string(life_); }
  size_t steps(const std::string& name) const override {
    return SharingFixture::steps(name.starts_with("rank") ? job() + "/" + name : name);
  }
  cli::Process load(const std::string& name, const std::string& priority, int device,
                    std::vector<std::string> work) const {
    work.insert(work.begin(), TESSERA_SHARING_LOAD);
    work.push_back(path(name + ".steps"));
    return run(name, priority, {}, work, {devices_, "CUDA_VISIBLE_DEVICES=" + std::to_string(device)});
  }
  bool is_gone(int rank) const {
    const nlohmann::json all = clients();  // none: the daemon does not answer
    return !all.empty() && std::none_of(all.begin(), all.end(), [&](const nlohmann::json& one) {
      return one.value("name", "") == rank_name(rank);
    });
  }
  bool has_gpu(int rank) const { return !client(rank_name(rank)).value("gpu", "").empty(); }
  // All are at work: ranks, service and trainer.
  void start(int size, unsigned steps) {
    start_neighbours(size);
    start_ranks(size, steps);
  }
  void start_neighbours(int size) {
    devices_ = "TESSERA_SOFTGPU_DEVICES=" + std::to_string(size);
    start_daemon("[daemon]\nprofiles = \"off\"\n");
    others_.push_back(load("service", "high", 0, {"memory", "16", "4", "1", "0", "5000"}));
    others_.push_back(load("trainer", "best-effort", 1, {"compute", "256", "10", "1", "0", "0"}));
  }
  void start_ranks(int size, unsigned steps) {
    std::filesystem::create_directory(folder());
    for (int rank = 0; rank < size; ++rank)
      ranks_.push_back(run(
          rank_name(rank), "best-effort", {"--gang", job()},
          {TESSERA_GANG_RANK, std::to_string(rank), std::to_string(size), std::to_string(steps), folder()},
          {devices_}));
    for (int rank = 0; rank < size; ++rank)
      ASSERT_TRUE(eventually([&] { return has_gpu(rank) || !ranks_[size_t(rank)].running(); }) &&
                  ranks_[size_t(rank)].running())
          << rank << ": " << test::read_file(path(rank_name(rank) + ".err"));
    std::ofstream(folder() + "/go") << "";
  }
  std::vector<pid_t> everybody() const {
    std::vector<pid_t> pids{daemon_.pid()};
    for (const auto* processes : {&ranks_, &others_})
      for (const cli::Process& process : *processes) pids.push_back(process.pid());
    return pids;
  }
  // Nobody waits for it: the others get on, and end when they are asked to.
  void kill_rank(int killed) {
    ranks_[size_t(killed)].kill_now();
    ring_waits_for_nobody();
    EXPECT_TRUE(eventually([&] { return is_gone(killed); }));
    for (int rank = 0; rank < int(ranks_.size()); ++rank)
      EXPECT_TRUE(rank == killed || steps_grow(rank_name(rank), 5)) << job() << " " << rank;
    for (int rank = 0; rank < int(ranks_.size()); ++rank) {
      const auto status = ranks_[size_t(rank)].stop(kPatienceS);
      EXPECT_TRUE(rank == killed || (status.ok() && *status == 0)) << job() << " " << rank;
      EXPECT_TRUE(eventually([&] { return is_gone(rank); }));
    }
    ranks_.clear();
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
  unsigned life_ = 0;
  std::vector<cli::Process> ranks_, others_;
};

TEST_P(Job, ReducesBesideAServiceAndATrainer) {
  start(GetParam(), steps_of_a_job());
  // Each has a context on its neighbour's GPU, and no memory of its own there.
  EXPECT_TRUE(eventually([&] { return steps("rank0") >= 2; }));
  for (const nlohmann::json& one : clients()) EXPECT_TRUE(one["further_gpus"].empty()) << one.dump();
  for (int rank = 0; rank < GetParam(); ++rank)
    EXPECT_EQ(end_of(rank), 0) << test::read_file(path(rank_name(rank) + ".out"));
  EXPECT_TRUE(steps_grow("service", 1));
  EXPECT_TRUE(steps_grow("trainer", 1));
  EXPECT_EQ(client("service").value("holds", -1), 0);
}

TEST_P(Job, ReducesWhileEverybodyIsStoppedAtRandom) {
  start(GetParam(), steps_of_a_job());
  std::optional<RandomHolds> holds(everybody());
  for (int rank = 0; rank < GetParam(); ++rank)
    EXPECT_EQ(end_of(rank), 0) << test::read_file(path(rank_name(rank) + ".out"));
  holds.reset();
  EXPECT_TRUE(steps_grow("service", 1));
  EXPECT_TRUE(steps_grow("trainer", 1));
}

// As a launcher does: where a rank dies the others are ended, and the job begins anew. Its last life goes to its end.
TEST_P(Job, WaitsForNoRankThatWasKilledAndBeginsAnew) {
  const unsigned kills = 1 + steps_of_a_job() / 100, most_steps_of_a_life = steps_of_a_job() / (kills + 1);
  std::mt19937 random{unsigned(GetParam())};
  start_neighbours(GetParam());
  unsigned left = steps_of_a_job();
  for (; life_ < kills; ++life_) {
    start_ranks(GetParam(), 0);
    const RandomHolds holds(everybody());
    const int killed = int(random() % unsigned(GetParam()));
    const unsigned killed_at = 1 + random() % most_steps_of_a_life;
    for (int rank = 0; rank < GetParam(); ++rank)
      ASSERT_TRUE(eventually([&] { return steps(rank_name(rank)) >= (rank == killed ? killed_at : 1); }))
          << job() << " " << rank;
    poll(nullptr, 0, int(random() % 5));  // anywhere in a step
    kill_rank(killed);
    ASSERT_FALSE(HasFailure());
    left -= killed_at;
  }
  start_ranks(GetParam(), left);
  for (int rank = 0; rank < GetParam(); ++rank)
    EXPECT_EQ(end_of(rank), 0) << test::read_file(path(rank_name(rank) + ".out"));
  EXPECT_TRUE(steps_grow("service", 1));
  EXPECT_TRUE(steps_grow("trainer", 1));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Job, testing::Values(2, 4, 8));

// Programs on two software GPUs. "both" is one process on both.
class OneProcess : public test::SharingFixture, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    SharingFixture::SetUp();
    start_daemon(std::string("[daemon]\nprofiles = \"off\"\n[policy]\ngate = \"") + GetParam() + "\"\n");
  }
  void TearDown() override {
    processes_.clear();
    SharingFixture::TearDown();
  }
  cli::Process& start(const std::string& name, const std::string& priority, const std::string& devices,
                      const std::vector<std::string>& work) {
    std::vector<std::string> program = {TESSERA_SHARING_LOAD};
    program.insert(program.end(), work.begin(), work.end());
    const auto n = std::ranges::count(devices, ',') + 1;
    program.insert(program.end(), {path(name + ".steps"), std::to_string(n)});
    return processes_[name] = run(name, priority, {}, program,
                                  {"TESSERA_SOFTGPU_DEVICES=" + std::to_string(std::max<long>(n, 2)),
                                   "CUDA_VISIBLE_DEVICES=" + devices});
  }
  uint64_t count(const std::string& name, const char* counter) const {
    return client(name).value(counter, uint64_t(0));
  }
  bool is_on_both() const {
    return eventually(
        [&] { return client("both").value("further_gpus", nlohmann::json::array()).size() == 1; });
  }
  bool is_held_from_now_on(const std::string& name) const {
    const uint64_t before = count(name, "holds");
    return eventually([&] { return count(name, "holds") > before; });
  }
  bool runs_free(const std::string& name) const {
    return eventually([&] { return client(name).value("state", "") == "free"; });
  }
  bool is_gone(const std::string& name) const {
    return eventually([&] { return client(name).empty() && !clients().empty(); });
  }

  static inline const std::vector<std::string> kService = {"memory", "16", "4", "1", "0", "5000"},
                                               kTrainer = {"compute", "64", "10", "2", "0", "0"};
  std::map<std::string, cli::Process> processes_;
};

TEST_P(OneProcess, IsHeldForAServiceOnItsSecondGpu) {
  start("alone", "best-effort", "0", {"compute", "64", "10", "2", "1", "0"});
  ASSERT_TRUE(processes_["alone"].wait(kPatienceS).ok());
  start("service", "high", "1", kService);
  start("both", "best-effort", "0,1", kTrainer);
  ASSERT_TRUE(is_on_both());
  EXPECT_TRUE(is_held_from_now_on("both"));
  EXPECT_TRUE(client("both").value("gate", "").starts_with("thread: it is one of a gang"));
  EXPECT_TRUE(steps_grow("both", 5));
  EXPECT_TRUE(steps_grow("service", 2));
  daemon_.kill_now();
  EXPECT_TRUE(steps_grow("both", 2));
  start_daemon();
  EXPECT_TRUE(is_on_both());
  EXPECT_TRUE(is_held_from_now_on("both"));
  const auto status = processes_["both"].stop(kPatienceS);
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(*status, 0);
  const std::string out = test::read_file(path("both.out")), right = "checksum=" + checksum("alone");
  EXPECT_EQ(out.find(right), 0u) << out;
  EXPECT_NE(out.find(right, 1), std::string::npos) << out;
}

TEST_P(OneProcess, IsProtectedOnBothGpusUntilItIsKilled) {
  start("first", "best-effort", "0", kTrainer);
  start("second", "best-effort", "1", kTrainer);
  start("both", "high", "0,1", kService);
  ASSERT_TRUE(is_on_both());
  for (const char* name : {"first", "second"}) {
    if (GetParam() == std::string("thread")) {
      EXPECT_TRUE(is_held_from_now_on(name)) << name;
    } else {  // the process has taken its place in the gate
      EXPECT_TRUE(eventually([&] { return client(name).value("gate", "") == "device"; })) << name;
    }
    EXPECT_TRUE(steps_grow(name, 1)) << name;
  }
  EXPECT_TRUE(steps_grow("both", 2));
  processes_["both"].kill_now();
  EXPECT_TRUE(is_gone("both"));
  for (const char* name : {"first", "second"}) EXPECT_TRUE(runs_free(name) && steps_grow(name, 2)) << name;
}

TEST_P(OneProcess, IsHeldAndRunsOnBothUntilItIsKilled) {
  start("first", "best-effort", "0", kTrainer);
  start("second", "best-effort", "1", kTrainer);
  start("both", "best-effort", "0,1", kTrainer);
  ASSERT_TRUE(is_on_both());
  for (const char* name : {"first", "second", "both"}) EXPECT_TRUE(steps_grow(name, 3)) << name;
  processes_["both"].kill_now();
  EXPECT_TRUE(is_gone("both"));
  for (const char* name : {"first", "second"}) EXPECT_TRUE(runs_free(name) && steps_grow(name, 2)) << name;
}

// One thread launches a collective on each GPU in turn. If one of them were held, those on the other GPU would wait for ever.
TEST_P(OneProcess, ReducesOverBothBesideAService) {
  std::filesystem::create_directory(path("job"));
  std::ofstream(path("job/go")) << "";
  start("service", "high", "1", kService);
  processes_["both"] = run("both", "best-effort", {}, {TESSERA_GANG_RANK, "all", "2", "0", path("job")},
                           {"TESSERA_SOFTGPU_DEVICES=2"});
  ASSERT_TRUE(is_on_both());
  EXPECT_TRUE(is_held_from_now_on("both"));
  for (const char* rank : {"job/rank0", "job/rank1"}) EXPECT_TRUE(steps_grow(rank, 20)) << rank;
  EXPECT_TRUE(steps_grow("service", 2));
  EXPECT_EQ(client("service").value("holds", -1), 0);
  const auto status = processes_["both"].stop(kPatienceS);
  EXPECT_TRUE(status.ok() && *status == 0) << test::read_file(path("both.out"));
}

// The eight that it used first, and the same ones under the next daemon. Others are not known at all.
TEST_P(OneProcess, IsKnownOnEightGpus) {
  start("many", "best-effort", "0,1,2,3,4,5,6,7,8,9", {"compute", "16", "10", "1", "0", "1000"});
  const auto gpus_of_memory = [&] {
    std::set<std::string> gpus;
    for (const nlohmann::json& row : client("many").value("memory", nlohmann::json::array()))
      gpus.insert(row.value("gpu", ""));
    return gpus;
  };
  const auto gpus_of_client = [&] {
    const nlohmann::json many = client("many");
    std::set<std::string> gpus = many.value("further_gpus", std::set<std::string>());
    gpus.insert(many.value("gpu", ""));
    return gpus;
  };
  const auto has_eight = [&] { return gpus_of_client().size() == 8 && gpus_of_memory().size() == 8; };
  ASSERT_TRUE(eventually(has_eight));
  const std::set<std::string> first = gpus_of_memory();
  EXPECT_EQ(gpus_of_client(), first);
  daemon_.kill_now();
  start_daemon();
  ASSERT_TRUE(eventually(has_eight));
  EXPECT_EQ(gpus_of_memory(), first);
  EXPECT_EQ(gpus_of_client(), first);
  EXPECT_TRUE(steps_grow("many", 2));
}

INSTANTIATE_TEST_SUITE_P(Gates, OneProcess, testing::Values("thread", "device"));

}  // namespace
}  // namespace tessera

// Real processes on the software GPU: what was learnt in one run is known at the next start, so that no launch
// is gated with a guess. Two best-effort programs share, because a program that is alone is not gated at all.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "cli/demo/process.h"
#include "ipc/channel/client.h"
#include "profiles/profile_file.h"

namespace tessera {
namespace {

using cli::Process;
using nlohmann::json;
const std::string kBin = std::string(TESSERA_PREFIX) + "/bin/";
constexpr uint64_t kPatienceNs = 100'000'000'000;  // machines are busy

class WarmStart : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(scratch_), nullptr); }
  void TearDown() override {
    daemon_.kill_now();
    if (HasFailure()) system(("cat " + path("*.err") + " >&2").c_str());
    std::filesystem::remove_all(scratch_);
  }
  std::string path(const std::string& name) const { return std::string(scratch_) + "/" + name; }
  std::string socket() const { return path("d.sock"); }

  void start_daemon() {
    auto started = Process::start({kBin + "tesserad", "--socket", socket()},
                                  {"TESSERA_PROFILES=" + path("profiles")}, path("d.out"), path("d.err"));
    ASSERT_TRUE(started.ok());
    daemon_ = std::move(*started);
    for (const uint64_t end = base::now_ns() + kPatienceNs; !ipc::query(socket()).ok(); poll(nullptr, 0, 10))
      ASSERT_LT(base::now_ns(), end);
  }
  void end_daemon() {
    kill(daemon_.pid(), SIGTERM);
    ASSERT_TRUE(daemon_.wait(20).ok());
  }
  Process start(const std::string& name, std::vector<std::string> command) {
    std::vector<std::string> argv = {kBin + "tessera", "run",    "--gpu", "soft", "--socket",
                                     socket(),         "--name", name,    "--"};
    argv.insert(argv.end(), command.begin(), command.end());
    auto started = Process::start(argv, {"TESSERA_SOFTGPU_DIR=" + path("gpu")}, path(name + ".out"),
                                  path(name + ".err"));
    EXPECT_TRUE(started.ok());
    return std::move(*started);
  }
  Process start_trainer(const std::string& name, int steps) {
    return start(name, {kBin + "batch_trainer", "--preset", "soft", "--checksum-steps", "1", "--steps",
                        std::to_string(steps)});
  }

  struct Seen {
    uint64_t unknown = 0, learnt = 0, recorded = 0, holds = 0;
  };
  json client(const std::string& name) const {
    const auto answer = ipc::query(socket());
    const json state = answer ? json::parse(*answer, nullptr, false) : json();
    for (const json& c : state.value("clients", json::array()))
      if (c["name"] == name) return c;
    return json::object();
  }
  // 24 kernels, each launched once, beside a neighbour, because a program that is alone is not gated.
  // `stays`: until its counters tell of all of them; else it ends with the last kernel.
  Seen launch_each_once(bool stays) {
    Process neighbour = start("neighbour", {"python3", TESSERA_ONCE_EACH, "neighbour"});
    Process once = start("once", {"python3", TESSERA_ONCE_EACH, stays ? "stay" : "go", path("go")});
    Seen last;
    for (const uint64_t end = base::now_ns() + kPatienceNs; once.running(); poll(nullptr, 0, 5)) {
      if (base::now_ns() > end) {
        ADD_FAILURE() << "it does not end";
        break;
      }
      const json c = client("once");
      if (!c.empty())
        last = {c["unknown_estimates"], c["learnt_estimates"], c["kernels_recorded"], c["holds"]};
      const bool both = !c.value("gpu", "").empty() && client("neighbour").value("launches", 0) > 0;
      if (last.unknown + last.learnt >= 24)
        std::filesystem::remove(path("go"));
      else if (both)
        std::ofstream(path("go")) << "go";
    }
    std::filesystem::remove(path("go"));
    return last;
  }
  // Two trainers until both ended; what the daemon last saw of their counters, summed. On a busy machine one may have ended
  // before the other began, and a program that is alone is not gated: then once more, for longer.
  Seen share(int steps) {
    Seen sum;
    for (int times = 0; times < 4 && sum.unknown + sum.learnt == 0; ++times, steps *= 4)
      sum = share_once(steps);
    return sum;
  }
  Seen share_once(int steps) {
    Process one = start_trainer("one", steps), two = start_trainer("two", steps);
    std::map<std::string, Seen> last;
    bool ended = false;
    while (!ended) {
      ended = !one.running() && !two.running();
      const auto answer = ipc::query(socket());
      const json state = answer ? json::parse(*answer, nullptr, false) : json();
      for (const json& c : state.value("clients", json::array()))
        last[c["name"]] = {c["unknown_estimates"], c["learnt_estimates"], c["kernels_recorded"], c["holds"]};
      poll(nullptr, 0, 5);
    }
    Seen sum;
    for (const auto& [name, s] : last) {
      sum.unknown += s.unknown;
      sum.learnt += s.learnt;
      sum.recorded += s.recorded;
      sum.holds += s.holds;
    }
    return sum;
  }

  char scratch_[32] = "/tmp/tessera-warm-XXXXXX";
  Process daemon_;
};

TEST_F(WarmStart, NoGuessesOnceARunWasLearnt) {
  start_daemon();
  const Seen cold = share(16);
  EXPECT_GT(cold.unknown, 0u);
  EXPECT_EQ(cold.learnt, 0u);
  EXPECT_GT(cold.recorded, 0u);
  end_daemon();

  auto profile = profiles::load_profile(path("profiles") + "/online-" + std::to_string(geteuid()) + ".json");
  ASSERT_TRUE(profile.ok()) << profile.error().text;
  std::string names;
  for (const auto& [key, kernel] : profile->kernels) {
    names += key.kernel + " ";
    EXPECT_EQ(key.origin, profiles::Origin::kOnline);
    EXPECT_EQ(key.gpu, "Tessera Test GPU 4");
    EXPECT_NE(key.image_hash, 0u);
  }
  EXPECT_THAT(names, testing::AllOf(testing::HasSubstr("gemm"), testing::HasSubstr("activate"),
                                    testing::HasSubstr("update"), testing::HasSubstr("reduce")));

  start_daemon();
  const Seen warm = share(8);
  EXPECT_EQ(warm.unknown, 0u);
  EXPECT_GT(warm.learnt, 0u);
  EXPECT_GT(warm.holds + warm.recorded, 0u);  // they were gated, so somebody would have needed the guess
}

// Also of kernels that are launched once per process, from functions that the driver loads with that launch. A launch is
// timed if its function is loaded and a sample is free: on a busy machine one run may not time all of them.
TEST_F(WarmStart, KernelsLaunchedOnceAreLearntToo) {
  constexpr int kMostRuns = 20;
  size_t learnt = 0, learnt_first = 0;
  for (int run = 0; run < kMostRuns && learnt < 24; run++) {
    start_daemon();
    launch_each_once(false);
    end_daemon();
    auto profile =
        profiles::load_profile(path("profiles") + "/online-" + std::to_string(geteuid()) + ".json");
    ASSERT_TRUE(profile.ok()) << profile.error().text;
    learnt = profile->kernels.size();
    if (run == 0) learnt_first = learnt;
    for (const auto& [key, kernel] : profile->kernels) {
      EXPECT_THAT(key.kernel, testing::StartsWith("k"));
      EXPECT_LE(kernel.duration.samples, key.kernel == "k0" ? UINT64_MAX : run + 1u) << key.kernel;
      EXPECT_GT(kernel.duration.min_ns, 0u) << key.kernel;
    }
  }
  EXPECT_EQ(learnt, 24u);
  EXPECT_GT(learnt_first, 12u);  // the neighbour launches the first one

  start_daemon();
  const Seen warm = launch_each_once(true);
  EXPECT_EQ(warm.unknown, 0u);
  EXPECT_EQ(warm.learnt, 24u);
}

// A profile taken offline, of the program alone, serves as well: it is joined by key.
TEST_F(WarmStart, AnInstalledOfflineProfileServesToo) {
  ASSERT_EQ(
      system((kBin + "tessera profile --gpu soft -o " + path("offline.json") + " -- " + kBin +
              "batch_trainer --preset soft --checksum-steps 1 --steps 4 > /dev/null 2> " + path("p.err"))
                 .c_str()),
      0);
  std::filesystem::create_directory(path("profiles"));
  start_daemon();
  std::filesystem::rename(path("offline.json"), path("profiles") + "/offline.json");
  for (const uint64_t end = base::now_ns() + kPatienceNs;
       json::parse(*ipc::query(socket()))["daemon"]["profile_files"] != 1; poll(nullptr, 0, 5))
    ASSERT_LT(base::now_ns(), end);
  const Seen warm = share(6);
  EXPECT_EQ(warm.unknown, 0u);
  EXPECT_GT(warm.learnt, 0u);
}

}  // namespace
}  // namespace tessera

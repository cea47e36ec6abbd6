// Sharing as issue and design promise it, with real processes on the software GPU: one protected client
// beside one, two and eight others, three levels, fairness by weight, packing by what bounds a kernel, a
// daemon killed in each state of a lease, hostile neighbours. Asserted is behaviour: results, counts, order,
// GPU time by the daemon's books; never the speed of this machine.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/units.h"
#include "cli/demo/measure.h"
#include "cli/demo/process.h"
#include "cli/trace/explain.h"
#include "cli/trace/take.h"
#include "ipc/channel/client.h"
#include "ipc/channel/packet.h"
#include "ipc/channel/pulse.h"
#include "simulator/chakra.h"
#include "tests/integration/sharing/fixture.h"

namespace tessera {
namespace {

namespace abi = ipc::abi;
namespace fs = std::filesystem;
using cli::Process;
using nlohmann::json;
using Words = std::vector<std::string>;

using test::eventually;
using test::kBin;
using test::kPatienceS;
using test::read_file;

// Bursts of the protected program: bound by memory, about 5 ms of GPU time and as long a pause.
const Words kService = {"memory", "64", "8", "2"};
// Best-effort launches of about 8 ms of short blocks, bound by arithmetic.
const Words kTrainer = {"compute", "1024", "10", "1"};

class Scenario : public test::SharingFixture {
 protected:
  // bursts 0: until it is stopped.
  Process start(const std::string& name, const std::string& priority, const Words& load, unsigned bursts,
                unsigned gap_us, const Words& options = {}) {
    Words program = {TESSERA_SHARING_LOAD};
    program.insert(program.end(), load.begin(), load.end());
    program.insert(program.end(), {std::to_string(bursts), std::to_string(gap_us), path(name + ".steps")});
    Words environment = {"TESSERA_SOFTGPU_MODE=" + mode_};
    if (traces_) {
      fs::create_directory(path(name + ".trace"));
      environment.push_back("TESSERA_SOFTGPU_TRACE=" + path(name + ".trace"));
    }
    return run(name, priority, options, program, environment);
  }
  Process start_trainer(const std::string& name, Words options = {}) {
    return start(name, "best-effort", kTrainer, 0, 0, std::move(options));
  }

  // The result of the same program without Tessera.
  std::string expected(const Words& load) {
    std::string& known = expected_[load];
    if (known.empty()) {
      auto alone = start("alone", "high", load, 1, 0);
      auto status = alone.wait(kPatienceS);
      EXPECT_TRUE(status.ok() && *status == 0) << read_file(path("alone.err"));
      known = checksum("alone");
    }
    return known;
  }
  void expect_result(Process& process, const std::string& name, const Words& load) {
    auto status = process.running() ? process.stop(kPatienceS) : process.wait(kPatienceS);
    EXPECT_TRUE(status.ok() && *status == 0) << name << ": " << read_file(path(name + ".err"));
    EXPECT_EQ(checksum(name), expected(load)) << name;
  }

  uint64_t count(const std::string& name, const char* what) { return client(name).value(what, uint64_t(0)); }
  std::string state(const std::string& name) { return client(name).value("state", ""); }

  std::string mode_ = "timesliced";
  bool traces_ = false;  // each program leaves what it ran, in the software GPU's own time
  static inline std::map<Words, std::string> expected_;
};

// ---- traces

class Traced : public Scenario {
 protected:
  // Until the trainer has launched and the service has had bursts for a while.
  base::Result<cli::Trace> take() {
    auto tracer = Process::start({kBin + "tessera", "trace", "--socket", socket(), "-o", path("t.json")}, {},
                                 path("tracer.out"), path("tracer.err"));
    EXPECT_TRUE(tracer.ok());
    EXPECT_TRUE(steps_grow("trainer", 10) && steps_grow("service", 5));
    kill(tracer->pid(), SIGINT);
    auto status = tracer->wait(kPatienceS);
    EXPECT_TRUE(status.ok() && *status == 0) << read_file(path("tracer.err"));
    return cli::read_trace(path("t.json"));
  }
  static uint32_t client_of(const cli::Trace& trace, const std::string& name) {
    for (const auto& [id, client] : trace.clients)
      if (client.name == name) return id;
    return 0;
  }
  static std::vector<cli::TraceItem> of(const cli::Trace& trace, const std::string& name,
                                        abi::TraceKind kind) {
    std::vector<cli::TraceItem> out;
    for (const cli::TraceItem& item : trace.items)
      if (item.client == client_of(trace, name) && item.kind == kind) out.push_back(item);
    return out;
  }
};

TEST_F(Traced, EveryLaunchIsThereOnceInOrderAndHoldsSayWhy) {
  start_daemon();
  constexpr uint64_t kBlocks = 997;
  auto trainer = start("trainer", "best-effort", {"counting", std::to_string(kBlocks), "10", "4"}, 0, 0);
  auto service = start("service", "high", kService, 0, 1'000);
  ASSERT_TRUE(eventually([&] { return steps("trainer") > 0 && steps("service") > 0; }));
  cli::Trace trace;
  const auto enough = [&] {
    auto taken = take();
    if (!taken) return false;
    trace = std::move(*taken);
    const auto holds = of(trace, "trainer", abi::kTraceHold);
    return of(trace, "trainer", abi::kTraceLaunch).size() > 8 &&
           !of(trace, "service", abi::kTraceBurst).empty() &&
           !of(trace, "trainer", abi::kTraceDone).empty() &&
           std::any_of(holds.begin(), holds.end(),
                       [](const cli::TraceItem& hold) { return hold.detail == abi::kTraceHeldByPulse; });
  };
  ASSERT_TRUE(eventually(enough)) << read_file(path("t.json")).substr(0, 2000);
  ASSERT_EQ(trace.lost, 0u);

  const auto launches = of(trace, "trainer", abi::kTraceLaunch);
  for (size_t i = 1; i < launches.size(); ++i) {
    ASSERT_EQ(launches[i].b, launches[i - 1].b % kBlocks + 1)
        << "launch " << i << ": one is missing or there twice";
    EXPECT_EQ(launches[i].stream, launches[0].stream);
    EXPECT_EQ(launches[i].detail, 0);
  }
  EXPECT_EQ(trace.clients[client_of(trace, "trainer")].functions[launches[0].a], "compute");
  for (const cli::TraceItem& hold : of(trace, "trainer", abi::kTraceHold)) {
    EXPECT_STRNE(cli::reason_name(hold.detail), "");
    EXPECT_LE(hold.start_ns, hold.end_ns);
  }
  EXPECT_TRUE(of(trace, "service", abi::kTraceHold).empty()) << "a protected client is not held";
  EXPECT_FALSE(of(trace, "service", abi::kTraceLaunch).empty());
  for (const auto& [id, client] : trace.clients) EXPECT_TRUE(client.gpu.starts_with("GPU-")) << client.gpu;

  EXPECT_TRUE(steps_grow("trainer", 3) && steps_grow("service", 3)) << "nobody traces any more";
  auto explained = Process::start({kBin + "tessera", "explain", "--slowest", "3", path("t.json")}, {},
                                  path("explain.out"), path("explain.err"));
  ASSERT_TRUE(explained.ok());
  auto status = explained->wait(kPatienceS);
  EXPECT_TRUE(status.ok() && *status == 0) << read_file(path("explain.err"));
  const std::string said = read_file(path("explain.out"));
  EXPECT_NE(said.find("service"), std::string::npos) << said;
  for (const cli::TraceItem& launch : launches)
    EXPECT_STRNE(cli::outcome_of(launch), "") << "whether its kernel can be cut is not told";
  if (const auto waited = cli::kernels_in_the_way(trace, 10); !waited.empty()) {
    EXPECT_NE(said.find("BURSTS WAITED FOR"), std::string::npos) << said;
    EXPECT_NE(waited[0].outcome, "") << said;
  }
}

TEST_F(Traced, AProcessThatIsNoClientIsAnError) {
  start_daemon();
  auto tracer = Process::start({kBin + "tessera", "trace", "--socket", socket(), "--pid",
                                std::to_string(getpid()), "--seconds", "0.01"},
                               {}, path("tracer.out"), path("tracer.err"));
  ASSERT_TRUE(tracer.ok());
  auto status = tracer->wait(kPatienceS);
  EXPECT_TRUE(status.ok() && *status != 0);
  EXPECT_NE(read_file(path("tracer.err")).find("`tessera ps`"), std::string::npos)
      << read_file(path("tracer.err"));
}

TEST_F(Traced, ATracedRunGivesTheProgramsStatusAndResult) {
  start_daemon();
  const Words load = {"compute", "64", "10", "1"};
  auto traced = start("traced", "best-effort", load, 30, 1'000, {"--trace", path("run.json")});
  auto status = traced.wait(kPatienceS);
  EXPECT_TRUE(status.ok() && *status == 0) << read_file(path("traced.err"));
  EXPECT_EQ(checksum("traced"), expected(load));
  auto trace = cli::read_trace(path("run.json"));
  ASSERT_TRUE(trace.ok()) << trace.error().text;
  EXPECT_NE(client_of(*trace, "traced"), 0u);
}

// From a program to a simulation of it: trace, Chakra, scenario.
TEST_F(Traced, ATracedProgramIsAWorkloadOfTheSimulator) {
  start_daemon();
  auto traced =
      start("traced", "best-effort", {"compute", "64", "10", "1"}, 30, 1'000, {"--trace", path("run.json")});
  auto status = traced.wait(kPatienceS);
  ASSERT_TRUE(status.ok() && *status == 0) << read_file(path("traced.err"));
  const auto ends_well = [&](const std::string& name, Words command) {
    command.insert(command.begin(), kBin + "tessera");
    auto process = Process::start(command, {}, path(name + ".out"), path(name + ".err"));
    const auto ended = process.ok() ? process->wait(kPatienceS) : base::Result<int>(process.error());
    EXPECT_TRUE(ended.ok() && *ended == 0) << read_file(path(name + ".err"));
  };
  ends_well("export", {"trace", "--from", path("run.json"), "--chakra", path("t")});
  const auto recorded = simulator::chakra::decode(read_file(path("t.0.et")));
  ASSERT_TRUE(recorded.ok()) << recorded.error().text;
  const auto trace = cli::read_trace(path("run.json"));
  const auto kernels = std::count_if(recorded->nodes.begin(), recorded->nodes.end(),
                                     [](const auto& node) { return node.name == "compute"; });
  EXPECT_EQ(size_t(kernels), of(*trace, "traced", abi::kTraceLaunch).size());

  std::ofstream(path("s.toml"))
      << "name = 'recorded'\nduration_ms = 2000\nseeds = 1\n[gpu]\nsm_count = 4\n"
         "[[workload]]\nname = 'traced'\nchakra = 't.0.et'\n"
         "[[cell]]\nname = 'alone'\nclient = [{ workload = 'traced', priority = 5, arrivals = 'closed' }]\n"
         "[[run]]\nname = 'tessera'\npolicy = 'tessera'\nregime = 'mps'\n";
  ends_well("simulate", {"simulate", path("s.toml"), "--json", path("s.json")});
  const json result = json::parse(read_file(path("s.json")), nullptr, false);
  ASSERT_FALSE(result.is_discarded()) << read_file(path("s.json"));
  double gpu_ms = 0, host_ms = 0;
  for (const auto& node : recorded->nodes)
    (simulator::chakra::flag(node.attributes, "is_cpu_op") ? host_ms : gpu_ms) +=
        double(node.duration_us) / 1000;
  const json& job = result["policies"]["tessera"]["cells"][0]["protected"][0];
  EXPECT_GT(job["n_requests"], 0);
  EXPECT_GT(job["p99_alone_ms"], 0.9 * gpu_ms);
  EXPECT_LT(job["p99_alone_ms"], 1.1 * (gpu_ms + host_ms) + 1);
}

// ---- where

TEST_F(Scenario, ProgramsThatStartAtOnceArePlacedOnGpusOfTheirOwn) {
  start_daemon();
  const auto place = [&](const std::string& name, const std::string& priority) {
    Words program = {TESSERA_SHARING_LOAD};
    program.insert(program.end(), kTrainer.begin(), kTrainer.end());
    program.insert(program.end(), {"0", "0", path(name + ".steps")});
    return run(name, priority, {"--place", "--memory", "1MiB"}, program,
               {"TESSERA_SOFTGPU_DEVICES=3", "CUDA_VISIBLE_DEVICES=2,0,1", "TESSERA_SOFTGPU_MODE=" + mode_});
  };
  std::vector<Process> programs;
  std::set<std::string> gpus;
  for (const char* name : {"a", "b", "c"}) programs.push_back(place(name, "best-effort"));
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_TRUE(eventually([&] { return steps(name) > 0; })) << read_file(path(std::string(name) + ".err"));
    gpus.insert(client(name).value("gpu", ""));
  }
  EXPECT_EQ(gpus.size(), 3u);
  for (const char* name : {"first", "second"}) programs.push_back(place(name, "high"));
  for (const char* name : {"first", "second"})
    ASSERT_TRUE(eventually([&] { return steps(name) > 0; })) << read_file(path(std::string(name) + ".err"));
  EXPECT_NE(client("first")["gpu"], client("second")["gpu"]);
  EXPECT_NE(read_file(path("first.err")).find("placed on GPU-"), std::string::npos);
}

// ---- who runs beside whom

class Beside : public Scenario, public testing::WithParamInterface<int> {};

TEST_P(Beside, AProtectedClientIsNeverHeldAndTheOthersAllProgress) {
  start_daemon();
  const int n = GetParam();
  std::vector<Process> trainers;
  for (int i = 0; i < n; ++i) trainers.push_back(start_trainer("trainer" + std::to_string(i)));
  for (int i = 0; i < n; ++i)
    ASSERT_TRUE(eventually([&] { return steps("trainer" + std::to_string(i)) > 0; })) << i;
  auto service = start("service", "high", kService, 30, 5'000);
  ASSERT_TRUE(eventually([&] { return count("service", "bursts_recorded") >= 10; }));
  json seen = ask();
  EXPECT_EQ(count("service", "holds"), 0u) << seen.dump();
  uint64_t preempted = 0;
  for (int i = 0; i < n; ++i) {
    const std::string name = "trainer" + std::to_string(i);
    preempted += count(name, "preemptions");
    EXPECT_TRUE(steps_grow(name, 1)) << name;
  }
  EXPECT_GT(preempted, 0u);
  expect_result(service, "service", kService);
  for (int i = 0; i < n; ++i) expect_result(trainers[size_t(i)], "trainer" + std::to_string(i), kTrainer);
  EXPECT_TRUE(eventually([&] { return ask()["clients"].empty(); }));
  seen = ask();
  EXPECT_EQ(seen["daemon"]["attached"], seen["daemon"]["detached"]);
}
INSTANTIATE_TEST_SUITE_P(Scenarios, Beside, testing::Values(1, 2, 8));

TEST_F(Scenario, ThreeLevels) {
  start_daemon();
  const Words busy = {"memory", "64", "8", "4"}, middle = {"compute", "256", "10", "2"};
  auto trainer = start_trainer("trainer");
  // Their gaps are long enough to be used, also where a busy machine makes bursts many times as long.
  auto high = start("high", "5", busy, 0, 30'000);
  auto low = start("low", "2", middle, 0, 20'000);
  ASSERT_TRUE(eventually(
      [&] { return count("high", "bursts_recorded") > 5 && count("low", "bursts_recorded") > 5; }));
  // The start of a burst waits for the level above, and for nobody else.
  EXPECT_TRUE(eventually([&] { return count("low", "holds") > 3; })) << ask().dump();
  EXPECT_EQ(count("high", "holds"), 0u);
  EXPECT_TRUE(eventually([&] { return count("trainer", "preemptions") > 3; })) << ask().dump();
  EXPECT_TRUE(steps_grow("low", 3));
  expect_result(high, "high", busy);
  expect_result(low, "low", middle);
  EXPECT_TRUE(steps_grow("trainer", 1));
  expect_result(trainer, "trainer", kTrainer);
}

TEST_F(Scenario, EqualLevelsWithSlosDeferByDeadline) {
  start_daemon();
  const Words load = {"memory", "64", "8", "3"};
  auto urgent = start("urgent", "3", load, 0, 3'700, {"--slo", "20ms"});
  auto relaxed = start("relaxed", "3", load, 0, 1'100, {"--slo", "2000ms"});
  ASSERT_TRUE(eventually([&] { return count("relaxed", "holds") > 5; })) << ask().dump();
  // The deadline of whoever may wait two seconds is hardly ever the earlier one: only if it waited that long.
  EXPECT_LT(count("urgent", "holds") * 2, count("relaxed", "holds")) << ask().dump();
  EXPECT_TRUE(steps_grow("relaxed", 2));
  expect_result(urgent, "urgent", load);
  expect_result(relaxed, "relaxed", load);
}

TEST_F(Scenario, GpuTimeFollowsTheWeights) {
  start_daemon();
  auto light = start_trainer("light", {"--weight", "100"});
  auto heavy = start_trainer("heavy", {"--weight", "300"});
  ASSERT_TRUE(eventually([&] { return steps("light") > 0 && steps("heavy") > 0; }));
  // Both launch the same kernel, so blocks are work: a measured time also holds the processor's other guests.
  // In some stretch of 80 launches: on a crowded machine a program may be too late for its own turns.
  constexpr uint64_t kStretch_blocks = 80 * 1024;
  uint64_t light_before = 0, heavy_before = 0;
  double ratio = 0;
  EXPECT_TRUE(eventually([&] {
    const uint64_t of_light = count("light", "blocks_launched"), of_heavy = count("heavy", "blocks_launched");
    if (of_light + of_heavy < light_before + heavy_before + kStretch_blocks) return false;
    ratio = double(of_heavy - heavy_before) / double(of_light - light_before + 1);
    light_before = of_light;
    heavy_before = of_heavy;
    return ratio > 1.8 && ratio < 5.0;
  })) << ratio
      << ask().dump();
}

// Cut as a look-back, but its first block waits for the last one: the rest is launched beside the slice,
// while a protected program uses the GPU, and the program goes on with the right result.
TEST_F(Scenario, ALookBackThatWaitsForAHigherBlockEnds) {
  const Words load = {"upwards", "128", "1", "1"};
  start_daemon();
  auto service = start("service", "high", kService, 0, 3'000);
  ASSERT_TRUE(eventually([&] { return count("service", "bursts_recorded") > 2; }));
  setenv("TESSERA_SLICE_WATCHDOG_MS", "100", 1);
  auto program = start("program", "best-effort", load, 0, 0, {"--allow-order-dependent"});
  unsetenv("TESSERA_SLICE_WATCHDOG_MS");
  EXPECT_TRUE(eventually([&] { return count("program", "watchdog_releases") == 1; })) << ask().dump();
  EXPECT_TRUE(steps_grow("program", 3));
  EXPECT_EQ(count("program", "watchdog_releases"), 1u);
  EXPECT_GT(count("program", "slices"), 0u);
  EXPECT_EQ(count("program", "refused_waiting"), 1u) << ask().dump();
  expect_result(program, "program", load);
  expect_result(service, "service", kService);
}

TEST_F(Scenario, AProgramBecomesProtectedAndBestEffortAgainWhileItRuns) {
  start_daemon();
  auto other = start_trainer("other");
  auto program = start("program", "best-effort", kTrainer, 0, 2'000);
  ASSERT_TRUE(eventually([&] { return steps("program") > 0 && steps("other") > 0; }));
  auto set = [&](const char* priority) {
    auto done =
        Process::start({kBin + "tessera", "set", "--socket", socket(), "program", "--priority", priority}, {},
                       path("set.out"), path("set.err"));
    ASSERT_TRUE(done.ok());
    auto status = done->wait(kPatienceS);
    ASSERT_TRUE(status.ok() && *status == 0) << read_file(path("set.err"));
  };
  set("5");
  // Its pulse is announced, and the other one watches it.
  EXPECT_TRUE(eventually([&] { return count("program", "bursts_recorded") > 3; })) << ask().dump();
  const uint64_t before = count("other", "preemptions");
  EXPECT_TRUE(eventually([&] { return count("other", "preemptions") > before + 3; })) << ask().dump();
  set("0");
  EXPECT_EQ(client("program")["priority"], 0);
  EXPECT_TRUE(eventually([&] { return count("program", "slices") > 0 && count("program", "holds") > 0; }));
  const uint64_t bursts = count("program", "bursts_recorded");
  EXPECT_TRUE(steps_grow("program", 3));
  EXPECT_TRUE(steps_grow("other", 1));
  EXPECT_LE(count("program", "bursts_recorded"),
            bursts + 1);  // no pulse any more; one may have been under way
  expect_result(program, "program", kTrainer);
  expect_result(other, "other", kTrainer);
}

const Words kLongBursts = {"memory", "64", "8", "6"};
const Words kNarrow = {"compute", "32", "80", "1"};  // fills two of four SMs
// Runs best-effort work during bursts from the first one on, for the daemon that is killed meanwhile.
constexpr char kPacks[] = "[policy]\nmin_share_percent = 50\n";

// ---- what `tessera ps` tells of a minimum share, and of who starves without one

class Told : public Scenario {
 protected:
  bool ps_tells(const std::string& words) {
    return eventually([&] {
      auto ps =
          Process::start({kBin + "tessera", "ps", "--socket", socket()}, {}, path("ps.out"), path("ps.err"));
      return ps.ok() && ps->wait(kPatienceS).ok() &&
             read_file(path("ps.out")).find(words) != std::string::npos;
    });
  }
};

TEST_F(Told, WhatAMinimumShareCosts) {
  mode_ = "mps";
  start_daemon(kPacks);
  auto service = start("service", "high", kLongBursts, 0, 8'000);
  ASSERT_TRUE(eventually([&] { return count("service", "bursts_solo") > 5; }));
  auto trainer = start_trainer("trainer");
  EXPECT_TRUE(ps_tells("minimum share of 50%: bursts beside it take ")) << ask().dump();
  EXPECT_GT(count("service", "minimum_share_slowdown_permille"), 0u);
  EXPECT_GT(count("service", "other_slowdown_permille"), 0u);
  expect_result(service, "service", kLongBursts);
  expect_result(trainer, "trainer", kTrainer);
}

TEST_F(Told, WhoStarvesAndWhatHelps) {
  const Words without_pause = {"memory", "64", "8", "20"};
  start_daemon();
  auto service = start("service", "high", without_pause, 0, 0);
  auto trainer = start_trainer("trainer");
  EXPECT_TRUE(eventually([&] {
    const json starved = client("trainer")["starved"];
    return starved.is_object() && starved["by"] == "services";
  })) << ask().dump();
  EXPECT_TRUE(ps_tells("min_share_percent")) << read_file(path("ps.out"));
  EXPECT_TRUE(client("service")["starved"].is_null());
  expect_result(service, "service", without_pause);
  expect_result(trainer, "trainer", kTrainer);
}

// ---- daemon killed, by the state of the lease

class Killed : public Scenario {
 protected:
  // Everybody goes on unmanaged, comes back to the next daemon, and computes what it should.
  void kill_and_recover(const Words& names) {
    daemon_.kill_now();
    for (const std::string& name : names) EXPECT_TRUE(steps_grow(name, 2)) << name;
    start_daemon();
    EXPECT_TRUE(eventually([&] { return ask().value("clients", json::array()).size() == names.size(); }));
    for (const std::string& name : names) EXPECT_TRUE(steps_grow(name, 2)) << name;
  }
};

TEST_F(Killed, Free) {
  start_daemon();
  auto trainer = start_trainer("trainer");
  ASSERT_TRUE(eventually([&] { return state("trainer") == "free" && steps("trainer") > 0; }));
  kill_and_recover({"trainer"});
  expect_result(trainer, "trainer", kTrainer);
}

TEST_F(Killed, GrantedAndHeld) {
  start_daemon();
  auto first = start_trainer("first"), second = start_trainer("second");
  ASSERT_TRUE(eventually([&] {
    const std::string a = state("first"), b = state("second");
    return (a == "held" && b == "granted") || (a == "granted" && b == "held");
  }));
  kill_and_recover({"first", "second"});
  expect_result(first, "first", kTrainer);
  expect_result(second, "second", kTrainer);
}

TEST_F(Killed, HeldByAPulse) {
  start_daemon();
  const Words saturating = {"memory", "64", "8", "20"};
  auto service = start("service", "high", saturating, 0, 0);
  auto trainer = start_trainer("trainer");
  ASSERT_TRUE(eventually([&] { return count("trainer", "waiting") > 0 && state("service") == "busy"; }));
  kill_and_recover({"trainer", "service"});
  expect_result(service, "service", saturating);
  expect_result(trainer, "trainer", kTrainer);
}

TEST_F(Killed, Packed) {
  mode_ = "mps";
  start_daemon(kPacks);
  auto service = start("service", "high", kLongBursts, 0, 8'000);
  ASSERT_TRUE(eventually([&] { return count("service", "bursts_solo") > 5; }));
  auto trainer = start("trainer", "best-effort", kNarrow, 0, 0);
  ASSERT_TRUE(eventually([&] { return state("trainer") == "packed"; })) << ask().dump();
  kill_and_recover({"trainer", "service"});
  expect_result(service, "service", kLongBursts);
  expect_result(trainer, "trainer", kNarrow);
}

// A lease that nobody uses at the moment.
TEST_F(Killed, Idle) {
  start_daemon();
  auto service = start("service", "high", kService, 0, 20'000);
  auto trainer = start("trainer", "best-effort", kTrainer, 0, 100'000);
  ASSERT_TRUE(eventually([&] {
    const json t = client("trainer");
    return t.value("state", "") == "granted" && t["waiting"] == 0 && t["in_flight_ns"] == 0 &&
           steps("trainer") > 0;
  })) << ask().dump();
  kill_and_recover({"trainer", "service"});
  expect_result(service, "service", kService);
  expect_result(trainer, "trainer", kTrainer);
}

TEST_F(Killed, SliceInFlight) {
  start_daemon();
  auto service = start("service", "high", kService, 0, 20'000);
  auto trainer = start_trainer("trainer");
  ASSERT_TRUE(eventually([&] {
    const json t = client("trainer");
    return t.value("slices", 0) > 0 && t["in_flight_ns"] > 0 && t["state"] == "granted";
  })) << ask().dump();
  kill_and_recover({"trainer", "service"});
  expect_result(service, "service", kService);
  expect_result(trainer, "trainer", kTrainer);
}

// Policies follow one another, which drains everybody first, until the daemon dies in the middle of it.
TEST_F(Killed, DuringReload) {
  start_daemon("[policy]\nname = \"temporal\"\n");
  auto first = start_trainer("first"), second = start_trainer("second");
  ASSERT_TRUE(eventually([&] { return steps("first") > 0 && steps("second") > 0; }));
  std::ofstream(path("d.toml")) << "[policy]\nname = \"tessera\"\n";
  kill(daemon_.pid(), SIGHUP);
  ASSERT_TRUE(eventually([&] { return ask().value("/daemon/policy"_json_pointer, "") == "tessera"; }));
  std::ofstream(path("d.toml")) << "[policy]\nname = \"temporal\"\n";
  kill(daemon_.pid(), SIGHUP);
  kill_and_recover({"first", "second"});
  expect_result(first, "first", kTrainer);
  expect_result(second, "second", kTrainer);
}

TEST_F(Killed, WithHoldOnLossLaunchesWaitButNotForEver) {
  start_daemon("[daemon]\non_daemon_loss = \"hold\"\n");
  auto trainer = start_trainer("trainer");
  ASSERT_TRUE(eventually([&] { return state("trainer") == "free" && steps("trainer") > 0; }));
  daemon_.kill_now();
  // Until it has noticed: a step takes long.
  ASSERT_TRUE(eventually([&] {
    const uint64_t before = base::now_ns();
    return steps_grow("trainer", 1) && base::now_ns() - before >= base::ms(150);
  }));
  const uint64_t before = base::now_ns();
  ASSERT_TRUE(steps_grow("trainer", 3));
  // Each launch waits for its hold limit, 200 ms; the first of them may have been under way.
  EXPECT_GE(base::now_ns() - before, base::ms(390));
  start_daemon();
  EXPECT_TRUE(eventually([&] { return state("trainer") == "free"; }));
  expect_result(trainer, "trainer", kTrainer);
}

// A stopped daemon keeps its socket open. Those who wait for it notice; at 10 s per launch they would not get
// on within this test's patience.
TEST_F(Scenario, AStoppedDaemonCountsAsGoneUntilItGoesOn) {
  start_daemon("[policy]\nmax_hold_ms = 10000\n");
  auto first = start_trainer("first"), second = start_trainer("second");
  ASSERT_TRUE(eventually([&] { return steps("first") > 0 && steps("second") > 0; }));
  EXPECT_EQ(count("first", "daemon_losses") + count("second", "daemon_losses"), 0u);
  kill(daemon_.pid(), SIGSTOP);
  EXPECT_TRUE(steps_grow("first", 20) && steps_grow("second", 20));
  kill(daemon_.pid(), SIGCONT);
  // Whoever had the turn need not have missed the daemon.
  EXPECT_TRUE(eventually([&] {
    return clients().size() == 2 && count("first", "daemon_losses") + count("second", "daemon_losses") > 0;
  })) << ask().dump();
  expect_result(first, "first", kTrainer);
  expect_result(second, "second", kTrainer);
}

// Nobody gates them; as those of a program's first milliseconds.
TEST_F(Scenario, WhatIsLaunchedBeforeTheDaemonKnowsIsCounted) {
  auto trainer = start_trainer("trainer");
  ASSERT_TRUE(eventually([&] { return steps("trainer") > 3; }));
  start_daemon();
  ASSERT_TRUE(eventually([&] { return count("trainer", "launches") > 0; })) << ask().dump();
  EXPECT_GT(count("trainer", "unmanaged_launches"), 3u);
  expect_result(trainer, "trainer", kTrainer);
}

// ---- hostile neighbours

TEST_F(Scenario, HostileClientsDisturbNeitherTheServiceNorTheTrainer) {
  start_daemon("[priority]\ndefault_max = 7\n");
  auto trainer = start_trainer("trainer");
  ASSERT_TRUE(eventually([&] { return steps("trainer") > 0; }));
  auto service = start("service", "7", kService, 60, 3'000);
  ASSERT_TRUE(eventually([&] { return state("service") != ""; }));
  uint8_t uuid[16] = {};
  {  // the GPU that the others are on
    const std::string text = client("trainer").value("gpu", "").substr(4);
    size_t at = 0;
    for (uint8_t& byte : uuid) {
      if (text[at] == '-') ++at;
      byte = uint8_t(std::stoul(text.substr(at, 2), nullptr, 16));
      at += 2;
    }
  }
  std::atomic<bool> stop{false};
  std::thread flapping(
      [&] {  // a protected client of a low level whose pulse never rests, and lies about time
        auto a = ipc::attach(socket(), {.priority = 1, .name = "flapping"}, 5'000);
        ASSERT_TRUE(a.ok());
        ASSERT_TRUE(ipc::announce_device(*a, uuid, 4, false).ok());
        std::mt19937_64 random(1);
        for (uint32_t i = 1; !stop; ++i) {
          ipc::pulse_set_busy(*a->pulse(), i, i, random(), random() % 2 ? base::now_ns() : random());
          ipc::pulse_try_idle(*a->pulse(), i, random() % 2 ? base::now_ns() : random());
          if (i % 64 == 0) ipc::notify(*a);
          usleep(50);
        }
      });
  std::thread garbage([&] {  // regions full of anything, rings without end, left at any moment
    std::mt19937_64 random(2);
    while (!stop) {
      auto a = ipc::attach(socket(), {.name = "garbage"}, 5'000);
      if (!a.ok()) continue;
      if (random() % 4 != 0) (void)ipc::announce_device(*a, uuid, uint32_t(random()), random() % 2 != 0);
      auto* words = a->region.as<uint64_t>();
      for (int i = 0; i < 50 && random() % 16 != 0; ++i) {
        const size_t from =
            (random() % 2 ? offsetof(ipc::abi::Region, usage) : offsetof(ipc::abi::Region, ring)) / 8;
        for (int k = 0; k < 24; ++k) words[from + size_t(k)] = random() % 4 ? random() % 2'000'000 : random();
        ipc::notify(*a);
        usleep(100);
      }
    }
  });
  std::thread leaving([&] {  // connections closed at any point of the handshake
    std::mt19937 random(3);
    while (!stop) {
      base::ScopedFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      strncpy(address.sun_path, socket().c_str(), sizeof address.sun_path - 1);
      if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) continue;
      abi::Hello hello{};
      hello.header = ipc::make_header(abi::kHello, sizeof hello);
      hello.priority = random() % 3;
      if (random() % 4 != 0) (void)!send(fd.get(), &hello, sizeof hello - random() % 2, MSG_NOSIGNAL);
      pollfd p{fd.get(), POLLIN, 0};
      if (random() % 2) poll(&p, 1, 5);
      abi::PulseMapped mapped{ipc::make_header(abi::kPulseMapped, sizeof mapped)};
      if (random() % 2) (void)!send(fd.get(), &mapped, sizeof mapped, MSG_NOSIGNAL);
    }
  });
  EXPECT_TRUE(eventually([&] { return steps("service") >= 40; }));
  const json s = client("service");
  EXPECT_EQ(s["hold_expired"], 0) << s.dump();
  EXPECT_EQ(s["holds"], 0) << s.dump();  // it is of the highest level: nobody delays it
  EXPECT_TRUE(steps_grow("trainer", 1));
  stop = true;
  flapping.join();
  garbage.join();
  leaving.join();
  expect_result(service, "service", kService);
  expect_result(trainer, "trainer", kTrainer);
  EXPECT_TRUE(eventually([&] { return ask()["clients"].empty(); }));
  const json end = ask();
  EXPECT_EQ(end["daemon"]["attached"], end["daemon"]["detached"]);
  EXPECT_GT(end["daemon"]["bad_rings"], 0);
  EXPECT_GT(end["daemon"]["malformed"], 0);
  EXPECT_TRUE(daemon_.running());
}

}  // namespace
}  // namespace tessera

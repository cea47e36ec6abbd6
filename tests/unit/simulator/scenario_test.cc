// Scenarios: mistakes are named with their place; results are deterministic; outputs say what they must.
#include "simulator/scenario.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "simulator/report.h"

namespace tessera::simulator {
namespace {

using testing::HasSubstr;

constexpr const char* kSmall = R"(
name = "small"
duration_ms = 60
warmup_ms = 5
[gpu]
sm_count = 8
[contention]
compute = { compute = 0.5 }
[[workload]]
name = "service"
[[workload.step]]
segment = [{ count = 10, us = 50, fill = 0.5 }]
[[workload]]
name = "trainer"
[[workload.step]]
segment = [{ count = 5, us = 2000, block_us = 100, class = "memory", cv = 0.3 }]
[[cell]]
name = "pair"
client = [{ workload = "service", priority = 7, load = 0.3 }, { workload = "trainer", count = 2 }]
[[run]]
policy = "none"
[[run]]
name = "temporal"
policy = "temporal"
)";

class ScenarioTest : public testing::Test {
 protected:
  ScenarioTest() : folder_(testing::TempDir() + "scenario_test_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~ScenarioTest() override { std::filesystem::remove_all(folder_); }
  base::Result<Scenario> load(const std::string& text) {
    std::ofstream(folder_ + "/s.toml") << text;
    return load_scenario(folder_ + "/s.toml");
  }
  std::string folder_;
};

TEST_F(ScenarioTest, SeveralGpusInTurnOrByWhatIsMeasured) {
  const std::string cell = R"([[cell]]
name = "pool"
gpus = 70
client = [{ workload = "trainer", count = 70 }, { workload = "service", priority = 7, load = 0.3, count = 35 }])";
  const auto clients_of = [&](const std::string& more) {
    auto loaded = load(std::string(kSmall) + cell + more);
    EXPECT_TRUE(loaded.ok()) << loaded.error().text;
    std::vector<size_t> counts;
    for (const Cell& c : loaded->cells)
      if (c.pool == "pool") counts.push_back(c.clients.size());
    return counts;
  };
  EXPECT_EQ(clients_of("").size(), 70u);
  EXPECT_EQ(clients_of("\nplacement = \"measured\"").size(), 70u);
  EXPECT_EQ(clients_of("\nplacement = \"measured\"")[69], 1u);
}

TEST_F(ScenarioTest, PoolsAreSummedUpOverTheirGpus) {
  auto loaded = load(std::string(kSmall) + R"([[cell]]
name = "pool"
gpus = 2
placement = "measured"
client = [{ workload = "service", priority = 7, load = 0.3, count = 3 }])");
  ASSERT_TRUE(loaded.ok()) << loaded.error().text;
  const Report report = run_scenario(*loaded, {.seeds = 1});
  ASSERT_EQ(report.pools.size(), 2u);  // one per run
  EXPECT_EQ(report.pools[0].gpus, 2u);
  uint64_t requests = 0;
  for (const CellRow& row : report.rows)
    if (row.run == 0 && loaded->cells[row.cell].pool == "pool")
      for (const ProtectedRow& p : row.protected_clients) requests += p.n_requests;
  EXPECT_EQ(report.pools[0].requests, requests);
  EXPECT_GT(report.pools[0].p99_first_ms, 0.5);
  EXPECT_THAT(pools_text(*loaded, report), HasSubstr("p99 first ms"));
  EXPECT_TRUE(nlohmann::json::parse(to_json(*loaded, report))["policies"]["none"].contains("pools"));
}

TEST_F(ScenarioTest, MistakesAreNamedWithTheirPlace) {
  struct {
    const char *from, *to, *message;
  } const kCases[] = {
      {"sm_count = 8", "sm_cuont = 8", "s.toml:6:1: unknown key `sm_cuont` in [gpu]"},
      {"sm_count = 8", "sm_count = 0", "`sm_count` in [gpu] must be a number from 1 to 4096"},
      {"workload = \"service\"", "workload = \"nobody\"",
       "s.toml:19:24: `workload` in a client of cell pair names `nobody`, which is not there; known: "
       "service, trainer"},
      {"policy = \"none\"", "policy = \"nothing\"",
       "s.toml:21:10: `policy` in [[run]] names `nothing`, which is not there; known: none, "},
      {"class = \"memory\"", "class = \"disk\"",
       "must be one of (in quotes) unknown, compute, memory, latency"},
      {"us = 50, fill", "us = 50, block_us = 5, fill", "has one wave if `fill` is below 1"},
      {"policy = \"none\"", "policy = \"none\"\nslice_us = 5",
       "s.toml:22:12: `slice_us` in [[run]] must be a number from 10 to 1e+06"},
      {"policy = \"none\"", "policy = \"none\"\ntune = { romo = 0 }",
       "s.toml:22:10: `tune` of run none: no constant is called `romo`; known: in_flight_limit, "},
      {"policy = \"none\"", "policy = \"none\"\nsm_limit = 5", "has `sm_limit` without a way to hold it"},
      {"warmup_ms = 5", "warmup_ms = 500", "`duration_ms` must be larger than `warmup_ms`"},
      {"name = \"small\"", "name = ", "s.toml:2:"},
  };
  for (const auto& c : kCases) {
    std::string text = kSmall;
    text.replace(text.find(c.from), std::string(c.from).size(), c.to);
    auto scenario = load(text);
    ASSERT_FALSE(scenario.ok()) << c.to;
    EXPECT_THAT(scenario.error().text, HasSubstr(c.message));
  }
  EXPECT_FALSE(load_scenario(folder_ + "/none.toml").ok());
  EXPECT_FALSE(load(std::string("include = [\"s.toml\"]\n") + kSmall).ok());
  auto missing = load(std::string("include = [\"none.toml\"]\n") + kSmall);
  EXPECT_THAT(missing.error().text, HasSubstr("s.toml:1:11: `include` in the scenario"));
}

// Measurements of a GPU have one place, its description; the scenario may say otherwise.
TEST_F(ScenarioTest, TakesWhatWasMeasuredFromAGpusDescription) {
  const std::string description = TESSERA_SOURCE_DIR "/profiles/gpus/h200.toml";
  const auto with = [&](const std::string& gpu) {
    std::string text = kSmall;
    return load(text.replace(text.find("sm_count = 8"), 12, gpu));
  };
  const auto plain = with("");
  const auto loaded = with("description = \"" + description + "\"\nswitch_us = 7\n[host]\nmarker_us = 6");
  ASSERT_TRUE(loaded.ok()) << loaded.error().text;
  const GpuSpec& gpu = loaded->gpu;
  EXPECT_EQ(gpu.sm_count, 132u);
  EXPECT_EQ(gpu.timeslice_ns, 2'000'000u);
  EXPECT_EQ(gpu.switch_ns, 7'000u);
  EXPECT_EQ(gpu.idle_switch_ns, 7'000u);
  EXPECT_EQ(gpu.kernel_gap_ns, 1'500u);
  EXPECT_EQ(loaded->host.launch_ns, 4'000u);
  EXPECT_EQ(loaded->host.marker_ns, 6'000u);
  EXPECT_EQ(loaded->host.boundary_ns, 2'300u);
  EXPECT_EQ(loaded->host.queue_launches, 1021u);
  EXPECT_EQ(loaded->host.wake_ns, plain->host.wake_ns);  // not of the GPU
  const size_t compute = size_t(policy::ResourceClass::kCompute),
               memory = size_t(policy::ResourceClass::kMemory);
  EXPECT_EQ(gpu.contention[memory][memory], 1.61);
  EXPECT_EQ(gpu.contention_disjoint[memory][memory], 0.66);
  EXPECT_EQ(gpu.contention_disjoint[compute][memory], 0);
  const auto none = with("description = \"none.toml\"");
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.error().text, HasSubstr("`description` in [gpu] names a file: "));
}

// Every value that is a duration or a rate: what is no number of its range is refused, and with the least that
// is taken a simulation ends. One that does not would end by the time limit of this program only.
TEST_F(ScenarioTest, DurationsAndRatesAreBounded) {
  struct {
    const char* before;  // text of kSmall in front of which the key is put; "]" ends nothing there
    const char* lead;    // what the key needs beside it
    std::vector<const char*> keys;
    const char* trail;
  } const kPlaces[] = {
      {"[gpu]", "", {"duration_ms", "warmup_ms"}, "\n"},
      {"[contention]", "", {"timeslice_us", "switch_us", "kernel_gap_us", "refill_us"}, "\n"},
      {"[contention]",
       "[host]\n",
       {"launch_us", "sync_us", "marker_us", "wake_us", "daemon_us", "spin_us", "setup_us", "confine_us",
        "retreat_us", "load_gb_per_s"},
       "\n"},
      {"segment = [{ count = 10", "", {"gap_us"}, "\n"},
      {"count = 10, us = 50,", "", {"block_us"}, ", "},
      {"priority = 7,", "", {"slo_ms", "start_ms", "stop_ms"}, ", "},
      {"priority = 7,", "arrivals = \"bursty\", ", {"burst_cv"}, ", "},
      {"priority = 7,", "arrivals = \"onoff\", ", {"on_ms", "off_ms"}, ", "},
      {"priority = 7,", "arrivals = \"onoff\", off_ms = 0, ", {"on_ms"}, ", "},
      {"priority = 7,", "arrivals = \"diurnal\", ", {"period_ms"}, ", "},
      {"[[run]]\nname = \"temporal\"",
       "",
       {"turnaround_us", "original_after_ms", "guard_us", "window_us", "slice_us", "quantum_us",
        "marker_spacing_us", "idle_grace_us", "lease_ms", "max_hold_ms", "drain_timeout_ms"},
       "\n"},
      {"[[run]]\nname = \"temporal\"",
       "[[perturbation]]\nname = \"p\"\n",
       {"observe_delay_us", "clock_factor"},
       "\n"},
  };
  for (const auto& place : kPlaces)
    for (const std::string key : place.keys)
      for (const char* value : {"nan", "inf", "-1", "1e300", "0", "0.001"}) {
        std::string text = kSmall;
        // A key that is there already would be a mistake of its own.
        if (const size_t there = text.find("\n" + key); there != text.npos)
          text.erase(there, text.find('\n', there + 1) - there);
        text.insert(text.find(place.before), place.lead + key + " = " + value + place.trail);
        const auto scenario = load(text);
        if (isdigit(value[0]) && std::string(value) != "1e300") {
          if (scenario.ok()) run_scenario(*scenario, {.threads = 1});
          continue;
        }
        ASSERT_FALSE(scenario.ok()) << key << " = " << value;
        EXPECT_THAT(scenario.error().text, HasSubstr("`" + key + "` in ")) << value;
        EXPECT_THAT(scenario.error().text, HasSubstr("must be a number from ")) << key << value;
      }
  for (const char* value :
       {"load = 0", "load = nan", "arrivals = \"onoff\", on_ms = 0", "arrivals = \"diurnal\", period_ms = 0",
        "arrivals = \"trace\", gaps_ms = [0, 1e-300]", "arrivals = \"trace\", gaps_ms = [nan]"}) {
    std::string text = kSmall;
    text.replace(text.find("load = 0.3"), 10, value);
    EXPECT_FALSE(load(text).ok()) << value;
  }
  std::string endless = kSmall;
  endless.replace(endless.find("segment = [{ count = 10"), 23, "repeat = 1000000\nsegment = [{ count = 11");
  EXPECT_THAT(load(endless).error().text, HasSubstr("has 11000000 launches"));
}

TEST_F(ScenarioTest, SeveralGpusTracesAndCopies) {
  std::string text = kSmall;
  text.replace(text.find("name = \"pair\""), 13, "name = \"pair\"\ngpus = 3");
  text.replace(text.find("load = 0.3"), 10, "arrivals = \"trace\", gaps_ms = [5, 1.5]");
  text.replace(text.find("segment = [{ count = 10,"), 24,
               "segment = [{ copy = true, us = 300 }, { count = 10,");
  auto scenario = load(text);
  ASSERT_TRUE(scenario.ok()) << scenario.error().text;
  ASSERT_EQ(scenario->cells.size(), 3u);  // each client on its own GPU
  EXPECT_EQ(scenario->cells[2].name, "pair / GPU 2");
  const Report report = run_scenario(*scenario, {.seeds = 1});
  const ProtectedRow& service = report.rows[0].protected_clients.at(0);
  EXPECT_NEAR(double(service.n_requests), 55 / 3.25, 2.5);
  EXPECT_GT(service.p99_alone_ms, 0.8);  // the copy and ten kernels
  text.replace(text.find("gaps_ms = [5, 1.5]"), 18, "gaps_ms = []");
  EXPECT_THAT(load(text).error().text, HasSubstr("needs `gaps_ms`"));
}

TEST_F(ScenarioTest, ConfinedTrainersLeaveTheServiceItsSms) {
  auto p99 = [&](const std::string& keys) {
    std::string text = kSmall;
    text.replace(text.find("policy = \"none\""), 15, "policy = \"none\"\n" + keys);
    auto scenario = load(text);
    EXPECT_TRUE(scenario.ok()) << scenario.error().text;
    const Report report = run_scenario(*scenario, {.seeds = 1});
    return report.rows[0].protected_clients.at(0).p99_over_alone;
  };
  const double anywhere = p99("");
  EXPECT_LT(p99("confine = \"dynamic\"\nsm_limit = 2"), anywhere);
  EXPECT_LT(p99("confine = \"attach\"\nsm_limit = 2"), anywhere);
  EXPECT_EQ(p99("confine = \"dynamic\""), anywhere);  // no limit: nothing changes
}

TEST_F(ScenarioTest, RunsCanBeChosenByName) {
  auto scenario = load(kSmall);
  ASSERT_TRUE(scenario.ok()) << scenario.error().text;
  ASSERT_TRUE(select_runs(&*scenario, {"temporal", "none@timesliced"}).ok());
  ASSERT_EQ(scenario->runs.size(), 2u);
  EXPECT_EQ(scenario->runs[1].regime, Regime::kTimesliced);
  const base::Status unknown = select_runs(&*scenario, {"none@sometimes"});
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().text.find("temporal, none@timesliced, "), std::string::npos)
      << unknown.error().text;
  // --policy A,B is how they are given.
  EXPECT_FALSE(load(std::string(kSmall) + "[[run]]\nname = \"a, b\"\n").ok());
}

TEST_F(ScenarioTest, EqualSeedsGiveEqualResultsWithAnyNumberOfThreads) {
  auto scenario = load(kSmall);
  ASSERT_TRUE(scenario.ok()) << scenario.error().text;
  Report one = run_scenario(*scenario, {.seeds = 3, .threads = 1});
  Report two = run_scenario(*scenario, {.seeds = 3, .threads = 3});
  EXPECT_EQ(to_json(*scenario, one), to_json(*scenario, two));
  Report other = run_scenario(*scenario, {.seeds = 3, .first_seed = 4});
  EXPECT_NE(to_csv(*scenario, one), to_csv(*scenario, other));
}

TEST_F(ScenarioTest, OutputsHaveWhatReadersRelyOn) {
  auto scenario = load(kSmall);
  ASSERT_TRUE(scenario.ok()) << scenario.error().text;
  Report report = run_scenario(*scenario, {.seeds = 2});
  auto json = nlohmann::json::parse(to_json(*scenario, report));
  for (const char* policy : {"none", "temporal"}) {
    const auto& p = json["policies"][policy];
    for (const char* key : {"p99_mean_over_alone", "p99_worst_over_alone", "be_share"}) {
      EXPECT_GT(p[key].get<double>(), 0) << policy << " " << key;
      EXPECT_LE(p["estimates"][key]["ci95"][0], p[key]);
    }
    EXPECT_EQ(p["cells"].size(), 2u);
  }
  // `temporal` keeps the trainers away while the service is busy; the hardware alone does not.
  EXPECT_LT(json["policies"]["temporal"]["p99_mean_over_alone"],
            json["policies"]["none"]["p99_mean_over_alone"]);
  EXPECT_THAT(table_text(*scenario, report), HasSubstr("temporal"));
}

TEST_F(ScenarioTest, ACellRunsUnderTheRunsThatItNames) {
  const std::string cell = R"([[cell]]
name = "only free"
runs = ["RUN"]
client = [{ workload = "service", priority = 7, load = 0.3 }, { workload = "trainer" }]
)";
  auto text = [&](const std::string& run) {
    return kSmall + std::string(cell).replace(cell.find("RUN"), 3, run);
  };
  const auto unknown = load(text("absent"));
  ASSERT_FALSE(unknown.ok());
  EXPECT_THAT(unknown.error().text, HasSubstr("names the run `absent`, which is not there"));

  const auto scenario = load(text("none"));
  ASSERT_TRUE(scenario.ok()) << scenario.error().text;
  const Report report = run_scenario(*scenario, {});
  ASSERT_EQ(report.rows.size(), 3u);
  for (const CellRow& row : report.rows) EXPECT_TRUE(row.cell == 0 || row.run == 0);
}

// Jobs of several steps report how long the first took, and the others.
TEST_F(ScenarioTest, StepsAreReportedWhereAScenarioAsks) {
  const std::string decoder = R"([[workload]]
name = "decoder"
[[workload.step]]
segment = [{ count = 10, us = 100 }]
[[workload.step]]
repeat = 3
segment = [{ count = 10, us = 20 }]
[[cell]]
name = "decoding"
client = [{ workload = "decoder", priority = 7, load = 0.3 }, { workload = "trainer" }]
)";
  const auto scenario = load("report_steps = true\n" + std::string(kSmall) + decoder);
  ASSERT_TRUE(scenario.ok()) << scenario.error().text;
  const Report report = run_scenario(*scenario, {});
  const nlohmann::json json = nlohmann::json::parse(to_json(*scenario, report));
  const auto& steps = json["policies"]["none"]["cells"][1]["protected"][0]["steps_over_alone"];
  for (const char* name : {"first_p50", "first_p99", "further_p50", "further_p99"})
    EXPECT_GE(steps[name].get<double>(), 1) << name;
}

}  // namespace
}  // namespace tessera::simulator

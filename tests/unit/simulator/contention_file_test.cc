// Answers to H16: their tables replace the scenario's; whatever is wrong is named, and changes nothing.
#include "simulator/contention_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "scheduler_daemon/policy/placement.h"
#include "simulator/scenario.h"

namespace tessera::simulator {
namespace {

using testing::HasSubstr;

TEST(ContentionFile, TablesReplaceWhatTheyName) {
  GpuSpec gpu;
  gpu.contention[1][3] = 0.7;
  const char* text = R"({"question": "H16", "gpu": "any", "contention_covered": true,
    "contention": {"compute": {"compute": 0.5, "memory": 0}, "memory": {"compute": 0.25, "memory": 1.5}},
    "contention_disjoint": {"memory": {"memory": 0.875}}})";
  ASSERT_TRUE(read_contention_answer(text, "h16.json", &gpu).ok());
  EXPECT_EQ(gpu.contention[1], (std::array<double, 4>{0, 0.5, 0, 0.7}));
  EXPECT_EQ(gpu.contention[2], (std::array<double, 4>{0, 0.25, 1.5, 0}));
  EXPECT_EQ(gpu.contention_disjoint[2][2], 0.875);
  EXPECT_EQ(gpu.contention_disjoint[1][1], -1);  // not measured: as elsewhere
}

// Without a measurement, tesserad places programs by the contention that scenarios have.
TEST(ContentionFile, WhatTheDaemonAssumesIsThatOfTheScenarios) {
  const auto scenario = load_scenario(TESSERA_SOURCE_DIR "/scenarios/tally_grid.toml");
  ASSERT_TRUE(scenario.ok()) << scenario.error().text;
  const policy::ContentionBetween& of_scenario = scenario->gpu.contention;
  for (size_t own = 0; own < 4; ++own) {
    const auto& assumed = policy::kAssumedContention[own];
    for (size_t other = 1; other < 4; ++other) EXPECT_EQ(assumed[other], of_scenario[own][other]);
    EXPECT_DOUBLE_EQ(assumed[0], (assumed[1] + assumed[2]) / 2);
  }
}

TEST(ContentionFile, MistakesAreNamedAndChangeNothing) {
  const struct {
    const char *text, *message;
  } kCases[] = {
      {"", "is not one JSON object"},
      {"[]", "is not one JSON object"},
      {R"({"question": "H7"})", "`question` must be \"H16\""},
      {R"({"question": "H16", "failed": "exit status 1"})", "says `failed`"},
      {R"({"question": "H16", "skipped": "no GPU"})", "says `skipped`"},
      {R"({"question": "H16"})", "has no `contention`"},
      {R"({"question": "H16", "contention": 1})", "h16.json: contention: must be an object"},
      {R"({"question": "H16", "contention": {"tensor": {}}})",
       "contention.tensor: must be one of unknown, compute, memory, latency"},
      {R"({"question": "H16", "contention": {"compute": 1}})", "contention.compute: must be one of"},
      {R"({"question": "H16", "contention": {"compute": {"disk": 1}}})",
       "contention.compute.disk: must be one of"},
      {R"({"question": "H16", "contention": {"compute": {"compute": 0.5, "memory": -1}}})",
       "contention.compute.memory: must be a number from 0 to 20"},
      {R"({"question": "H16", "contention": {"compute": {"compute": null}}})",
       "must be a number from 0 to 20"},
      {R"({"question": "H16", "contention": {}, "contention_covered": false})",
       "`contention_covered` is not true"},
  };
  for (const auto& c : kCases) {
    GpuSpec gpu;
    const base::Status s = read_contention_answer(c.text, "h16.json", &gpu);
    ASSERT_FALSE(s.ok()) << c.text;
    EXPECT_THAT(s.error().text, HasSubstr(c.message)) << c.text;
    EXPECT_THAT(s.error().text, testing::StartsWith("h16.json: ")) << c.text;
    EXPECT_EQ(gpu.contention, ContentionTable{}) << c.text;
  }
}

TEST(ContentionFile, FilesThatAreNone) {
  GpuSpec gpu;
  EXPECT_THAT(load_contention_answer("/nowhere/h16.json", &gpu).error().text,
              HasSubstr("cannot read /nowhere"));
  EXPECT_THAT(load_contention_answer(testing::TempDir(), &gpu).error().text, HasSubstr("it is a folder"));
  const std::string path = testing::TempDir() + "large_h16_" + std::to_string(::getpid()) + ".json";
  std::ofstream(path) << std::string((1 << 20) + 1, ' ');
  EXPECT_THAT(load_contention_answer(path, &gpu).error().text, HasSubstr("larger than 1 MiB"));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace tessera::simulator

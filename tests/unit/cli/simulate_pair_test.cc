// A pair of recordings becomes a scenario, results become a sentence.
#include "cli/measure/simulate_pair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "simulator/scenario.h"

namespace tessera::cli {
namespace {

using testing::HasSubstr;

const std::string kCorpus = TESSERA_CORPUS "/";

PairOptions pair() {
  PairOptions options;
  options.protected_file = kCorpus + "kineto/new.json";
  options.best_effort_file = kCorpus + "csv/loop.csv";
  return options;
}

base::Result<simulator::Scenario> scenario(const PairOptions& options) {
  const auto text = pair_scenario(options, "");
  if (!text.ok()) return text.error();
  return simulator::read_scenario(*text, std::string(TESSERA_SOURCE_DIR) + "/scenarios/pair.toml");
}

TEST(SimulatePair, RatesHaveUnits) {
  EXPECT_DOUBLE_EQ(*parse_rate_per_s("20/s"), 20);
  EXPECT_DOUBLE_EQ(*parse_rate_per_s("90/min"), 1.5);
  EXPECT_DOUBLE_EQ(*parse_rate_per_s("2.5"), 2.5);
  for (const char* wrong : {"", "/s", "20/day", "-1/s", "fast"})
    EXPECT_FALSE(parse_rate_per_s(wrong).ok()) << wrong;
}

TEST(SimulatePair, IsAScenarioOnTheGpuOfTheService) {
  PairOptions options = pair();
  options.rate = "20/s";
  const auto read = scenario(options);
  ASSERT_TRUE(read.ok()) << read.error().text;
  EXPECT_EQ(read->gpu.sm_count, 132u);
  ASSERT_EQ(read->cells.size(), 1u);
  EXPECT_EQ(read->cells[0].clients[0].arrivals.rate_per_s, 20);
  EXPECT_EQ(read->cells[0].clients[1].priority, 0u);
  EXPECT_THAT(read->inferred, testing::Contains(HasSubstr("service: recorded on h100")));
  options.gpu = "a100";
  const auto scaled = scenario(options);
  ASSERT_TRUE(scaled.ok()) << scaled.error().text;
  EXPECT_EQ(scaled->gpu.sm_count, 108u);
  EXPECT_THAT(scaled->inferred, testing::Contains(HasSubstr("simulated on a100")));
}

TEST(SimulatePair, CuttableIsAnAssumptionOfTheTrainer) {
  PairOptions options = pair();
  const auto cuttable = [&] {
    const auto read = scenario(options);
    return read->cells[0].clients[1].workload->steps[0].segments[0].kernel.can_cut;
  };
  EXPECT_FALSE(cuttable());
  options.cuttable = "all";
  EXPECT_TRUE(cuttable());
}

TEST(SimulatePair, ALanguageModelIsTwoRecordedSteps) {
  PairOptions options = pair();
  options.decode_file = options.protected_file;
  options.prefill_tokens = 1000;
  options.decode_batch = 8;
  const auto read = scenario(options);
  ASSERT_TRUE(read.ok()) << read.error().text;
  const auto& serving = read->cells[0].clients[0].workload->serving;
  ASSERT_TRUE(serving);
  EXPECT_EQ(serving->prefill_tokens, 1000u);
  EXPECT_EQ(serving->decode_batch, 8u);
  EXPECT_EQ(serving->mean.prompt, 1000u);
}

TEST(SimulatePair, TracesOfChakraNameTheGpu) {
  PairOptions options = pair();
  options.protected_file = "/t.0.et";
  EXPECT_THAT(pair_scenario(options, "").error().text, HasSubstr("--gpu"));
  options.gpu = "h100";
  EXPECT_THAT(*pair_scenario(options, ""), HasSubstr("chakra = \"/t.0.et\""));
}

TEST(SimulatePair, MistakesAreNamed) {
  PairOptions options = pair();
  options.rate = "often";
  EXPECT_THAT(scenario(options).error().text, HasSubstr("--rate"));
  options = pair();
  options.best_effort_file = kCorpus + "csv/none.csv";
  EXPECT_THAT(scenario(options).error().text, HasSubstr("none.csv"));
  options.best_effort_file = "\xc3\xa9.csv";
  EXPECT_THAT(scenario(options).error().text, HasSubstr("ASCII"));
  options = pair();
  options.gpu = "a1000";
  EXPECT_THAT(scenario(options).error().text, HasSubstr("h100"));
}

TEST(SimulatePair, AdviceIsARangeAndSaysWhenMpsIsEnough) {
  PairOptions options = pair();
  std::vector<PairRow> rows = {{"MPS with priority", 0, 0, 1.18, 1.35, 0.8, 0.9},
                               {"Tessera", 0, 0, 1.04, 1.09, 0.41, 0.52}};
  EXPECT_EQ(advice(options, rows),
            "Beside loop.csv the p99 of new.json grows by 4 to 9 % under Tessera; the trainer keeps 0.41 to "
            "0.52 of its speed "
            "alone. Under MPS with priority it grows by 18 to 35 %, for 0.80 to 0.90. Nobody measured the "
            "contention of this "
            "pair: the figures cover what is published.");
  rows[0].least_tail = 1;
  rows[0].most_tail = 1.01;
  options.contention = "h16.json";
  EXPECT_THAT(
      advice(options, rows),
      testing::EndsWith(
          "Under MPS with priority it grows by 0 to 1 %, for 0.80 to 0.90: that is enough for this pair."));
  EXPECT_EQ(advice(options, {rows[0]}), "");
}

}  // namespace
}  // namespace tessera::cli

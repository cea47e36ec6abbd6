#include "scheduler_daemon/stats/stats.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace tessera::stats {
namespace {

Snapshot example() {
  Snapshot s;
  s.version = "1";
  s.policy = "temporal";
  s.epoch = UINT64_MAX;
  s.counters.malformed = 3;
  s.gpus.push_back({"GPU-00", "temporal", false, 132, 1});
  ClientRow c;
  c.id = 4;
  c.pid = 77;
  c.name = "a \"quoted\"\\ \n\xff name";
  c.state = "held";
  c.counters.launches = 12;
  c.counters.held_ns = 5;
  s.clients.push_back(c);
  return s;
}

TEST(Stats, JsonIsValidWhateverAClientCallsItself) {
  auto j = nlohmann::json::parse(to_json(example()));
  EXPECT_EQ(j["daemon"]["malformed"], 3);
  EXPECT_EQ(j["daemon"]["epoch"], "18446744073709551615");
  EXPECT_EQ(j["clients"][0]["pid"], 77);
  EXPECT_EQ(j["clients"][0]["name"], "a \"quoted\"\\ \\x0a\\xff name");
  EXPECT_EQ(j["clients"][0]["launches"], 12);
  EXPECT_EQ(j["clients"][0]["state"], "held");
  EXPECT_EQ(j["gpus"][0]["sm_count"], 132);
  EXPECT_TRUE(nlohmann::json::parse(to_json({}))["clients"].empty());
}

TEST(Stats, EveryCounterIsDescribed) {
  auto schema = nlohmann::json::parse(schema_json());
  auto j = nlohmann::json::parse(to_json(example()));
  for (const auto& row : schema["client"])
    EXPECT_TRUE(j["clients"][0].contains(row["name"].get<std::string>())) << row;
  for (const auto& row : schema["daemon"])
    EXPECT_TRUE(j["daemon"].contains(row["name"].get<std::string>())) << row;
  EXPECT_FALSE(schema["client"].empty());
}

// By a row of stats.def, or in the section on `tessera ps --json` of docs/running.md.
TEST(Stats, EveryFieldIsDocumented) {
  std::ifstream file(TESSERA_SOURCE_DIR "/docs/running.md");
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  const size_t begin = all.find("\n## `tessera ps --json`");
  ASSERT_NE(begin, std::string::npos);
  const std::string section = all.substr(begin, all.find("\n## ", begin + 1) - begin);
  const auto schema = nlohmann::json::parse(schema_json());
  std::string rows;
  for (const auto& group : schema)
    for (const auto& row : group) rows += '`' + row["name"].get<std::string>() + '`';
  const auto j = nlohmann::json::parse(to_json(example()));
  for (const auto& object : {j, j["daemon"], j["mps"], j["gpus"][0], j["clients"][0]})
    for (const auto& [key, value] : object.items())
      EXPECT_NE((section + rows).find('`' + key + '`'), std::string::npos) << key;
}

}  // namespace
}  // namespace tessera::stats

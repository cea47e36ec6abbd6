#include "scheduler_daemon/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "base/units.h"
#include "scheduler_daemon/policy/policy.h"

namespace tessera::config {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Config, EmptyMeansDefaults) {
  Parsed p = parse_config("", "f");
  EXPECT_TRUE(p.errors.empty());
  EXPECT_EQ(p.config.policy_name, "tessera");
  core::Settings s = settings_of(p.config);
  policy::Parameters defaults;  // the two lists of defaults must not drift apart
  EXPECT_EQ(s.parameters.window_ns, defaults.window_ns);
  EXPECT_EQ(s.parameters.slice_ns, defaults.slice_ns);
  EXPECT_EQ(s.parameters.quantum_ns, defaults.quantum_ns);
  EXPECT_EQ(s.parameters.lease_ns, defaults.lease_ns);
  EXPECT_EQ(s.parameters.guard_ns, defaults.guard_ns);
  EXPECT_EQ(s.parameters.marker_spacing_ns, defaults.marker_spacing_ns);
  EXPECT_EQ(s.parameters.max_hold_ns, defaults.max_hold_ns);
  EXPECT_EQ(s.parameters.idle_grace_ns, defaults.idle_grace_ns);
  EXPECT_EQ(s.parameters.drain_timeout_ns, defaults.drain_timeout_ns);
}

TEST(Config, ValuesArrive) {
  Parsed p = parse_config(R"(
[daemon]
socket = "/tmp/x.sock"
on_daemon_loss = "hold"
[policy]
name = "none"
guard_us = 500
[priority]
default_max = 2
[[priority.limit]]
uid = 1000
max = 7
[[priority.limit]]
gid = 44
max = 0
)",
                          "f");
  ASSERT_TRUE(p.errors.empty()) << p.errors[0];
  core::Settings s = settings_of(p.config);
  EXPECT_EQ(p.config.daemon_socket, "/tmp/x.sock");
  EXPECT_EQ(s.on_daemon_loss, uint32_t(ipc::abi::kLossHold));
  EXPECT_EQ(s.policy_name, "none");
  EXPECT_EQ(s.parameters.guard_ns, base::us(500));
  EXPECT_EQ(s.default_max_priority, 2u);
  ASSERT_EQ(s.priority_limits.size(), 2u);
  EXPECT_EQ(s.priority_limits[0].max_priority, 7u);
  EXPECT_TRUE(s.priority_limits[1].by_gid);
}

TEST(Config, EveryMistakeIsNamedWithLineColumnAndRemedyInTheOrderOfTheFile) {
  Parsed p = parse_config(R"([policy]
quantm_us = 5
name = "tempral"
window_us = -3
[daemno]
[priority]
default_max = 8
[[priority.limit]]
max = 3
[[priority.limit]]
user = 3
uid = 1
max = 1
)",
                          "t.toml");
  EXPECT_THAT(
      p.errors,
      ElementsAre(AllOf(StartsWith("t.toml:2:1: "), HasSubstr("did you mean `quantum_us`?")),
                  AllOf(StartsWith("t.toml:3:8: "), HasSubstr("none|temporal")),
                  AllOf(StartsWith("t.toml:4:13: "), HasSubstr("10 to 1000000")),
                  AllOf(StartsWith("t.toml:5:"), HasSubstr("did you mean `daemon`?")),
                  AllOf(StartsWith("t.toml:7:15: "), HasSubstr("0 to 7")),
                  AllOf(StartsWith("t.toml:8:"), HasSubstr("needs `uid`, `gid` or `cgroup`")),
                  AllOf(StartsWith("t.toml:11:1: "), HasSubstr("known here: uid, gid, cgroup, max"))));
}

TEST(Config, SyntaxErrorsAndWrongShapesAreErrorsToo) {
  EXPECT_THAT(parse_config("[policy\n", "f").errors, ElementsAre(StartsWith("f:1:")));
  EXPECT_THAT(parse_config("policy = 3\n", "f").errors, ElementsAre(HasSubstr("write [policy]")));
  EXPECT_THAT(parse_config("[priority]\nlimit = 3\n", "f").errors,
              ElementsAre(HasSubstr("[[priority.limit]]")));
  EXPECT_THAT(parse_config("[policy]\nname = 3\n", "f").errors, ElementsAre(HasSubstr("in quotes")));
  EXPECT_THAT(parse_config("[policy]\nslice_us = 9000\n", "f").errors,
              ElementsAre(HasSubstr("fit into the window")));
  EXPECT_THAT(parse_config("[policy]\nguard_us = 1.5\n", "f").errors, ElementsAre(HasSubstr("whole number")));
}

TEST(Config, CharactersOutsideAsciiAreRefusedWithTheirPlace) {
  EXPECT_THAT(parse_config("[policy]\nn\xc3\xa4me = \"none\"\n", "f").errors,
              ElementsAre(AllOf(HasSubstr("f:2:2: "), HasSubstr("ASCII"))));
  EXPECT_THAT(parse_config("[)a]\n", "f").errors, ElementsAre(HasSubstr("f:1:")));
}

TEST(Config, LimitsByControlGroup) {
  Parsed p = parse_config("[[priority.limit]]\ncgroup = \"/system.slice/serve-*.service\"\nmax = 6\n", "f");
  EXPECT_TRUE(p.errors.empty());
  ASSERT_EQ(p.config.priority_limits.size(), 1u);
  EXPECT_EQ(p.config.priority_limits[0].cgroup, "/system.slice/serve-*.service");
  EXPECT_THAT(parse_config("[[priority.limit]]\ncgroup = \"serve\"\nmax = 6\n", "f").errors,
              ElementsAre(HasSubstr("must start with /")));
  EXPECT_THAT(parse_config("[[priority.limit]]\ncgroup = \"/a\"\nuid = 1\nmax = 6\n", "f").errors,
              ElementsAre(HasSubstr("only one of")));
}

TEST(Config, EnginesThatGiveMemoryBackAreOfThisMachine) {
  const std::string engine = "[[park.engine]]\nname = \"vllm-*\"\nsleep = \"http://127.0.0.1:8000/sleep\"\n";
  Parsed p = parse_config(engine + "wake = \"http://localhost:8000/wake_up\"\nuid = 7\n", "f");
  EXPECT_TRUE(p.errors.empty());
  const core::EngineRule rule{"vllm-*", 7, "http://127.0.0.1:8000/sleep", "http://localhost:8000/wake_up"};
  EXPECT_THAT(settings_of(p.config).engines, ElementsAre(rule));
  EXPECT_THAT(parse_config(engine, "f").errors, ElementsAre(HasSubstr("needs `name`, `sleep` and `wake`")));
  EXPECT_THAT(parse_config(engine + "wake = \"http://10.0.0.1/\"\n", "f").errors,
              ElementsAre(AllOf(HasSubstr("f:4:8: "), HasSubstr("a URL of this machine"))));
  EXPECT_THAT(parse_config(engine + "wakes = \"\"\n", "f").errors,
              ElementsAre(HasSubstr("needs"), HasSubstr("did you mean `wake`")));
  EXPECT_THAT(parse_config("[park]\nengine = 3\n", "f").errors, ElementsAre(HasSubstr("[[park.engine]]")));
}

TEST(Config, UnreadableFileSaysWhichAndWhy) {
  auto p = load_config("/nonexistent/t.toml");
  ASSERT_FALSE(p.ok());
  EXPECT_THAT(p.error().text, AllOf(HasSubstr("/nonexistent/t.toml"), HasSubstr("No such file")));
  for (const char* no_file : {"/tmp", "/dev/zero", "/dev/tty"}) EXPECT_FALSE(load_config(no_file).ok());
}

TEST(Config, ChoicesOfThePolicyAreTheRegisteredOnes) {
  for (const std::string& name : policy::policy_names())
    EXPECT_TRUE(parse_config("[policy]\nname = \"" + name + "\"\n", "f").errors.empty()) << name;
}

TEST(Config, APolicyOfPeersIsRefusedWithTheWordWhereItRuns) {
  EXPECT_THAT(parse_config("[policy]\nname = \"tally\"\n", "f").errors,
              ElementsAre(AllOf(HasSubstr("f:2:8: "), HasSubstr("none|temporal|tessera"),
                                HasSubstr("tessera simulate"))));
}

TEST(Config, TheDocumentationListsEveryKeyAsItIs) {
  std::ifstream in(TESSERA_SOURCE_DIR "/docs/configuration.md");
  std::ostringstream text;
  text << in.rdbuf();
  EXPECT_NE(text.str().find(reference_markdown()), std::string::npos)
      << "docs/configuration.md is out of date: paste the output of `tesserad --print-reference` into it";
}

TEST(Config, WhatWasMeasuredOfCheckpointsIsReadAndMistakesAreNamed) {
  const Checkpoints c = parse_checkpoints(
      "[[checkpoint]]\ngpu = \"NVIDIA X\"\ndriver = 13010\nby = \"parker\"\n"
      "[[checkpoint]]\ngpu = \"NVIDIA Y\"\ndriver = 13010\nby = \"client\"\n"
      "[[checkpoint]]\ngpu = \"NVIDIA Z\"\ndriver = \"new\"\nby = \"parker\"\n",
      "f");
  ASSERT_EQ(c.rules.size(), 2u);
  EXPECT_EQ(c.rules[0].gpu, "NVIDIA X");
  EXPECT_EQ(c.rules[0].driver, 13010u);
  EXPECT_TRUE(c.rules[0].by_parker);
  EXPECT_FALSE(c.rules[1].by_parker);
  EXPECT_THAT(c.errors, ElementsAre(HasSubstr("f:9:1: [[checkpoint]] needs")));
  EXPECT_THAT(parse_checkpoints("[[", "f").errors, ElementsAre(HasSubstr("f:1:")));
  EXPECT_TRUE(load_checkpoints({"", "off", "/nowhere"}).errors.empty());
}

}  // namespace
}  // namespace tessera::config

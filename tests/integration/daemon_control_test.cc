// An operator's actions while tesserad runs: tessera set, reload by SIGHUP, limits by control group.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/printable.h"
#include "daemon_test.h"
#include "ipc/channel/atomic.h"
#include "tests/support/shell.h"

namespace tessera::test {
namespace {

using namespace ipc::abi;  // NOLINT: message and lease constants

class ControlTest : public DaemonTest {
 protected:
  base::Result<std::string> ask(Control request) {
    return ipc::control(ipc::control_socket_path(socket_), request);
  }
  Control set(const char* name) {
    Control request{};
    request.action = kControlSet;
    strncpy(request.name, name, sizeof request.name - 1);
    return request;
  }
  nlohmann::json client(const std::string& name) {
    const nlohmann::json state = stats();
    for (const auto& c : state["clients"])
      if (c["name"] == name) return c;
    return {};
  }
  std::string output_of(const std::string& command) {
    const std::string line = std::string(TESSERA_PATH) + " " + command + " --socket " + socket_;
    return shell("exec bash -c " + quoted(line)).text;
  }
  static std::string quoted(std::string text) {
    for (size_t at = 0; (at = text.find('\'', at)) != std::string::npos; at += 4)
      text.replace(at, 1, "'\\''");
    return "'" + text + "'";
  }
  void configure(const std::string& text) { std::ofstream(folder_ + "/config.toml") << text; }
  std::vector<std::string> with_config() { return {"--config", folder_ + "/config.toml"}; }
};

TEST_F(ControlTest, SetsWeightSloAndPriorityOfARunningClient) {
  start();
  auto a = attach(5, "service");
  Control request = set("service");
  request.fields = kSetsWeight | kSetsSlo | kSetsPriority;
  request.weight = 300;
  request.slo_ns = 20'000'000;
  request.priority = 7;
  auto answer = ask(request);
  ASSERT_TRUE(answer.ok()) << answer.error().text;
  EXPECT_EQ(*answer, "1 client changed");
  EXPECT_EQ(client("service")["weight"], 300);
  EXPECT_EQ(client("service")["priority"], 7);
  EXPECT_EQ(client("service")["slo_ns"], 20'000'000);
}

TEST_F(ControlTest, PassthroughReachesTheLeaseOfTheClientWithThatProcessId) {
  start();
  auto a = on_gpu(0), b = on_gpu(0);
  Control request{};
  request.action = kControlSet;
  request.pid = uint32_t(getpid());
  request.fields = kSetsPassthrough;
  request.passthrough = 1;
  auto answer = ask(request);
  ASSERT_TRUE(answer.ok()) << answer.error().text;
  EXPECT_EQ(*answer, "2 clients changed");
  const auto passes = [](const ipc::Attachment& x) {
    return ipc::load(x.lease()->rights, std::memory_order_acquire).passthrough == 1;
  };
  EXPECT_TRUE(eventually([&] { return passes(a) && passes(b); }));
  EXPECT_EQ(stats()["clients"][1]["passthrough"], true);
}

// Whatever a program calls itself, nothing that shows its name hands its control characters to a terminal.
TEST_F(ControlTest, NamesOfClientsAreShownPrintable) {
  start();
  const char name[] =
      "\x1b]0;mine\x07\xc2\x9b"
      "2J\rx";
  const std::string shown = base::printable(name);
  auto a = attach(5, name);
  ASSERT_TRUE(eventually([&] { return !stats()["clients"].empty(); }));
  for (const char* command : {"ps", "ps --json", "top --interval 0.05 --count 1", "exporter --once"}) {
    const std::string text = output_of(command);
    // Cut to its column in `ps` and `top`; its backslashes are escaped once more in JSON and in labels.
    EXPECT_NE(text.find("x1b]0;mine"), std::string::npos) << command << "\n" << text;
    EXPECT_TRUE(std::ranges::all_of(text, [](char c) { return c == '\n' || base::is_printable(c); }))
        << command;
  }
  const std::string answer = output_of("set $'\\x1b]0;other' --weight 5");
  EXPECT_NE(answer.find("no client named '\\x1b]0;other'"), std::string::npos) << answer;
  EXPECT_NE(daemon_->errors().find(shown), std::string::npos);
  EXPECT_EQ(daemon_->errors().find('\x1b'), std::string::npos);
}

TEST_F(ControlTest, WhatCannotBeDoneIsSaid) {
  start();
  auto a = attach(0, "trainer");
  Control request = set("nobody");
  request.fields = kSetsWeight;
  request.weight = 5;
  EXPECT_EQ(ask(request).error().code, base::Code::kNotFound);
  request = set("trainer");
  EXPECT_EQ(ask(request).error().code, base::Code::kInvalid);  // nothing to set
  request.fields = 1u << 20;
  EXPECT_EQ(ask(request).error().code, base::Code::kInvalid);
  request.fields = kSetsPriority;
  request.priority = 9;
  EXPECT_EQ(ask(request).error().code, base::Code::kInvalid);
  request.action = 77;
  EXPECT_EQ(ask(request).error().code, base::Code::kUnsupported);
  EXPECT_EQ(client("trainer")["weight"], 100);
}

TEST_F(ControlTest, TopShowsWhatGrewSinceTheLastLook) {
  start();
  auto a = on_gpu(0);
  const auto [status, text] =
      shell(std::string(TESSERA_PATH) + " top --interval 0.05 --count 2 --socket " + socket_);
  EXPECT_EQ(status, 0) << text;
  size_t tables = 0;
  for (size_t at = 0; (at = text.find("LAUNCH/s", at)) != std::string::npos; ++at) ++tables;
  EXPECT_EQ(tables, 2u) << text;
  EXPECT_NE(text.find("GPU-"), std::string::npos) << text;
  EXPECT_NE(text.find(std::to_string(getpid())), std::string::npos) << text;  // the client is this process
  EXPECT_EQ(text.find('\033'), std::string::npos) << "not a terminal";
}

TEST_F(ControlTest, TheControlSocketIsTheOwnersAndCanBeOff) {
  start();
  struct stat st;
  ASSERT_EQ(stat(ipc::control_socket_path(socket_).c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  // Ordinary questions and greetings are not for this socket, nor control requests for the other.
  EXPECT_FALSE(ipc::query(ipc::control_socket_path(socket_)).ok());
  EXPECT_FALSE(ipc::control(socket_, set("x")).ok());
  EXPECT_FALSE(ipc::attach(ipc::control_socket_path(socket_), {}).ok());
  daemon_.reset();
  configure("[daemon]\ncontrol_mode = \"off\"\n");
  start(with_config());
  EXPECT_EQ(ask(set("x")).error().code, base::Code::kUnavailable);
}

TEST_F(ControlTest, ReloadTakesTheNewConfigurationOrKeepsTheOld) {
  configure("[policy]\nname = \"temporal\"\n");
  start(with_config());
  auto a = on_gpu(0), b = on_gpu(0);
  configure("[policy]\nname = \"none\"\n");
  daemon_->signal(SIGHUP);
  EXPECT_TRUE(eventually([&] { return stats()["daemon"]["policy"] == "none"; }));
  EXPECT_TRUE(eventually([&] { return lease_state(a) == kLeaseFree && lease_state(b) == kLeaseFree; }));

  configure("[policy]\nname = \"temporal\"\nwindow_us = \"large\"\n");
  daemon_->signal(SIGHUP);
  ASSERT_TRUE(eventually([&] {
    return daemon_->errors().find("config.toml:3:") != std::string::npos &&
           daemon_->errors().find("the old configuration stays") != std::string::npos;
  })) << daemon_->errors();
  EXPECT_EQ(stats()["daemon"]["policy"], "none");
  Control request{};
  request.action = kControlReload;
  auto answer = ask(request);
  EXPECT_NE(answer.error().text.find("config.toml:3:"), std::string::npos) << answer.error().text;

  configure("[policy]\nname = \"temporal\"\n[daemon]\nspin_us = 0\nlog_level = \"warn\"\n");
  answer = ask(request);
  ASSERT_TRUE(answer.ok()) << answer.error().text;
  EXPECT_TRUE(answer->ends_with(": daemon.spin_us")) << *answer;
  EXPECT_EQ(stats()["daemon"]["policy"], "temporal");
}

TEST_F(ControlTest, ClaimsAreBoundedByControlGroup) {
  std::ifstream own("/proc/self/cgroup");
  std::string line, group;
  while (std::getline(own, line))
    if (line.starts_with("0::") || (group.size() <= 1 && line.find(":name=systemd:") != std::string::npos))
      group = line.substr(line.rfind(':') + 1);
  if (group.empty()) GTEST_SKIP() << "no control groups on this machine";
  configure("[[priority.limit]]\ncgroup = \"/no/such/group\"\nmax = 1\n[[priority.limit]]\ncgroup = \"" +
            group + "\"\nmax = 3\n");
  start(with_config());
  auto a = attach(6, "bounded");
  EXPECT_EQ(a.priority, 3u);
  EXPECT_EQ(client("bounded")["claimed_priority"], 6);
}

}  // namespace
}  // namespace tessera::test

// The whole path with real processes: daemon, preloaded sample programs, software GPU. What is asserted is
// behaviour (results, order of events, who is where), never speed: the machine may be slow and shared.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/units.h"
#include "cli/demo/measure.h"
#include "cli/demo/process.h"
#include "ipc/channel/client.h"
#include "tests/integration/sharing/fixture.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using cli::Process;
using nlohmann::json;

using test::eventually;
using test::kBin;
using test::kPatienceS;
using test::read_file;

class Sharing : public test::SharingFixture {
 protected:
  Process start(const std::string& name, const std::string& priority, std::vector<std::string> program,
                std::vector<std::string> environment = {}) {
    program[0] = kBin + program[0];
    return run(name, priority, {}, program, std::move(environment));
  }

  Process start_trainer(const std::string& name, std::vector<std::string> more) {
    std::vector<std::string> program = {"batch_trainer", "--checksum-steps", "2", "--csv",
                                        path(name + ".csv")};
    program.insert(program.end(), more.begin(), more.end());
    return start(name, "best-effort", program);
  }

  Process start_service(const std::string& name, int requests, const std::string& rate = "30") {
    return start(name, "high",
                 {"latency_service", "--requests", std::to_string(requests), "--rate", rate, "--csv",
                  path(name + ".csv")});
  }

  Process run_waits(const std::string& mode, const std::string& priority = "best-effort") {
    return run(mode, priority, {}, {TESSERA_SHARING_WAITS, mode, path(mode + ".steps")}, {});
  }
  bool has_boundaries(const std::string& name) const {
    const json state = client(name);
    return state.value("gate", "") == "device" && state.value("gate_boundaries", 0) > 0;
  }

  size_t steps(const std::string& name) const override {
    auto csv = cli::read_csv(path(name + ".csv"));
    return csv ? csv->rows.size() : 0;
  }
};

TEST_F(Sharing, ResultsAreEqualAndTheTrainerIsCutAndHeld) {
  auto alone = start_trainer("alone", {"--steps", "3"});
  auto exit_alone = alone.wait(kPatienceS);
  ASSERT_TRUE(exit_alone.ok() && *exit_alone == 0) << read_file(path("alone.err"));

  auto service_alone = start_service("service_alone", 20);
  auto exit_service_alone = service_alone.wait(kPatienceS);
  ASSERT_TRUE(exit_service_alone.ok() && *exit_service_alone == 0) << read_file(path("service_alone.err"));

  start_daemon();
  auto trainer = start_trainer("trainer", {"--seconds", "600"});
  ASSERT_TRUE(eventually([&] { return steps("trainer") > 0; })) << read_file(path("trainer.err"));
  EXPECT_EQ(client("trainer").value("priority", 99), 0);
  auto service = start_service("service", 20);
  ASSERT_TRUE(eventually([&] { return client("service").value("priority", 0) == 5; }));
  auto exit_service = service.wait(kPatienceS);
  ASSERT_TRUE(exit_service.ok() && *exit_service == 0) << read_file(path("service.err"));
  const json state = client("trainer");
  EXPECT_GT(state.value("slices", 0), 0) << state.dump();
  if (state.value("gate", "") == "device") {
    // A service that is hardly ever idle, on a slow machine, lets packing have it wait in its thread.
    EXPECT_GT(state.value("gate_boundaries", 0) + state.value("holds", 0), 0) << state.dump();
  } else {
    EXPECT_GT(state.value("holds", 0), 0) << state.dump();
    EXPECT_GT(state.value("preemptions", 0), 0) << state.dump();
  }
  auto exit_trainer = trainer.stop(kPatienceS);
  ASSERT_TRUE(exit_trainer.ok() && *exit_trainer == 0) << read_file(path("trainer.err"));
  EXPECT_EQ(checksum("trainer"), checksum("alone"));
  EXPECT_EQ(checksum("service"), checksum("service_alone"));
  EXPECT_TRUE(eventually([&] { return clients().empty(); }));
}

// The launches of a burst as one graph: whole while the program is alone, in slices beside a service.
TEST_F(Sharing, GraphsAreCutWhenTheyAreInTheWay) {
  start_daemon();
  const auto load = [&](const std::string& name, const std::string& kind, const std::string& bursts) {
    return run(name, "best-effort", {},
               {TESSERA_SHARING_LOAD, kind, "256", "200", "6", bursts, "0", path(name + ".steps")},
               {"TESSERA_SLICE_WATCHDOG_MS=600000"});  // no slice is too slow on a busy machine
  };
  auto plain = load("plain", "compute", "2");
  auto status = plain.wait(kPatienceS);
  ASSERT_TRUE(status.ok() && *status == 0) << read_file(path("plain.err"));
  auto graph = load("graph", "graph", "0");
  const auto bursts = [&] { return SharingFixture::steps("graph"); };
  ASSERT_TRUE(eventually([&] { return bursts() > 2; })) << read_file(path("graph.err"));
  EXPECT_EQ(client("graph").value("slices", 1), 0) << "alone";
  auto service = start_service("service", 100'000);
  EXPECT_TRUE(eventually([&] { return client("graph").value("slices", 0) > 20; })) << clients().dump();
  const size_t before = bursts();
  EXPECT_TRUE(eventually([&] { return bursts() > before + 2; }));
  status = graph.stop(kPatienceS);
  ASSERT_TRUE(status.ok() && *status == 0) << read_file(path("graph.err"));
  EXPECT_EQ(checksum("graph"), checksum("plain"));
}

TEST_F(Sharing, AProgramAloneIsSeenToUseTheGpu) {
  start_daemon();
  auto trainer = start_trainer("trainer", {"--seconds", "600"});
  ASSERT_TRUE(eventually([&] { return steps("trainer") > 0; })) << read_file(path("trainer.err"));
  const auto used = [&] {
    (void)ipc::query(socket(), ipc::abi::kQueryStateMeasured);
    return client("trainer").value("completed_ns", uint64_t(0));
  };
  const uint64_t before = used();
  EXPECT_TRUE(eventually([&] { return used() > before; }));
  EXPECT_EQ(client("trainer").value("state", ""), "free");
  EXPECT_EQ(client("trainer").value("slices", uint64_t(1)), 0u) << "nothing is cut for that";
  EXPECT_EQ(client("trainer").value("holds", uint64_t(1)), 0u);
}

// A kernel that reads and writes its module's variables, in a binary with machine code: its slices run in a
// module of their own and mean the same variables. The program checks each step.
TEST_F(Sharing, SlicesInAModuleOfTheirOwnUseTheProgramsVariables) {
  start_daemon();
  auto service = start_service("service", 100'000);
  auto globals = run("globals", "best-effort", {}, {TESSERA_SHARING_GLOBALS, path("globals.steps")}, {});
  EXPECT_TRUE(eventually([&] { return client("globals").value("slices", 0) > 20; })) << clients().dump();
  EXPECT_EQ(client("globals").value("refused_state", -1), 0) << clients().dump();
  EXPECT_TRUE(eventually([&] {
    const auto outcomes = client("globals").value("outcomes", nlohmann::json::array());
    return !outcomes.empty() && outcomes[0].value("name", "") == "sliced";
  })) << clients().dump();
  const auto done = [&] { return SharingFixture::steps("globals"); };
  const size_t before = done();
  EXPECT_TRUE(eventually([&] { return done() > before + 2; }));
  auto status = globals.stop(kPatienceS);
  EXPECT_TRUE(status.ok() && *status == 0) << read_file(path("globals.err"));
}

// Kernels whose blocks read each other's shared memory, in clusters of the kernel's and of the launch's
// shape: slices are whole clusters. The programs check each step.
TEST_F(Sharing, KernelsInClustersAreCut) {
  start_daemon();
  auto service = start_service("service", 100'000);
  const std::vector<std::string> names = {"kernel", "launch"};
  std::vector<Process> programs;
  for (const std::string& name : names)
    programs.push_back(
        run(name, "best-effort", {}, {TESSERA_SHARING_CLUSTERS, name, path(name + ".steps")}, {}));
  for (const std::string& name : names) {
    EXPECT_TRUE(eventually([&] { return client(name).value("slices", 0) > 20; })) << clients().dump();
    EXPECT_EQ(client(name).value("refused_kernels", -1), 0) << clients().dump();
    const size_t before = SharingFixture::steps(name);
    EXPECT_TRUE(eventually([&] { return SharingFixture::steps(name) > before + 2; }));
  }
  for (size_t i = 0; i < names.size(); i++) {
    auto status = programs[i].stop(kPatienceS);
    EXPECT_TRUE(status.ok() && *status == 0) << read_file(path(names[i] + ".err"));
  }
}

// CUB's scan and select, whose blocks wait for lower ones: cut where the user allows that order matters,
// whole elsewhere. The program checks each round. What they launch besides is too small to be cut.
TEST_F(Sharing, LookBacksAreCutWhereTheUserAllowsIt) {
  start_daemon();
  auto service = start_service("service", 100'000);
  const auto scans = [&](const std::string& name, const std::vector<std::string>& options) {
    return run(name, "best-effort", options,
               {TESSERA_SHARING_ALGORITHMS, "--again", path(name + ".steps"), "scan", "select"}, {});
  };
  auto cut = scans("cut", {"--allow-order-dependent"});
  auto whole = scans("whole", {});
  EXPECT_TRUE(eventually([&] { return client("cut").value("slices", 0) > 20; })) << clients().dump();
  for (const std::string name : {"cut", "whole"}) {
    const size_t before = SharingFixture::steps(name);
    EXPECT_TRUE(eventually([&] { return SharingFixture::steps(name) > before + 1; })) << clients().dump();
  }
  EXPECT_EQ(client("cut").value("refused_waiting", -1), 0) << clients().dump();
  EXPECT_EQ(client("cut").value("watchdog_releases", -1), 0) << clients().dump();
  EXPECT_GT(client("whole").value("refused_waiting", -1), 0) << clients().dump();
  EXPECT_EQ(client("whole").value("slices", -1), 0) << clients().dump();
  for (auto* program : {&cut, &whole}) {
    auto status = program->stop(kPatienceS);
    EXPECT_TRUE(status.ok() && *status == 0) << read_file(path("cut.err")) << read_file(path("whole.err"));
  }
}

TEST_F(Sharing, DaemonKilledWhileClientsRunAndAnotherTakesOver) {
  start_daemon();
  auto trainer = start_trainer("trainer", {"--seconds", "600"});
  auto service = start_service("service", 100'000);
  ASSERT_TRUE(eventually([&] { return clients().size() == 2 && steps("trainer") > 0; }));
  daemon_.kill_now();
  EXPECT_TRUE(steps_grow("trainer", 2));  // nobody holds it any more
  EXPECT_TRUE(trainer.running());
  EXPECT_TRUE(service.running());
  start_daemon();
  EXPECT_TRUE(eventually([&] { return clients().size() == 2; }));  // they come back by themselves
  EXPECT_TRUE(steps_grow("trainer", 1));
  service.kill_now();
  auto exit_trainer = trainer.stop(kPatienceS);
  EXPECT_TRUE(exit_trainer.ok() && *exit_trainer == 0);
}

TEST_F(Sharing, ProtectedClientKilledWhileBusy) {
  start_daemon();
  auto trainer = start_trainer("trainer", {"--seconds", "600"});
  ASSERT_TRUE(eventually([&] { return steps("trainer") > 0; }));
  auto service = start_service("service", 100'000, "10000");  // overloaded: always busy
  ASSERT_TRUE(eventually([&] { return client("service").value("state", "") == "busy"; })) << clients().dump();
  service.kill_now();
  EXPECT_TRUE(eventually([&] { return client("service").empty(); }));
  EXPECT_TRUE(steps_grow("trainer", 2));
}

TEST_F(Sharing, ProtectedClientStoppedWhileBusyStarvesNobody) {
  start_daemon();
  auto trainer = start_trainer("trainer", {"--seconds", "600"});
  ASSERT_TRUE(eventually([&] { return steps("trainer") > 0; }));
  auto service = start_service("service", 100'000, "10000");
  ASSERT_TRUE(eventually([&] { return client("service").value("state", "") == "busy"; })) << clients().dump();
  kill(service.pid(), SIGSTOP);
  EXPECT_TRUE(steps_grow("trainer", 3));
  EXPECT_FALSE(client("service").empty());  // still attached, only stale
  kill(service.pid(), SIGCONT);
  EXPECT_TRUE(service.running());
}

TEST_F(Sharing, BestEffortClientKilledMidLaunchFreesTheService) {
  start_daemon();
  auto trainer = start_trainer("trainer", {"--seconds", "600"});
  ASSERT_TRUE(eventually([&] { return steps("trainer") > 0; }));
  trainer.kill_now();
  EXPECT_TRUE(eventually([&] { return client("trainer").empty(); }));
  auto service = start_service("service", 10);
  auto exit_service = service.wait(kPatienceS);
  EXPECT_TRUE(exit_service.ok() && *exit_service == 0) << read_file(path("service.err"));
}

// Launches that block would wait in the driver, and with one queue everything else would, too.
TEST_F(Sharing, SettingsOfTheProgramKeepWorkInItsThreads) {
  start_daemon("[policy]\ngate = \"device\"\n");
  for (const char* setting : {"CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS"}) {
    setenv(setting, "1", 1);
    auto trainer = start_trainer("trainer", {"--seconds", "600"});
    unsetenv(setting);
    ASSERT_TRUE(eventually([&] { return !client("trainer").empty(); }));
    EXPECT_TRUE(steps_grow("trainer", 2));
    EXPECT_NE(client("trainer").value("gate", "").find(setting), std::string::npos) << clients().dump();
    auto exit_trainer = trainer.stop(kPatienceS);
    ASSERT_TRUE(exit_trainer.ok() && *exit_trainer == 0) << read_file(path("trainer.err"));
    ASSERT_TRUE(eventually([&] { return clients().empty(); }));
  }
}

// Best-effort work waits in its streams, and the service closes them itself.
TEST_F(Sharing, WorkWaitsOnTheDeviceWhereItIsAskedFor) {
  auto alone = start_trainer("alone", {"--steps", "3"});
  auto exit_alone = alone.wait(kPatienceS);
  ASSERT_TRUE(exit_alone.ok() && *exit_alone == 0) << read_file(path("alone.err"));
  start_daemon("[policy]\ngate = \"device\"\n");
  auto trainer = start_trainer("trainer", {"--seconds", "600"});
  auto service = start_service("service", 100'000);
  EXPECT_TRUE(eventually([&] { return client("trainer").value("gate_boundaries", 0) > 100; }))
      << clients().dump();
  EXPECT_EQ(client("trainer").value("gate", ""), "device");
  EXPECT_TRUE(steps_grow("trainer", 3));
  service.kill_now();
  auto exit_trainer = trainer.stop(kPatienceS);
  ASSERT_TRUE(exit_trainer.ok() && *exit_trainer == 0) << read_file(path("trainer.err"));
  EXPECT_EQ(checksum("trainer"), checksum("alone"));
}

// A program that waits for its work without a call, one of two contexts, and two whose calls wait for their work in other
// ways, beside a service that is always busy: what is shut for the hold limit passes.
TEST_F(Sharing, WaitsThatNoCallTellsAndTwoContextsGoOn) {
  start_daemon("[policy]\nmax_hold_ms = 20\nquantum_us = 5000\n");
  auto service = start_service("service", 100'000, "10000");
  ASSERT_TRUE(eventually([&] { return client("service").value("state", "") == "busy"; })) << clients().dump();
  for (const std::string mode : {"poll", "contexts", "free", "reset", "destroy", "refused"}) {
    auto program = run_waits(mode);
    const auto rounds = [&] { return SharingFixture::steps(mode); };
    EXPECT_TRUE(eventually([&] {
      return rounds() > 3 && (gate_is_on_device() ? has_boundaries(mode) : !client(mode).empty());
    })) << read_file(path(mode + ".err"))
        << clients().dump();
    const size_t before = rounds();
    EXPECT_TRUE(eventually([&] { return rounds() > before + 5; })) << clients().dump();
    auto status = program.stop(kPatienceS);
    EXPECT_TRUE(status.ok() && *status == 0) << mode << read_file(path(mode + ".err"));
  }
}

// ---- behind a gate that nothing but the service opens: its one burst lasts, and the hold limit is a minute

class BehindAClosedGate : public Sharing {
 protected:
  void SetUp() override {
    Sharing::SetUp();
    start_daemon("[policy]\ngate = \"device\"\nmax_hold_ms = 60000\n");
    service_ = run_waits("busy", "high");
    ASSERT_TRUE(eventually([&] { return client("busy").value("launches", 0) > 0; })) << clients().dump();
    go("busy");
    ASSERT_TRUE(eventually([&] { return SharingFixture::steps("busy") == 1; }));
    ASSERT_TRUE(eventually([&] { return client("busy").value("state", "") == "busy"; })) << clients().dump();
  }
  // The program has work there, and nothing of it has passed.
  Process queue(const std::string& mode) {
    Process program = run_waits(mode);
    EXPECT_TRUE(eventually([&] { return has_boundaries(mode); })) << clients().dump();
    return program;
  }
  void go(const std::string& mode) { std::ofstream(path(mode + ".steps.go")).flush(); }
  void expect_closed(const std::string& mode) {
    EXPECT_EQ(client("busy").value("state", ""), "busy") << clients().dump();
    EXPECT_EQ(client(mode).value("gate_openings", -1), 0) << clients().dump();
    EXPECT_EQ(client(mode).value("hold_expired", -1), 0) << clients().dump();
  }
  static void expect_ends_well(base::Result<int> status) { EXPECT_TRUE(status.ok() && *status == 0); }

  Process service_;
};

TEST_F(BehindAClosedGate, AKilledProgramDisturbsNobody) {
  auto killed = queue("exit");
  killed.kill_now();
  EXPECT_TRUE(eventually([&] { return client("exit").empty(); })) << clients().dump();
  auto next = queue("poll");
  const size_t before = SharingFixture::steps("poll");
  expect_closed("poll");
  expect_ends_well(service_.stop(kPatienceS));
  EXPECT_TRUE(eventually([&] { return SharingFixture::steps("poll") > before; })) << clients().dump();
  expect_ends_well(next.stop(kPatienceS));
}

TEST_F(BehindAClosedGate, AForkedChildLeavesItClosed) {
  auto program = queue("fork");
  go("fork");
  ASSERT_TRUE(eventually([&] { return SharingFixture::steps("fork") == 1 || !program.running(); }));
  expect_closed("fork");
  expect_ends_well(service_.stop(kPatienceS));
  expect_ends_well(program.wait(kPatienceS));
}

TEST_F(BehindAClosedGate, AnExecAndAnExitWaitForNobody) {
  auto program = queue("exec");
  const auto id = [&] { return client("exec").value("id", 0); };
  const int before = id();
  go("exec");
  ASSERT_TRUE(eventually([&] { return !client("exec").empty() && id() != before && has_boundaries("exec"); }))
      << clients().dump();
  expect_closed("exec");
  go("exec");
  expect_ends_well(program.wait(kPatienceS));
  EXPECT_EQ(client("busy").value("state", ""), "busy");
  expect_ends_well(service_.stop(kPatienceS));
}

// The daemon is stopped: only its client's own override can open.
TEST_F(BehindAClosedGate, AStoppedDaemonCountsAsGone) {
  auto program = run_waits("poll");
  ASSERT_TRUE(eventually([&] { return has_boundaries("poll"); })) << clients().dump();
  const size_t before = SharingFixture::steps("poll");
  expect_closed("poll");
  kill(daemon_.pid(), SIGSTOP);
  EXPECT_TRUE(eventually([&] { return SharingFixture::steps("poll") > before + 2; }));
  kill(daemon_.pid(), SIGCONT);
  EXPECT_TRUE(eventually([&] {
    return client("poll").value("daemon_losses", 0) > 0 && has_boundaries("poll");
  })) << clients().dump();
  expect_closed("poll");
  expect_ends_well(service_.stop(kPatienceS));
  expect_ends_well(program.stop(kPatienceS));
}

// A program that checkpoints itself with work behind a closed gate: the page of the gate stays pinned, the work passes with
// the hold limit, and it waits on the device again afterwards.
TEST_F(Sharing, AProgramThatCheckpointsItselfBehindAClosedGateGoesOn) {
  start_daemon("[policy]\ngate = \"device\"\nmax_hold_ms = 20\nquantum_us = 5000\n");
  auto service = start_service("service", 100'000, "10000");
  ASSERT_TRUE(eventually([&] { return client("service").value("state", "") == "busy"; })) << clients().dump();
  auto program = run("checkpoint", "best-effort", {},
                     {TESSERA_SHARING_WAITS, "checkpoint", path("checkpoint.steps")}, {});
  const auto boundaries = [&] { return client("checkpoint").value("gate_boundaries", 0); };
  EXPECT_TRUE(eventually([&] { return SharingFixture::steps("checkpoint") > 3 && boundaries() > 0; }))
      << read_file(path("checkpoint.err")) << clients().dump();
  const size_t before = SharingFixture::steps("checkpoint");
  const int gated_before = boundaries();
  EXPECT_TRUE(eventually([&] {
    return SharingFixture::steps("checkpoint") > before + 5 && boundaries() > gated_before;
  })) << clients().dump();
  auto status = program.stop(kPatienceS);
  EXPECT_TRUE(status.ok() && *status == 0) << read_file(path("checkpoint.err"));
}

// A busy protected program waits for best-effort work, which waits until it is idle.
TEST_F(Sharing, AServiceThatWaitsForABestEffortProgramGetsItsWork) {
  start_daemon();
  const auto waits = [&](const std::string& mode, const std::string& priority) {
    return run(mode, priority, {}, {TESSERA_SHARING_WAITS, mode, path("")}, {});
  };
  auto maker = waits("make", "best-effort"), taker = waits("take", "high");
  ASSERT_TRUE(eventually([&] { return clients().size() == 2 && client("take").value("launches", 0) > 0; }))
      << clients().dump();
  std::ofstream(path("take")).flush();
  ASSERT_TRUE(eventually([&] { return fs::exists(path("taken")); })) << clients().dump();
  ASSERT_TRUE(eventually([&] { return client("take").value("state", "") == "busy"; })) << clients().dump();
  ASSERT_TRUE(eventually([&] { return client("make").value("state", "") == "held"; })) << clients().dump();
  std::ofstream(path("make")).flush();
  auto taken = taker.wait(kPatienceS);
  EXPECT_TRUE(taken.ok() && *taken == 0) << read_file(path("take.err")) << clients().dump();
  EXPECT_GT(client("make").value("holds", 0) + client("make").value("gate_boundaries", 0), 0)
      << clients().dump();
  auto made = maker.stop(kPatienceS);
  EXPECT_TRUE(made.ok() && *made == 0) << read_file(path("make.err"));
}

TEST_F(Sharing, TwoBestEffortClientsBothProgress) {
  start_daemon();
  auto first = start_trainer("first", {"--seconds", "600"});
  auto second = start_trainer("second", {"--seconds", "600"});
  ASSERT_TRUE(eventually([&] { return clients().size() == 2; }));
  EXPECT_TRUE(steps_grow("first", 2));
  EXPECT_TRUE(steps_grow("second", 2));
  for (Process* one : {&first, &second}) {
    auto status = one->stop(kPatienceS);
    EXPECT_TRUE(status.ok() && *status == 0);
  }
  EXPECT_EQ(checksum("first"), checksum("second"));
}

TEST_F(Sharing, WithoutDaemonProgramsRunAndAttachWhenItAppears) {
  auto trainer = start_trainer("trainer", {"--seconds", "600"});
  ASSERT_TRUE(eventually([&] { return steps("trainer") > 0; })) << read_file(path("trainer.err"));
  EXPECT_NE(read_file(path("trainer.err")).find("runs unmanaged"), std::string::npos);
  start_daemon();
  EXPECT_TRUE(eventually([&] { return !client("trainer").empty(); }));
  EXPECT_TRUE(steps_grow("trainer", 1));
}

TEST_F(Sharing, KillSwitchMakesTheLibraryTransparent) {
  start_daemon();
  auto service = start("service", "high", {"latency_service", "--requests", "3", "--rate", "100"},
                       {"TESSERA_DISABLE=1"});
  auto status = service.wait(kPatienceS);
  EXPECT_TRUE(status.ok() && *status == 0) << read_file(path("service.err"));
  const auto state = json::parse(*ipc::query(socket()), nullptr, false);
  EXPECT_EQ(state["daemon"].value("attached", -1), 0) << state.dump();
}

}  // namespace
}  // namespace tessera

// The parker process: killed at every step, missing, or chosen by what was measured. The programs' driver lets none of them
// checkpoint itself, so that whatever is parked here was parked by it.
#include <signal.h>

#include <list>
#include <random>

#include "tests/integration/memory/park_fixture.h"

namespace tessera::test {
namespace {

bool has_ended(pid_t pid) {
  const std::string text = read_file("/proc/" + std::to_string(pid) + "/stat");
  return text.empty() || text.find(") Z ") != text.npos;
}

class ParkerProcess : public Parking {
 protected:
  void start_daemon_with_parker() { start_patient_daemon("[park]\nby = \"parker\"\n"); }
  cli::Process start(const std::string& name, unsigned mib, unsigned rounds) {
    return program(name, mib, rounds, {}, {"--parkable"}, {kRefusesOwnCheckpoints});
  }
};

TEST_F(ParkerProcess, ParksAndBringsBack) {
  start_daemon_with_parker();
  pause("idle");
  auto idle = start("idle", 200, 5);
  ASSERT_TRUE(rests("idle"));
  EXPECT_EQ(parker(), 0);  // nobody needed it
  const auto [status, said] = tessera("park", "idle");
  ASSERT_EQ(status, 0) << said;
  const pid_t first = parker();
  EXPECT_NE(first, 0);
  auto other = start("other", 200, 3);
  ends_well(other, "other");
  EXPECT_EQ(tessera("unpark", "idle").first, 0);
  EXPECT_EQ(state("idle"), "");
  EXPECT_EQ(parker(), first);  // a fresh one would have to load the driver again
  go_on("idle");
  ends_well(idle, "idle");
}

// 27: another one asks how far the driver came, and goes on.
TEST_F(ParkerProcess, IsKilledAtEveryStep) {
  describe_gpu("0.05");
  start_daemon_with_parker();
  pause("idle");
  auto idle = start("idle", 40, 5);
  ASSERT_TRUE(rests("idle"));
  for (const char* command : {"park", "unpark"}) {
    const std::string ends_in = command[0] == 'p' ? "parked" : "";
    ASSERT_TRUE(is_on_its_way(command, "idle"));
    (void)kill_parker();  // it may be there already, and none is needed any more
    EXPECT_TRUE(eventually([&] { return state("idle") == ends_in; })) << clients().dump();
    EXPECT_TRUE(kill_parker());  // where nothing is under way
  }
  EXPECT_EQ(tessera("park", "idle").first, 0);
  EXPECT_TRUE(kill_parker());
  go_on("idle");
  ends_well(idle, "idle");
}

TEST_F(ParkerProcess, IsKilledAtRandomAndLosesNobody) {
  describe_gpu("0.5");
  start_daemon_with_parker();
  constexpr uint64_t kParks = 12;
  std::list<std::pair<std::string, cli::Process>> running;
  for (const char* name : {"a", "b", "c"}) running.emplace_back(name, start(name, 60, kManyRounds));
  for (const auto& [name, process] : running) ASSERT_TRUE(rests(name));
  std::mt19937 random(11);
  uint64_t killed = 0;
  const auto all_parked = [&] {
    bool all = true;
    for (const auto& [name, process] : running) {
      all = all && parks(name) >= kParks;
      if (state(name).empty()) (void)ask("park", name);
      if (random() % 3 == 0) killed += kill_parker();
    }
    return all;
  };
  EXPECT_TRUE(eventually(all_parked)) << clients().dump();
  EXPECT_GT(killed, 0u);
  for (auto& [name, process] : running) {
    EXPECT_TRUE(steps_grow(name, 1)) << clients().dump();
    process.kill_now();
  }
}

// 27: the daemon is killed on the way. Its parker ends what it began and itself; the next daemon's asks for the state.
TEST_F(ParkerProcess, OfAKilledDaemonEndsAndTheNextOnesGoesOn) {
  describe_gpu("0.05");
  for (const char* command : {"park", "unpark"}) {
    start_daemon_with_parker();
    pause("program");
    auto running = start("program", 40, 3);
    ASSERT_TRUE(is_caught_at(command, "program"));
    const pid_t old = parker();
    daemon_.kill_now();
    EXPECT_TRUE(old == 0 || eventually([&] { return has_ended(old); }));
    start_daemon_with_parker();
    const auto has_settled = [&] { return state("program").empty() || state("program") == "parked"; };
    EXPECT_TRUE(eventually([&] { return !client("program").empty() && has_settled(); })) << clients().dump();
    go_on("program");
    ends_well(running, "program");
    fs::remove(path("program.steps"));
    daemon_.kill_now();
  }
}

// Without a daemon nobody starts one. A driver that lets the program itself do it brings it back.
TEST_F(ParkerProcess, WithoutADaemonTheProgramTriesItself) {
  start_daemon_with_parker();
  pause("idle");
  auto idle = program("idle", 100, 5);
  ASSERT_TRUE(rests("idle"));
  ASSERT_EQ(tessera("park", "idle").first, 0);
  daemon_.kill_now();
  go_on("idle");
  ends_well(idle, "idle");
}

TEST_F(ParkerProcess, WithoutADriverIsNamedBeforeAnythingIsTouched) {
  start_daemon("[park]\nby = \"parker\"\n", {"LD_LIBRARY_PATH"});
  pause("program");
  auto running = start("program", 8, 3);
  ASSERT_TRUE(rests("program"));
  const auto [status, said] = tessera("park", "program");
  EXPECT_EQ(status, 1);
  EXPECT_NE(said.find("parker process"), std::string::npos) << said;
  EXPECT_EQ(parks("program"), 0u);
  go_on("program");
  ends_well(running, "program");
}

// The measured answer for this GPU and driver decides; without one the program parks itself.
TEST_F(ParkerProcess, IsChosenByWhatWasMeasured) {
  const std::string folder = path("profiles");
  fs::create_directory(folder);
  const struct {
    const char *gpu, *by;
    bool parker;
  } cases[] = {{"Tessera Test GPU 4", "client", false},
               {"Another GPU", "parker", false},
               {"Tessera Test GPU 4", "parker", true}};
  for (const auto& c : cases) {
    std::ofstream(folder + "/checkpoints.toml")
        << "[[checkpoint]]\ngpu = \"" << c.gpu << "\"\ndriver = 13000\nby = \"" << c.by << "\"\n";
    auto environment = environment_of_daemon();
    environment.push_back("TESSERA_PROFILES=" + folder);
    start_daemon("[daemon]\nanswer_within_ms = 60000\n", environment);
    pause("program");
    auto running = program("program", 8, 3);
    // The daemon knows its GPU.
    ASSERT_TRUE(rests("program") && eventually([&] { return !client("program").value("gpu", "").empty(); }));
    EXPECT_EQ(tessera("park", "program").first, 0);
    EXPECT_EQ(parker() != 0, c.parker) << c.gpu << ' ' << c.by;
    go_on("program");
    ends_well(running, "program");
    fs::remove(path("program.steps"));
    daemon_.kill_now();
  }
}

}  // namespace
}  // namespace tessera::test

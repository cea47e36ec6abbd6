// Programs that leave their GPU and come back, as real processes on a software GPU of 256 MiB.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <list>
#include <map>
#include <random>
#include <sstream>
#include <thread>

#include "base/scoped_fd.h"
#include "tests/integration/memory/park_fixture.h"

namespace tessera::test {
namespace {

// 21 and 22: its memory is another's meanwhile, and its next call brings it back.
TEST_F(Parking, AnIdleProgramMakesRoomAndComesBackWithItsNextCall) {
  start_patient_daemon();
  pause("idle");
  auto idle = program("idle", 200, 5);
  ASSERT_TRUE(rests("idle"));
  const auto [status, said] = tessera("park", "idle");
  ASSERT_EQ(status, 0) << said;
  EXPECT_NE(said.find("parked: 0.20 GiB"), std::string::npos) << said;
  EXPECT_EQ(state("idle"), "parked");
  EXPECT_EQ(client("idle").value("memory_parked_bytes", uint64_t(0)), 200 * base::kMiB);
  const auto [shown, table] = tessera({"top", "--count", "1", "--interval", "0.1"});
  EXPECT_NE(table.find("parked: 0.20 GiB"), table.npos) << table;
  auto other = program("other", 200, 3);
  ends_well(other, "other");
  EXPECT_EQ(state("idle"), "parked");
  go_on("idle");
  ends_well(idle, "idle");
}

TEST_F(Parking, UnparkBringsItBackWithoutACall) {
  start_patient_daemon();
  pause("idle");
  auto idle = program("idle", 100, 5);
  ASSERT_TRUE(rests("idle"));
  for (uint64_t round = 1; round <= 3; ++round) {
    EXPECT_EQ(tessera("park", "idle").first, 0);
    EXPECT_EQ(parks("idle"), round);
    EXPECT_EQ(tessera("unpark", "idle").first, 0);
    EXPECT_EQ(state("idle"), "");
  }
  go_on("idle");
  ends_well(idle, "idle");
}

// 26: while there is no room, no restore is tried.
TEST_F(Parking, AReturnWaitsForRoom) {
  start_patient_daemon();
  pause("idle");
  auto idle = program("idle", 200, 5);
  ASSERT_TRUE(rests("idle"));
  ASSERT_EQ(tessera("park", "idle").first, 0);
  auto other = program("other", 200, kManyRounds);
  ASSERT_TRUE(rests("other"));
  go_on("idle");
  EXPECT_TRUE(eventually([&] { return state("idle") == "waits for memory"; })) << clients().dump();
  other.kill_now();
  ends_well(idle, "idle");
}

// 26: a program that nobody counts has the place, for it has no Tessera in it: the return waits for its end.
TEST_F(Parking, AReturnWaitsForAProgramWithoutTessera) {
  start_patient_daemon();
  pause("idle");
  auto idle = program("idle", 200, 5);
  ASSERT_TRUE(rests("idle"));
  ASSERT_EQ(tessera("park", "idle").first, 0);
  auto stranger = cli::Process::start(
      {kBin + "memory_parked", "200", std::to_string(kManyRounds), path("stranger.steps")},
      {"LD_LIBRARY_PATH=" TESSERA_PREFIX "/lib/softgpu", "TESSERA_SOFTGPU_DIR=" + path("gpu"),
       "TESSERA_SOFTGPU_GPU=" + path("gpu.toml")},
      path("stranger.out"), path("stranger.err"));
  ASSERT_TRUE(stranger.ok() && eventually([&] { return steps("stranger") > 0; }));
  go_on("idle");
  EXPECT_TRUE(eventually([&] { return lacks("idle") > 0; })) << clients().dump();
  // Nobody else is held up by it.
  auto third = program("third", 40, 3);
  ends_well(third, "third");
  EXPECT_EQ(state("idle"), "waits for memory");
  stranger->kill_now();
  ends_well(idle, "idle");
}

// 26: what was allocated before its program found the daemon is counted once it has.
TEST_F(Parking, AReturnWaitsForWhatWasAllocatedWithoutADaemon) {
  start_patient_daemon();
  pause("idle");
  auto idle = program("idle", 200, 5);
  ASSERT_TRUE(rests("idle"));
  ASSERT_EQ(tessera("park", "idle").first, 0);
  daemon_.kill_now();
  auto other = program("other", 200, kManyRounds);
  ASSERT_TRUE(eventually([&] { return steps("other") > 0; }));
  start_patient_daemon();
  EXPECT_TRUE(eventually([&] { return used("other") == 200 * base::kMiB; })) << clients().dump();
  go_on("idle");
  EXPECT_TRUE(eventually([&] { return state("idle") == "waits for memory"; })) << clients().dump();
  other.kill_now();
  ends_well(idle, "idle");
}

// 23 and 24: refused by name, and it runs on as if nothing had been.
// The HTTP server of a pretended engine (parked.cc): what it does when it is asked is the test's.
class EngineServer {
 public:
  explicit EngineServer(std::string file)
      : file_(std::move(file)), listen_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    auto* any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listen_.get(), any, bytes), 0);
    EXPECT_EQ(getsockname(listen_.get(), any, &bytes), 0);
    EXPECT_EQ(listen(listen_.get(), 8), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~EngineServer() { stop(); }
  void stop() {  // nobody listens any more
    shutdown(listen_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    listen_.reset();
  }
  std::string rule(const std::string& name) const {
    const std::string url = "\"http://127.0.0.1:" + std::to_string(port_);
    return "[park]\nengine_answer_s = " + std::to_string(answer_s) + "\n[[park.engine]]\nname = \"" + name +
           "\"\nsleep = " + url + "/sleep?level=1\"\nwake = " + url + "/wake_up\"\n";
  }
  enum Manner { kObeys, kFails, kCloses, kHangs };
  std::atomic<Manner> manner = kObeys;
  unsigned answer_s = unsigned(kPatienceS);

 private:
  void serve() {
    std::vector<base::ScopedFd> silent;
    for (;;) {
      base::ScopedFd one(accept(listen_.get(), nullptr, nullptr));
      if (!one.valid()) return;
      std::string asked;
      char some[512];
      for (ssize_t got = 1; got > 0 && asked.find("\r\n\r\n") == asked.npos;) {
        got = recv(one.get(), some, sizeof some, 0);
        if (got > 0) asked.append(some, size_t(got));
      }
      if (manner == kHangs) silent.push_back(std::move(one));
      if (manner == kCloses || manner == kHangs) continue;
      const bool done = manner == kObeys && obey(asked.starts_with("POST /sleep?level=1 "));
      const std::string said =
          done ? "HTTP/1.1 200 OK\r\n\r\n" : "HTTP/1.1 500 Internal Server Error\r\n\r\n";
      (void)send(one.get(), said.data(), said.size(), MSG_NOSIGNAL);
    }
  }
  bool obey(bool sleep) const {
    if (sleep)
      std::ofstream(file_ + ".sleep").flush();
    else
      fs::remove(file_ + ".sleep");
    return eventually([&] { return fs::exists(file_ + ".asleep") == sleep; });
  }
  std::string file_;
  base::ScopedFd listen_;
  uint16_t port_ = 0;
  std::thread thread_;
};

TEST_F(Parking, AnEngineGivesItsMemoryBackItself) {
  EngineServer server(path("engine.steps"));
  start_daemon("[daemon]\nanswer_within_ms = 60000\n" + server.rule("engine"));
  pause("engine");
  auto engine = program("engine", 200, 5, {"sleeps"}, {});
  ASSERT_TRUE(rests("engine"));
  const auto [status, said] = tessera("park", "engine");
  ASSERT_EQ(status, 0) << said;
  EXPECT_NE(said.find("asleep: 0.20 GiB"), std::string::npos) << said;
  EXPECT_EQ(state("engine"), "asleep");
  auto other = program("other", 200, 3);
  ends_well(other, "other");
  EXPECT_EQ(tessera("unpark", "engine").first, 0) << clients().dump();
  EXPECT_EQ(state("engine"), "");
  EXPECT_EQ(used("engine"), 200 * base::kMiB);
  go_on("engine");
  ends_well(engine, "engine");
}

TEST_F(Parking, AnEngineThatDoesNotSleepIsParkedAsAnyOther) {
  EngineServer server(path("engine.steps"));
  start_daemon("[daemon]\nanswer_within_ms = 60000\n" + server.rule("engine"));
  pause("engine");
  auto engine = program("engine", 100, 5);
  ASSERT_TRUE(rests("engine"));
  const auto is_parked_because = [&](const std::string& why) {
    const auto [status, said] = tessera("park", "engine");
    EXPECT_EQ(status, 0) << said;
    EXPECT_EQ(state("engine"), "parked") << why;
    EXPECT_EQ(client("engine")["park"].value("engine", ""), "its engine did not sleep: " + why);
    EXPECT_EQ(tessera("unpark", "engine").first, 0);
    EXPECT_EQ(state("engine"), "");
  };
  server.manner = EngineServer::kFails;
  is_parked_because("HTTP status 500");
  server.manner = EngineServer::kCloses;
  is_parked_because("the connection was closed without an answer");
  server.manner = EngineServer::kHangs;
  server.answer_s = 1;
  std::ofstream(path("d.toml")) << server.rule("engine");
  ASSERT_EQ(tessera({"reload"}).first, 0);
  is_parked_because("no answer in time");
  server.stop();
  is_parked_because("Connection refused");
  go_on("engine");
  ends_well(engine, "engine");
}

TEST_F(Parking, WhatCannotBeParkedIsNamedAndGoesOn) {
  start_patient_daemon();
  const struct {
    std::string name;
    std::vector<std::string> more, options;
    const char* why;
  } cases[] = {
      {"managed", {"managed"}, {"--parkable"}, "managed memory"},
      {"variable", {"variable"}, {"--parkable"}, "managed memory"},
      {"shared", {"shared"}, {"--parkable"}, "memory of another process"},
      {"event", {"event"}, {"--parkable"}, "events of another process"},
      {"collectives", {"collectives"}, {"--parkable"}, "communicators"},
      {"endless", {"endless"}, {"--parkable"}, "did not end in time"},
      {"captures", {"captures"}, {"--parkable"}, "captures a graph"},
      {"not-asked", {}, {}, "--parkable"},
  };
  for (const auto& c : cases) {
    pause(c.name);
    auto process = program(c.name, 8, 3, c.more, c.options);
    ASSERT_TRUE(rests(c.name));
    const auto [status, said] = tessera("park", c.name);
    EXPECT_EQ(status, 1);
    EXPECT_NE(said.find(c.why), std::string::npos) << said;
    go_on(c.name);
    ends_well(process, c.name);
  }
}

TEST_F(Parking, AStoppedProcessIsRefusedAndGoesOn) {
  start_patient_daemon();
  pause("stopped");
  auto stopped = program("stopped", 8, 3);
  ASSERT_TRUE(rests("stopped"));
  const pid_t pid = client("stopped").value("pid", 0);
  ASSERT_EQ(kill(pid, SIGSTOP), 0);
  const auto is_stopped = [&] {
    const std::string text = read_file("/proc/" + std::to_string(pid) + "/stat");
    return text.find(") T ") != text.npos;
  };
  ASSERT_TRUE(eventually(is_stopped));
  const auto [status, said] = tessera("park", "stopped");
  ASSERT_EQ(kill(pid, SIGCONT), 0);
  EXPECT_EQ(status, 1);
  EXPECT_NE(said.find("is stopped"), std::string::npos) << said;
  EXPECT_EQ(parks("stopped"), 0u);
  go_on("stopped");
  ends_well(stopped, "stopped");
}

// 23: where a checkpoint is not known to work.
class ParkingElsewhere : public Parking {
 protected:
  void is_refused(const std::string& why, std::vector<std::string> environment = {},
                  std::vector<std::string> kind = {}) {
    start_patient_daemon();
    pause("program");
    auto running = program("program", 8, 3, std::move(kind), {"--parkable"}, std::move(environment));
    ASSERT_TRUE(rests("program"));
    const auto [status, said] = tessera("park", "program");
    EXPECT_EQ(status, 1);
    EXPECT_NE(said.find(why), std::string::npos) << said;
    EXPECT_EQ(parks("program"), 0u);
    go_on("program");
    ends_well(running, "program");
  }
};
TEST_F(ParkingElsewhere, OnAMigDeviceItIsRefused) {
  describe_gpu("8", "NVIDIA Test MIG 1g.5gb");
  is_refused("MIG");
}
TEST_F(ParkingElsewhere, WhereTheGpuSharesTheHostsMemoryItIsRefused) {
  describe_gpu("8", "", "integrated = 1");
  is_refused("shares the host's memory");
}
// 25: a GPU of 32 TiB, and twice the host's memory on it.
TEST_F(ParkingElsewhere, WhereTheHostHasTooLittleMemoryItIsRefused) {
  std::string gpu = read_file(path("gpu.toml"));
  const std::string bytes = "bytes = 268435456";
  ASSERT_NE(gpu.find(bytes), gpu.npos);
  gpu.replace(gpu.find(bytes), bytes.size(), "bytes = 35184372088832");
  std::ofstream(path("gpu.toml")) << gpu;
  is_refused("too little memory", {}, {"huge"});
}
TEST_F(ParkingElsewhere, UnderMpsItIsRefused) {
  is_refused("MPS", {"TESSERA_SOFTGPU_MODE=mps"});
}

// 27: a parked program outlives its daemon, and comes back under the next one.
TEST_F(Parking, AProgramIsParkedWhileDaemonsComeAndGo) {
  start_patient_daemon();
  pause("idle");
  auto idle = program("idle", 100, 5);
  ASSERT_TRUE(rests("idle"));
  ASSERT_EQ(tessera("park", "idle").first, 0);
  daemon_.kill_now();
  start_patient_daemon();
  EXPECT_TRUE(eventually([&] { return state("idle") == "parked"; })) << clients().dump();
  ASSERT_EQ(tessera("unpark", "idle").first, 0);
  EXPECT_TRUE(eventually([&] { return state("idle") == ""; })) << clients().dump();
  daemon_.kill_now();  // its end changed slots of calls, and would do so again
  start_patient_daemon();
  EXPECT_TRUE(eventually([&] { return !client("idle").empty(); }));
  ASSERT_EQ(tessera("park", "idle").first, 0);
  go_on("idle");
  ends_well(idle, "idle");
}

// 27: the daemon is killed while a program leaves, and while it comes back: the program goes on with it.
TEST_F(Parking, ADaemonThatIsKilledOnTheWayLosesNothing) {
  describe_gpu("0.05");
  for (const char* command : {"park", "unpark"}) {
    start_patient_daemon();
    pause("program");
    auto running = program("program", 40, 3);
    ASSERT_TRUE(is_caught_at(command, "program"));
    daemon_.kill_now();
    start_patient_daemon();
    const std::string ends_in = command[0] == 'p' ? "parked" : "";
    EXPECT_TRUE(eventually([&] { return state("program") == ends_in; })) << clients().dump();
    go_on("program");
    ends_well(running, "program");
    fs::remove(path("program.steps"));
    daemon_.kill_now();
  }
}

// 28: a program that is killed while it leaves or comes back leaves nothing behind.
TEST_F(Parking, AProgramThatIsKilledOnTheWayLeavesNothingBehind) {
  describe_gpu("0.05");
  start_patient_daemon();
  for (const char* command : {"park", "unpark"}) {
    pause("killed");
    auto killed = program("killed", 40, 5);
    ASSERT_TRUE(is_caught_at(command, "killed"));
    killed.kill_now();
    fs::remove(path("killed.steps"));
    auto next = program("next", 240, 2);
    ends_well(next, "next");
    EXPECT_TRUE(eventually([&] { return clients().empty(); }));
  }
}

// 28: killed while it is parked, or as soon as it is needed again, what it had is free.
TEST_F(Parking, AKilledProgramLeavesNothingBehind) {
  start_patient_daemon();
  for (const char* when : {"parked", "on its way"}) {
    pause("killed");
    auto killed = program("killed", 200, 5);
    ASSERT_TRUE(rests("killed"));
    ASSERT_EQ(tessera("park", "killed").first, 0) << when;
    if (when[0] == 'o') go_on("killed");
    killed.kill_now();
    fs::remove(path("killed.steps"));
    auto next = program("next", 240, 2);
    ends_well(next, "next");
    EXPECT_TRUE(eventually([&] { return clients().empty(); }));
  }
}

// An allocation that finds no room waits for it, and is seen to; an exit makes it.
TEST_F(Parking, AnAllocationWaitsForAnExit) {
  start_patient_daemon();
  auto holder = program("holder", 200, kManyRounds);
  ASSERT_TRUE(rests("holder"));
  const struct {
    std::string name, kind;
    size_t refusals;
  } cases[] = {
      {"plain", "once", 0},
      // An allocator that frees what it keeps and asks again has its first failure at once.
      {"allocator", std::string("allocator:") + TS_ALLOCATOR, 1},
      // In a capture nothing waits; behind it everything does.
      {"captures", "capture", 0},
  };
  std::list<cli::Process> waiting;
  for (const auto& c : cases) {
    waiting.push_back(program(c.name, 72, 2, {c.kind}, {"--memory-wait", "60m"}));
    EXPECT_TRUE(eventually([&] { return waits(c.name) > 0; })) << c.name << clients().dump();
    EXPECT_EQ(refusals(c.name), c.refusals);
  }
  holder.kill_now();
  auto process = waiting.begin();
  for (const auto& c : cases) ends_well(*process++, c.name);
}

// 30, without anybody who parks: whose time is over first has the driver's error, and the other one that or its memory.
TEST_F(Parking, TwoThatWaitForEachOtherHaveAnAnswerInTheEnd) {
  start_patient_daemon();
  std::list<cli::Process> both;
  for (const char* name : {"one", "another"}) {
    pause(name);
    both.push_back(program(name, 100, 1, {"more"}, {"--memory-wait", "50ms"}));
    ASSERT_TRUE(rests(name));
  }
  for (const char* name : {"one", "another"}) go_on(name);
  int refused = 0;
  for (auto& process : both) {
    const auto end = process.wait(kPatienceS);
    ASSERT_TRUE(end.ok());
    EXPECT_TRUE(*end == 0 || *end == 2) << *end;
    refused += *end == 2;
  }
  EXPECT_GT(refused, 0);
}

// 30, with the policy: one of them leaves for the other, and both have all they asked for.
TEST_F(Parking, OfTwoThatWaitForEachOtherOneMakesRoom) {
  start_daemon("[daemon]\nanswer_within_ms = 60000\n[park]\nidle_s = 1\n");
  std::list<cli::Process> both;
  for (const char* name : {"one", "another"}) {
    pause(name);
    both.push_back(program(name, 100, 1, {"more"}, {"--parkable", "--memory-wait", "60m"}));
    ASSERT_TRUE(rests(name));
  }
  for (const char* name : {"one", "another"}) go_on(name);
  for (auto& process : both) ends_well(process, "one");
}

// A protected service that needs the memory of an idle trainer has it after no more than that memory's transfer and a tenth. Time
// is the model's: what the link of the GPU was busy with until the service's own work, whatever this machine does meanwhile.
TEST_F(Parking, AServiceHasAnIdleTrainersMemoryWithinItsTransfer) {
  constexpr double kLinkBytesPerNs = 0.5, kMost = 1.10;
  describe_gpu("0.5");
  start_daemon("[daemon]\nanswer_within_ms = 60000\n[park]\nidle_s = 1\n");
  const std::string trace = "TESSERA_SOFTGPU_TRACE=" + path("trace");
  std::list<cli::Process> idle;
  for (const auto& [name, mib] : {std::pair("small", 16u), {"trainer", 160u}}) {
    pause(name);
    idle.push_back(program(name, mib, kManyRounds, {}, {"--parkable"}, {trace}));
    ASSERT_TRUE(rests(name));
  }
  auto service = run("service", "high", {"--memory-wait", "60m"},
                     {kBin + "memory_parked", "160", "2", path("service.steps")},
                     {"TESSERA_SOFTGPU_GPU=" + path("gpu.toml"), trace});
  const std::string of_service = "softgpu-" + std::to_string(service.pid()) + ".csv";
  ends_well(service, "service");
  EXPECT_EQ(state("trainer"), "parked");
  EXPECT_EQ(state("small"), "");
  struct Transfer {
    uint64_t enqueued_ns, ns;
  };
  std::vector<Transfer> transfers;
  uint64_t work_ns = UINT64_MAX;  // of the service: its first launch
  // A process writes its trace every second.
  ASSERT_TRUE(eventually([&] {
    transfers.clear();
    for (const auto& file : fs::directory_iterator(path("trace"))) {
      std::istringstream lines(file.path().extension() == ".csv" ? read_file(file.path()) : "");
      for (std::string line; std::getline(lines, line);) {
        char kind[16] = {}, name[64] = {};
        unsigned long long stream, enqueued_ns, start_ns, end_ns;
        if (sscanf(line.c_str(), "%15[^,],%63[^,],%llu,%llu,%llu,%llu", kind, name, &stream, &enqueued_ns,
                   &start_ns, &end_ns) != 6)
          continue;
        if (std::string(name) == "checkpoint") transfers.push_back({enqueued_ns, end_ns - start_ns});
        if (file.path().filename() == of_service && std::string(kind) == "kernel")
          work_ns = std::min<uint64_t>(work_ns, enqueued_ns);
      }
    }
    return !transfers.empty() && work_ns != UINT64_MAX;
  }));
  uint64_t link_ns = 0;
  for (const Transfer& transfer : transfers)
    if (transfer.enqueued_ns < work_ns) link_ns += transfer.ns;
  EXPECT_GT(link_ns, 0u);
  EXPECT_LE(double(link_ns), kMost * double(160 * base::kMiB) / kLinkBytesPerNs);
  for (auto& process : idle) process.kill_now();
}

// 29: a machine of two GPUs of 256 MiB, and perhaps one of another model.
class Moving : public Parking {
 protected:
  void start_daemon_of_two() { start_patient_daemon(by_parker() ? "[park]\nby = \"parker\"\n" : "", "2"); }
  cli::Process program_of_two(const std::string& name, unsigned mib, unsigned rounds,
                              const std::string& visible = "0",
                              std::vector<std::string> options = {"--parkable"},
                              const std::string& devices = "2", std::vector<std::string> more = {}) {
    return program(name, mib, rounds, std::move(more), std::move(options),
                   {"TESSERA_SOFTGPU_DEVICES=" + devices, "CUDA_VISIBLE_DEVICES=" + visible});
  }
  // The other GPU of a client that sees `gpu` first. The software GPU numbers its devices' UUIDs in their last byte.
  static std::string second_of(std::string gpu) {
    static const std::string kDigits = "0123456789abcdef";
    gpu.back() = kDigits[kDigits.find(gpu.back()) ^ 1u];
    return gpu;
  }
  std::string gpu(const std::string& name) const { return client(name).value("gpu", ""); }
  // The GPU that its memory is said to be on.
  std::string memory_gpu(const std::string& name) const {
    for (const auto& row : client(name).value("memory", nlohmann::json::array()))
      if (row.value("used", uint64_t(0)) != 0) return row.value("gpu", "");
    return "";
  }
  std::pair<int, std::string> move(const std::string& name, const std::string& to) const {
    return tessera("move", name, {"--to", to});
  }
};

TEST_F(Moving, AProgramGoesOnAsBeforeOnTheOtherGpuAndBack) {
  start_daemon_of_two();
  pause("moved");
  auto moved = program_of_two("moved", 200, 5);
  ASSERT_TRUE(rests("moved") && eventually([&] { return !gpu("moved").empty(); }));
  const std::string first = gpu("moved"), second = second_of(first);
  const auto [status, said] = move("moved", second);
  ASSERT_EQ(status, 0) << said;
  EXPECT_NE(said.find("moved: 0.20 GiB"), std::string::npos) << said;
  EXPECT_EQ(gpu("moved"), second);
  EXPECT_EQ(memory_gpu("moved"), second);
  // Its place is another's, and that one's memory is counted where it is.
  pause("other");
  auto other = program_of_two("other", 200, 3);
  ASSERT_TRUE(rests("other"));
  EXPECT_EQ(memory_gpu("other"), first);
  const auto [refused, why] = move("moved", first);
  EXPECT_EQ(refused, 1);
  EXPECT_NE(why.find("too little room"), std::string::npos) << why;
  EXPECT_EQ(state("moved"), "");
  go_on("other");
  ends_well(other, "other");
  ASSERT_TRUE(eventually([&] { return client("other").empty(); }));
  const auto [back, how] = move("moved", first);
  EXPECT_EQ(back, 0) << how;
  EXPECT_EQ(memory_gpu("moved"), first);
  go_on("moved");
  ends_well(moved, "moved");
}

// Every GPU of the machine has to be named to the driver, also one for whose memory NVML has no figure.
TEST_F(Moving, ItMovesBesideAGpuThatSharesTheHostsMemory) {
  describe_gpu("8", "NVIDIA Other Test", "integrated = 1");
  fs::rename(path("gpu.toml"), path("integrated.toml"));
  describe_gpu("8");
  start_patient_daemon();
  pause("moved");
  auto moved = program_of_two("moved", 40, 3, "0", {"--parkable"},
                              path("gpu.toml") + ',' + path("gpu.toml") + ',' + path("integrated.toml"));
  ASSERT_TRUE(rests("moved") && eventually([&] { return !gpu("moved").empty(); }));
  const std::string second = second_of(gpu("moved"));
  const auto [status, said] = move("moved", second);
  EXPECT_EQ(status, 0) << said;
  EXPECT_EQ(memory_gpu("moved"), second);
  go_on("moved");
  ends_well(moved, "moved");
}

TEST_F(Moving, ThereAndBackTwentyTimesBesideOthers) {
  start_patient_daemon();
  std::list<cli::Process> others;
  for (const char* visible : {"0", "1"})
    others.push_back(program_of_two(std::string("beside") + visible, 40, kManyRounds, visible));
  auto moved = program_of_two("moved", 80, kManyRounds, "0,1");
  ASSERT_TRUE(eventually([&] { return steps("moved") > 0 && !gpu("moved").empty(); }));
  const std::string first = gpu("moved"), second = second_of(first);
  for (int round = 0; round < 20; ++round) {
    const std::string& to = round % 2 ? first : second;
    const auto [status, said] = move("moved", to);
    ASSERT_EQ(status, 0) << said << clients().dump();
    EXPECT_EQ(memory_gpu("moved"), to);
  }
  EXPECT_TRUE(steps_grow("moved", 1));
  for (const char* name : {"beside0", "beside1"}) EXPECT_TRUE(steps_grow(name, 1));
  moved.kill_now();
  for (auto& other : others) other.kill_now();
}

TEST_F(Moving, WhatCannotBeMovedIsNamedAndGoesOn) {
  start_patient_daemon();
  const std::string nowhere = "GPU-00000000-0000-0000-0000-000000000001";
  enum Target { kSecond, kSame, kNowhere };
  const struct {
    std::string name;
    std::vector<std::string> options, more;
    Target to;
    const char* why;
  } cases[] = {
      {"not-asked", {}, {}, kSecond, "--parkable"},
      {"managed", {"--parkable"}, {"managed"}, kSecond, "managed memory"},
      {"same", {"--parkable"}, {}, kSame, "it is on that GPU"},
      {"nowhere", {"--parkable"}, {}, kNowhere, "no such GPU"},
      {"several", {"--parkable"}, {"second"}, kSecond, "several GPUs"},
  };
  for (const auto& c : cases) {
    pause(c.name);
    auto process = program_of_two(c.name, 8, 3, "0,1", c.options, "2", c.more);
    ASSERT_TRUE(rests(c.name) && eventually([&] { return !gpu(c.name).empty(); }));
    const std::string here = gpu(c.name);
    const auto [status, said] = move(c.name, c.to == kNowhere ? nowhere
                                             : c.to == kSame  ? here
                                                              : second_of(here));
    EXPECT_EQ(status, 1) << c.name;
    EXPECT_NE(said.find(c.why), std::string::npos) << said;
    EXPECT_EQ(gpu(c.name), here);
    go_on(c.name);
    ends_well(process, c.name);
  }
}

TEST_F(Moving, AGpuOfAnotherModelIsRefused) {
  start_patient_daemon();
  const std::string devices = path("gpu.toml") + "," + TESSERA_SOURCE_DIR "/profiles/gpus/h200.toml";
  std::list<cli::Process> both;
  for (const char* name : {"gpu0", "gpu1"}) {
    pause(name);
    both.push_back(program_of_two(name, 8, 3, name + 3, {"--parkable"}, devices));
    ASSERT_TRUE(rests(name) && eventually([&] { return !gpu(name).empty(); }));
  }
  const auto [status, said] = move("gpu0", gpu("gpu1"));
  EXPECT_EQ(status, 1);
  EXPECT_NE(said.find("another model"), std::string::npos) << said;
  for (const char* name : {"gpu0", "gpu1"}) go_on(name);
  for (auto& process : both) ends_well(process, "gpu0");
}

// A program that is killed on its way leaves nothing behind on either GPU; one whose daemon is killed arrives.
TEST_F(Moving, AKillOnTheWayLosesNoMoreThanAnyOther) {
  describe_gpu("0.05");
  for (const bool kills_daemon : {false, true}) {
    start_daemon_of_two();
    pause("moved");
    auto moved = program_of_two("moved", 40, 3);
    ASSERT_TRUE(rests("moved") && eventually([&] { return !gpu("moved").empty(); }));
    const std::string second = second_of(gpu("moved"));
    auto asked = cli::Process::start(
        {kBin + "tessera", "move", "moved", "--to", second, "--seconds", "0.001", "--socket", socket()}, {},
        path("asked"), path("asked"));
    ASSERT_TRUE(asked.ok() && asked->wait(kPatienceS).ok());
    ASSERT_TRUE(eventually([&] { return state("moved") != "" || memory_gpu("moved") == second; }));
    if (kills_daemon) {
      daemon_.kill_now();
      start_daemon_of_two();
      EXPECT_TRUE(eventually([&] { return gpu("moved") == second && state("moved").empty(); }))
          << clients().dump();
      go_on("moved");
      ends_well(moved, "moved");
    } else {
      moved.kill_now();
      fs::remove(path("moved.steps"));
      for (const char* visible : {"0", "1"}) {
        auto next = program_of_two("next", 240, 2, visible);
        ends_well(next, "next");
      }
    }
    daemon_.kill_now();
  }
}

// A program of the runtime, which looks every entry point up by name, computes what it computes alone.
TEST_F(Parking, AProgramOfTheRuntimeComputesTheSame) {
  const auto trainer = [&](const std::string& name) {
    std::vector<std::string> environment;
    if (by_parker()) environment.push_back(kRefusesOwnCheckpoints);
    return run(name, "best-effort", {"--parkable"}, {kBin + "batch_trainer", "--steps", "6"}, environment);
  };
  auto alone = trainer("alone");
  ends_well(alone, "alone");
  start_patient_daemon();
  auto parked = trainer("parked");
  uint64_t n_parks = 0;
  while (parked.running()) {
    if (client("parked").empty()) continue;
    (void)tessera("park", "parked");
    n_parks = std::max(n_parks, parks("parked"));
  }
  ends_well(parked, "parked");
  EXPECT_GT(n_parks, 0u);
  EXPECT_EQ(checksum("parked"), checksum("alone"));
}

// Programs that have twice what there is run to their end, while they are parked at random for a time. With TESSERA_PARKS=N
// (scripts/park_storm.sh) twelve that have three times as much, until there were N parks. Some are killed, as are daemons and parkers.
TEST_F(Parking, MoreThanThereIsRunsToItsEndUnderRandomParks) {
  const char* storm = std::getenv("TESSERA_PARKS");
  start_patient_daemon();
  const uint64_t wanted = storm ? std::strtoull(storm, nullptr, 10) : 0;
  const unsigned programs = storm ? 12 : 6, mib = storm ? 64 : 88, rounds = 30;
  const uint64_t asked_between_kills = 20, most_kills = storm ? wanted / 20 : 0, most_asked = 60;
  const uint64_t asked_between_daemons = 200, asked_between_parkers = 15;
  std::mt19937 random(7);
  std::list<std::pair<std::string, cli::Process>> running;
  std::map<int, uint64_t> parks_of;  // by process
  uint64_t started = 0, killed = 0, asked = 0, ended = 0, parked = 0, daemons = 0, parkers = 0;
  const auto start = [&] {
    const std::string name = "p" + std::to_string(started++);
    running.emplace_back(name, program(name, mib, rounds));
  };
  for (unsigned i = 0; i < programs; ++i) start();
  const auto all_ended = [&] {
    for (const auto& one : clients()) {
      const int pid = one.value("pid", 0);
      uint64_t& parks = parks_of[pid];
      const uint64_t now = std::max(parks, one["park"].value("parks", uint64_t(0)));
      parked += now - parks;
      parks = now;
      if (storm ? parked >= wanted : asked >= most_asked) continue;
      if (one["park"].value("state", "") != "" || random() % 2) continue;
      auto park = cli::Process::start(
          {kBin + "tessera", "park", std::to_string(pid), "--seconds", "0.001", "--socket", socket()}, {},
          path("park.out"), path("park.log"));
      if (park.ok()) (void)park->wait(kPatienceS), ++asked;
    }
    if (killed < most_kills && asked > asked_between_kills * (killed + 1)) {
      const auto it = std::next(running.begin(), long(random() % running.size()));
      it->second.kill_now();
      running.erase(it);
      ++killed;
      start();
    }
    if (storm && asked > asked_between_daemons * (daemons + 1)) {
      daemon_.kill_now();
      start_patient_daemon();
      ++daemons;
    }
    if (by_parker() && asked > asked_between_parkers * (parkers + 1) && kill_parker()) ++parkers;
    for (auto it = running.begin(); it != running.end();) {
      if (it->second.running()) {
        ++it;
        continue;
      }
      ends_well(it->second, it->first);
      ++ended;
      it = running.erase(it);
      if (parked < wanted) start();
    }
    return running.empty();
  };
  while (!HasFailure() && !all_ended()) {
  }
  if (storm)
    std::printf(
        "%llu programs ended well, %llu were killed, as were %llu daemons and %llu parkers; %llu parks\n",
        (unsigned long long)ended, (unsigned long long)killed, (unsigned long long)daemons,
        (unsigned long long)parkers, (unsigned long long)parked);
  EXPECT_GT(asked, 0u);
}

}  // namespace
}  // namespace tessera::test

// tesserad and MPS, with a stand-in for nvidia-cuda-mps-control that keeps to its manual page: `-f` stays in
// the foreground and leaves `control` and its pid file in the pipe directory; commands come on standard
// input.
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "daemon_test.h"
#include "tests/support/shell.h"

namespace tessera::test {
namespace {

constexpr char kStandIn[] = R"(#!/bin/bash
pipe=$CUDA_MPS_PIPE_DIRECTORY
if [ "$1" = -f ]; then
  [ -e "$pipe/refuse" ] && exit 3
  echo $$ > "$pipe/nvidia-cuda-mps-control.pid"
  while [ -e "$pipe/slow" ]; do sleep 0.02; done
  touch "$pipe/control"
  while [ ! -e "$pipe/quit" ]; do sleep 0.02; done
  rm -f "$pipe/quit" "$pipe/control" "$pipe/nvidia-cuda-mps-control.pid"
  exit 0
fi
while read -r word one two; do
  echo "$word $one $two" >> "$pipe/commands"
  case $word in
    quit) touch "$pipe/quit" ;;
    get_server_list) cat "$pipe/servers" 2>/dev/null || echo 111 ;;
    get_client_list) [ "$one" = 111 ] && echo 4242 ;;
  esac
done
)";

class MpsTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    program_ = folder_ + "/mps-control";
    std::ofstream(program_) << kStandIn;
    chmod(program_.c_str(), 0755);
    pipe_ = folder_ + "/mps/pipe";
  }
  void TearDown() override {
    daemon_.reset();  // first: it would start another one
    if (alive(control_pid())) kill(control_pid(), SIGKILL);
    DaemonTest::TearDown();
  }
  void start_mps(const std::string& mode, const std::string& more = "") {
    std::ofstream(folder_ + "/config.toml")
        << "[mps]\nmode = \"" << mode << "\"\ncontrol_program = \"" << program_ << "\"\n"
        << more;
    start({"--config", folder_ + "/config.toml"});
  }
  nlohmann::json mps() { return stats()["mps"]; }
  pid_t control_pid() {
    pid_t pid = 0;
    std::ifstream(pipe_ + "/nvidia-cuda-mps-control.pid") >> pid;
    return pid;
  }
  static bool alive(pid_t pid) { return pid > 0 && kill(pid, 0) == 0; }
  std::string tessera(const std::string& command, const std::string& rest) {
    return shell(std::string(TESSERA_PATH) + " " + command + " --socket " + socket_ + " " + rest).text;
  }
  // A finding of `tessera doctor`, with a variable more in its environment.
  nlohmann::json doctor(const std::string& check, const std::string& variable = "NOTHING=1") {
    const std::string text =
        shell("env " + variable + " " + TESSERA_PATH + " doctor --gpu soft --json --socket " + socket_).text;
    const auto said = nlohmann::json::parse(text);
    for (const auto& finding : said["findings"])
      if (finding["check"] == check) return finding;
    return {};
  }
  std::string commands() {
    std::stringstream text;
    text << std::ifstream(pipe_ + "/commands").rdbuf();
    return text.str();
  }

  std::string program_, pipe_;
};

TEST_F(MpsTest, ManagedOnesAreStartedAndEndedWithTheDaemon) {
  start_mps("manage");
  EXPECT_TRUE(mps()["active"]);
  EXPECT_EQ(mps()["pipe_directory"], pipe_);
  struct stat st;
  ASSERT_EQ(stat(pipe_.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0700u);
  const pid_t control = control_pid();
  EXPECT_TRUE(alive(control));
  daemon_->signal(SIGTERM);
  EXPECT_EQ(daemon_->wait(), 0) << daemon_->errors();
  EXPECT_FALSE(alive(control));
  EXPECT_EQ(commands().substr(0, 4), "quit");
}

TEST_F(MpsTest, ProgramsBecomeItsClientsAndAreToldSo) {
  start_mps("manage");
  const std::string text = tessera("run --gpu soft", "-- env");
  EXPECT_NE(text.find("fault isolation: no"), std::string::npos) << text;
  EXPECT_NE(text.find("CUDA_MPS_PIPE_DIRECTORY=" + pipe_ + "\n"), std::string::npos) << text;
  EXPECT_NE(text.find("CUDA_MPS_CLIENT_PRIORITY=1\n"), std::string::npos) << text;
  EXPECT_NE(tessera("run --gpu soft --priority high", "-- env").find("CUDA_MPS_CLIENT_PRIORITY=0\n"),
            std::string::npos);
  EXPECT_NE(tessera("ps", "").find("fault isolation: no"), std::string::npos);
}

// MPS counts for each process, with Tessera in it or not.
TEST_F(MpsTest, LimitsTheMemoryOfEachProcessToo) {
  const std::string variable = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
  start_mps("manage");
  EXPECT_EQ(tessera("run --gpu soft", "-- env").find(variable), std::string::npos);
  EXPECT_NE(tessera("run --gpu soft --memory-limit 1GiB", "-- env").find(variable + "=0=1024M\n"),
            std::string::npos);
  start_mps("manage", "[[memory.limit]]\nuid = " + std::to_string(getuid()) + "\nmax_mib = 512\n");
  EXPECT_NE(tessera("run --gpu soft", "-- env").find(variable + "=0=512M\n"), std::string::npos);
  EXPECT_NE(tessera("run --gpu soft --memory-limit 1GiB", "-- env").find(variable + "=0=512M\n"),
            std::string::npos);
  setenv(variable.c_str(), "0=3G", 1);
  EXPECT_NE(tessera("run --gpu soft", "-- env").find(variable + "=0=3G\n"), std::string::npos);
  unsetenv(variable.c_str());
}

TEST_F(MpsTest, StopTerminatesAClientThroughTheControlDaemon) {
  start_mps("manage");
  EXPECT_NE(tessera("stop", "4242").find("no client of MPS any more"), std::string::npos);
  EXPECT_NE(commands().find("terminate_client 111 4242"), std::string::npos) << commands();
  EXPECT_NE(tessera("stop", "99").find("kill 99"), std::string::npos);
}

TEST_F(MpsTest, OneThatDiesIsStartedAgainAFewTimes) {
  start_mps("manage");
  for (int death = 1; death <= 3; ++death) {
    const pid_t control = control_pid();
    kill(control, SIGKILL);
    ASSERT_TRUE(eventually([&] { return mps()["restarts"] == death && mps()["active"]; })) << mps();
    EXPECT_NE(control_pid(), control);
  }
  kill(control_pid(), SIGKILL);
  ASSERT_TRUE(eventually([&] { return !mps()["active"]; }));
  EXPECT_NE(mps()["reason"].get<std::string>().find("ended 4 times"), std::string::npos) << mps();
  EXPECT_EQ(tessera("run --gpu soft", "-- env").find("CUDA_MPS_"), std::string::npos);
}

TEST_F(MpsTest, WhileOneGetsReadyAgainTheDaemonGoesOnAnswering) {
  start_mps("manage");
  const auto reason = [&] { return mps()["reason"].get<std::string>(); };
  std::ofstream(pipe_ + "/slow").put(' ');
  kill(control_pid(), SIGKILL);
  EXPECT_TRUE(eventually([&] { return reason().find("is starting") != std::string::npos; })) << mps();
  unlink((pipe_ + "/slow").c_str());
  EXPECT_TRUE(eventually([&] { return mps()["active"].get<bool>(); })) << mps();
  // Never ready: given up, and nobody of it is left.
  std::ofstream(pipe_ + "/slow").put(' ');
  kill(control_pid(), SIGKILL);
  EXPECT_TRUE(eventually([&] { return reason().find("did not get ready") != std::string::npos; })) << mps();
  EXPECT_FALSE(alive(control_pid()));
  EXPECT_EQ(tessera("run --gpu soft", "-- env").find("CUDA_MPS_"), std::string::npos);
}

TEST_F(MpsTest, TheNextDaemonTakesOverWhatAKilledOneLeft) {
  start_mps("manage");
  const pid_t control = control_pid();
  daemon_->signal(SIGKILL);
  daemon_->wait();
  daemon_.reset();
  EXPECT_TRUE(alive(control));
  start_mps("manage");
  EXPECT_TRUE(mps()["active"]);
  EXPECT_EQ(control_pid(), control);
  daemon_->signal(SIGTERM);
  daemon_->wait();
  EXPECT_TRUE(eventually([&] { return !alive(control) || control_pid() != control; }));
}

// After a restart of the machine the number that was left may be anybody's.
TEST_F(MpsTest, AStrangerWithTheNumberOfADeadOneIsLeftAlone) {
  const pid_t stranger = fork();
  if (stranger == 0)
    for (;;) pause();
  for (const char* folder : {"/mps", "/mps/pipe"}) mkdir((folder_ + folder).c_str(), 0700);
  std::ofstream(pipe_ + "/nvidia-cuda-mps-control.pid") << stranger;
  std::ofstream(pipe_ + "/control") << "";
  start_mps("manage");
  EXPECT_TRUE(mps()["active"]);
  EXPECT_NE(control_pid(), stranger);
  daemon_->signal(SIGTERM);
  daemon_->wait();
  EXPECT_EQ(waitpid(stranger, nullptr, WNOHANG), 0);
  kill(stranger, SIGKILL);
  waitpid(stranger, nullptr, 0);
}

TEST_F(MpsTest, AFolderThatOthersMayWriteToIsNotUsed) {
  for (const char* folder : {"/mps", "/mps/pipe"}) mkdir((folder_ + folder).c_str(), 0700);
  chmod(pipe_.c_str(), 0777);
  start_mps("manage");
  EXPECT_FALSE(mps()["active"]);
  EXPECT_NE(mps()["reason"].get<std::string>().find("written by others"), std::string::npos);
}

TEST_F(MpsTest, WithoutItProgramsRunAndTheReasonIsSaid) {
  program_ = "/no/such/mps-control";
  start_mps("manage");
  EXPECT_FALSE(mps()["active"]);
  EXPECT_NE(tessera("ps", "").find("MPS is off: cannot start /no/such/mps-control"), std::string::npos);
  EXPECT_NE(tessera("stop", "1").find("a signal is safe"), std::string::npos);
}

// Its number may be anybody's by now.
TEST_F(MpsTest, ADeadOnesFileIsNotAdopted) {
  const std::string elsewhere = folder_ + "/elsewhere";
  mkdir(elsewhere.c_str(), 0700);
  std::ofstream(elsewhere + "/nvidia-cuda-mps-control.pid") << getpid();
  std::ofstream(elsewhere + "/control") << "";
  start_mps("adopt", "pipe_directory = \"" + elsewhere + "\"\n");
  EXPECT_FALSE(mps()["active"]);
  EXPECT_EQ(tessera("run --gpu soft", "-- env").find("CUDA_MPS_"), std::string::npos);
  EXPECT_EQ(doctor("mps")["state"], "warning");
  EXPECT_NE(doctor("mps")["finding"].get<std::string>().find("no MPS control daemon runs in"),
            std::string::npos);
}

// MPS itself does not report these (NVIDIA's guide to MPS, "silent failures").
TEST_F(MpsTest, DoctorFindsWhatIsSilent) {
  start_mps("manage");
  std::ofstream(pipe_ + "/servers") << getpid() << "\n";
  EXPECT_EQ(doctor("mps")["state"], "note");
  EXPECT_EQ(doctor("mps-servers")["state"], "ok");
  const pid_t gone = fork();
  if (gone == 0) _exit(0);
  waitpid(gone, nullptr, 0);
  std::ofstream(pipe_ + "/servers") << getpid() << "\n" << gone << "\n";
  EXPECT_EQ(doctor("mps-servers")["finding"], "MPS servers that have ended: " + std::to_string(gone));
  // The folder that programs are led to.
  EXPECT_EQ(doctor("mps-variables", "CUDA_MPS_PIPE_DIRECTORY=" + pipe_)["state"], "ok");
  EXPECT_NE(
      doctor("mps-variables", "CUDA_MPS_PIPE_DIRECTORY=" + pipe_ + "s")["finding"].get<std::string>().find(
          "where no MPS control daemon listens"),
      std::string::npos);
  // Limits by GPU: the software GPU is one.
  const std::string limit = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=";
  EXPECT_EQ(doctor("mps-limits", limit + "0=2G")["state"], "note");
  EXPECT_EQ(doctor("mps-limits", limit + "0=2G,1=2G")["state"], "warning");
  EXPECT_EQ(doctor("mps-limits", limit + "GPU-1=2G")["state"], "warning");
}

TEST_F(MpsTest, DoctorReadsTheFileThatMpsWasStartedWith) {
  const std::string file = folder_ + "/mps.toml";
  std::ofstream(file) << "[servers.a]\nactive_thread_percentage = \"50\"\n[servers.a.namespaces.b]\n";
  pipe_ = folder_ + "/elsewhere";
  mkdir(pipe_.c_str(), 0700);
  shell("(CUDA_MPS_PIPE_DIRECTORY=" + pipe_ + " " + program_ + " -f -p 3 -a " + file +
        " >/dev/null 2>&1 </dev/null &)");
  ASSERT_TRUE(eventually([&] { return std::ifstream(pipe_ + "/control").good(); }));
  std::ofstream(pipe_ + "/servers") << getpid() << "\n";
  start_mps("adopt", "pipe_directory = \"" + pipe_ + "\"\n");
  ASSERT_TRUE(mps()["active"]);
  EXPECT_EQ(doctor("mps-file")["finding"], "namespace a/b has no limits");
  daemon_.reset();
}

TEST_F(MpsTest, AdoptsOnlyWhatRuns) {
  const std::string elsewhere = folder_ + "/elsewhere";
  mkdir(elsewhere.c_str(), 0700);
  start_mps("adopt", "pipe_directory = \"" + elsewhere + "\"\n");
  EXPECT_FALSE(mps()["active"]);
  EXPECT_NE(mps()["reason"].get<std::string>().find("no MPS control daemon runs in"), std::string::npos);
  daemon_.reset();
  setenv("CUDA_MPS_PIPE_DIRECTORY", elsewhere.c_str(), 1);
  shell("(" + program_ + " -f >/dev/null 2>&1 </dev/null &)");
  unsetenv("CUDA_MPS_PIPE_DIRECTORY");
  pipe_ = elsewhere;
  ASSERT_TRUE(eventually([&] { return control_pid() > 0; }));
  const pid_t control = control_pid();
  start_mps("adopt", "pipe_directory = \"" + elsewhere + "\"\n");
  EXPECT_TRUE(mps()["active"]);
  daemon_->signal(SIGTERM);
  daemon_->wait();
  EXPECT_TRUE(alive(control));  // not ours to end
  kill(control, SIGKILL);
}

}  // namespace
}  // namespace tessera::test

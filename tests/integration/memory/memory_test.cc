// Programs that share a limit of memory, as real processes with the preload library, the null driver and a daemon.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/daemon_process.h"

namespace tessera::test {
namespace {

constexpr uint64_t kLimitBytes = uint64_t(1) << 30;
constexpr uint64_t kNullDevice = uint64_t(80) << 30;  // tests/null_driver/device.cc
constexpr char kNullUuid[] = "tessera-null-gpu";

class MemoryOfPrograms : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/tessera-memory-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    socket_ = folder_ + "/d.sock";
    shared_fd_ = memfd_create("shared", 0);  // inherited
    ASSERT_EQ(ftruncate(shared_fd_, 4096), 0);
    shared_ = static_cast<std::atomic<uint64_t>*>(
        mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, shared_fd_, 0));
  }
  void TearDown() override {
    for (pid_t pid : started_) kill(pid, SIGKILL);
    daemon_.reset();
    close(shared_fd_);
    for (const char* file : {"/c.toml", "/d.sock", "/d-control.sock", "/d.sock.lock"})
      unlink((folder_ + file).c_str());
    rmdir(folder_.c_str());
  }
  void start(const std::string& configuration) {
    // A daemon that is slow on a busy machine does not count as one that hangs.
    std::ofstream(folder_ + "/c.toml") << "[daemon]\nanswer_within_ms = 60000\n" << configuration;
    daemon_ = std::make_unique<DaemonProcess>(
        socket_, std::vector<std::string>{"--config", folder_ + "/c.toml", "--log-level", "error"});
    ASSERT_TRUE(daemon_->listens()) << daemon_->errors();
  }
  // `out`: its standard output, if somebody reads it.
  pid_t program(int rounds, bool run_limit, int out = -1) {
    const pid_t parent = getpid(), pid = fork();
    if (pid != 0) return started_.push_back(pid), pid;
    die_with(parent);
    if (out >= 0) dup2(out, STDOUT_FILENO);
    setenv("TESSERA_DRIVER", TS_NULL_DRIVER, 1);
    setenv("TESSERA_SOCKET", socket_.c_str(), 1);
    if (run_limit) {
      setenv("TESSERA_MEMORY_LIMIT", std::to_string(kLimitBytes).c_str(), 1);
      setenv("TESSERA_MEMORY_GROUP", "77", 1);
    }
    execl(TS_RACER, TS_RACER, TS_SHIM, std::to_string(shared_fd_).c_str(),
          std::to_string(kLimitBytes).c_str(), std::to_string(rounds).c_str(), nullptr);
    _exit(127);
  }
  static int status_of(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    return status;
  }
  // Clients of which the daemon knows what they have.
  size_t counted() const {
    const auto text = ipc::query(socket_);
    if (!text.ok()) return 0;
    const auto clients = nlohmann::json::parse(*text)["clients"];
    return size_t(
        std::count_if(clients.begin(), clients.end(), [](const auto& c) { return !c["memory"].empty(); }));
  }
  void race(bool run_limit) {
    std::vector<pid_t> racers;
    for (int i = 0; i < 16; ++i) racers.push_back(program(1000, run_limit));
    EXPECT_TRUE(eventually([&] { return counted() == racers.size(); })) << "all are managed";
    shared_[3] = 1;
    for (pid_t racer : racers) EXPECT_EQ(status_of(racer), 0);
    EXPECT_EQ(shared_[1].load() + shared_[2].load(), 16'000u);
    EXPECT_GT(shared_[2].load(), 1'000u) << "allocations that succeeded";
  }

  std::string folder_, socket_;
  int shared_fd_ = -1;
  std::atomic<uint64_t>* shared_ = nullptr;  // held, refused, taken, go
  std::unique_ptr<DaemonProcess> daemon_;
  std::vector<pid_t> started_;
};

// 12, a thousand rounds each.
TEST_F(MemoryOfPrograms, SixteenThatRaceNeverPassTheLimitOfTheirRun) {
  start("");
  race(true);
}
TEST_F(MemoryOfPrograms, SixteenThatRaceNeverPassTheLimitOfTheirUser) {
  start("[[memory.limit]]\nuid = " + std::to_string(getuid()) + "\nmax_mib = 1024\n");
  race(false);
}

// Nobody of them has a limit; what this process reserved leaves them as much.
TEST_F(MemoryOfPrograms, SixteenThatRaceNeverTakeWhatIsReserved) {
  start("");
  ipc::abi::ReserveQuery question{};
  question.memory_bytes = kNullDevice - kNullDevice / 64 - kLimitBytes;
  question.memory_group = 99;
  ipc::abi::PlaceGpu gpu{{}, kNullDevice};
  std::copy_n(kNullUuid, sizeof gpu.uuid, gpu.uuid);
  ASSERT_TRUE(ipc::query_reserve(socket_, question, {&gpu, 1}).ok());
  race(false);
}

// 13 and 14: a killed program has nothing, and the next one has all of it.
TEST_F(MemoryOfPrograms, WhatAKilledProgramHeldIsTheNextOnes) {
  start("[[memory.limit]]\nuid = " + std::to_string(getuid()) + "\nmax_mib = 1024\n");
  // The program that has it all, or -1: it was refused.
  const auto holder = [&]() -> pid_t {
    int line[2];
    if (pipe2(line, O_CLOEXEC) != 0) return -1;
    const pid_t pid = program(0, false, line[1]);
    close(line[1]);
    char said = 0;
    const bool holds = read(line[0], &said, 1) == 1;  // 0: it has ended
    close(line[0]);
    if (!holds) status_of(pid);
    return holds ? pid : -1;
  };
  for (int i = 0; i < 3; ++i) {
    pid_t pid = -1;
    // The daemon hears by a pidfd that the one before has died, which may be a little later.
    EXPECT_TRUE(eventually([&] { return (pid = holder()) > 0; })) << i;
    if (pid <= 0) return;
    EXPECT_EQ(holder(), -1) << "there is no room for two";
    kill(pid, SIGKILL);
    status_of(pid);
  }
}

}  // namespace
}  // namespace tessera::test

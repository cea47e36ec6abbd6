// The arbiter with real processes: sharing, death of clients and of the arbiter, hostile input, starting and
// leaving.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/scoped_fd.h"
#include "softgpu/timing/engine.h"
#include "softgpu/timing/wire.h"
#include "tests/support/eventually.h"

extern char** environ;

namespace tessera::softgpu::timing {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr uint64_t kPatienceNs = 240'000'000'000;  // until a test gives up; never reached when things work

struct Times {
  uint64_t start = 0, end = 0;
  int code = -1;
  uint64_t duration() const { return end - start; }
};

class Process {
 public:
  Process() {
    int to[2], from[2];
    EXPECT_EQ(pipe2(to, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(from, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], 0);
    posix_spawn_file_actions_adddup2(&actions, from[1], 1);
    std::string path =
        (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "softgpu_timing_client");
    char* arguments[] = {path.data(), nullptr};
    EXPECT_EQ(posix_spawn(&pid_, path.c_str(), &actions, nullptr, arguments, environ), 0) << path;
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]);
    close(from[1]);
    in_.reset(to[1]);
    out_.reset(from[0]);
  }
  ~Process() { kill(); }

  void send(const std::string& line) {
    std::string text = line + "\n";
    EXPECT_EQ(write(in_.get(), text.data(), text.size()), ssize_t(text.size()));
  }
  std::string read_line() {
    std::string line;
    for (char c; read(out_.get(), &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }
  std::string ask(const std::string& line) {
    send(line);
    return read_line();
  }
  Times wait(const std::string& op) {
    std::istringstream in(ask("wait " + op));
    Times t;
    in >> t.start >> t.end >> t.code;
    return t;
  }
  void kill(int with = SIGKILL) {
    if (pid_ <= 0) return;
    ::kill(pid_, with);
    leave();
  }
  int leave() {  // exit status
    in_.reset();
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_ = -1;
  base::ScopedFd in_, out_;
};

class ArbiterTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/tessera-arbiter-XXXXXX";
    ASSERT_TRUE(mkdtemp(folder));
    folder_ = folder;
    setenv("TESSERA_SOFTGPU_DIR", folder, 1);
    setenv("TESSERA_SOFTGPU_LINGER_MS", "300", 1);
    use("timesliced");
    unsetenv("TESSERA_SOFTGPU_GPU");
  }
  void TearDown() override {
    base::ScopedFd fd = raw();
    if (fd.valid()) kill(arbiter_pid(fd.get()), SIGKILL);
    std::filesystem::remove_all(folder_);
  }
  void use(const char* mode) { setenv("TESSERA_SOFTGPU_MODE", mode, 1); }

  base::ScopedFd raw() {
    base::ScopedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{AF_UNIX, {}};
    strcpy(address.sun_path, (folder_ + "/arbiter.sock").c_str());
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) fd.reset();
    return fd;
  }
  static pid_t arbiter_pid(int fd) {
    ucred c{};
    socklen_t size = sizeof c;
    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &size);
    return c.pid;
  }
  // Until a 10 ms kernel of `p` takes 10 ms: nobody else is on the device.
  static bool gets_the_device_alone(Process& p) {
    for (uint64_t start = base::now_ns(); base::now_ns() - start < kPatienceNs;) {
      Times t = p.wait(p.ask("kernel 4 60000 0"));
      if (t.duration() < 10'010'000) return true;
    }
    return false;
  }

  std::string folder_;
};

TEST_F(ArbiterTest, TwoProcessesShareInSlices) {
  Process a, b;
  EXPECT_THAT(a.ask("connect 0"), StartsWith("ok timesliced /"));
  EXPECT_THAT(b.ask("connect 0"), StartsWith("ok timesliced /"));
  a.ask("kernel 4 6e12 0");  // practically for ever
  a.wait(a.ask("kernel 4 600 0"));
  Times t = b.wait(b.ask("kernel 4 120000 0"));  // 20 ms alone: ten slices, ten of the other between them
  EXPECT_EQ(t.code, 0);
  EXPECT_GT(t.duration(), 20'000'000u + 9 * 2'300'000);
  EXPECT_LT(t.duration(), 20'000'000u + 11 * 2'300'000);
}

TEST_F(ArbiterTest, ProcessesShareSmsUnderMps) {
  use("mps");
  Process a, b;
  EXPECT_THAT(a.ask("connect 0"), StartsWith("ok mps /"));
  b.ask("connect 0");
  a.ask("kernel 4 6e12 0");
  a.wait(a.ask("kernel 4 600 0"));
  Times t = b.wait(b.ask("kernel 4 60000 0"));  // 10 ms alone; half the issue slots each
  EXPECT_NEAR(double(t.duration()), 20e6, 0.1e6);
}

TEST_F(ArbiterTest, KilledClientVanishes) {
  Process a, b;
  a.ask("connect 0");
  b.ask("connect 0");
  a.ask("kernel 400 6e12 0");
  a.wait(a.ask("kernel 0 0 0"));
  EXPECT_GT(b.wait(b.ask("kernel 4 60000 0")).duration(), 12'000'000u);
  a.kill();
  EXPECT_TRUE(gets_the_device_alone(b));
}

TEST_F(ArbiterTest, KilledClientVanishesAlthoughItsChildLives) {
  Process a, b;
  a.ask("connect 0");
  b.ask("connect 0");
  a.ask("kernel 400 6e12 0");
  pid_t child = pid_t(std::stol(a.ask("fork")));
  ASSERT_GT(child, 0);
  a.kill();
  EXPECT_TRUE(gets_the_device_alone(b));
  kill(child, SIGKILL);
}

TEST_F(ArbiterTest, ExitWithWorkOutstanding) {
  Process a;
  a.ask("connect 0");
  a.ask("kernel 400 6e12 0");
  a.ask("stuck");
  a.send("exit");
  EXPECT_EQ(a.leave(), 0);
}

TEST_F(ArbiterTest, ExitWithoutDestroyingTheEngine) {
  std::string trace = folder_ + "/trace";
  setenv("TESSERA_SOFTGPU_TRACE", trace.c_str(), 1);
  Process a;
  unsetenv("TESSERA_SOFTGPU_TRACE");
  a.ask("connect 0");
  EXPECT_EQ(a.wait(a.ask("kernel 4 600 0")).code, 0);
  a.ask("stuck");
  a.send("leak");
  EXPECT_EQ(a.leave(), 0);
  size_t files = 0;
  for (auto& entry : std::filesystem::directory_iterator(trace)) files += entry.file_size() > 0;
  EXPECT_EQ(files, 2u);  // the trace reached the disk
}

TEST_F(ArbiterTest, GarbageIsDisconnectedOthersGoOn) {
  Process good;
  good.ask("connect 0");
  std::mt19937 random(1);
  wire::Header hello{sizeof(wire::Hello), wire::Type::kHello, 0};
  wire::Hello proper{wire::kMagic, wire::kVersion, 0, 0};
  auto bytes = [](const auto& value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
  };
  const std::string greeting = bytes(hello) + bytes(proper);
  auto submit = [&](auto change) {
    wire::Submit s{};
    s.id = 1;
    s.kind = uint8_t(OpKind::kJoin);
    change(s);
    return greeting + bytes(wire::Header{sizeof s, wire::Type::kSubmit, 0}) + bytes(s);
  };
  std::vector<std::string> bad = {
      bytes(wire::Header{1u << 30, wire::Type::kSubmit, 0}),
      bytes(wire::Header{4, wire::Type(77), 0}),
      bytes(wire::Header{sizeof(wire::Hello), wire::Type::kHello, 0}) + bytes(wire::Hello{1, 2, 3, 4}),
      greeting + greeting,
      submit([](wire::Submit& s) { s.id = 0; }),
      submit([](wire::Submit& s) { s.kind = 9; }),
      submit([](wire::Submit& s) { s.direction = 9; }),
      submit([](wire::Submit& s) { s.n_deps = 5; }),
      submit([](wire::Submit& s) { s.n_deps = ~0u; }),
      submit([](wire::Submit& s) { s.n_blocks = ~0ull; }),
      submit([](wire::Submit& s) { s.copy_bytes = ~0ull; }),
      submit([](wire::Submit& s) { s.threads_per_block = ~0u; }),
      submit([](wire::Submit& s) { s.work.warp_instructions = std::nan(""); }),
      submit([](wire::Submit& s) { s.work.global_bytes = -1; }),
      submit([](wire::Submit& s) { s.work.tensor_operations = INFINITY; }),
      bytes(wire::Header{sizeof(wire::Done), wire::Type::kDone, 0}) +
          bytes(wire::Done{}),  // before the greeting
      greeting + bytes(wire::Header{sizeof(wire::Welcome), wire::Type::kWelcome, 0}) + bytes(wire::Welcome{}),
  };
  for (int i = 0; i < 20; ++i) {
    std::string noise(size_t(random() % 3000 + 64), 0);
    for (char& c : noise) c = char(random() | 0x80);  // lengths beyond the bound
    bad.push_back(i % 2 ? noise : greeting + noise);
  }
  for (size_t i = 0; i < bad.size(); ++i) {
    base::ScopedFd fd = raw();
    ASSERT_TRUE(fd.valid());
    timeval patience{20, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    send(fd.get(), bad[i].data(), bad[i].size(), MSG_NOSIGNAL);
    char buffer[8192];
    ssize_t n;
    while ((n = recv(fd.get(), buffer, sizeof buffer, 0)) > 0) {
    }
    EXPECT_TRUE(n == 0 || errno == ECONNRESET) << "case " << i << " is still connected";
  }
  base::ScopedFd silent = raw();  // never says anything
  EXPECT_EQ(good.wait(good.ask("kernel 4 600 0")).code, 0);
}

TEST_F(ArbiterTest, WellFormedNonsenseIsHarmless) {
  Process good;
  good.ask("connect 0");
  base::ScopedFd fd = raw();
  auto put = [&](wire::Type type, const auto& payload) {
    wire::Header header{sizeof payload, type, 0};
    send(fd.get(), &header, sizeof header, MSG_NOSIGNAL);
    send(fd.get(), &payload, sizeof payload, MSG_NOSIGNAL);
  };
  put(wire::Type::kHello, wire::Hello{wire::kMagic, wire::kVersion, 12345, 0});
  put(wire::Type::kDone, wire::Done{UINT64_MAX, 77});        // never submitted, in the future
  put(wire::Type::kReport, wire::Report{0, 78, {1, 2, 3}});  // never submitted, in the past
  put(wire::Type::kAbort, wire::Abort{0, UINT64_MAX});
  wire::Submit s{};
  s.id = 1;
  s.kind = uint8_t(OpKind::kKernel);
  s.n_blocks = 1ull << 60;
  s.work = {1e18, 1e18, 1e18};
  s.flags = wire::kWorkKnown | wire::kCooperative;
  s.threads_per_block = 65536;
  s.registers_per_thread = 65536;
  s.shared_bytes_per_block = 1u << 30;
  s.priority = INT32_MIN;
  put(wire::Type::kSubmit, s);
  EXPECT_EQ(good.wait(good.ask("kernel 4 600 0")).code, 0);
  fd.reset();
  EXPECT_TRUE(gets_the_device_alone(good));
}

TEST_F(ArbiterTest, ArbiterKilledMeansDeviceLostAndANewOneStarts) {
  Process a;
  a.ask("connect 0");
  std::string op = a.ask("kernel 4 6e12 0");
  base::ScopedFd fd = raw();
  pid_t arbiter = arbiter_pid(fd.get());
  ASSERT_GT(arbiter, 1);
  kill(arbiter, SIGKILL);
  EXPECT_EQ(a.wait(op).code, 46);
  EXPECT_EQ(a.ask("lost"), "lost");
  EXPECT_EQ(a.wait(a.ask("kernel 4 600 0")).code, 46);
  EXPECT_THAT(a.ask("connect 0"), StartsWith("ok"));
  EXPECT_EQ(a.ask("lost"), "here");
  EXPECT_EQ(a.wait(a.ask("kernel 4 600 0")).code, 0);
}

TEST_F(ArbiterTest, ManyStartersOneArbiter) {
  std::vector<Process> clients(5);
  for (auto& p : clients) p.send("connect 0");
  for (auto& p : clients) EXPECT_THAT(p.read_line(), StartsWith("ok"));
  base::ScopedFd fd = raw();
  kill(arbiter_pid(fd.get()), SIGKILL);
  for (auto& p : clients) {  // all of them were its clients
    std::string answer;
    for (uint64_t start = base::now_ns(); answer != "lost" && base::now_ns() - start < kPatienceNs;)
      answer = p.ask("lost");
    EXPECT_EQ(answer, "lost");
  }
}

// One that has the lock but does not listen, as it is when it gets no processor: whoever is started then waits, and takes its
// place.
TEST_F(ArbiterTest, OneThatComesLaterWaitsForTheOneThatHasTheLock) {
  const std::string lock_path = folder_ + "/arbiter.lock";
  std::string program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "softgpu_arbiter";
  base::ScopedFd lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(flock(lock.get(), LOCK_EX), 0);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  base::ScopedFd reads(ends[0]), writes(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, writes.get(), 1);
  char* arguments[] = {program.data(), folder_.data(), nullptr};
  pid_t pid = 0;
  ASSERT_EQ(posix_spawn(&pid, program.c_str(), &actions, nullptr, arguments, environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  writes.reset();
  const auto has_come = [&] {
    std::error_code ignored;
    for (const auto& fd :
         std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", ignored))
      if (std::filesystem::read_symlink(fd, ignored) == lock_path) return true;
    pollfd ended{reads.get(), POLLIN, 0};
    return poll(&ended, 1, 0) == 1;
  };
  EXPECT_TRUE(test::eventually(has_come));
  lock.reset();
  char said[7] = {};
  EXPECT_EQ(read(reads.get(), said, 6), 6);
  EXPECT_STREQ(said, "ready\n");
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

TEST_F(ArbiterTest, LeavesWhenUnused) {
  {
    Process a;
    EXPECT_THAT(a.ask("connect 0"), StartsWith("ok"));
    EXPECT_EQ(a.leave(), 0);
  }
  base::ScopedFd lock(open((folder_ + "/arbiter.lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(lock.valid());
  EXPECT_EQ(flock(lock.get(), LOCK_EX), 0);  // returns when it has ended
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/arbiter.sock"));
}

TEST_F(ArbiterTest, BadSettingsAreReportedToTheProgram) {
  Process a;
  use("fast");
  Process b;
  EXPECT_THAT(b.ask("connect 0"), StartsWith("error softgpu_arbiter: TESSERA_SOFTGPU_MODE is 'fast'"));
  use("mps");
  setenv("TESSERA_SOFTGPU_GPU", "/nonexistent.toml", 1);
  Process c;
  EXPECT_THAT(c.ask("connect 0"), HasSubstr("TESSERA_SOFTGPU_GPU"));
  setenv("TESSERA_SOFTGPU_GPU", "h200", 1);
  Process d;
  EXPECT_THAT(d.ask("connect 0"), HasSubstr("h200.toml"));
}

// Each device has an arbiter of its own, with its own description, in a folder below.
TEST_F(ArbiterTest, OneArbiterPerDevice) {
  auto first = Engine::connect(0);
  auto second = Engine::connect(0, 1, "l4");
  ASSERT_TRUE(first.ok()) << first.error().text;
  ASSERT_TRUE(second.ok()) << second.error().text;
  EXPECT_THAT((*first)->info().description_path, HasSubstr("test4.toml"));
  EXPECT_THAT((*second)->info().description_path, HasSubstr("l4.toml"));
  EXPECT_EQ((*second)->info().device, 1u);
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/device1/arbiter.sock"));
}

TEST_F(ArbiterTest, FolderOfOthersIsRefused) {
  chmod(folder_.c_str(), 0777);
  Process a;
  EXPECT_THAT(a.ask("connect 0"), HasSubstr("written by others"));
  chmod(folder_.c_str(), 0700);
}

}  // namespace
}  // namespace tessera::softgpu::timing

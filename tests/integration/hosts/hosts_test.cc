// The effects of hosts on the preloaded library: their allocators and sanitizers. Real processes.
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "tests/integration/sharing/fixture.h"

namespace tessera {
namespace {

using test::eventually;
using test::kBin;
using test::kPatienceS;
using test::read_file;
using Words = std::vector<std::string>;

// How the host's memory behaves: what it frees is overwritten or returned at once, so that a pointer of ours
// into it does not go unnoticed.
struct Memory {
  const char* name;
  std::string preloaded;  // before our library
  Words environment;
};
void PrintTo(const Memory& memory, std::ostream* out) {
  *out << memory.name;
}

const Memory kMemories[] = {
    {"perturbed",
     "",
     {"MALLOC_PERTURB_=165", "GLIBC_TUNABLES=glibc.malloc.mmap_threshold=4096:glibc.malloc.tcache_count=0"}},
    {"address_sanitizer", TESSERA_LIBASAN, {"ASAN_OPTIONS=detect_leaks=0"}},
};

class Hosts : public test::SharingFixture, public testing::WithParamInterface<Memory> {
 protected:
  cli::Process start(const std::string& name, const Words& program, Words environment = {}) {
    const std::string first = GetParam().preloaded.empty() ? "" : GetParam().preloaded + ":";
    Words words = {"sh", "-c", "export LD_PRELOAD=" + first + "$LD_PRELOAD; exec \"$0\" \"$@\""};
    words.insert(words.end(), program.begin(), program.end());
    environment.insert(environment.end(), GetParam().environment.begin(), GetParam().environment.end());
    environment.push_back("TESSERA_CACHE_DIR=" + path("cache"));
    return run(name, "best-effort", {}, words, environment);
  }
  bool is_ready(const std::string& name) const { return std::filesystem::exists(path(name + ".ready")); }
  void expect_good_end(cli::Process& program, const std::string& name) {
    auto end = program.stop(kPatienceS);
    ASSERT_TRUE(end.ok());
    EXPECT_EQ(*end, 0) << read_file(path(name + ".err"));
  }
};

// The reasons are counted while the program loads, and published for as long as it runs.
TEST_P(Hosts, RefusalsOutliveTheImageThatTheyWereFoundIn) {
  start_daemon();
  auto program = start("program", {TESSERA_HOST, path("program.ready")});
  ASSERT_TRUE(eventually([&] { return is_ready("program"); })) << read_file(path("program.err"));
  EXPECT_TRUE(eventually([&] { return client("program").value("refused_waiting", 0) == 5; })) << ask().dump();
  EXPECT_EQ(client("program").value("refused_other", -1), 0);
  EXPECT_GT(client("program").value("cut_kernels", 0), 0);
  expect_good_end(program, "program");
}

// Neither the cache nor the log raises SIGXFSZ or SIGPIPE in the program.
TEST_P(Hosts, WhatIsWrittenRaisesNoSignal) {
  start_daemon();
  for (const std::string name : {"to_a_file", "to_nobody"}) {
    Words environment = {"TESSERA_LOG=debug"};
    if (name == "to_a_file") environment.push_back("TESSERA_LOG_FILE=" + path(name + ".log"));
    auto program = start(name, {TESSERA_HOST, path(name + ".ready"), "no_files"}, environment);
    ASSERT_TRUE(eventually([&] { return is_ready(name) || !program.running(); }));
    EXPECT_TRUE(program.running());
    expect_good_end(program, name);
  }
  EXPECT_TRUE(!std::filesystem::exists(path("cache")) || std::filesystem::is_empty(path("cache")));
}

// The library's own thread compiles, the hooks cut, the helper reads: all with this memory. The program
// checks its results.
TEST_P(Hosts, ProgramsAreCutInAModuleOfTheirOwn) {
  start_daemon();
  auto service =
      run("service", "high", {}, {kBin + "latency_service", "--requests", "100000", "--rate", "5"}, {});
  auto program = start("program", {TESSERA_SHARING_GLOBALS, path("program.steps")});
  EXPECT_TRUE(eventually([&] { return client("program").value("slices", 0) > 5; })) << ask().dump();
  EXPECT_TRUE(steps_grow("program", 1));
  expect_good_end(program, "program");
}

class ByPath : public test::SharingFixture {
 protected:
  void start(const std::string& name, const Words& more, const Words& options = {},
             const std::string& driver = TESSERA_PREFIX "/lib/softgpu/libcuda.so.1") {
    // TESSERA_DRIVER would say which driver is meant, whatever is opened.
    Words words = {"env", "-u", "TESSERA_DRIVER", TESSERA_BY_PATH, driver, path(name + ".ready")};
    words.insert(words.end(), more.begin(), more.end());
    // A copy of the driver has no arbiter beside it.
    program_ =
        run(name, "best-effort", options, words, {"TESSERA_SOFTGPU_ARBITER=" + kBin + "softgpu_arbiter"});
    EXPECT_TRUE(eventually([&] { return std::filesystem::exists(path(name + ".ready")); }))
        << read_file(path(name + ".err"));
  }
  // The line of `ps` for the program started last; lines of others are ignored.
  std::string ps() { return ps(program_.pid()); }
  std::string ps(long pid) {
    auto shown = cli::Process::start({kBin + "tessera", "ps", "--socket", socket()}, {}, path("ps.out"),
                                     path("ps.err"));
    EXPECT_TRUE(shown.ok() && shown->wait(kPatienceS).ok());
    std::istringstream lines(read_file(path("ps.out")));
    std::string out;
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with(std::to_string(pid) + " ")) out += line + "\n";
    return out;
  }
  void stop() {
    auto end = program_.stop(kPatienceS);
    EXPECT_TRUE(end.ok() && *end == 0);
  }
  cli::Process program_;
};

TEST_F(ByPath, APassedByLibraryIsToldByPsAndAtTheEnd) {
  start_daemon();
  start("program", {});
  EXPECT_NE(ps().find("do not pass through Tessera: it opened " TESSERA_PREFIX), std::string::npos) << ps();
  EXPECT_TRUE(clients().empty());
  stop();
  EXPECT_NE(read_file(path("program.err")).find("do not pass through Tessera"), std::string::npos);
}

// As under sudo, by ssh or from cron.
TEST_F(ByPath, AProgramWithoutTheLibraryIsToldByPs) {
  start_daemon();
  const std::string driver = TESSERA_PREFIX "/lib/softgpu/libcuda.so.1";
  auto bare = cli::Process::start({TESSERA_BY_PATH, driver, path("bare.ready")}, {}, path("bare.out"),
                                  path("bare.err"));
  ASSERT_TRUE(bare.ok());
  program_ = std::move(*bare);
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(path("bare.ready")); }));
  EXPECT_NE(ps().find("nobody started it by tessera run"), std::string::npos) << ps();
  stop();
}

// Its parent is a client, and has not handed the library down.
TEST_F(ByPath, AChildOfAClientWithoutTheLibraryIsToldByPs) {
  start_daemon();
  const std::string child = "echo $$ >" + path("child.pid") +
                            "; exec env -u LD_PRELOAD " TESSERA_BY_PATH " " TESSERA_PREFIX
                            "/lib/softgpu/libcuda.so.1 " +
                            path("child.ready");
  program_ = run("program", "best-effort", {}, {TESSERA_HOST, path("program.ready"), "sh", "-c", child}, {});
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(path("child.ready")); }))
      << read_file(path("program.err"));
  ASSERT_TRUE(eventually([&] { return !clients().empty(); }));
  EXPECT_NE(ps(std::stol(read_file(path("child.pid")))).find("nobody started it by tessera run"),
            std::string::npos)
      << read_file(path("ps.out"));
  EXPECT_EQ(ps().find("pass through"), std::string::npos) << ps();
  stop();
}

TEST_F(ByPath, AClientThatWasPassedByIsToldAtOnce) {
  start_daemon();
  start("program", {"also_by_name"});
  EXPECT_TRUE(eventually([&] { return client("program").value("bypassed", 0) == 1; })) << ask().dump();
  EXPECT_NE(ps().find("may not pass through Tessera"), std::string::npos) << ps();
  EXPECT_NE(read_file(path("program.err")).find("do not pass through Tessera"), std::string::npos);
  stop();
}

// Its results are right, too: its end says so.
TEST_F(ByPath, TheAuditLibraryMakesItAClient) {
  start_daemon();
  for (const Words& way : {Words{}, Words{"also_by_name"}, Words{"namespace"}}) {
    std::filesystem::remove(path("program.ready"));
    start("program", way, {"--audit"});
    EXPECT_TRUE(eventually([&] { return client("program").value("launches", 0) > 0; })) << ask().dump();
    EXPECT_EQ(client("program").value("bypassed", -1), 0);
    EXPECT_EQ(ps().find("pass through"), std::string::npos) << ps();
    stop();
    EXPECT_EQ(read_file(path("program.err")), "");
  }
}

TEST_F(ByPath, ASecondDriverIsLeftAloneAndSaid) {
  start_daemon();
  std::filesystem::copy_file(TESSERA_PREFIX "/lib/softgpu/libcuda.so.1", path("libcuda.so.1"));
  start("program", {"first_by_name"}, {"--audit"}, path("libcuda.so.1"));
  EXPECT_TRUE(eventually([&] { return client("program").value("bypassed", 0) == 1; })) << ask().dump();
  EXPECT_EQ(client("program").value("launches", -1), 0);
  EXPECT_NE(ps().find("it opened another driver"), std::string::npos) << ps();
  stop();
  EXPECT_NE(read_file(path("program.err")).find("not the driver that Tessera opened"), std::string::npos);
}

// No name, no LD_LIBRARY_PATH: libtessera.so opens the driver that the program opened.
TEST_F(ByPath, TheDriverThatOnlyTheProgramKnowsIsServed) {
  start_daemon();
  std::filesystem::copy_file(TESSERA_PREFIX "/lib/softgpu/libcuda.so.1", path("libcuda.so.1"));
  start("program", {}, {"--audit"}, path("libcuda.so.1"));
  EXPECT_TRUE(eventually([&] { return client("program").value("launches", 0) > 0; })) << ask().dump();
  EXPECT_EQ(client("program").value("bypassed", -1), 0);
  stop();
}

TEST_F(ByPath, NothingIsToldOfAnOrdinaryProgram) {
  start_daemon();
  program_ = run("program", "best-effort", {}, {TESSERA_HOST, path("program.ready")}, {});
  ASSERT_TRUE(
      eventually([&] { return !clients().empty() && std::filesystem::exists(path("program.ready")); }));
  EXPECT_EQ(client("program").value("bypassed", -1), 0);
  EXPECT_EQ(ps().find("pass through"), std::string::npos) << ps();
  stop();
  EXPECT_EQ(read_file(path("program.err")), "");
}

INSTANTIATE_TEST_SUITE_P(Memory, Hosts, testing::ValuesIn(kMemories),
                         [](const auto& memory) { return std::string(memory.param.name); });

}  // namespace
}  // namespace tessera

// Bad arguments that a user gives to any command: names of things that are no files, and numbers that are none. A
// command that waits for a FIFO would end by the time limit of this program only.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "tests/support/shell.h"

namespace tessera::cli {
namespace {

using test::Ended;

const std::string kTessera = TESSERA_BIN, kSource = TESSERA_SOURCE_DIR;

Ended tessera(const std::string& words, const std::string& variables = "") {
  return test::shell("env " + variables + " " + kTessera + " " + words + " </dev/null");
}

class Arguments : public testing::Test {
 protected:
  Arguments() : folder_(testing::TempDir() + "tessera-arguments-" + std::to_string(getpid())) {
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ + "/trace.json")
        << R"({"traceEvents": [], "otherData": {"format": "tessera trace 1"}})";
    std::ofstream(folder_ + "/scenario.toml") << "include = [\"fifo\"]\n";
    std::ofstream(folder_ + "/recorded.toml") << "[[workload]]\nname = \"w\"\nchakra = \"fifo\"\n";
    EXPECT_EQ(mkfifo((folder_ + "/fifo").c_str(), 0700), 0);
  }
  ~Arguments() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(Arguments, EveryFileIsARegularOne) {
  const std::string small = kSource + "/scenarios/load_sweep.toml --seeds 1 --duration-ms 300";
  const struct {
    std::string command;  // with % for the file
    std::string variables;
  } rows[] = {
      {"inspect %", ""},
      {"inspect --json %", ""},
      {"inspect --gpu h200 %", ""},
      {"explain %", ""},
      {"trace --from %", ""},
      {"trace --from " + folder_ + "/trace.json -o %", ""},
      {"simulate %", ""},
      {"simulate --protected % --best-effort " TESSERA_CORPUS "/csv/loop.csv", ""},
      {"simulate --gpu h100 --protected " TESSERA_CORPUS "/csv/loop.csv --best-effort %", ""},
      {"simulate --contention % " + small, ""},
      {"simulate --json % " + small, ""},
      {"simulate --csv % " + small, ""},
      {"cdi --socket /run/tesserad.sock -o %", ""},
      {"profile -o % -- true", ""},
      {"profile --install -o %", "TESSERA_PROFILES=" + folder_},
      {"profile --gpu soft -o " + folder_ + "/p.json -- true", "TESSERA_SOFTGPU_GPU=%"},
  };
  const struct {
    std::string path, why;
  } kinds[] = {{folder_ + "/fifo", "it is a pipe, not a regular file"},
               {folder_, "it is a folder"},
               {"/dev/zero", "it is a device, not a regular file"}};
  const auto with = [](std::string text, const std::string& path) {
    if (const size_t at = text.find('%'); at != text.npos) text.replace(at, 1, path);
    return text;
  };
  const auto writes = [](const std::string& command) {
    return std::regex_search(command, std::regex("(-o|--json|--csv) %")) && !command.starts_with("inspect");
  };
  for (const auto& row : rows)
    for (const auto& kind : kinds) {
      if (kind.path == "/dev/zero" && writes(row.command)) continue;  // likewise a terminal
      const Ended ended = tessera(with(row.command, kind.path), with(row.variables, kind.path));
      EXPECT_TRUE(WIFEXITED(ended.status) && WEXITSTATUS(ended.status) != 0) << row.command << kind.path;
      EXPECT_NE(ended.text.find(kind.path + ": " + kind.why), std::string::npos)
          << row.command << row.variables << " " << kind.path << ": " << ended.text;
    }
  for (const char* scenario : {"/scenario.toml", "/recorded.toml"})
    EXPECT_NE(tessera("simulate " + folder_ + scenario).text.find("it is a pipe"), std::string::npos)
        << scenario;
  // Programs: what the kernel says of them is said.
  for (const char* command : {"run --gpu soft -- ", "run --passthrough -- ", "run --audit -- "}) {
    const Ended ended = tessera(command + folder_ + "/fifo");
    EXPECT_EQ(WEXITSTATUS(ended.status), 126) << ended.text;
    EXPECT_NE(ended.text.find("Permission denied"), std::string::npos) << ended.text;
  }
  EXPECT_NE(tessera("doctor --gpu soft -- " + folder_ + "/fifo").text.find("it is a pipe"),
            std::string::npos);
}

TEST_F(Arguments, WhatIsWrittenMayGoToStandardOutputAndToNobody) {
  const std::string small = kSource + "/scenarios/load_sweep.toml --seeds 1 --duration-ms 300";
  const Ended shown = tessera("simulate --json /dev/stdout " + small);  // a pipe that is read
  EXPECT_EQ(shown.status, 0) << shown.text;
  EXPECT_NE(shown.text.find('{'), std::string::npos) << shown.text;
  // The table is there although another program makes the plots.
  EXPECT_NE(tessera("simulate --plot " + folder_ + " " + small).text.find("p99 mean over alone"),
            std::string::npos);
  EXPECT_EQ(tessera("simulate --json /dev/null " + small).status, 0);
}

// All options of all commands that take a number, from the commands' own help.
TEST_F(Arguments, EveryNumberIsFiniteAndWithinItsRange) {
  std::istringstream commands(tessera("--help").text);
  const std::regex subcommand("  ([a-z]+) .*"),
      option("  (?:-\\w,)?(--[a-z-]+) (?:INT|UINT|FLOAT)(?::| )?(.*)");
  size_t n_options = 0;
  bool listed = false;
  for (std::string line; std::getline(commands, line);) {
    listed |= line == "Subcommands:";
    std::smatch command;
    if (!listed || !std::regex_match(line, command, subcommand) || command[1] == "ptxas") continue;
    std::istringstream help(tessera(command[1].str() + " --help").text);
    for (std::string row; std::getline(help, row);) {
      // A name that is long has its help on the next line.
      std::smatch found;
      if (!std::regex_match(row, found, option)) continue;
      const std::string name = found[1];
      if (name == "--first-seed") continue;  // any whole number is one
      if (name == "--weight") continue;      // has its test (set_test, run_test): it names the usual one
      ++n_options;
      EXPECT_NE(row.find('['), std::string::npos) << "no range: " << row;
      for (const char* value : {"nan", "-nan", "inf", "-inf", "1e300", "-1", "1x"}) {
        const Ended ended = tessera(command[1].str() + " " + name + "=" + value);
        EXPECT_EQ(WEXITSTATUS(ended.status), 2) << command[1] << " " << name << " " << value << ended.text;
        EXPECT_NE(ended.text.find(name), std::string::npos) << ended.text;
      }
    }
  }
  EXPECT_GE(n_options, 12u);
  for (const std::string command : {"run", "set x"})
    for (const char* value : {"nan", "nanms", "infs", "-1ms", "1e300ms", "20", "61min"}) {
      const Ended ended = tessera(command + " --slo '" + value + "' " + (command == "run" ? "-- true" : ""));
      EXPECT_NE(WEXITSTATUS(ended.status), 0) << command << value << ended.text;
      EXPECT_NE(ended.text.find("is not a duration"), std::string::npos) << command << value << ended.text;
    }
  for (const char* value : {"nan", "inf", "0", "1001", "x"})
    EXPECT_NE(
        tessera("demo --gpu soft --out " + folder_ + "/demo", std::string("TESSERA_SOFTGPU_STRETCH=") + value)
            .text.find("TESSERA_SOFTGPU_STRETCH: '" + std::string(value) + "' is not a number"),
        std::string::npos)
        << value;
}

}  // namespace
}  // namespace tessera::cli

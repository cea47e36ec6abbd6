// What the tests with several real processes share: a private folder, one at a time on this machine, a daemon
// in it, and the standard errors of all of them if something failed.
#pragma once

#include <gtest/gtest.h>
#include <sys/file.h>

#include <filesystem>
#include <functional>
#include <string>

#include "cli/demo/process.h"

namespace tessera::test {

extern const std::string kBin;  // folder of the programs, with its slash

inline constexpr double kPatience_s = 60;  // no healthy machine needs so long for one step

std::string read_file(const std::string& path);
// Polls until the condition holds; false after kPatience_s.
bool eventually(const std::function<bool()>& condition);

class SharingFixture : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
  std::string path(const std::string& name) const { return std::string(scratch_) + "/" + name; }
  std::string socket() const { return path("d.sock"); }
  void start_daemon(const std::string& config = "");  // TOML; kept for the next start

  char scratch_[64] = "/tmp/tessera-sharing-XXXXXX";
  int lock_ = -1;
  cli::Process daemon_;
};

}  // namespace tessera::test

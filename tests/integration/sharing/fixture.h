// The common part of tests with several real processes: a private folder, one at a time on this machine, a daemon in
// it, and the standard errors of all of them if something failed.
#pragma once

#include <gtest/gtest.h>
#include <sys/file.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/demo/process.h"
#include "tests/support/eventually.h"

namespace tessera::test {

extern const std::string kBin;  // folder of the programs, with its slash

// A kernel whose processors are all busy was seen not to run a ready thread for a minute and more.
inline constexpr double kPatienceS = 240;

std::string read_file(const std::string& path);

class SharingFixture : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
  std::string path(const std::string& name) const { return std::string(scratch_) + "/" + name; }
  std::string socket() const { return path("d.sock"); }
  // TOML, kept for the next start; NAME=VALUE on top of this process's environment.
  void start_daemon(const std::string& config = "", const std::vector<std::string>& environment = {});

  // `tessera run OPTIONS -- PROGRAM` on this folder's software GPU; outputs in NAME.out and NAME.err.
  cli::Process run(const std::string& name, const std::string& priority,
                   const std::vector<std::string>& options, const std::vector<std::string>& program,
                   std::vector<std::string> environment) const;
  // The progress of NAME so far: the size of NAME.steps, unless its program tells otherwise.
  virtual size_t steps(const std::string& name) const;
  bool steps_grow(const std::string& name, size_t by) const;
  std::string checksum(const std::string& name) const;  // the one that NAME.out tells
  static bool gate_is_on_device();                      // of the programs that run() starts, by TESSERA_GATE

  nlohmann::json ask() const;  // what the daemon tells; empty if it does not answer
  nlohmann::json clients() const { return ask().value("clients", nlohmann::json::array()); }
  nlohmann::json client(const std::string& name) const;

  char scratch_[64] = "/tmp/tessera-sharing-XXXXXX";
  int lock_ = -1;
  cli::Process daemon_;
};

}  // namespace tessera::test

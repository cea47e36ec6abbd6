// `tessera demo`, run to its end in a folder of its own.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/demo/process.h"

namespace tessera {

// The results of a demo that was run to its end, and how it ended.
struct Ended {
  int status = -1;
  std::string said;
  nlohmann::json result;
};

inline Ended run_demo(std::vector<std::string> options, const std::vector<std::string>& environment) {
  char scratch[] = "/tmp/tessera-demo-test-XXXXXX";
  EXPECT_NE(mkdtemp(scratch), nullptr);
  const std::string out = scratch;
  options.insert(options.begin(), {std::string(TESSERA_PREFIX) + "/bin/tessera", "demo", "--out", out});
  auto demo = cli::Process::start(options, environment, out + "/stdout", out + "/stderr");
  Ended ended;
  if (auto status = demo->wait(2900); status.ok()) ended.status = *status;
  std::ifstream errors(out + "/stderr");
  ended.said.assign(std::istreambuf_iterator<char>(errors), {});
  std::ifstream file(out + "/demo.json");
  ended.result = nlohmann::json::parse(file, nullptr, false);
  std::filesystem::remove_all(out);
  return ended;
}

}  // namespace tessera

// A daemon of its own for each test, in a private folder, and clients of it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/daemon_process.h"

namespace tessera::test {

class DaemonTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
  void start(
      std::vector<std::string> arguments = {}, const std::function<void()>& before_exec = [] {});
  ipc::Attachment attach(uint32_t priority, const char* name = "test");
  // Attached and on the GPU with this number.
  ipc::Attachment on_gpu(uint32_t priority, uint8_t gpu = 1, bool mps = false);
  nlohmann::json stats();
  uint64_t counter(const char* name) { return stats()["daemon"][name]; }
  bool counts(const char* name, uint64_t at_least);
  uint64_t processor_ns() const;  // that the daemon's first thread has used

  std::string folder_, socket_;
  std::unique_ptr<DaemonProcess> daemon_;
};

}  // namespace tessera::test

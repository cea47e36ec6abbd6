// Starts and ends a real tesserad in a private folder, and waits for conditions without sleeping blindly.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ipc/channel/client.h"

namespace tessera::test {

// Polls every millisecond until the condition holds; false after limit_ms (generous: the machine may be
// busy).
bool eventually(const std::function<bool()>& condition, int limit_ms = 10'000);

class DaemonProcess {
 public:
  explicit DaemonProcess(std::string socket, std::vector<std::string> arguments = {});
  ~DaemonProcess();  // SIGKILL if it still runs
  DaemonProcess(const DaemonProcess&) = delete;

  bool listens() const { return listens_; }
  pid_t pid() const { return pid_; }
  void signal(int number) const;
  int wait();                  // exit status as waitpid gives it; -1 after ten seconds
  bool exited();               // without waiting
  std::string errors() const;  // what it wrote to standard error

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  bool listens_ = false, reaped_ = false;
  std::string log_;
};

class DaemonTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
  void start(std::vector<std::string> arguments = {});
  ipc::Attachment attach(uint32_t priority, const char* name = "test");
  // Attached and on the GPU with this number.
  ipc::Attachment on_gpu(uint32_t priority, uint8_t gpu = 1, bool mps = false);
  nlohmann::json stats();
  uint64_t counter(const char* name) { return stats()["daemon"][name]; }
  bool counts(const char* name, uint64_t at_least);

  std::string folder_, socket_;
  std::unique_ptr<DaemonProcess> daemon_;
};

uint32_t lease_state(const ipc::Attachment& a);
size_t open_descriptors(pid_t pid);
uint64_t resident_kib(pid_t pid);  // 0 under AddressSanitizer

// A best-effort client that always wants the GPU, as the gate plays it: in flight while granted, drained when
// held.
struct Worker {
  ipc::Attachment a;
  uint64_t turns = 0;
  bool working = false;

  void step();
};

// The next event that is not kNothing.
ipc::PeerEvent await_event(const ipc::Attachment& a, int limit_ms = 10'000);

}  // namespace tessera::test

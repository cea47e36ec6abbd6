#include "daemon_test.h"

#include <cstdlib>
#include <fstream>

#include "ipc/channel/client.h"

namespace tessera::test {

void DaemonTest::SetUp() {
  char folder[] = "/tmp/tessera-it-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  folder_ = folder;
  socket_ = folder_ + "/tesserad.sock";
}

void DaemonTest::TearDown() {
  daemon_.reset();
  (void)!std::system(("rm -rf " + folder_).c_str());
}

void DaemonTest::start(std::vector<std::string> arguments, const std::function<void()>& before_exec) {
  daemon_.reset();
  daemon_ = std::make_unique<DaemonProcess>(socket_, std::move(arguments), before_exec);
  ASSERT_TRUE(daemon_->listens()) << daemon_->errors();
}

ipc::Attachment DaemonTest::attach(uint32_t priority, const char* name) {
  auto a = ipc::attach(socket_, {.priority = priority, .name = name}, 10'000);
  EXPECT_TRUE(a.ok()) << a.error().text;
  return a.ok() ? std::move(a).value() : ipc::Attachment{};
}

ipc::Attachment DaemonTest::on_gpu(uint32_t priority, uint8_t gpu, bool mps) {
  ipc::Attachment a = attach(priority);
  uint8_t uuid[16] = {gpu};
  EXPECT_TRUE(ipc::announce_device(a, uuid, 100, mps).ok());
  return a;
}

nlohmann::json DaemonTest::stats() {
  auto text = ipc::query(socket_, 0, 10'000);
  EXPECT_TRUE(text.ok()) << text.error().text;
  return text.ok() ? nlohmann::json::parse(*text) : nlohmann::json();
}

bool DaemonTest::counts(const char* name, uint64_t at_least) {
  return eventually([&] { return counter(name) >= at_least; });
}

uint64_t DaemonTest::processor_ns() const {
  uint64_t ns = 0;
  std::ifstream("/proc/" + std::to_string(daemon_->pid()) + "/schedstat") >> ns;
  return ns;
}

}  // namespace tessera::test

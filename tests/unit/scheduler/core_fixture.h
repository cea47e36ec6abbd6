// The daemon's core, hosted in a test: clock and transport are the test's, the memory is real.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/units.h"
#include "ipc/channel/memfd.h"
#include "scheduler_daemon/core/core.h"

namespace tessera::core {

namespace abi = ipc::abi;
using base::ms;
using base::us;

// Plays the transport: keeps what was sent, with duplicates of the descriptors.
struct FakePeers : Peers {
  struct Message {
    abi::MessageType type;
    std::vector<unsigned char> bytes;
    std::vector<base::ScopedFd> fds;
  };
  std::map<Connection, std::vector<Message>> sent;
  std::map<Connection, int> wakes;
  std::vector<Connection> closed;
  Connection deaf = 0;  // does not read

  ipc::Send send(Connection to, const void* message, size_t bytes, const int* fds, unsigned n_fds) override {
    if (to == deaf) return ipc::Send::kFull;
    Message m;
    const auto* first = static_cast<const unsigned char*>(message);
    m.bytes.assign(first, first + bytes);
    m.type = abi::MessageType(reinterpret_cast<const abi::MessageHeader*>(first)->type);
    for (unsigned i = 0; i < n_fds; ++i) m.fds.emplace_back(fcntl(fds[i], F_DUPFD_CLOEXEC, 3));
    sent[to].push_back(std::move(m));
    return ipc::Send::kSent;
  }
  void watch_wake(Connection of, int wake_fd) override { wakes[of] = wake_fd; }
  void close(Connection connection) override { closed.push_back(connection); }
  bool is_dying(Connection of) override {
    ++death_looks;
    return dying.contains(of);
  }
  void ask_engine(uint64_t request, const std::string& url, uint64_t) override {
    engine_requests.emplace_back(request, url);
  }
  std::vector<std::pair<uint64_t, std::string>> engine_requests;
  void ask_parker(const parker::Request& request) override { parker_requests.push_back(request); }
  std::vector<parker::Request> parker_requests;
  std::set<Connection> dying;
  int death_looks = 0;
  void log(Severity, const std::string& line) override { lines.push_back(line); }
  std::vector<std::string> lines;

  Message* last(Connection of, abi::MessageType type) {
    for (auto m = sent[of].rbegin(); m != sent[of].rend(); ++m)
      if (m->type == type) return &*m;
    return nullptr;
  }
  size_t count(Connection of, abi::MessageType type) {
    return size_t(
        std::count_if(sent[of].begin(), sent[of].end(), [&](const Message& m) { return m.type == type; }));
  }
  bool is_closed(Connection c) { return std::find(closed.begin(), closed.end(), c) != closed.end(); }
};

template <class T>
ipc::Packet packet_of(const T& message) {
  ipc::Packet p;
  p.bytes = sizeof message;
  std::memcpy(p.data, &message, sizeof message);
  return p;
}

inline abi::Hello hello(uint32_t priority, const char* name = "test") {
  abi::Hello h{};
  h.header = ipc::make_header(abi::kHello, sizeof h);
  h.priority = priority;
  std::strcpy(h.name, name);
  return h;
}

inline abi::Device device(uint8_t gpu, bool mps = false, uint32_t confines = 0) {
  abi::Device d{};
  d.header = ipc::make_header(abi::kDevice, sizeof d);
  d.uuid[0] = gpu;
  d.sm_count = 100;
  d.mps = mps;
  d.confines = confines;
  return d;
}

inline const abi::PulseMapped kMapped{ipc::make_header(abi::kPulseMapped, sizeof(abi::PulseMapped))};

class CoreTest : public ::testing::Test {
 protected:
  struct Peer {  // a client's end
    Connection connection;
    ipc::Mapping region, pulse_page;
    abi::LeaseLine& lease() const { return region.as<abi::Region>()->lease; }
    abi::UsageLine& usage() const { return region.as<abi::Region>()->usage; }
    bool quiet() const { return region.as<abi::Region>()->answer.quiet != 0; }
    abi::PulsePage& pulse() const { return *pulse_page.as<abi::PulsePage>(); }
    uint32_t state() const { return lease().word & abi::kLeaseStateMask; }
  };

  // Plain turns and guard times, so that what the core adds can be seen; policies have tests of their own.
  static Settings temporal() {
    Settings s;
    s.policy_name = "temporal";
    return s;
  }
  void host(Settings settings = temporal()) {
    settings.epoch = 42;
    settings.version = "test";
    core_ = std::make_unique<Core>(std::move(settings), peers_, now_ns_);
  }
  void SetUp() override { host(); }

  Connection connect(pid_t pid, uid_t uid = 1000, gid_t gid = 1000) {
    Connection c = ++last_;
    core_->connected(c, {pid, uid, gid}, now_ns_);
    return c;
  }
  template <class T>
  void say(Connection c, const T& message) {
    core_->received(c, packet_of(message), now_ns_);
  }
  Peer attach(pid_t pid, uint32_t priority, uint8_t gpu, bool mps = false, uint32_t confines = 0) {
    Peer p;
    p.connection = connect(pid);
    say(p.connection, hello(priority));
    auto* welcome = peers_.last(p.connection, abi::kWelcome);
    EXPECT_NE(welcome, nullptr);
    p.region = ipc::map_shared(welcome->fds[0].get(), abi::kRegionBytes, ipc::Access::kReadWrite).value();
    if (priority > 0) {
      p.pulse_page =
          ipc::map_shared(welcome->fds[2].get(), abi::kPulseBytes, ipc::Access::kReadWrite).value();
      say(p.connection, kMapped);
    }
    say(p.connection, device(gpu, mps, confines));
    return p;
  }
  uint64_t run(uint64_t after_ns = 0) { return core_->run(now_ns_ += after_ns); }
  void notify(const Peer& p) { core_->notified(p.connection); }
  stats::DaemonCounters& counters() { return core_->counters(); }

  FakePeers peers_;
  uint64_t now_ns_ = ms(1000);
  Connection last_ = 0;
  std::unique_ptr<Core> core_;
};

inline constexpr uint32_t kHold = abi::kLeaseHold, kGranted = abi::kLeaseGranted, kFree = abi::kLeaseFree;

}  // namespace tessera::core

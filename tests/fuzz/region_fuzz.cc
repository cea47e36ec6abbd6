// Any bytes as what clients write into their memory and when, read by the daemon's core with every policy: no
// crash, no growth, no decision in the past, counters that add up, and a well-behaved client beside them is
// served.
//
// Input: a byte that chooses the policy and MPS, then operations of 4 bytes (what, where, where, how many)
// with their data. 64-bit words are written from the data, so that a mutation hits a field whole.
#include <fcntl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>

#include "admission/lease.h"
#include "base/units.h"
#include "ipc/channel/map.h"
#include "ipc/channel/pulse.h"
#include "scheduler_daemon/core/core.h"
#include "tests/fuzz/check.h"

namespace {

using namespace tessera;
namespace abi = ipc::abi;

struct Peers : core::Peers {  // keeps the descriptors of each welcome
  std::map<core::Connection, std::vector<base::ScopedFd>> welcomes;
  std::map<core::Connection, bool> closed;
  ipc::Send send(core::Connection to, const void* message, size_t, const int* fds, unsigned n_fds) override {
    if (static_cast<const abi::MessageHeader*>(message)->type == abi::kWelcome)
      for (unsigned i = 0; i < n_fds; ++i) welcomes[to].emplace_back(fcntl(fds[i], F_DUPFD_CLOEXEC, 3));
    return ipc::Send::kSent;
  }
  void watch_wake(core::Connection, int) override {}
  void close(core::Connection connection) override { closed[connection] = true; }
  bool is_dying(core::Connection of) override { return dying.contains(of); }
  std::set<core::Connection> dying;
};

template <class T>
ipc::Packet packet_of(const T& message) {
  ipc::Packet p;
  p.bytes = sizeof message;
  std::memcpy(p.data, &message, sizeof message);
  return p;
}

struct World {
  Peers peers;
  uint64_t now_ns = base::ms(5000);
  core::Core core;
  struct Client {
    core::Connection connection = 0;
    ipc::Mapping region, pulse;
  };
  Client clients[4];  // protected, best-effort, best-effort: hostile; the last one behaves
  static constexpr size_t kHonest = 3;

  World(const std::string& policy, bool mps) : core(settings(policy), peers, now_ns) {
    const uint32_t priorities[] = {5, 0, 0, 0};
    for (size_t i = 0; i < 4; ++i) attach(clients[i], priorities[i], mps);
  }
  static core::Settings settings(const std::string& policy) {
    core::Settings s;
    s.epoch = 1;
    s.policy_name = policy;
    s.parameters.min_share = 0.1;
    return s;
  }
  void attach(Client& c, uint32_t priority, bool mps) {
    static core::Connection next = 1;
    c.connection = next++;
    core.connected(c.connection, {1, 1, 1}, now_ns);
    abi::Hello hello{};
    hello.header = ipc::make_header(abi::kHello, sizeof hello);
    hello.priority = priority;
    core.received(c.connection, packet_of(hello), now_ns);
    auto& fds = peers.welcomes[c.connection];
    CHECK(fds.size() == (priority > 0 ? 3u : 2u));
    c.region = ipc::map_shared(fds[0].get(), abi::kRegionBytes, ipc::Access::kReadWrite).value();
    if (priority > 0) {
      c.pulse = ipc::map_shared(fds[2].get(), abi::kPulseBytes, ipc::Access::kReadWrite).value();
      core.received(c.connection, packet_of(abi::PulseMapped{ipc::make_header(abi::kPulseMapped, 16)}),
                    now_ns);
    }
    abi::Device device{};
    device.header = ipc::make_header(abi::kDevice, sizeof device);
    device.sm_count = 100;
    device.mps = mps;
    core.received(c.connection, packet_of(device), now_ns);
    device.uuid[0] = 1;  // a protected and a best-effort one are on another GPU besides
    if ((&c - clients) % 2 == 0) core.received(c.connection, packet_of(device), now_ns);
    fds.clear();
  }
  void run() {
    const uint64_t next_ns = core.run(now_ns);
    CHECK(next_ns == 0 || next_ns > now_ns);
  }
  void audit() {
    const stats::Snapshot s = core.snapshot(now_ns);
    CHECK(s.counters.attached == s.clients.size() + s.counters.detached);
    CHECK(!stats::to_json(s).empty());
    CHECK(!peers.closed[clients[kHonest].connection]);
  }
  // With the others gone the honest one is alone: it may run, whatever was claimed beside it.
  void end() {
    for (size_t i = 0; i < kHonest; ++i) core.disconnected(clients[i].connection);
    now_ns += base::ms(2000);
    run();
    const abi::LeaseLine& lease = clients[kHonest].region.as<abi::Region>()->lease;
    CHECK(admission::grant_at(admission::decode(lease), now_ns) != admission::Grant::kHold);
    core.disconnected(clients[kHonest].connection);
    CHECK(core.snapshot(now_ns).gpus.empty());
  }
};

struct Input {
  const uint8_t* data;
  size_t left;
  uint64_t take(size_t n) {
    uint64_t value = 0;
    n = std::min(n, left);
    std::memcpy(&value, data, n);
    data += n;
    left -= n;
    return value;
  }
};

void step(World& world, Input& in) {
  const uint8_t what = uint8_t(in.take(1));
  const size_t where = size_t(in.take(2)), n = size_t(in.take(1));
  World::Client& c = world.clients[what % 3];
  switch (what / 3 % 4) {
    case 0:    // words of its region, the daemon's included
    case 1: {  // words of its pulse page
      const ipc::Mapping& memory = what / 3 % 4 == 0 || !c.pulse.valid() ? c.region : c.pulse;
      const size_t words = memory.bytes() / 8;
      for (size_t i = 0; i <= n % 16; ++i) {
        uint64_t value = in.take(8);
        if (n >= 128) value += world.now_ns;  // times near now
        std::memcpy(static_cast<unsigned char*>(memory.data()) + (where + i) % words * 8, &value, 8);
      }
      break;
    }
    case 2:
      world.core.notified(c.connection);
      break;
    case 3:
      world.now_ns += uint64_t(where) << (n % 20);
      if (n >= 240) world.peers.dying.insert(c.connection);
      break;
  }
  if (n % 2 == 0) world.run();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input in{data, size};
  const uint8_t choice = uint8_t(in.take(1));
  const auto names = policy::policy_names();
  World world(names[choice / 2 % names.size()], choice % 2 != 0);
  world.run();
  for (int steps = 0; in.left > 0 && steps < 400; ++steps) step(world, in);
  world.run();
  world.audit();
  world.end();
  return 0;
}

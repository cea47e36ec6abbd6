// Any packets on the daemon's two sockets, in any order, from several peers that come and go: read through
// the real channel, handled by the daemon's core and by its operators' control. No crash, no growth, each
// connection closed exactly once, counters that add up, and a well-behaved client stays.
//
// Input: operations of 3 bytes (what and who, length, type) with their bytes. A packet gets a valid header
// unless the operation says raw, so that mutations reach what is behind the header.
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>

#include "admission/limits.h"
#include "base/units.h"
#include "scheduler_daemon/transport/control.h"
#include "tests/fuzz/check.h"

namespace {

using namespace tessera;
namespace abi = ipc::abi;

struct Peers : core::Peers {
  std::set<core::Connection> open, deaf;  // deaf: does not read
  ipc::Send send(core::Connection to, const void* message, size_t bytes, const int*, unsigned) override {
    CHECK(open.contains(to));
    CHECK(bytes >= sizeof(abi::MessageHeader) && bytes <= abi::kMaxMessageBytes);
    CHECK(static_cast<const abi::MessageHeader*>(message)->bytes == bytes);
    return deaf.contains(to) ? ipc::Send::kFull : ipc::Send::kSent;
  }
  void watch_wake(core::Connection, int fd) override { CHECK(fd >= 3); }
  void close(core::Connection connection) override { CHECK(open.erase(connection) == 1); }
};

// Sends a packet through a socket, as between two processes.
ipc::Receive through_socket(const void* bytes, size_t n, ipc::Packet* packet) {
  static int ends[2] = {-1, -1};
  if (ends[0] < 0) CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  CHECK(::send(ends[0], bytes, n, MSG_NOSIGNAL) == ssize_t(n));
  return ipc::receive_packet(ends[1], 0, packet);
}

struct World {
  static constexpr size_t kPeers = 6;
  Peers peers;
  uint64_t now_ns = base::ms(5000);
  core::Core core;
  transport::Control control;
  core::Connection connections[kPeers] = {}, honest = 0, next = 1;
  bool reloads_well = true;

  World()
      : core(settings("temporal"), peers, now_ns),
        control(core, [this]() -> base::Result<transport::Reloaded> {
          reloads_well = !reloads_well;
          if (!reloads_well) return base::error(base::Code::kInvalid, "f:1:1: no");
          return transport::Reloaded{settings("tessera"), ""};
        }) {
    honest = connect();
    abi::Hello hello{};
    hello.header = ipc::make_header(abi::kHello, sizeof hello);
    deliver(honest, &hello, sizeof hello);
  }
  static core::Settings settings(const char* policy) {
    core::Settings s;
    s.epoch = 1;
    s.policy_name = policy;
    s.max_clients = 8;
    return s;
  }
  core::Connection connect() {
    const core::Connection c = next++;
    peers.open.insert(c);
    core.connected(c, {1, 1, 1, "/a"}, now_ns);
    return c;
  }
  void deliver(core::Connection to, const void* bytes, size_t n) {
    ipc::Packet packet;
    switch (through_socket(bytes, n, &packet)) {
      case ipc::Receive::kNothing:
        break;
      case ipc::Receive::kClosed:
        return core.disconnected(to);
      case ipc::Receive::kMalformed:
        return core.malformed(to);
      case ipc::Receive::kPacket:
        return core.received(to, packet, now_ns);
    }
  }
  void operate(const void* bytes, size_t n) {
    ipc::Packet packet;
    if (through_socket(bytes, n, &packet) == ipc::Receive::kPacket)
      (void)control.answer({1, 1, 1, ""}, packet, now_ns);
  }
  void run() {
    const uint64_t next_ns = core.run(now_ns);
    CHECK(next_ns == 0 || next_ns > now_ns);
  }
  void audit() {
    const stats::Snapshot s = core.snapshot(now_ns);
    CHECK(peers.open.contains(honest));
    CHECK(s.counters.connections == next - 1);
    CHECK(s.counters.attached == s.clients.size() + s.counters.detached);
    CHECK(s.clients.size() <= 8 && peers.open.size() <= kPeers + 1);
    for (const stats::ClientRow& c : s.clients)
      CHECK(c.priority <= abi::kMaxPriority && c.weight >= 1 && c.weight <= admission::kMostWeight);
    CHECK(!stats::to_json(s).empty());
  }
};

struct Input {
  const uint8_t* data;
  size_t left;
  uint8_t byte() { return left == 0 ? 0 : (--left, *data++); }
  size_t take(void* out, size_t n) {
    n = std::min(n, left);
    std::memcpy(out, data, n);
    data += n, left -= n;
    return n;
  }
};

void step(World& world, Input& in) {
  const uint8_t what = in.byte(), length = in.byte(), type = in.byte();
  core::Connection& c = world.connections[(what >> 4) % World::kPeers];
  if (!world.peers.open.contains(c)) c = world.connect();
  alignas(8) unsigned char bytes[abi::kMaxMessageBytes + 16] = {};
  switch (what & 15) {
    case 0:
      world.core.disconnected(c);
      break;
    case 1:
      world.core.notified(c);
      break;
    case 2:
      world.now_ns += uint64_t(length) << (type % 32);
      break;
    case 3:
      if (world.peers.deaf.insert(c).second) break;
      world.peers.deaf.erase(c);
      world.core.writable(c);
      break;
    case 4:  // raw
    case 5: {
      const size_t n = std::max<size_t>(1, in.take(bytes, length == 255 ? sizeof bytes : length));
      (what & 15) == 4 ? world.deliver(c, bytes, n) : world.operate(bytes, n);
      break;
    }
    case 6:
    case 7: {  // an operator's request
      abi::Control request{};
      in.take(&request.action, std::min<size_t>(length, sizeof request - sizeof request.header));
      request.header = ipc::make_header(abi::kControl, sizeof request);
      world.operate(&request, sizeof request);
      break;
    }
    default: {  // a client's message; the first 24 types are mostly known ones
      const size_t body = in.take(bytes + sizeof(abi::MessageHeader), size_t(length) * 2);
      const size_t n = sizeof(abi::MessageHeader) + std::max(body, size_t(length) * 2);
      const abi::MessageHeader header = ipc::make_header(abi::MessageType(type % 24), n);
      std::memcpy(bytes, &header, sizeof header);
      world.deliver(c, bytes, n);
      break;
    }
  }
  if (length % 2 == 0) world.run();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  spdlog::set_level(spdlog::level::off);
  World world;
  Input in{data, size};
  for (int steps = 0; in.left > 0 && steps < 300; ++steps) step(world, in);
  world.run();
  world.audit();
  for (core::Connection c : std::set<core::Connection>(world.peers.open)) world.core.disconnected(c);
  CHECK(world.peers.open.empty() && world.core.snapshot(world.now_ns).gpus.empty());
  return 0;
}

#include "ipc/channel/client.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <ctime>

#include "base/clock.h"
#include "base/units.h"
#include "ipc/abi/gang.h"
#include "ipc/abi/gate.h"
#include "ipc/abi/trace.h"
#include "ipc/channel/atomic.h"
#include "ipc/channel/memfd.h"
#include "ipc/channel/packet.h"
#include "ipc/channel/region_layout.h"

namespace tessera::ipc {
namespace {

using base::Code;
using base::error;

constexpr uint64_t kClocksDifferNs = base::kNsPerMs;  // of one clock, what two CPUs may say is less

int remaining_ms(uint64_t deadline_ns) {
  uint64_t now = base::now_ns();
  return now >= deadline_ns ? 0 : int((deadline_ns - now + base::kNsPerMs - 1) / base::kNsPerMs);
}

// In a folder like /tmp anybody can listen on a name that is free.
base::Status check_server(int socket, const std::string& path) {
  ucred server{};
  socklen_t bytes = sizeof server;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &server, &bytes) != 0)
    return error(Code::kPermission, std::string("SO_PEERCRED: ") + std::strerror(errno));
  if (server.uid == 0 || server.uid == ::geteuid()) return base::ok();
  return error(Code::kPermission,
               path + " is served by another user (uid " + std::to_string(server.uid) +
                   "), who is not trusted: choose another with TESSERA_SOCKET or --socket");
}

base::Result<base::ScopedFd> connect_to(const std::string& path, uint64_t deadline_ns) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path)
    return error(Code::kInvalid, "socket path is empty or too long: " + path);
  std::memcpy(address.sun_path, path.c_str(), path.size());
  base::Status folder = check_socket_folder(path);
  if (!folder.ok()) return folder.error();
  base::ScopedFd fd = above_standard_streams(
      base::ScopedFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  if (!fd.valid()) return error(Code::kExhausted, std::string("socket: ") + std::strerror(errno));
  while (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    // EAGAIN: the daemon's backlog is full. A UNIX connect has nothing to poll for, so it is tried again.
    if (errno != EINTR && errno != EAGAIN) {
      bool refused = errno == EACCES || errno == EPERM;
      return error(refused ? Code::kPermission : Code::kUnavailable,
                   "no daemon at " + path + " (" + std::strerror(errno) +
                       (refused ? "): ask its owner for access" : "): start one with `tesserad`"));
    }
    if (remaining_ms(deadline_ns) == 0)
      return error(Code::kExhausted, "the daemon at " + path + " is overloaded");
    ::poll(nullptr, 0, 1);
  }
  base::Status served = check_server(fd.get(), path);
  if (!served.ok()) return served.error();
  return fd;
}

// Waits until a packet is there. kClosed and kMalformed become errors.
base::Status await_packet(int socket, uint64_t deadline_ns, unsigned max_fds, Packet* packet) {
  for (;;) {
    switch (receive_packet(socket, max_fds, packet)) {
      case Receive::kPacket:
        return base::ok();
      case Receive::kClosed:
        return error(Code::kUnavailable, "the daemon closed the connection");
      case Receive::kMalformed:
        return error(Code::kInvalid, "the daemon sent something malformed");
      case Receive::kNothing:
        break;
    }
    int ms = remaining_ms(deadline_ns);
    if (ms == 0) return error(Code::kUnavailable, "the daemon does not answer");
    pollfd p{socket, POLLIN, 0};
    ::poll(&p, 1, ms);
  }
}

base::Error refusal(const Packet& packet) {
  const auto* m = packet_as<abi::Refused>(packet);
  if (m == nullptr) return error(Code::kInvalid, "the daemon refused");
  return error(Code(m->code),
               "the daemon refused: " + std::string(m->text, ::strnlen(m->text, sizeof m->text)));
}

base::Result<Mapping> map_trace(int fd, Access access) {
  base::Status checked = check_memfd(fd, kRegionSeals, abi::kTraceBytes);
  if (!checked.ok()) return checked.error();
  base::Result<Mapping> mapped = map_shared(fd, abi::kTraceBytes, access);
  if (!mapped.ok()) return mapped.error();
  const auto* header = mapped->as<const abi::TraceHeader>();
  if (load(header->magic, std::memory_order_relaxed) != abi::kTraceMagic ||
      load(header->slots, std::memory_order_relaxed) != abi::kTraceSlots)
    return error(Code::kVersion,
                 "the memory of the trace is of another version: update Tessera on both sides");
  return mapped;
}

// Leases and pulses hold times. A process in a time namespace, as a restored container is, reads another
// CLOCK_MONOTONIC: to it every lease would have ended, or none ever.
base::Status check_clock(uint64_t asked_ns, uint64_t daemon_ns, uint64_t answered_ns) {
  if (daemon_ns == 0 ||
      (asked_ns <= daemon_ns + kClocksDifferNs && daemon_ns <= answered_ns + kClocksDifferNs))
    return base::ok();
  return error(Code::kUnsupported,
               "the daemon's CLOCK_MONOTONIC is another one: it is in another time namespace");
}

base::Status adopt_region(base::ScopedFd fd, Attachment* a) {
  base::Status checked = check_memfd(fd.get(), kRegionSeals, abi::kRegionBytes);
  if (!checked.ok()) return checked;
  base::Result<Mapping> mapped = map_shared(fd.get(), abi::kRegionBytes, Access::kReadWrite);
  if (!mapped.ok()) return mapped.error();
  a->region = std::move(*mapped);
  abi::RegionHeader header;  // a copy: the checks and the use see the same bytes
  std::memcpy(&header, a->region.data(), sizeof header);
  base::Status region = check_region_header(header, a->region.bytes());
  if (!region.ok()) return region;
  a->on_daemon_loss = header.on_daemon_loss;
  a->answer_within_ms = header.answer_within_ms;
  a->keeps_profiles = header.keeps_profiles != 0;
  a->guard_ns = header.guard_ns;
  return base::ok();
}

base::Result<Mapping> map_pulse(base::ScopedFd fd, int seals, Access access) {
  base::Status checked = check_memfd(fd.get(), seals, abi::kPulseBytes);
  if (!checked.ok()) return checked.error();
  return map_shared(fd.get(), abi::kPulseBytes, access);
}

bool is_pulse(const Mapping& page) {
  return check_pulse_header(*page.as<abi::PulsePage>()).ok();
}

base::Result<Mapping> map_gate(base::ScopedFd fd) {
  base::Status checked = check_memfd(fd.get(), kRegionSeals, abi::kGateBytes);
  if (!checked.ok()) return checked.error();
  base::Result<Mapping> mapped = map_shared(fd.get(), abi::kGateBytes, Access::kReadWrite);
  if (mapped.ok() && load(mapped->as<abi::GatePage>()->magic, std::memory_order_relaxed) != abi::kGateMagic)
    return error(Code::kVersion, "received a page that is no gate");
  return mapped;
}

base::Result<Mapping> map_gang(base::ScopedFd fd) {
  base::Status checked = check_memfd(fd.get(), kRegionSeals, abi::kGangBytes);
  if (!checked.ok()) return checked.error();
  base::Result<Mapping> mapped = map_shared(fd.get(), abi::kGangBytes, Access::kReadWrite);
  if (mapped.ok() && load(mapped->as<abi::GangPage>()->magic, std::memory_order_relaxed) != abi::kGangMagic)
    return error(Code::kVersion, "received a page that is no gang's");
  return mapped;
}

// One message of fixed size.
template <class Message>
base::Status tell(const Attachment& a, const Message& message) {
  if (!descriptors_intact(a)) return error(Code::kUnavailable, "the host closed our socket");
  if (send_packet(a.socket.get(), &message, sizeof message) != Send::kSent)
    return error(Code::kUnavailable, "the daemon closed the connection");
  return base::ok();
}

}  // namespace

base::Status may_attach(const std::string& socket_path) {
  const base::Result<base::ScopedFd> connected = connect_to(socket_path, 0);
  if (connected.ok() || connected.error().code == Code::kExhausted) return base::ok();
  return connected.error();
}

base::Result<Attachment> attach(const std::string& socket_path, const Claim& claim, uint32_t timeout_ms) {
  uint64_t deadline_ns = base::now_ns() + base::ms(timeout_ms);
  base::Result<base::ScopedFd> connected = connect_to(socket_path, deadline_ns);
  if (!connected.ok()) return connected.error();
  Attachment a;
  a.socket = std::move(*connected);

  abi::Hello hello{};
  hello.header = make_header(abi::kHello, sizeof hello);
  hello.priority = claim.priority;
  hello.weight = claim.weight;
  hello.slo_ns = claim.slo_ns;
  hello.memory_limit_bytes = claim.memory_limit_bytes;
  hello.memory_group = claim.memory_group;
  if (claim.name != nullptr) ::strncpy(hello.name, claim.name, sizeof hello.name - 1);
  ::strncpy(hello.gang, claim.gang, sizeof hello.gang - 1);
  const uint64_t asked_ns = base::now_ns();
  if (send_packet(a.socket.get(), &hello, sizeof hello) != Send::kSent)
    return error(Code::kUnavailable, "the daemon closed the connection");

  Packet packet;
  base::Status arrived = await_packet(a.socket.get(), deadline_ns, kMaxPacketFds, &packet);
  if (!arrived.ok()) return arrived.error();
  const uint64_t answered_ns = base::now_ns();
  if (packet.header().type == abi::kRefused) return refusal(packet);
  if (!versions_agree(packet.header().version, packet.header().compat_version))
    return error(Code::kVersion,
                 "daemon and library do not speak a common version: update Tessera on both sides");
  const auto* welcome = packet_as<abi::Welcome>(packet);
  if (packet.header().type != abi::kWelcome || welcome == nullptr || welcome->priority > abi::kMaxPriority ||
      packet.n_fds != (welcome->priority > 0 ? 3u : 2u))
    return error(Code::kInvalid, "the daemon answered something else than a welcome");
  if (base::Status clock = check_clock(asked_ns, welcome->now_ns, answered_ns); !clock.ok())
    return clock.error();
  a.client_id = welcome->client_id;
  a.priority = welcome->priority;
  a.daemon_epoch = welcome->daemon_epoch;

  base::Status region = adopt_region(std::move(packet.fds[0]), &a);
  if (!region.ok()) return region.error();
  a.wake = std::move(packet.fds[1]);
  if (a.priority > 0) {
    base::Result<Mapping> page = map_pulse(std::move(packet.fds[2]), kPulseOwnerSeals, Access::kReadWrite);
    if (!page.ok()) return page.error();
    if (!is_pulse(*page)) return error(Code::kInvalid, "received a page that is no pulse page");
    a.pulse_page = std::move(*page);
  }
  if (a.priority > 0)
    if (base::Status told = acknowledge_pulse(a); !told.ok()) return told.error();
  return a;
}

base::Status acknowledge_pulse(const Attachment& a) {
  return tell(a, abi::PulseMapped{make_header(abi::kPulseMapped, sizeof(abi::PulseMapped))});
}

base::Status announce_device(const Attachment& a, const uint8_t (&uuid)[16], uint32_t sm_count, bool mps,
                             bool confines, abi::GateChoice gate, uint64_t unmanaged_launches) {
  abi::Device device{};
  device.header = make_header(abi::kDevice, sizeof device);
  std::memcpy(device.uuid, uuid, sizeof device.uuid);
  device.sm_count = sm_count;
  device.mps = mps ? 1 : 0;
  device.confines = confines ? 1 : 0;
  device.gate = gate;
  device.unmanaged_launches = unmanaged_launches;
  return tell(a, device);
}

base::Status acknowledge_gate(const Attachment& a, bool usable) {
  return tell(a, abi::GateReady{make_header(abi::kGateReady, sizeof(abi::GateReady)), usable ? 1u : 0u, 0});
}

base::Status want_profile(const Attachment& a, const char* gpu, uint32_t driver) {
  if (!descriptors_intact(a)) return error(Code::kUnavailable, "the host closed our socket");
  abi::ProfileWanted wanted{};
  wanted.header = make_header(abi::kProfileWanted, sizeof wanted);
  ::strncpy(wanted.gpu, gpu, sizeof wanted.gpu - 1);
  wanted.driver = driver;
  if (send_packet(a.socket.get(), &wanted, sizeof wanted) != Send::kSent)
    return error(Code::kUnavailable, "the daemon does not read");
  return base::ok();
}

bool name_kernel(const Attachment& a, const KernelIdentity& kernel) {
  const size_t name_bytes = std::strlen(kernel.name);
  if (name_bytes == 0 || name_bytes > abi::kMaxKernelNameBytes) return true;  // will never do
  if (!descriptors_intact(a)) return false;
  alignas(8) unsigned char buffer[sizeof(abi::KernelSeen) + abi::kMaxKernelNameBytes];
  const size_t bytes = sizeof(abi::KernelSeen) + name_bytes;
  abi::KernelSeen seen{};
  seen.header = make_header(abi::kKernelSeen, bytes);
  seen.key = kernel.key;
  seen.image_hash = kernel.image_hash;
  seen.blocks = kernel.blocks;
  std::memcpy(seen.block, kernel.block, sizeof seen.block);
  seen.shared_bytes = kernel.shared_bytes;
  seen.name_bytes = uint32_t(name_bytes);
  std::memcpy(buffer, &seen, sizeof seen);
  std::memcpy(buffer + sizeof seen, kernel.name, name_bytes);
  return send_packet(a.socket.get(), buffer, bytes) == Send::kSent;
}

bool descriptors_intact(const Attachment& a) {
  return a.socket.intact() && a.wake.intact();
}

void close_descriptors(Attachment& a) {
  const bool ours = a.socket.intact();
  a.socket.reset();
  // One eventfd looks like any other: it goes with the socket that it came with.
  if (ours)
    a.wake.reset();
  else
    a.wake.release();
}

bool notify(const Attachment& a) {
  // Only another eventfd could pass for ours and take these eight bytes, so the slower look is not needed.
  if (!a.socket.same_inode() || !a.wake.same_inode()) return false;
  uint64_t one = 1;
  // EAGAIN: the counter is full, so the daemon has a notification to read already.
  return ::write(a.wake.get(), &one, sizeof one) == ssize_t(sizeof one) || errno == EAGAIN;
}

PeerEvent next_event(const Attachment& a) {
  PeerEvent event;
  if (!a.socket.intact()) {
    event.kind = PeerEvent::Kind::kLost;
    return event;
  }
  for (int skipped = 0;; ++skipped) {
    if (skipped == 16) return event;  // bounded: a flood of unknown messages waits for the next call
    Packet packet;
    Receive got = receive_packet(a.socket.get(), kMaxPacketFds, &packet);
    if (got == Receive::kNothing) return event;
    if (got != Receive::kPacket) break;
    if (packet.header().type == abi::kPeerPulse) {
      abi::PeerPulse m{};
      if (packet.bytes < offsetof(abi::PeerPulse, slo_ns) || packet.n_fds != 1) break;
      std::memcpy(&m, packet.data, std::min(packet.bytes, sizeof m));
      base::Result<Mapping> page = map_pulse(std::move(packet.fds[0]), kPulseSharedSeals, Access::kReadOnly);
      if (!page.ok()) break;
      if (!is_pulse(*page)) continue;  // what stands in it is the peer's doing: who scribbles is not watched
      event.kind = PeerEvent::Kind::kPeerPulse;
      event.client_id = m.client_id;
      event.priority = m.priority;
      event.slo_ns = m.slo_ns;
      event.page = std::move(*page);
      return event;
    }
    if (packet.header().type == abi::kSetPriority) {
      const auto* m = packet_as<abi::SetPriority>(packet);
      if (m == nullptr || m->priority > abi::kMaxPriority || packet.n_fds > 1) break;
      if (packet.n_fds == 1) {
        base::Result<Mapping> page =
            map_pulse(std::move(packet.fds[0]), kPulseOwnerSeals, Access::kReadWrite);
        if (!page.ok() || !is_pulse(*page)) break;
        event.page = std::move(*page);
      }
      event.kind = PeerEvent::Kind::kPriority;
      event.priority = m->priority;
      return event;
    }
    if (packet.header().type == abi::kLearnt) {
      const auto* m = packet_as<abi::Learnt>(packet);
      if (m == nullptr || packet.n_fds > 1) break;
      if (packet.n_fds == 1) {
        if (!check_memfd(packet.fds[0].get(), kLearntSeals, m->bytes).ok()) break;
        base::Result<Mapping> table = map_shared(packet.fds[0].get(), m->bytes, Access::kReadOnly);
        if (!table.ok()) break;
        event.page = std::move(*table);
      }
      event.kind = PeerEvent::Kind::kLearnt;
      return event;
    }
    if (packet.header().type == abi::kTraceMemory) {
      if (packet.n_fds > 1) break;
      if (packet.n_fds == 1) {
        base::Result<Mapping> memory = map_trace(packet.fds[0].get(), Access::kReadWrite);
        if (!memory.ok()) break;
        event.page = std::move(*memory);
      }
      event.kind = PeerEvent::Kind::kTrace;
      return event;
    }
    if (packet.header().type == abi::kGateMemory || packet.header().type == abi::kPeerGate) {
      const auto* peer = packet_as<abi::PeerGate>(packet);
      const bool own = packet.header().type == abi::kGateMemory;
      if (packet.n_fds != 1 || (!own && (peer == nullptr || peer->byte < abi::kGateFirstPeer ||
                                         peer->byte >= abi::kGateFirstPeer + abi::kGatePeers)))
        break;
      base::Result<Mapping> page = map_gate(std::move(packet.fds[0]));
      if (!page.ok()) break;
      event.kind = own ? PeerEvent::Kind::kGate : PeerEvent::Kind::kPeerGate;
      event.page = std::move(*page);
      if (!own) event.client_id = peer->client_id, event.gate_byte = peer->byte;
      return event;
    }
    if (packet.header().type == abi::kGangMemory) {
      if (packet.n_fds != 1) break;
      base::Result<Mapping> page = map_gang(std::move(packet.fds[0]));
      if (!page.ok()) break;
      event.kind = PeerEvent::Kind::kGang;
      event.page = std::move(*page);
      return event;
    }
    if (packet.header().type == abi::kPeerGone) {
      const auto* m = packet_as<abi::PeerGone>(packet);
      if (m == nullptr) break;
      event.kind = PeerEvent::Kind::kPeerGone;
      event.client_id = m->client_id;
      return event;
    }
  }
  event.kind = PeerEvent::Kind::kLost;
  return event;
}

base::Result<base::ScopedFd> start_trace(const std::string& socket_path, pid_t pid, uint32_t timeout_ms) {
  base::Result<base::ScopedFd> socket = connect_to(socket_path, base::now_ns() + base::ms(timeout_ms));
  if (!socket.ok()) return socket;
  const abi::Trace m{make_header(abi::kTrace, sizeof m), uint32_t(pid), 0};
  if (send_packet(socket->get(), &m, sizeof m) != Send::kSent)
    return error(Code::kUnavailable, "the daemon closed the connection");
  return socket;
}

base::Result<bool> next_traced(int socket, TracedClient* out) {
  Packet packet;
  const Receive got = receive_packet(socket, kMaxPacketFds, &packet);
  if (got == Receive::kNothing) return false;
  if (got != Receive::kPacket)
    return error(Code::kUnavailable,
                 "the daemon ended the trace; one older than this command cannot trace: update it");
  if (packet.header().type == abi::kRefused) return refusal(packet);
  const auto* m = packet_as<abi::Traced>(packet);
  if (packet.header().type != abi::kTraced || m == nullptr || packet.n_fds > 1)
    return error(Code::kInvalid, "the daemon answered something else than a traced client");
  *out = {.client_id = m->client_id,
          .pid = m->pid,
          .priority = m->priority,
          .gone = m->gone != 0,
          .uuid = {},
          .name = std::string(m->name, ::strnlen(m->name, sizeof m->name)),
          .memory = {}};
  std::memcpy(out->uuid, m->uuid, sizeof out->uuid);
  if (packet.n_fds == 0) return true;
  base::Result<Mapping> memory = map_trace(packet.fds[0].get(), Access::kReadOnly);
  if (!memory.ok()) return memory.error();
  out->memory = std::move(*memory);
  return true;
}

// One message on a connection of its own, and the text that answers it.
static base::Result<std::string> ask(const std::string& socket_path, const void* message, size_t bytes,
                                     uint32_t timeout_ms) {
  constexpr size_t kMaxText = 16 * base::kMiB;
  uint64_t deadline_ns = base::now_ns() + base::ms(timeout_ms);
  base::Result<base::ScopedFd> socket = connect_to(socket_path, deadline_ns);
  if (!socket.ok()) return socket.error();
  if (send_packet(socket->get(), message, bytes) != Send::kSent)
    return error(Code::kUnavailable, "the daemon closed the connection");
  std::string text;
  for (;;) {
    Packet packet;
    base::Status arrived = await_packet(socket->get(), deadline_ns, 0, &packet);
    if (!arrived.ok()) return arrived.error();
    if (packet.header().type == abi::kRefused) return refusal(packet);
    const auto* reply = packet_as<abi::Reply>(packet);
    if (packet.header().type != abi::kReply || reply == nullptr || text.size() > kMaxText)
      return error(Code::kInvalid, "the daemon answered something else than a reply");
    text.append(reinterpret_cast<const char*>(packet.data) + sizeof(abi::Reply),
                packet.bytes - sizeof(abi::Reply));
    if (reply->last != 0 && reply->code != 0) return error(Code(reply->code), text);
    if (reply->last != 0) return text;
  }
}

base::Result<std::string> query(const std::string& socket_path, uint32_t what, uint32_t timeout_ms) {
  const abi::Query question{make_header(abi::kQuery, sizeof question), what, 0};
  return ask(socket_path, &question, sizeof question, timeout_ms);
}

// A question about GPUs, which stand behind it.
template <class Question>
static base::Result<std::string> ask_about(const std::string& socket_path, Question question, uint32_t what,
                                           std::span<const abi::PlaceGpu> gpus, uint32_t timeout_ms) {
  if (gpus.size() > abi::kMostPlaceGpus)
    return error(Code::kInvalid, "a daemon can be asked about 128 GPUs at most");
  alignas(8) unsigned char message[abi::kMaxMessageBytes];
  const size_t bytes = sizeof question + gpus.size_bytes();
  question.query = {make_header(abi::kQuery, bytes), what, 0};
  question.n_gpus = uint32_t(gpus.size());
  std::memcpy(message, &question, sizeof question);
  if (!gpus.empty()) std::memcpy(message + sizeof question, gpus.data(), gpus.size_bytes());
  return ask(socket_path, message, bytes, timeout_ms);
}

base::Result<std::string> query_place(const std::string& socket_path, abi::PlaceQuery question,
                                      std::span<const abi::PlaceGpu> gpus, uint32_t timeout_ms) {
  return ask_about(socket_path, question, abi::kQueryPlace, gpus, timeout_ms);
}

base::Result<std::string> query_reserve(const std::string& socket_path, abi::ReserveQuery question,
                                        std::span<const abi::PlaceGpu> gpus, uint32_t timeout_ms) {
  return ask_about(socket_path, question, abi::kQueryReserve, gpus, timeout_ms);
}

base::Result<std::string> control(const std::string& control_path, abi::Control request,
                                  uint32_t timeout_ms) {
  request.header = make_header(abi::kControl, sizeof request);
  return ask(control_path, &request, sizeof request, timeout_ms);
}

}  // namespace tessera::ipc

#include "tests/support/hostile.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/futex.h"
#include "base/machine.h"
#include "ipc/channel/atomic.h"
#include "ipc/channel/pulse.h"
#include "ipc/channel/region_layout.h"
#include "tests/support/daemon_process.h"

namespace tessera::test {

using namespace ipc::abi;  // NOLINT: message names

base::ScopedFd raw_connection(const std::string& path) {
  base::ScopedFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) fd.reset();
  return fd;
}

bool is_closed(int fd) {
  char skipped[kMaxMessageBytes];
  ssize_t n;
  while ((n = recv(fd, skipped, sizeof skipped, MSG_DONTWAIT)) > 0) {
  }
  return n == 0 || errno == ECONNRESET;
}

void Hostile::end_child() {
  if (child <= 0) return;
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  child = -1;
}

bool Hostile::attach(uint32_t priority) {
  auto attached = ipc::attach(socket, {.priority = priority, .name = "hostile"}, 10'000);
  if (!attached.ok()) return false;
  a.emplace(std::move(*attached));
  const uint8_t gpu[16] = {1};  // the others' one
  return ipc::announce_device(*a, gpu, 100, false).ok();
}

ipc::Packet Hostile::welcome(int fd, uint32_t priority) {
  Hello hello{};
  hello.header = ipc::make_header(kHello, sizeof hello);
  hello.priority = priority;
  send(fd, &hello, sizeof hello, MSG_NOSIGNAL);
  ipc::Packet packet;
  if (!eventually([&] { return ipc::receive_packet(fd, 3, &packet) == ipc::Receive::kPacket; }))
    found("the daemon does not answer a greeting");
  return packet;
}

namespace {

void sends_wrong_lengths(Hostile& h) {
  for (unsigned type = 0; type < 20; ++type)
    for (int error : {-8, -1, 1, 8, 4000}) {
      alignas(8) unsigned char bytes[8192] = {};
      const size_t n = 16 + h.random() % 200;
      const auto header = ipc::make_header(MessageType(type), size_t(std::max(0, int(n) + error)));
      std::memcpy(bytes, &header, sizeof header);
      const bool greeted = type % 2 != 0 && h.attach(0);
      const base::ScopedFd raw = raw_connection(h.socket);
      send(greeted ? h.a->socket.get() : raw.get(), bytes, n, MSG_NOSIGNAL);
    }
}

void changes_priority_all_the_time(Hostile& h) {
  for (uint32_t i = 0; i < 16; ++i) {
    const uint32_t priority = i * 5 % 8;
    if (!h.attach(priority)) continue;
    if (priority > 0) ipc::pulse_set_busy(*h.a->pulse(), 1, 0, 3, base::now_ns());
    ipc::notify(*h.a);
  }
  h.a.reset();
}

void fills_the_ring_for_ever(Hostile& h) {
  if (!h.a && h.attach(0)) h.head = 0;
  for (int i = 0; i < 200 && h.a; ++i) {
    Record record{};
    record.kind = uint32_t(h.random() % 4);
    record.duration_ns = h.random();
    h.a->shared().ring.slots[i % ipc::abi::kRingSlots] = record;
    ipc::store(h.a->shared().ring.head, h.head += ipc::abi::kRingSlots, std::memory_order_release);
    if (!ipc::notify(*h.a)) break;
  }
  if (h.a && ipc::next_event(*h.a).kind == ipc::PeerEvent::Kind::kLost) h.a.reset();  // comes back next time
}

void writes_old_words(Hostile& h) {
  if (!h.a && !h.attach(0)) return;
  const LeaseLine lease = *h.a->lease();
  for (int i = 0; i < 200; ++i) {
    auto& usage = *h.a->usage();
    h.a->region.as<RegionHeader>()->daemon_epoch -= 1;
    ipc::store(h.a->lease()->word, lease.word - uint32_t(h.random() % 64), std::memory_order_seq_cst);
    ipc::store(h.a->lease()->expires_ns, ~uint64_t(0), std::memory_order_seq_cst);
    ipc::store(usage.drained_word, lease.word - uint32_t(h.random() % 64), std::memory_order_seq_cst);
    ipc::store(usage.in_flight_ns, uint64_t(h.random()), std::memory_order_seq_cst);
    ipc::store(usage.completed_ns, uint64_t(h.random()) << 40, std::memory_order_seq_cst);
    ipc::store(usage.waiting, uint32_t(h.random() % 2), std::memory_order_seq_cst);
    ipc::store(usage.waiting_since_ns, uint64_t(h.random() % 2), std::memory_order_seq_cst);
    ipc::notify(*h.a);
  }
}

void closes_its_descriptors_anywhere(Hostile& h) {
  for (unsigned stage = 0; stage < 24; ++stage) {
    base::ScopedFd fd = raw_connection(h.socket);
    if (stage % 6 == 1) send(fd.get(), "TS", 2, MSG_NOSIGNAL);
    if (stage % 6 >= 2) {
      ipc::Packet given = h.welcome(fd.get(), stage % 2 * 5);
      if (stage % 6 >= 3) given.fds[stage % 3].reset();
      Device device{};
      device.header = ipc::make_header(kDevice, sizeof device);
      device.uuid[0] = 1;
      PulseMapped mapped{ipc::make_header(kPulseMapped, sizeof mapped)};
      if (stage % 6 >= 4) send(fd.get(), &device, sizeof device, MSG_NOSIGNAL);
      if (stage % 6 == 5) send(fd.get(), &mapped, sizeof mapped, MSG_NOSIGNAL);
      if (given.n_fds > 1 && given.fds[1].valid()) h.fds.push_back(std::move(given.fds[1]));  // its eventfd
    }
    if (stage >= 12) shutdown(fd.get(), stage % 2 ? SHUT_RD : SHUT_WR);
  }
  const uint64_t one = 1;
  for (const auto& fd : h.fds) (void)!write(fd.get(), &one, sizeof one);
  h.fds.clear();
}

void stops_while_it_has_the_turn(Hostile& h) {
  h.end_child();
  const pid_t parent = getpid();
  h.child = fork();
  if (h.child == 0) {
    die_with(parent);
    if (!h.attach(0)) _exit(1);
    ipc::store(h.a->usage()->waiting, 1u, std::memory_order_seq_cst);
    ipc::notify(*h.a);
    while (lease_state(*h.a) != kLeaseGranted) poll(nullptr, 0, 1);
    ipc::store(h.a->usage()->in_flight_ns, uint64_t(1), std::memory_order_seq_cst);
    raise(SIGSTOP);
    _exit(0);
  }
  const bool stopped = eventually([&] {
    h.meanwhile();
    int status = 0;
    return waitpid(h.child, &status, WNOHANG | WUNTRACED) == h.child && WIFSTOPPED(status);
  });
  if (!stopped) h.found("a client that waited had no turn");
}

void connects_hundreds_of_times(Hostile& h) {
  for (int i = 0; i < 400; ++i) {
    const base::ScopedFd fd = raw_connection(h.socket);
    Hello hello{};
    hello.header = ipc::make_header(kHello, sizeof hello);
    if (i % 2 == 0) send(fd.get(), &hello, sizeof hello, MSG_NOSIGNAL);
  }
}

void says_nothing_a_hundred_times(Hostile& h) {
  h.fds.clear();
  for (int i = 0; i < 100; ++i) h.fds.push_back(raw_connection(h.socket));
  // Others of the same user may do the same: who is slow to greet gives way to them, and tries again.
  const bool attached = eventually([&] {
    h.meanwhile();
    return h.attach(0);
  });
  if (!attached) h.found("connections that say nothing keep a client away");
  h.a.reset();
}

void sends_floods_of_descriptors(Hostile& h) {
  constexpr size_t kMost = 253;  // that the kernel passes at once (SCM_MAX_FD)
  for (int i = 0; i < 10; ++i) {
    const base::ScopedFd fd = raw_connection(h.socket);
    if (i % 2 != 0) (void)h.welcome(fd.get(), 0);
    const std::vector<int> gifts(kMost, i % 3 == 0 ? fd.get() : 0);  // also the connection itself
    Hello hello{};
    hello.header = ipc::make_header(kHello, sizeof hello);
    alignas(cmsghdr) unsigned char control[CMSG_SPACE(kMost * sizeof(int))] = {};
    iovec io{&hello, sizeof hello};
    msghdr m{};
    m.msg_iov = &io;
    m.msg_iovlen = 1;
    m.msg_control = control;
    m.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(kMost * sizeof(int));
    std::memcpy(CMSG_DATA(c), gifts.data(), kMost * sizeof(int));
    for (int j = 0; j < 4; ++j) sendmsg(fd.get(), &m, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

// The daemon would die of SIGBUS if a file that it maps could shrink.
void takes_the_memory_away(Hostile& h) {
  for (uint32_t priority : {0u, 5u}) {
    base::ScopedFd fd = raw_connection(h.socket);
    ipc::Packet given = h.welcome(fd.get(), priority);
    if (given.n_fds != (priority == 0 ? 2u : 3u)) return h.found("no memory came with a welcome");
    for (unsigned i = 0; i < given.n_fds; i += 2) {  // region and pulse
      const int memory = given.fds[i].get();
      if (ftruncate(memory, 0) == 0 || ftruncate(memory, 1 << 20) == 0)
        h.found("the size of shared memory can be changed");
      (void)fallocate(memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096);
      if (h.random() % 2 != 0) fcntl(memory, F_ADD_SEALS, F_SEAL_SEAL);  // the daemon cannot seal its pulse
    }
    PulseMapped mapped{ipc::make_header(kPulseMapped, sizeof mapped)};
    Device device{};
    device.header = ipc::make_header(kDevice, sizeof device);
    device.uuid[0] = 1;
    send(fd.get(), &device, sizeof device, MSG_NOSIGNAL);
    if (priority > 0) send(fd.get(), &mapped, sizeof mapped, MSG_NOSIGNAL);
    const uint64_t one = 1;
    (void)!write(given.fds[1].get(), &one, sizeof one);
    h.fds.push_back(std::move(fd));
  }
  if (h.fds.size() > 4) h.fds.clear();
}

// The eventfd is one open file for both sides: its status flags and its count are the client's too. While the
// daemon answers questions that came before the notice, the count is taken back; a read of it would now wait
// for ever.
void takes_notices_back(Hostile& h) {
  if (!h.a && !h.attach(0)) return;
  const int wake = h.a->wake.get();
  fcntl(wake, F_SETFL, 0);  // not O_NONBLOCK
  const Query question{ipc::make_header(kQuery, sizeof question), 0, 0};
  for (int i = 0; i < 20; ++i) {
    std::vector<base::ScopedFd> asking;
    for (int j = 0; j < 8; ++j) asking.push_back(raw_connection(h.socket));
    poll(nullptr, 0, 1);  // until they are accepted
    for (const base::ScopedFd& fd : asking) send(fd.get(), &question, sizeof question, MSG_NOSIGNAL);
    uint64_t count = 1;
    iovec io{&count, sizeof count};
    (void)!write(wake, &count, sizeof count);
    for (int j = 0; j < i * 40; ++j) base::cpu_relax();
    (void)!preadv2(wake, &io, 1, -1, RWF_NOWAIT);
  }
}

// A TCP socket whose last close waits for a reader that does not read. Whoever throws the message away closes
// it.
int lingering_socket(base::ScopedFd* listening) {
  listening->reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  (void)bind(listening->get(), reinterpret_cast<sockaddr*>(&address), bytes);
  (void)listen(listening->get(), 1);
  (void)getsockname(listening->get(), reinterpret_cast<sockaddr*>(&address), &bytes);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  (void)connect(fd, reinterpret_cast<sockaddr*>(&address), bytes);
  const linger hour{1, 3600};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &hour, sizeof hour);
  char much[65536] = {};
  while (send(fd, much, sizeof much, MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
  }
  return fd;
}

void sends_what_takes_an_hour_to_close(Hostile& h) {
  h.end_child();
  const pid_t parent = getpid();
  h.child = fork();
  if (h.child != 0) return;
  die_with(parent);  // while it waits for a close of its own
  h.found = [](const std::string&) {};
  std::vector<base::ScopedFd> listening(500);  // the end of one would end the wait
  for (unsigned stage = 0;; ++stage) {
    base::ScopedFd connection = raw_connection(h.socket);
    if (stage % 4 >= 2) (void)h.welcome(connection.get(), 0);
    const int gift = lingering_socket(&listening[stage % listening.size()]);
    const auto header = ipc::make_header(kDevice, sizeof(MessageHeader));
    if (stage % 2 != 0) ipc::send_packet(connection.get(), "", 0);
    const bool sent =
        ipc::send_packet(connection.get(), &header, sizeof header, &gift, 1) == ipc::Send::kSent;
    const linger none{0, 0};
    if (!sent) setsockopt(gift, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    close(gift);
    poll(nullptr, 0, 1);
  }
}

constexpr Behaviour kBehaviours[] = {
    {"WrongLengths", sends_wrong_lengths},
    {"ChangingPriorities", changes_priority_all_the_time},
    {"AnEndlessRing", fills_the_ring_for_ever},
    {"OldEpochsAndWords", writes_old_words},
    {"DescriptorsClosedAnywhere", closes_its_descriptors_anywhere},
    {"StoppedWithTheTurn", stops_while_it_has_the_turn},
    {"ThousandsOfConnections", connects_hundreds_of_times},
    {"ConnectionsThatSayNothing", says_nothing_a_hundred_times},
    {"FloodsOfDescriptors", sends_floods_of_descriptors},
    {"MemoryTakenAway", takes_the_memory_away},
    {"NoticesTakenBack", takes_notices_back},
    {"AnHourToClose", sends_what_takes_an_hour_to_close},
};

}  // namespace

std::span<const Behaviour> behaviours() {
  return kBehaviours;
}

}  // namespace tessera::test

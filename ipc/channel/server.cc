#include "ipc/channel/server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "ipc/abi/gang.h"
#include "ipc/abi/gate.h"
#include "ipc/abi/trace.h"
#include "ipc/channel/memfd.h"
#include "ipc/channel/region_layout.h"
#include "ipc/channel/socket_path.h"

#ifndef SO_PEERPIDFD  // Linux 6.5
#define SO_PEERPIDFD 77
#endif

namespace tessera::ipc {
namespace {

using base::Code;
using base::error;

std::string lock_path(const std::string& path) {
  return path + ".lock";
}

base::Error system_error(const std::string& what) {
  return error(errno == EMFILE || errno == ENFILE || errno == ENOMEM ? Code::kExhausted : Code::kPermission,
               what + ": " + std::strerror(errno));
}

// The lock decides who owns the path; it vanishes with its process, however that ends.
base::Result<base::ScopedFd> take_lock(const std::string& path) {
  for (int attempt = 0; attempt < 10; ++attempt) {
    base::ScopedFd fd(::open(lock_path(path).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd.valid()) return system_error("cannot open " + lock_path(path));
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
      return error(Code::kUnavailable,
                   "another tesserad serves " + path + ": stop it, or choose another socket with --socket");
    struct stat mine,
        named;  // a leaving daemon unlinks the lock while holding it: ours must be the named one
    if (::fstat(fd.get(), &mine) == 0 && ::stat(lock_path(path).c_str(), &named) == 0 &&
        mine.st_ino == named.st_ino && mine.st_dev == named.st_dev)
      return fd;
  }
  return error(Code::kUnavailable, "cannot lock " + lock_path(path) + ": daemons start and stop there");
}

base::ScopedFd new_socket() {
  return above_standard_streams(
      base::ScopedFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
}

// Removes what a dead daemon left. Anything that is not a socket, or that answers, stays and is an error.
base::Status clear_path(const std::string& path, const sockaddr_un& address) {
  struct stat st;
  if (::lstat(path.c_str(), &st) != 0) return base::ok();
  if (!S_ISSOCK(st.st_mode))
    return error(Code::kInvalid,
                 path + " exists and is not a socket: remove it, or choose another with --socket");
  base::ScopedFd probe = new_socket();
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
      errno == EAGAIN)
    return error(Code::kUnavailable,
                 "somebody answers on " + path + " already: stop it, or choose another socket with --socket");
  if (::unlink(path.c_str()) != 0) return system_error("cannot remove the stale " + path);
  return base::ok();
}

}  // namespace

ListenSocket::~ListenSocket() {
  if (!lock_.valid()) return;
  if (socket_.valid()) ::unlink(path_.c_str());
  ::unlink(lock_path(path_).c_str());  // under the lock, so that no successor's file is hit
}

base::Result<ListenSocket> listen_on(const std::string& path, mode_t mode) {
  base::Status folder = prepare_socket_folder(path);
  if (!folder.ok()) return folder.error();
  base::Result<base::ScopedFd> lock = take_lock(path);
  if (!lock.ok()) return lock.error();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size());  // prepare_socket_folder checked the length
  ListenSocket result;
  result.path_ = path;
  result.lock_ = std::move(*lock);
  base::Status cleared = clear_path(path, address);
  if (!cleared.ok()) return cleared.error();
  base::ScopedFd socket = new_socket();
  if (!socket.valid()) return system_error("socket");
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return system_error("cannot bind " + path);
  result.socket_ = std::move(socket);  // from here on the file is ours to remove
  if (::chmod(path.c_str(), mode) != 0)
    return system_error("cannot set the mode of " + path);  // before listen
  refuse_descriptors(result.socket_.get());
  if (::listen(result.socket_.get(), 128) != 0) return system_error("cannot listen on " + path);
  return result;
}

// From /proc/PID/cgroup (proc_pid_cgroup(5)): "0::PATH" of version 2, else "N:name=systemd:PATH" of
// version 1.
static std::string cgroup_of(pid_t pid) {
  const std::string file = "/proc/" + std::to_string(pid) + "/cgroup";
  base::ScopedFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  char buffer[4096];
  const ssize_t n = fd.valid() ? ::read(fd.get(), buffer, sizeof buffer) : -1;
  if (n <= 0) return "";
  const std::string text(buffer, size_t(n));
  std::string path;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line.starts_with("0::")) path = line.substr(3);
    const size_t systemd = line.find(":name=systemd:");
    if (systemd != std::string::npos && path.size() <= 1) path = line.substr(systemd + 14);
  }
  return path;
}

base::Result<Peer> accept_peer(int listen_fd) {
  Peer peer;
  int raw;
  do raw = ::accept4(listen_fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  while (raw < 0 && errno == EINTR);
  if (raw < 0)
    return errno == EAGAIN ? error(Code::kUnavailable, "nobody is waiting") : system_error("accept");
  peer.socket = PeerSocket(above_standard_streams(base::ScopedFd(raw)));
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  if (::getsockopt(peer.socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0)
    return system_error("SO_PEERCRED");
  peer.identity = {credentials.pid, credentials.uid, credentials.gid, ""};
  int process = -1;
  socklen_t size = sizeof process;
  // The kernel's own pidfd of the peer cannot name a recycled pid; before 6.5 the pid is looked up instead.
  if (::getsockopt(peer.socket.get(), SOL_SOCKET, SO_PEERPIDFD, &process, &size) != 0)
    process = int(::syscall(SYS_pidfd_open, credentials.pid, 0));
  peer.process = above_standard_streams(base::ScopedFd(process));
  // A peer in another pid namespace cannot be named before 6.5, and one that is dead already has closed its
  // socket: then end of file alone tells. Being out of descriptors is worth trying again.
  if (!peer.process.valid() && (errno == EMFILE || errno == ENFILE))
    return error(Code::kExhausted, std::string("cannot watch the peer's process: ") + std::strerror(errno));
  if (peer.process.valid()) {
    std::string cgroup = cgroup_of(credentials.pid);
    // Still alive after the file was read: the number named the peer and not a later process.
    pollfd ended{peer.process.get(), POLLIN, 0};
    if (::poll(&ended, 1, 0) == 0) peer.identity.cgroup = std::move(cgroup);
  }
  return peer;
}

base::Result<ClientMemory> create_client_memory(uint64_t daemon_epoch, uint32_t client_id, uint32_t priority,
                                                const RegionSettings& settings) {
  ClientMemory m;
  base::Result<base::ScopedFd> region = create_memfd("tessera-region", abi::kRegionBytes, kRegionSeals);
  if (!region.ok()) return region.error();
  m.region_fd = std::move(*region);
  base::Result<Mapping> mapped = map_shared(m.region_fd.get(), abi::kRegionBytes, Access::kReadWrite);
  if (!mapped.ok()) return mapped.error();
  m.region = std::move(*mapped);
  abi::RegionHeader header = make_region_header(daemon_epoch, client_id, priority);
  header.on_daemon_loss = settings.on_daemon_loss;
  header.guard_ns = settings.guard_ns;
  header.answer_within_ms = settings.answer_within_ms;
  header.keeps_profiles = settings.keeps_profiles;
  std::memcpy(m.region.data(), &header, sizeof header);

  m.wake = above_standard_streams(base::ScopedFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
  if (!m.wake.valid()) return system_error("eventfd");
  if (priority == 0) return m;
  base::Status pulse = create_pulse(&m, client_id, priority);
  if (!pulse.ok()) return pulse.error();
  return m;
}

base::Result<TraceMemory> create_trace_memory(uint32_t client_id) {
  base::Result<base::ScopedFd> fd = create_memfd("tessera-trace", abi::kTraceBytes, kRegionSeals);
  if (!fd.ok()) return fd.error();
  base::Result<Mapping> mapped = map_shared(fd->get(), abi::kTraceBytes, Access::kReadWrite);
  if (!mapped.ok()) return mapped.error();
  auto* header = mapped->as<abi::TraceHeader>();
  header->magic = abi::kTraceMagic;
  header->version = abi::kVersion;
  header->compat_version = abi::kCompatVersion;
  header->slots = abi::kTraceSlots;
  header->client_id = client_id;
  return TraceMemory{std::move(*fd), std::move(*mapped)};
}

base::Status create_pulse(ClientMemory* m, uint32_t client_id, uint32_t priority) {
  base::Result<base::ScopedFd> pulse = create_memfd("tessera-pulse", abi::kPulseBytes, kPulseOwnerSeals);
  if (!pulse.ok()) return pulse.error();
  {
    base::Result<Mapping> writable = map_shared(pulse->get(), abi::kPulseBytes, Access::kReadWrite);
    if (!writable.ok()) return writable.error();
    auto* page = writable->as<abi::PulsePage>();
    page->magic = abi::kPulseMagic;
    page->version = abi::kVersion;
    page->compat_version = abi::kCompatVersion;
    page->client_id = client_id;
    page->priority = priority;
  }
  base::Result<Mapping> readable = map_shared(pulse->get(), abi::kPulseBytes, Access::kReadOnly);
  if (!readable.ok()) return readable.error();
  m->pulse_fd = std::move(*pulse);
  m->pulse = std::move(*readable);
  return base::ok();
}

base::Result<GateMemory> create_gate(uint32_t client_id) {
  base::Result<base::ScopedFd> fd = create_memfd("tessera-gate", abi::kGateBytes, kRegionSeals);
  if (!fd.ok()) return fd.error();
  base::Result<Mapping> mapped = map_shared(fd->get(), abi::kGateBytes, Access::kReadWrite);
  if (!mapped.ok()) return mapped.error();
  auto* page = mapped->as<abi::GatePage>();
  page->magic = abi::kGateMagic;
  page->version = abi::kVersion;
  page->compat_version = abi::kCompatVersion;
  page->client_id = client_id;
  page->burst_word = abi::kGateOpen & ~uint64_t(abi::kGateByteOpen);  // but for the turn
  return GateMemory{std::move(*fd), std::move(*mapped)};
}

base::Result<base::ScopedFd> create_gang() {
  base::Result<base::ScopedFd> fd = create_memfd("tessera-gang", abi::kGangBytes, kRegionSeals);
  if (!fd.ok()) return fd;
  base::Result<Mapping> mapped = map_shared(fd->get(), abi::kGangBytes, Access::kReadWrite);
  if (!mapped.ok()) return mapped.error();
  auto* page = mapped->as<abi::GangPage>();
  page->magic = abi::kGangMagic;
  page->version = abi::kVersion;
  page->compat_version = abi::kCompatVersion;
  return fd;
}

base::Status seal_pulse(const ClientMemory& memory) {
  return add_seals(memory.pulse_fd.get(), kPulseSharedSeals & ~kPulseOwnerSeals);
}

}  // namespace tessera::ipc

#include "softgpu/timing/arbiter.h"

#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/clock.h"
#include "softgpu/timing/wire.h"

namespace tessera::softgpu::timing {
namespace {

constexpr size_t kMaxUnsent = 64 << 20;  // bytes; a client that reads nothing for that long is gone
constexpr size_t kReadPerWake = 256 << 10;
constexpr uint64_t kListenerTag = 1, kTimerTag = 2, kSocketTag = 3, kPidTag = 4;

uint64_t tag(uint64_t kind, ClientId client) {
  return kind << 32 | client;
}

bool watch(int epoll, int fd, uint32_t events, uint64_t data, int operation = EPOLL_CTL_ADD) {
  epoll_event event{events, {}};
  event.data.u64 = data;
  return epoll_ctl(epoll, operation, fd, &event) == 0;
}

bool sane(const BlockWork& w) {
  auto fine = [](double v) { return v >= 0 && v <= 1e18; };  // also refuses NaN
  return fine(w.warp_instructions) && fine(w.global_bytes) && fine(w.tensor_operations) &&
         fine(w.fp64_operations) && fine(w.fp16_operations);
}

}  // namespace

struct Arbiter::Peer {
  ClientId id = 0;
  base::ScopedFd socket, pidfd;
  std::vector<char> in, out;
  bool welcomed = false, dead = false, wants_write = false;
  uint64_t last_submit = 0;
};

struct Arbiter::Message {
  ClientId client;
  uint64_t stamp_ns;
  wire::Type type;
  std::vector<char> payload;

  template <class T>
  T as() const {
    T value;
    memcpy(&value, payload.data(), sizeof value);
    return value;
  }
};

Arbiter::Arbiter(const profiles::GpuDescription& gpu, Mode mode, const Options& options)
    : gpu_(gpu),
      mode_(mode),
      options_(options),
      clock_(base::now_ns(), options.stretch),
      model_(gpu, mode, clock_.modelled_ns(0)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      timer_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
  if (ok()) watch(epoll_.get(), timer_.get(), EPOLLIN, tag(kTimerTag, 0));
}

Arbiter::~Arbiter() = default;

uint64_t Arbiter::modelled_now_ns() const {
  return clock_.modelled_ns(base::now_ns());
}

void Arbiter::listen_on(base::ScopedFd socket) {
  listener_ = std::move(socket);
  watch(epoll_.get(), listener_.get(), EPOLLIN, tag(kListenerTag, 0));
}

void Arbiter::accept_all() {
  for (int i = 0; i < 64; ++i) {
    base::ScopedFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) return;
    add_client(std::move(socket));
  }
}

void Arbiter::add_client(base::ScopedFd socket) {
  auto peer = std::make_unique<Peer>();
  ucred credentials{};
  socklen_t size = sizeof credentials;
  getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size);
  if (credentials.uid != geteuid() && geteuid() != 0) return;
  peer->id = next_client_++;
  peer->socket = std::move(socket);
  watch(epoll_.get(), peer->socket.get(), EPOLLIN, tag(kSocketTag, peer->id));
  if (credentials.pid > 0 && credentials.pid != getpid()) {
    // A forked child that lives on keeps the socket open; the process itself is what counts.
    peer->pidfd.reset(int(syscall(SYS_pidfd_open, credentials.pid, 0)));
    if (peer->pidfd.valid()) watch(epoll_.get(), peer->pidfd.get(), EPOLLIN, tag(kPidTag, peer->id));
  }
  peers_[peer->id] = std::move(peer);
}

void Arbiter::run() {
  prctl(PR_SET_TIMERSLACK, 1UL);
  uint64_t alone_since = base::now_ns();
  for (;;) {
    if (!peers_.empty()) alone_since = base::now_ns();
    uint64_t exit_at = alone_since + uint64_t(options_.linger_ms) * 1'000'000;
    if (peers_.empty() && base::now_ns() >= exit_at) return;
    arm(peers_.empty() ? exit_at : clock_.real_ns(model_.next_wake_ns()));
    wait_for_events();
    if (listener_ready_) accept_all();
    listener_ready_ = false;
    apply_messages();
    model_.run_until(modelled_now_ns());
    send_ended();
    remove_dead();
  }
}

void Arbiter::arm(uint64_t at_ns) {
  if (at_ns == armed_ns_) return;
  armed_ns_ = at_ns;
  itimerspec spec{};
  if (at_ns != UINT64_MAX) spec.it_value = {time_t(at_ns / 1'000'000'000), long(at_ns % 1'000'000'000)};
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
}

void Arbiter::wait_for_events() {
  epoll_event events[64];
  int n = 0;
  for (;;) {
    uint64_t now = base::now_ns();
    if (armed_ns_ <= now) break;  // due already
    bool spin = now < active_until_ns_ || armed_ns_ - now < uint64_t(options_.spin_us) * 1000;
    n = epoll_wait(epoll_.get(), events, 64, spin ? 0 : -1);
    if (n != 0) break;
  }
  if (n == 0) n = epoll_wait(epoll_.get(), events, 64, 0);
  for (int i = 0; i < n; ++i) {
    uint64_t kind = events[i].data.u64 >> 32;
    if (kind == kListenerTag) listener_ready_ = true;
    if (kind == kTimerTag) {
      uint64_t ticks;
      [[maybe_unused]] ssize_t got = read(timer_.get(), &ticks, sizeof ticks);
      armed_ns_ = 0;
      continue;
    }
    auto peer = peers_.find(ClientId(events[i].data.u64));
    if (peer == peers_.end()) continue;
    active_until_ns_ = base::now_ns() + uint64_t(options_.spin_us) * 1000;
    if (kind == kPidTag) peer->second->dead = true;
    if (kind != kSocketTag) continue;
    if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_peer(*peer->second);
    if (events[i].events & EPOLLOUT) flush(*peer->second);
  }
}

void Arbiter::read_peer(Peer& peer) {
  char buffer[64 << 10];
  for (size_t total = 0; total < kReadPerWake;) {
    ssize_t n = recv(peer.socket.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n <= 0) {
      peer.dead = true;
      return;
    }
    peer.in.insert(peer.in.end(), buffer, buffer + n);
    total += size_t(n);
    if (size_t(n) < sizeof buffer) break;
  }
  parse(peer);
}

// Cuts whole messages off the stream. Only shape is checked here; meaning in apply().
void Arbiter::parse(Peer& peer) {
  size_t at = 0;
  while (!peer.dead && peer.in.size() - at >= sizeof(wire::Header)) {
    wire::Header header;
    memcpy(&header, peer.in.data() + at, sizeof header);
    size_t fixed = header.type == wire::Type::kHello    ? sizeof(wire::Hello)
                   : header.type == wire::Type::kSubmit ? sizeof(wire::Submit)
                   : header.type == wire::Type::kReport ? sizeof(wire::Report)
                   : header.type == wire::Type::kDone   ? sizeof(wire::Done)
                   : header.type == wire::Type::kAbort  ? sizeof(wire::Abort)
                                                        : SIZE_MAX;
    bool exact = header.type != wire::Type::kSubmit;
    if (header.bytes > wire::kMaxPayload || fixed == SIZE_MAX || header.zero != 0 ||
        (exact ? header.bytes != fixed : header.bytes < fixed)) {
      peer.dead = true;
      break;
    }
    if (peer.in.size() - at - sizeof header < header.bytes) break;
    const char* payload = peer.in.data() + at + sizeof header;
    Message message{peer.id, 0, header.type, {payload, payload + header.bytes}};
    if (header.type != wire::Type::kHello)
      memcpy(&message.stamp_ns, payload, 8);  // first field of all others
    inbox_.push_back(std::move(message));
    at += sizeof header + header.bytes;
  }
  peer.in.erase(peer.in.begin(), peer.in.begin() + ptrdiff_t(at));
}

void Arbiter::apply_messages() {
  // Clients' clocks are the same clock: order by what they say, but never before the present modelled time
  // (which does not run ahead of the last event) and never in the future. Stable, so each client's own order
  // holds.
  uint64_t now = base::now_ns();
  std::map<ClientId, uint64_t> latest;
  for (Message& m : inbox_) {
    uint64_t& last = latest[m.client];
    m.stamp_ns = last = std::max(last, std::min(m.stamp_ns, now));
  }
  std::stable_sort(inbox_.begin(), inbox_.end(), [](auto& a, auto& b) { return a.stamp_ns < b.stamp_ns; });
  for (const Message& message : inbox_) {
    auto peer = peers_.find(message.client);
    if (peer == peers_.end() || peer->second->dead) continue;
    const uint64_t at_ns = clock_.modelled_ns(message.stamp_ns);
    if (at_ns > model_.now_ns()) model_.advance_to(at_ns);
    if (!apply(message)) peer->second->dead = true;
  }
  inbox_.clear();
}

bool Arbiter::check_submit(const Peer& peer, const Message& message) const {
  auto s = message.as<wire::Submit>();
  return s.id > peer.last_submit && s.n_deps <= wire::kMaxDeps &&
         message.payload.size() == sizeof s + size_t(s.n_deps) * 8 && s.kind <= uint8_t(OpKind::kJoin) &&
         s.direction <= uint8_t(CopyDirection::kDeviceToDevice) && s.n_blocks <= (1ull << 60) &&
         s.copy_bytes <= (1ull << 50) && s.threads_per_block <= 65536 && s.registers_per_thread <= 65536 &&
         s.shared_bytes_per_block <= (1u << 30) && s.first_sm <= 65536 && s.n_sms <= 65536 && sane(s.work) &&
         model_.n_operations(peer.id) < wire::kMaxOperations;
}

bool Arbiter::apply(const Message& message) {
  Peer& peer = *peers_.at(message.client);
  if ((message.type == wire::Type::kHello) == peer.welcomed) return false;  // exactly once, and first
  switch (message.type) {
    case wire::Type::kHello: {
      auto hello = message.as<wire::Hello>();
      if (hello.magic != wire::kMagic || hello.version != wire::kVersion) return false;
      model_.add_client(peer.id, std::clamp(hello.client_priority, 0, 1));
      peer.welcomed = true;
      wire::Header header{sizeof(wire::Welcome), wire::Type::kWelcome, 0};
      wire::Welcome welcome{wire::kVersion, mode_ == Mode::kTimesliced, clock_.stretch(), {}, {}};
      memcpy(welcome.uuid, gpu_.uuid.data(), 16);
      strncpy(welcome.path, gpu_.path.c_str(), sizeof welcome.path - 1);
      peer.out.insert(peer.out.end(), reinterpret_cast<char*>(&header), reinterpret_cast<char*>(&header + 1));
      peer.out.insert(peer.out.end(), reinterpret_cast<char*>(&welcome),
                      reinterpret_cast<char*>(&welcome + 1));
      flush(peer);
      return true;
    }
    case wire::Type::kSubmit: {
      if (!check_submit(peer, message)) return false;
      auto s = message.as<wire::Submit>();
      peer.last_submit = s.id;
      ModelOp op;
      op.id = s.id;
      op.kind = OpKind(s.kind);
      op.deps.resize(s.n_deps);
      if (s.n_deps) memcpy(op.deps.data(), message.payload.data() + sizeof s, size_t(s.n_deps) * 8);
      op.has_body = s.flags & wire::kHasBody;
      op.cooperative = s.flags & wire::kCooperative;
      op.work_known = s.flags & wire::kWorkKnown;
      op.priority = s.priority;
      op.n_blocks = s.n_blocks;
      op.threads_per_block = s.threads_per_block;
      op.registers_per_thread = s.registers_per_thread;
      op.shared_bytes_per_block = s.shared_bytes_per_block;
      op.cost_key = s.cost_key;
      op.first_sm = s.first_sm;
      op.n_sms = s.n_sms;
      op.work = s.work;
      op.bytes = s.copy_bytes;
      op.direction = CopyDirection(s.direction);
      return model_.submit(peer.id, std::move(op));
    }
    case wire::Type::kReport: {
      auto report = message.as<wire::Report>();
      if (!sane(report.work)) return false;
      model_.report(peer.id, report.id, report.work);
      return true;
    }
    case wire::Type::kDone:
      model_.functional_done(peer.id, message.as<wire::Done>().id);
      return true;
    case wire::Type::kAbort:
      model_.abort(peer.id, message.as<wire::Abort>().up_to);
      return true;
    case wire::Type::kWelcome:
    case wire::Type::kEnded:
      return false;
  }
  return false;
}

void Arbiter::send_ended() {
  std::vector<Ended> all = model_.take_ended();
  if (all.empty()) return;
  active_until_ns_ = base::now_ns() + uint64_t(options_.spin_us) * 1000;
  for (const Ended& ended : all) {
    auto peer = peers_.find(ended.client);
    if (peer == peers_.end()) continue;
    struct {
      wire::Header header;
      wire::Ended ended;
    } m{{sizeof(wire::Ended), wire::Type::kEnded, 0},
        {ended.op, clock_.real_ns(ended.start_ns), clock_.real_ns(ended.end_ns),
         uint64_t(double(ended.stall_ns) * clock_.stretch())}};
    auto* bytes = reinterpret_cast<const char*>(&m);
    peer->second->out.insert(peer->second->out.end(), bytes, bytes + sizeof m);
  }
  for (auto& [id, peer] : peers_)
    if (!peer->out.empty() && !peer->wants_write) flush(*peer);
}

void Arbiter::flush(Peer& peer) {
  size_t sent = 0;
  while (sent < peer.out.size()) {
    ssize_t n =
        send(peer.socket.get(), peer.out.data() + sent, peer.out.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) peer.dead = true;
    if (n <= 0) break;
    sent += size_t(n);
  }
  peer.out.erase(peer.out.begin(), peer.out.begin() + ptrdiff_t(sent));
  if (peer.out.size() > kMaxUnsent) peer.dead = true;
  bool wants = !peer.out.empty() && !peer.dead;
  if (wants == peer.wants_write) return;
  peer.wants_write = wants;
  watch(epoll_.get(), peer.socket.get(), wants ? EPOLLIN | EPOLLOUT : EPOLLIN, tag(kSocketTag, peer.id),
        EPOLL_CTL_MOD);
}

void Arbiter::remove_dead() {
  bool any = false;
  for (auto it = peers_.begin(); it != peers_.end();) {
    if (!it->second->dead) {
      ++it;
      continue;
    }
    if (!any && modelled_now_ns() > model_.now_ns()) model_.advance_to(modelled_now_ns());
    any = true;
    model_.remove_client(it->first);
    it = peers_.erase(it);  // closing takes the descriptors out of the epoll set
  }
  if (any) send_ended();
}

}  // namespace tessera::softgpu::timing

#include "scheduler_daemon/transport/server.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/futex.h"
#include "base/machine.h"
#include "base/units.h"
#include "ipc/channel/packet.h"
#include "scheduler_daemon/transport/dying.h"

namespace tessera::transport {
namespace {

// The subject of an epoll event: kind in the low bits, connection above.
enum Tag : uint64_t {
  kListen,
  kSignal,
  kTimer,
  kSocket,
  kProcess,
  kWake,
  kControlListen,
  kOperator,
  kMps,
  kAnswer,
  kEngine,
  kParker,
  kDriverLimits,
};
constexpr unsigned kTagBits = 4;
constexpr uint64_t tag_of(Tag kind, core::Connection connection = 0) {
  return connection << kTagBits | kind;
}

constexpr int kEventsPerWake = 64;
constexpr int kAcceptsPerWake = 16;
constexpr int kPacketsPerWake = 8;        // of one connection; the rest waits for the next round
constexpr int kLastPackets = 512;         // of a process that ended: what it sent last may still wait
constexpr unsigned kLinesPerSecond = 20;  // clients cause them: they must not fill a disk
constexpr uint64_t kAcceptPauseNs = base::ms(100);
constexpr size_t kMaxOperators = 16;  // at once; each asks one thing
constexpr uint64_t kOperatorPatienceNs = base::ms(1000);
constexpr size_t kMaxAnswerPackets = 2048;  // of 4 KiB: more than 4096 clients need
constexpr size_t kMaxAnswers = 16;          // waiting to be read at once

}  // namespace

Server::Server(Sources sources, const core::Settings& settings, uint32_t spin_us)
    : sources_(std::move(sources)),
      spin_us_(spin_us),
      parker_(sources_.parker),
      kernel_limits_(sources_.driver_limits),
      core_(settings, *this, base::now_ns()),
      control_(core_, sources_.reload) {}

Server::~Server() = default;

base::Result<std::unique_ptr<Server>> Server::create(Sources sources, const core::Settings& settings,
                                                     uint32_t spin_us) {
  std::unique_ptr<Server> server(new Server(std::move(sources), settings, spin_us));
  server->epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  server->timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  const Sources& s = server->sources_;
  bool watched = server->epoll_.valid() && server->timer_.valid() &&
                 server->watch(s.clients.fd(), tag_of(kListen), EPOLLIN) &&
                 server->watch(s.signals.get(), tag_of(kSignal), EPOLLIN) &&
                 server->watch(server->timer_.get(), tag_of(kTimer), EPOLLIN) &&
                 (!s.control || server->watch(s.control->fd(), tag_of(kControlListen), EPOLLIN));
  if (!watched)
    return base::error(base::Code::kExhausted, std::string("cannot set up epoll: ") + std::strerror(errno));
  server->watch_mps();
  server->set_kernel_limits();
  return server;
}

bool Server::watch(int fd, uint64_t tag, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

base::Status Server::run(Watchdog& watchdog) {
  uint64_t spin_until_ns = 0;
  uint64_t due_ns = 0;
  for (;;) {
    bool spinning = base::now_ns() < spin_until_ns;
    if (!spinning) {
      arm_timer(due_ns);
      watchdog.rests();
    }
    epoll_event events[kEventsPerWake];
    int n = ::epoll_wait(epoll_.get(), events, kEventsPerWake, spinning ? 0 : -1);
    if (n < 0 && errno != EINTR) {
      const std::string why = std::strerror(errno);
      core_.release_all();
      return base::error(base::Code::kPermission, "epoll_wait: " + why);
    }
    if (!spinning) ++core_.counters().wakes;
    uint64_t now_ns = base::now_ns();
    bool due = base::is_due(due_ns, now_ns);
    if (n <= 0 && !due) {
      base::cpu_relax();
      continue;
    }
    watchdog.works();
    for (int i = 0; i < n; ++i)
      if (!handle(events[i].data.u64)) {
        core_.release_all();
        return base::ok();
      }
    if (!accepting_ && base::now_ns() >= accept_again_ns_) pause_accepting(false);
    if (sources_.mps->check(base::now_ns())) tell_mps();
    tell_of_engines();
    tell_of_parker();
    due_ns = core_.run(base::now_ns());
    due_ns = base::earlier_due(due_ns, engines_due_ns());
    if (!accepting_) due_ns = base::earlier_due(due_ns, accept_again_ns_);
    due_ns = base::earlier_due(due_ns, sources_.mps->next_check_ns());
    report_hangs(watchdog.interruptions());
    begin_log_second();
    if (suppressed_ != 0) due_ns = base::earlier_due(due_ns, (log_second_ + 1) * base::kNsPerS);
    // A timer alone is no sign that more is coming.
    bool activity = std::any_of(events, events + std::max(n, 0),
                                [](const epoll_event& e) { return e.data.u64 != tag_of(kTimer); });
    if (activity) spin_until_ns = base::now_ns() + base::us(spin_us_);
  }
}

void Server::report_hangs(uint64_t interruptions) {
  if (interruptions == core_.counters().hangs) return;
  core_.counters().hangs = interruptions;
  log(core::Severity::kWarning, "the daemon hung in a call for half a second or more, and was interrupted");
}

bool Server::handle(uint64_t tag) {
  core::Connection connection = tag >> kTagBits;
  switch (Tag(tag & ((1u << kTagBits) - 1))) {
    case kSignal:
      return on_signal();
    case kListen:
      accept_some();
      break;
    case kTimer: {
      uint64_t expirations;
      (void)!::read(timer_.get(), &expirations, sizeof expirations);
      armed_ns_ = 0;
      break;
    }
    case kSocket:
      read_some(connection, kPacketsPerWake);
      if (auto link = links_.find(connection); link != links_.end() && link->second.waits_writable) {
        watch_writable(connection, link->second, false);
        core_.writable(connection);
      }
      break;
    case kProcess:
      read_some(connection, kLastPackets);
      if (links_.contains(connection)) core_.disconnected(connection);
      break;
    case kWake:
      if (links_.contains(connection)) core_.notified(connection);
      break;
    case kControlListen:
      accept_operators();
      break;
    case kOperator:
      read_operator(connection);
      break;
    case kMps:
      on_mps_ended();
      break;
    case kAnswer:
      send_rest(connection);
      break;
    case kEngine:
      if (auto found = engine_requests_.find(connection); found != engine_requests_.end())
        found->second.on_ready();
      break;
    case kParker:
      parker_said_ = true;
      break;
    case kDriverLimits:
      kernel_limits_.driver_answered();
      set_kernel_limits();
      break;
  }
  return true;
}

bool Server::on_signal() {
  signalfd_siginfo info{};
  if (::read(sources_.signals.get(), &info, sizeof info) != ssize_t(sizeof info)) return true;
  if (info.ssi_signo != SIGHUP) return false;
  base::Result<std::string> done = control_.reload(base::now_ns());
  if (done.ok())
    spdlog::info("SIGHUP: {}", *done);
  else
    spdlog::error("SIGHUP: {}; the old configuration stays", done.error().text);
  set_kernel_limits();
  return true;
}

void Server::watch_mps() {
  if (sources_.mps->watch_fd() >= 0) watch(sources_.mps->watch_fd(), tag_of(kMps), EPOLLIN);
  tell_mps();
}

void Server::tell_mps() {
  const stats::Mps& state = sources_.mps->state();
  if (state.mode != "off" && state.active)
    spdlog::info("MPS ({}) in {}: fault isolation: no", state.mode, state.pipe_directory);
  else if (state.mode != "off")
    spdlog::warn("programs run without MPS: {}", state.reason);
  core_.set_mps(state);
}

void Server::on_mps_ended() {
  spdlog::warn("the MPS control daemon has ended");
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, sources_.mps->watch_fd(), nullptr);
  sources_.mps->ended();
  watch_mps();
}

void Server::accept_operators() {
  base::Result<ipc::Peer> peer = ipc::accept_peer(sources_.control->fd());
  if (!peer.ok()) return accept_failed(peer.error());
  accept_error_.clear();
  close_silent_operators(base::now_ns());
  if (operators_.size() >= kMaxOperators) return;  // closes it
  core::Connection connection = next_connection_++;
  if (!watch(peer->socket.get(), tag_of(kOperator, connection), EPOLLIN | EPOLLRDHUP)) return;
  operators_[connection] = {std::move(peer->socket), peer->identity, base::now_ns()};
}

// One request, one answer, then the connection is closed.
void Server::read_operator(core::Connection connection) {
  auto found = operators_.find(connection);
  if (found == operators_.end()) return;
  Operator& who = found->second;
  ipc::Packet packet;
  ipc::Receive received = ipc::receive_packet(who.socket.get(), 0, &packet);
  if (received == ipc::Receive::kNothing) return;
  if (received == ipc::Receive::kPacket) {
    base::Result<std::string> done = control_.answer(who.identity, packet, base::now_ns());
    std::string text = done.ok() ? *done : done.error().text;
    text.resize(std::min(text.size(), ipc::abi::kMaxMessageBytes - sizeof(ipc::abi::Reply)));
    ipc::abi::Reply reply{ipc::make_header(ipc::abi::kReply, sizeof reply + text.size()), 1,
                          done.ok() ? 0 : uint32_t(done.error().code)};
    std::string bytes(reinterpret_cast<const char*>(&reply), sizeof reply);
    bytes += text;
    (void)ipc::send_packet(who.socket.get(), bytes.data(), bytes.size());
    set_kernel_limits();  // it may have been a reload
  } else if (received == ipc::Receive::kMalformed) {
    ++core_.counters().malformed;
  }
  operators_.erase(found);
}

void Server::close_silent_operators(uint64_t now_ns) {
  std::erase_if(operators_,
                [&](const auto& row) { return now_ns - row.second.connected_ns > kOperatorPatienceNs; });
}

void Server::accept_some() {
  close_slow_readers(base::now_ns());
  for (int i = 0; i < kAcceptsPerWake; ++i) {
    base::Result<ipc::Peer> peer = ipc::accept_peer(sources_.clients.fd());
    if (!peer.ok()) return accept_failed(peer.error());
    accept_error_.clear();
    core::Connection connection = next_connection_++;
    ClientSocket& link = links_[connection];
    link.socket = std::move(peer->socket);
    link.process = std::move(peer->process);
    if (!watch(link.socket.get(), tag_of(kSocket, connection), EPOLLIN | EPOLLRDHUP) ||
        (link.process.valid() && !watch(link.process.get(), tag_of(kProcess, connection), EPOLLIN))) {
      links_.erase(connection);
      continue;
    }
    core_.connected(connection, peer->identity, base::now_ns());
    if (!peer->identity.cgroup.empty()) set_kernel_limits();
    read_some(connection, 1);  // who has said something is not among the silent
  }
}

void Server::read_some(core::Connection connection, int most) {
  for (int i = 0; i < most; ++i) {
    auto link = links_.find(connection);
    if (link == links_.end()) return;  // closed by what it sent
    ipc::Packet packet;
    switch (ipc::receive_packet(link->second.socket.get(), 0, &packet)) {
      case ipc::Receive::kNothing:
        return;
      case ipc::Receive::kClosed:
        return core_.disconnected(connection);
      case ipc::Receive::kMalformed:
        return core_.malformed(connection);
      case ipc::Receive::kPacket:
        core_.received(connection, packet, base::now_ns());
        break;
    }
  }
}

// Out of descriptors, or refused by the kernel: a listening socket would report the waiting connection for ever.
void Server::accept_failed(const base::Error& error) {
  if (error.code == base::Code::kUnavailable) return;  // nobody is there
  ++core_.counters().accept_failures;
  pause_accepting(true);
  if (accept_error_ == error.text) return;
  accept_error_ = error.text;
  log(core::Severity::kWarning, "no connection can be taken: " + error.text);
}

void Server::pause_accepting(bool pause) {
  epoll_event event{};
  if (!pause) event.events = EPOLLIN;
  event.data.u64 = tag_of(kListen);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, sources_.clients.fd(), &event);
  event.data.u64 = tag_of(kControlListen);
  if (sources_.control) ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, sources_.control->fd(), &event);
  accepting_ = !pause;
  accept_again_ns_ = pause ? base::now_ns() + kAcceptPauseNs : 0;
}

void Server::arm_timer(uint64_t at_ns) {
  if (at_ns == armed_ns_) return;
  itimerspec when{};
  when.it_value.tv_sec = time_t(at_ns / base::kNsPerS);
  when.it_value.tv_nsec = long(at_ns % base::kNsPerS);
  ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
  armed_ns_ = at_ns;
}

ipc::Send Server::send(core::Connection to, const void* message, size_t bytes, const int* fds,
                       unsigned n_fds) {
  auto link = links_.find(to);
  if (link == links_.end()) return ipc::Send::kClosed;
  std::deque<std::string>& rest = link->second.packets;
  if (rest.empty()) {
    const ipc::Send sent = ipc::send_packet(link->second.socket.get(), message, bytes, fds, n_fds);
    if (sent != ipc::Send::kFull) return sent;
  }
  // An answer about hundreds of clients is larger than any buffer.
  if (static_cast<const ipc::abi::MessageHeader*>(message)->type != ipc::abi::kReply) {
    watch_writable(to, link->second, true);
    return ipc::Send::kFull;
  }
  if (rest.size() >= kMaxAnswerPackets || answers_.size() >= kMaxAnswers) return ipc::Send::kFull;
  rest.emplace_back(static_cast<const char*>(message), bytes);
  return ipc::Send::kSent;
}

void Server::watch_writable(core::Connection connection, ClientSocket& link, bool watched) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | (watched ? uint32_t(EPOLLOUT) : 0u);
  event.data.u64 = tag_of(kSocket, connection);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, link.socket.get(), &event);
  link.waits_writable = watched;
}

void Server::send_rest(core::Connection connection) {
  auto found = answers_.find(connection);
  if (found == answers_.end()) return;
  std::deque<std::string>& rest = found->second.packets;
  while (!rest.empty()) {
    const ipc::Send sent =
        ipc::send_packet(found->second.socket.get(), rest.front().data(), rest.front().size());
    if (sent == ipc::Send::kFull) return;
    if (sent == ipc::Send::kClosed) break;
    rest.pop_front();
  }
  answers_.erase(found);
}

void Server::close_slow_readers(uint64_t now_ns) {
  std::erase_if(answers_,
                [&](const auto& row) { return now_ns - row.second.since_ns > kOperatorPatienceNs; });
}

void Server::watch_wake(core::Connection of, int wake_fd) {
  auto link = links_.find(of);
  // Edge-triggered: each write is an event of its own, and nothing is ever read.
  if (link != links_.end() && watch(wake_fd, tag_of(kWake, of), EPOLLIN | EPOLLET))
    link->second.wake_fd = wake_fd;
}

bool Server::is_dying(core::Connection of) {
  auto found = links_.find(of);
  if (found == links_.end() || !found->second.process.valid()) return false;
  ClientSocket& link = found->second;
  if (!link.stat_tried) {
    link.stat_tried = true;
    link.stat = open_process_stat(link.process.get());
  }
  return transport::is_dying(link.stat.get());
}

// The configuration changed, or a client came, whose control group may be new.
void Server::set_kernel_limits() {
  const int before = kernel_limits_.driver_fd();
  kernel_limits_.apply(core_.memory_limits());
  if (kernel_limits_.driver_fd() >= 0 && before < 0)
    watch(kernel_limits_.driver_fd(), tag_of(kDriverLimits), EPOLLIN);
  for (const auto& line : kernel_limits_.take_news())
    log(line.warning ? core::Severity::kWarning : core::Severity::kInfo, line.text);
  core_.set_kept_by_kernel(kernel_limits_.kept());
}

// The core is told later: it is in the middle of something.
void Server::ask_engine(uint64_t request, const std::string& url, uint64_t within_ns) {
  const auto parsed = engines::parse_local_url(url);
  if (!parsed.ok()) return;  // the configuration has none
  const auto [made, is_new] = engine_requests_.try_emplace(request, *parsed, base::now_ns() + within_ns);
  if (made->second.fd() >= 0)
    watch(made->second.fd(), tag_of(kEngine, request), EPOLLIN | EPOLLOUT | EPOLLET);
}

void Server::tell_of_engines() {
  for (auto row = engine_requests_.begin(); row != engine_requests_.end();) {
    const uint64_t now_ns = base::now_ns();
    if (!row->second.ended(now_ns)) {
      ++row;
      continue;
    }
    const auto [request, failure] = std::pair(row->first, row->second.failure());
    row = engine_requests_.erase(row);
    core_.engine_answered(request, failure, now_ns);
  }
}

// The core is told later, as of engines.
void Server::ask_parker(const parker::Request& request) {
  parker_.ask(request);
  parker_said_ = true;  // it may not have been sent
  watch_parker();
}

void Server::watch_parker() {
  if (parker_.starts() == parker_starts_) return;
  parker_starts_ = parker_.starts();
  spdlog::info("the parker process is {}", parker_.pid());
  watch(parker_.socket(), tag_of(kParker), EPOLLIN | EPOLLET);
  watch(parker_.process(), tag_of(kParker), EPOLLIN);
}

void Server::tell_of_parker() {
  if (!std::exchange(parker_said_, false)) return;
  if (parker_.ended()) watch_parker();
  for (const parker::Answer& answer : parker_.take_answers()) core_.parker_answered(answer);
  if (const std::string news = parker_.take_news(); !news.empty()) log(core::Severity::kWarning, news);
}

uint64_t Server::engines_due_ns() const {
  uint64_t due_ns = 0;
  for (const auto& [number, request] : engine_requests_) due_ns = base::earlier_due(due_ns, request.due_ns());
  return due_ns;
}

void Server::close(core::Connection connection) {
  auto link = links_.find(connection);
  if (link == links_.end()) return;
  if (link->second.wake_fd >= 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, link->second.wake_fd, nullptr);
  if (!link->second.packets.empty()) {  // only an answer has a rest
    epoll_event event{};
    event.events = EPOLLOUT;
    event.data.u64 = tag_of(kAnswer, connection);
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, link->second.socket.get(), &event) == 0)
      answers_[connection] = {std::move(link->second.socket), std::move(link->second.packets),
                              base::now_ns()};
  }
  links_.erase(link);
}

void Server::begin_log_second() {
  const uint64_t second = base::now_ns() / base::kNsPerS;
  if (second == log_second_) return;
  if (suppressed_ != 0)
    spdlog::warn("{} lines suppressed, the counters of `tessera ps --json` have all", suppressed_);
  log_second_ = second;
  logged_ = suppressed_ = 0;
}

void Server::log(core::Severity severity, const std::string& line) {
  begin_log_second();
  if (++logged_ > kLinesPerSecond) {
    ++suppressed_;
    return;
  }
  spdlog::log(severity == core::Severity::kInfo ? spdlog::level::info : spdlog::level::warn, line);
}

}  // namespace tessera::transport

#include "scheduler_daemon/parker/parker.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "ipc/abi/park.h"
#include "scheduler_daemon/programs/spawn.h"

namespace tessera::parker {
namespace {

constexpr int kMostTimes = 3;  // that one request is sent: it may be what ends them

// Nothing of ours in front of the driver, and every GPU of the machine.
const std::vector<std::string> kNotItsVariables = {"LD_PRELOAD=", "LD_AUDIT=", "CUDA_VISIBLE_DEVICES="};

}  // namespace

Parker::~Parker() = default;

bool Parker::start() {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return false;
  const base::ScopedFd theirs(pair[1]);
  socket_.reset(pair[0]);
  child_ = programs::spawn(command_, programs::environment_without(kNotItsVariables),
                           {.input = theirs.get(), .output = ""});
  if (child_ < 0) return false;
  process_ = programs::open_process(child_);
  ++starts_;
  return process_.valid();
}

// Closed: it ends, and the next one is asked. Full: it is stopped, or asked by too many.
bool Parker::send(Sent& sent) {
  sent.request.again = sent.times++ != 0;
  return ::send(socket_.get(), &sent.request, sizeof sent.request, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0 ||
         errno == EPIPE || errno == ECONNRESET;
}

void Parker::ask(const Request& request) {
  if (child_ < 0 && !start()) give_up(std::strerror(errno));
  if (child_ >= 0 && send(under_way_[request.number] = {request})) return;
  under_way_.erase(request.number);
  answers_.push_back({request.number, ipc::abi::kStepNotAnswered, 0});
}

void Parker::give_up(const std::string& why) {
  news_ = "the parker process cannot be started: " + why;
  socket_.reset();
  process_.reset();
  child_ = -1;
}

std::vector<Answer> Parker::take_answers() {
  for (Answer answer; socket_.valid();) {
    const ssize_t got = ::recv(socket_.get(), &answer, sizeof answer, MSG_DONTWAIT);
    if (got != ssize_t(sizeof answer)) break;
    if (under_way_.erase(answer.number) != 0) answers_.push_back(answer);
  }
  return std::exchange(answers_, {});
}

bool Parker::ended() {
  pollfd end{process_.get(), POLLIN, 0};
  if (child_ < 0 || ::poll(&end, 1, 0) != 1) return false;
  const std::vector<Answer> last = take_answers();
  answers_.insert(answers_.end(), last.begin(), last.end());
  programs::reap(child_);
  child_ = -1;
  socket_.reset();
  process_.reset();
  std::erase_if(under_way_, [&](const auto& row) {
    const bool too_often = row.second.times >= kMostTimes;
    if (too_often) answers_.push_back({row.first, ipc::abi::kStepNotAnswered, 0});
    return too_often;
  });
  news_ = "the parker process has ended" + std::string(under_way_.empty() ? "" : ": another one goes on");
  if (under_way_.empty()) return true;
  if (start()) {
    for (auto& [number, sent] : under_way_) (void)send(sent);  // a fresh one has room for what one had
    return true;
  }
  give_up(std::strerror(errno));
  for (const auto& [number, sent] : under_way_) answers_.push_back({number, ipc::abi::kStepNotAnswered, 0});
  under_way_.clear();
  return true;
}

}  // namespace tessera::parker

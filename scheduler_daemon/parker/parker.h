// The daemon's end of the parker process: starts it when it is first needed, sends it requests, and starts another one when it
// ends, which is asked for the rest again. Owned by transport::Server; one thread; never waits.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/scoped_fd.h"
#include "scheduler_daemon/parker/protocol.h"

namespace tessera::parker {

class Parker {
 public:
  // Whole command of the process; its standard input will be the socket.
  explicit Parker(std::vector<std::string> command) : command_(std::move(command)) {}
  ~Parker();  // it ends by itself, when it has ended what it began

  // Answers come by take_answers(), also where it cannot be started: kStepNotAnswered.
  void ask(const Request& request);
  std::vector<Answer> take_answers();           // after either of these is readable
  int socket() const { return socket_.get(); }  // -1, as the next one: it does not run
  int process() const { return process_.get(); }
  bool ended();  // true: there is another one, or none, to be watched
  uint64_t starts() const { return starts_; }
  pid_t pid() const { return child_; }
  std::string take_news() { return std::exchange(news_, ""); }  // for people; empty: nothing

 private:
  struct Sent {
    Request request;
    int times = 0;
  };
  bool start();
  bool send(Sent& sent);  // false: it was not
  void give_up(const std::string& why);

  std::vector<std::string> command_;
  base::ScopedFd socket_, process_;
  pid_t child_ = -1;
  uint64_t starts_ = 0;
  std::map<uint64_t, Sent> under_way_;  // by number
  std::vector<Answer> answers_;
  std::string news_;
};

}  // namespace tessera::parker

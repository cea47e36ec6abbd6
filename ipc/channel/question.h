// Client: does the daemon still get on? Its socket stays open while it hangs or is stopped, and an idle
// daemon sleeps, so who needs it asks (abi::AnswerLine) and judges how long the answer takes. Helper thread
// of the preload library; pure but for the two words.
#pragma once

#include "ipc/abi/region.h"
#include "ipc/channel/atomic.h"

namespace tessera::ipc {

class Questions {
 public:
  enum class State {
    kNothing,
    kAsked,    // a question was just written: notify the daemon
    kOverdue,  // one was left open for too long: the daemon counts as gone
  };

  Questions() = default;
  Questions(abi::SignalLine* signals, const abi::AnswerLine* answers, uint64_t answer_within_ns)
      : signals_(signals), answers_(answers), within_ns_(answer_within_ns) {}

  // To be called every 100 ms or more often. `needed`: launches wait for the daemon.
  State check(bool needed, uint64_t now_ns) {
    const uint64_t since_ns = now_ns - last_check_ns_;
    last_check_ns_ = now_ns;
    if (load(answers_->answered, std::memory_order_relaxed) != asked_) {
      open_ns_ += since_ns < kMostPerCheckNs ? since_ns : kMostPerCheckNs;
      return open_ns_ < within_ns_ ? State::kNothing : State::kOverdue;
    }
    open_ns_ = 0;
    if (!needed || now_ns < next_ns_) return State::kNothing;
    next_ns_ = now_ns + within_ns_ / kQuestionsPerLimit;
    store(signals_->question, ++asked_, std::memory_order_relaxed);
    return State::kAsked;
  }

 private:
  // A client that did not check for longer was itself stopped or late, and the daemon perhaps with it.
  static constexpr uint64_t kMostPerCheckNs = 100'000'000;
  static constexpr uint64_t kQuestionsPerLimit = 4;  // each costs an eventfd write and a wake of the daemon

  abi::SignalLine* signals_ = nullptr;
  const abi::AnswerLine* answers_ = nullptr;
  uint64_t within_ns_ = 0;
  uint64_t asked_ = 0, open_ns_ = 0;
  uint64_t last_check_ns_ = 0, next_ns_ = 0;
};

}  // namespace tessera::ipc

// Best-effort client: the one place where work goes through the gate. A piece is what the driver gets in one call: a
// kernel, a slice of one, a graph, a copy. Every piece is asked about, timed if it is drawn for that, issued and settled.
// In the caller's thread; all state is on its stack. No allocation, no lock.
#pragma once

#include "interpose/gate/ask.h"
#include "interpose/gate/launch.h"
#include "interpose/gate/timing.h"

namespace tessera::gate {

struct Sampling {  // what is learnt from a piece that may start and is timed
  TimeIt time_it = TimeIt::kNo;
  Timing* timing = nullptr;  // that learns
  uint64_t record_key = 0;   // under which the daemon has the time
  uint64_t blocks = 1;
  uint64_t wave_blocks = 0;  // that fill the GPU once; 0 = not known
  // Null but of kernels. The piece is `blocks` of the launch's.
  const LaunchCall* launch = nullptr;
  const state::KernelRecord* kernel = nullptr;
  Timing* named =
      nullptr;  // carries the shape's name: of the launch, whose slices other processes do not know
  uint64_t expected_ns = 0;  // of a whole kernel, for traces
};

struct Piece {
  driver_api::StreamArg stream;
  admission::Ask ask;
  AskTerms terms;
  Sampling sampling;
  bool blocking = false;  // the driver's call returns when the work is done
};

// Ask, sample, issue, settle. `issue(Action, CUresult*) -> bool` calls the driver; false: nothing was launched, what was
// reserved is given back, and the caller plans anew. kWait: no more than that, for the lease that it planned by has become
// another.
template <class Issue>
bool pass(const Piece& piece, Wait& wait, CUresult* result, Issue&& issue);

// The parts of it.
class Passing {
 public:
  Passing(const Piece& piece, Wait& wait);
  Passing(const Passing&) = delete;
  ~Passing() {
    if (sample_) end_sample(CUDA_ERROR_NOT_READY);  // the piece was not launched
  }
  admission::Action action() const { return action_; }
  void settle(CUresult result) {
    if (sample_) end_sample(result);
    if (piece_.blocking)
      reservation_.settle_blocking(piece_.stream, result);
    else
      reservation_.settle(piece_.stream, result);
  }

 private:
  void end_sample(CUresult result);

  const Piece& piece_;
  Reservation reservation_;
  admission::Action action_;
  Sample* sample_ = nullptr;
};

template <class Issue>
bool pass(const Piece& piece, Wait& wait, CUresult* result, Issue&& issue) {
  Passing passing(piece, wait);
  if (passing.action() == admission::Action::kWait || !issue(passing.action(), result)) return false;
  passing.settle(*result);
  return true;
}

}  // namespace tessera::gate

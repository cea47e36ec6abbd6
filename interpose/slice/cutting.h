// The variant of one launch's kernel: what the driver is given for a slice, and what slices show of the kernel. Which slices
// there are is the rule's business (admission/plan.h); send.cc asks it. On the launching thread's stack, about 7 KiB.
#pragma once

#include <optional>

#include "admission/plan.h"
#include "interpose/gate/launch.h"
#include "interpose/gate/timing.h"
#include "interpose/slice/trial.h"
#include "interpose/slice/variant_params.h"

namespace tessera::cut {

class Cutting {
 public:
  // `whole`: of the launch as the program asked for it; may be null.
  Cutting(const gate::LaunchCall& original, state::KernelRecord& kernel, const gate::Timing* whole)
      : original_(original), kernel_(kernel), whole_(whole), slice_(original) {}
  // Completes the facts. False: it cannot be cut now.
  bool prepare(admission::PlannedLaunch& planned);
  void learn(admission::PlannedLaunch& planned) const;  // what samples say by now
  gate::Timing* timing() const { return sliced_; }      // shared by all slices of the kernel; may be null
  const gate::LaunchCall& slice(const admission::Box& box);  // until the next one
  void note_first(CUresult result);                          // of the driver for the first slice
  // A slice was sent, `done` blocks in all. Of a trial it is seen to end; else the blocks that it waits for go out beside it,
  // and this is what the program gets.
  std::optional<CUresult> rescue(uint64_t done);
  void note_end();  // all slices were sent

 private:
  const gate::LaunchCall& original_;
  state::KernelRecord& kernel_;
  const gate::Timing* const whole_;
  gate::LaunchCall slice_;
  admission::Cluster cluster_;
  VariantParams params_;
  Trial trial_;
  bool one_by_one_ = false;
  uint32_t n_ended_ = 0;  // slices of a trial
  gate::Timing* sliced_ = nullptr;
};

}  // namespace tessera::cut

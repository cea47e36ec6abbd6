// The watchdog of cutting. A kernel whose blocks wait for each other in a way that the analysis did not see
// would never end once cut: a slice waits for blocks that come behind it in the same stream. So the first
// launches of a kernel, one per shape, are a trial: the next slice is enqueued only when the one before is
// seen to have ended. If it does not end within TESSERA_SLICE_WATCHDOG_MS while nothing else of this process
// runs, the rest of the grid is launched at once, uncut, in streams of our own, beside the slice that waits
// for it; the program's stream then waits for those. The kernel is never cut again. Of a kernel that waits
// for lower blocks every launch is a trial: what is known of its waits is not a proof that they end.
//
// Launching thread only; its state is on the stack, the streams and events are made once per context and
// kept. One trial at a time in a process: other new kernels go whole meanwhile. Order is that of the
// program's stream throughout: everything before the kernel had ended when the rest was launched, everything
// after it waits.
#pragma once

#include "interpose/gate/launch.h"

namespace tessera::cut {

inline constexpr uint32_t kRescueStreams = 3;  // the rest of a grid is at most three boxes

struct TrialStreams;  // of one context

class Trial {
 public:
  ~Trial();
  // Has this shape of the kernel not been cut before? Few shapes are tried; then the kernel is trusted.
  static bool needed(const state::KernelRecord& kernel, const gate::LaunchCall& launch);
  // Everything before the launch has ended and ends can be seen. False: do not cut now.
  bool begin(const gate::LaunchCall& launch, CUcontext context);
  // The work enqueued so far has ended. False: time over; rescue.
  bool ended(const gate::LaunchCall& launch);
  // Stream i for a box of the rest; then the program's stream waits for all that were used.
  CUstream stream(uint32_t i) const;
  CUresult join(const gate::LaunchCall& launch, uint32_t n_streams);
  static void proven(state::KernelRecord& kernel, const gate::LaunchCall& launch);

 private:
  bool mark(const gate::LaunchCall& launch);
  void find_open();
  uint32_t open(uint32_t i) const;
  bool reached() const;
  bool wait(const gate::LaunchCall& launch, uint64_t limit_ns, bool alone) const;
  TrialStreams* streams_ = nullptr;  // not null: this is the one trial
  uint32_t value_ = 0;
  uint32_t n_open_ = 0;  // streams, the first ones, that do not wait behind the slice
};

void forget_trials(CUcontext context) noexcept;  // destroyed or reset; null = all
extern constinit std::atomic<uint32_t> g_watchdog_releases;

}  // namespace tessera::cut

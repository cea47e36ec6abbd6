#include "interpose/slice/send.h"

#include "admission/credit.h"
#include "admission/plan.h"
#include "interpose/gate/piece.h"
#include "interpose/gate/trace.h"
#include "interpose/slice/confine.h"
#include "interpose/slice/cut.h"
#include "interpose/slice/cutting.h"
#include "interpose/slice/pause.h"
#include "interpose/state/process.h"

namespace tessera::cut {
namespace {

using admission::Action;
using admission::LeaseView;
using admission::Plan;
constexpr auto kRelaxed = std::memory_order_relaxed;

// A launch that goes whole although its kernel has a variant has no further reason.
ipc::abi::LaunchOutcome whole_outcome(const Launch& launch) {
  if (launch.may_cut) return ipc::abi::kOutcomePossible;
  const auto known =
      launch.kernel ? launch.kernel->variant.whole_outcome.load(kRelaxed) : ipc::abi::kOutcomeOther;
  return known == ipc::abi::kOutcomePossible ? ipc::abi::kOutcomeOther : known;
}

// A launch that cannot be cut depends on the lease only where SMs are reserved. Mostly none are.
bool depends_on_lease(const Launch& launch) {
  return launch.may_cut || confine::any_reserved();
}

struct Whole {  // how a launch goes in one piece
  uint64_t estimate_ns;
  uint32_t sms = 0;                  // that it keeps to; 0 = all
  const LeaseView* lease = nullptr;  // that decided this; null: it goes under any
  bool decided = false;              // by a lease; else it is sent back if it has come to depend on one
};

// False: nothing was launched, because the lease has changed or no stream leads to those SMs (*no_sms).
bool pass_whole(const Launch& launch, gate::Wait& wait, const Whole& how, CUresult* result, bool* no_sms) {
  const gate::LaunchCall& call = launch.call;
  state::Thread& t = state::t_thread;
  const bool is_short = how.sms == 0 && how.estimate_ns <= admission::kShortLaunchNs && !t.shared;
  gate::Piece piece;  // filled member by member: an initialiser clears it first, which costs 10 ns
  piece.stream = call.stream;
  piece.ask.estimate_ns = how.estimate_ns;
  piece.ask.resource_class = launch.resource_class;
  piece.ask.may_confine = how.sms != 0;
  piece.terms.credit_slot = is_short ? t.slot : nullptr;
  piece.terms.planned = how.lease;
  gate::Sampling& sampling = piece.sampling;
  sampling.time_it = how.sms == 0 ? launch.time_it : gate::TimeIt::kNo;  // estimates are of the whole GPU
  sampling.timing = sampling.named = launch.timing;
  sampling.blocks = call.blocks();
  sampling.wave_blocks = launch.width.wave_blocks;
  sampling.launch = &call;
  sampling.kernel = launch.kernel;
  sampling.expected_ns = launch.expected_ns;
  const bool launched = gate::pass(piece, wait, result, [&](Action action, CUresult* r) {
    if (action != Action::kForward) {
      if (!how.decided && depends_on_lease(launch)) return false;
      if (how.sms != 0) {
        *no_sms = !confine::launch(call, how.sms, r);
        return !*no_sms;
      }
    }
    *r = gate::issue(call);
    return true;
  });
  if (!launched) return false;
  gate::count_outcome(whole_outcome(launch), 1, launch.expected_ns);
  if (!launch.may_cut && gate::is_wide(call, launch.width)) gate::count_uncut();
  return true;
}

// While it lives, traces know which function the thread's slices are of.
class SlicesOf {
 public:
  explicit SlicesOf(const void* function) { state::t_thread.cutting = function; }
  ~SlicesOf() { state::t_thread.cutting = nullptr; }
  SlicesOf(const SlicesOf&) = delete;
};

class Sender {
 public:
  Sender(const Launch& launch, gate::Wait& wait);
  CUresult send();

 private:
  // False: nothing was launched, plan anew. Else `result_` is what the driver answered.
  bool whole();
  bool in_slices();
  bool slice(Cutting& cutting, const LeaseView& lease);
  bool leads_there(const Plan& next, const gate::LaunchCall& call);
  void trace_slices(uint64_t start_ns) const;

  const Launch& launch_;
  gate::Wait& wait_;
  admission::PlannedLaunch planned_;
  admission::Progress progress_;
  uint64_t sliced_ns_ = 0;  // expected of the slices that were sent
  CUresult result_ = CUDA_SUCCESS;
};

Sender::Sender(const Launch& launch, gate::Wait& wait) : launch_(launch), wait_(wait) {
  const gate::LaunchCall& call = launch.call;
  for (int i = 0; i < 3; i++) planned_.grid[i] = call.grid[i];
  planned_.blocks = call.blocks();
  planned_.sm_count = state::sm_count();
  planned_.wave_blocks = launch.width.wave_blocks;
  planned_.expected_ns = launch.expected_ns;
  planned_.block_ps = launch.timing ? launch.timing->block_ps.load(kRelaxed) : 0;
  planned_.may_cut = launch.may_cut;
  planned_.may_confine = confine::is_plain(call);
  planned_.slice_occupancy.pilot_blocks = pilot_blocks(call);
}

CUresult Sender::send() {
  for (;;)
    if ((planned_.may_cut && in_slices()) || whole()) return result_;
}

// A path to these SMs is there, or was made. Before the launch is asked about: the driver may wait for what runs.
bool Sender::leads_there(const Plan& next, const gate::LaunchCall& call) {
  if (next.sms == 0 || confine::ready(call, next.sms)) return true;
  progress_.no_sms = true;
  return false;
}

bool Sender::whole() {
  const LeaseView lease = gate::current_lease();
  if (!admission::goes_whole(planned_, progress_, lease)) return false;
  const Plan next = admission::plan_whole(planned_, progress_, lease);
  if (!leads_there(next, launch_.call)) return false;
  const LeaseView* const holds = progress_.let_go ? nullptr : &lease;
  return pass_whole(launch_, wait_, {next.estimate_ns, next.sms, holds, true}, &result_, &progress_.no_sms);
}

// False: it goes whole, now or for good.
[[gnu::noinline]] bool Sender::in_slices() {
  if (admission::goes_whole(planned_, progress_, gate::current_lease())) return false;
  Cutting cutting(launch_.call, *launch_.kernel, launch_.timing);
  if (!cutting.prepare(planned_)) {
    planned_.may_cut = false;
    return false;
  }
  const uint64_t start_ns = gate::tracing() ? state::clock_ns() : 0;
  const SlicesOf slices(launch_.call.function);
  while (progress_.done < planned_.blocks) {
    cutting.learn(planned_);
    const LeaseView lease = gate::current_lease();
    if (admission::goes_whole(planned_, progress_, lease)) return false;
    const bool first = progress_.done == 0;
    if (!slice(cutting, lease)) continue;
    if (first) cutting.note_first(result_);
    if (result_ != CUDA_SUCCESS && first) {
      planned_.may_cut = false;
      return false;
    }
    // Part of the work is enqueued: the program gets this error, as for any launch.
    if (result_ != CUDA_SUCCESS) break;
    if (const auto rescued = cutting.rescue(progress_.done)) {
      result_ = *rescued;
      break;
    }
  }
  if (progress_.done == planned_.blocks) {
    cutting.note_end();
    if (!progress_.let_go) note_served_launch();
  }
  gate::count_outcome(ipc::abi::kOutcomeSliced, 1, sliced_ns_);
  if (start_ns != 0) trace_slices(start_ns);  // one that began before the trace is not in it
  return true;
}

bool Sender::slice(Cutting& cutting, const LeaseView& lease) {
  Plan next = admission::plan_slice(planned_, progress_, lease);
  if (!leads_there(next, launch_.call)) return false;
  gate::Timing* const timing = cutting.timing();
  const bool timed = next.sms == 0 && gate::should_time(timing) == gate::TimeIt::kYes;
  if (timed) next = admission::probed(planned_, progress_, lease, next, timing->samples.load(kRelaxed));
  const gate::Piece piece{.stream = launch_.call.stream,
                          .ask = {.estimate_ns = next.estimate_ns,
                                  .resource_class = launch_.resource_class,
                                  .may_confine = next.sms != 0,
                                  .in_thread = planned_.one_by_one},
                          .terms = {.planned = progress_.let_go ? nullptr : &lease},
                          .sampling = {.time_it = timed ? gate::TimeIt::kYes : gate::TimeIt::kNo,
                                       .timing = timing,
                                       .blocks = next.box.blocks(),
                                       .wave_blocks = planned_.slice_occupancy.wave_blocks,
                                       .launch = &launch_.call,
                                       .kernel = launch_.kernel,
                                       .named = launch_.timing ? launch_.timing : timing}};
  const bool launched = gate::pass(piece, wait_, &result_, [&](Action action, CUresult* r) {
    if (action == Action::kLetGo && !progress_.let_go) {
      progress_.let_go = true;
      note_expired_hold();
      return false;
    }
    const gate::LaunchCall& call = cutting.slice(next.box);
    if (next.sms != 0) {
      progress_.no_sms = !confine::launch(call, next.sms, r);
      return !progress_.no_sms;
    }
    *r = gate::issue(call);
    return true;
  });
  if (!launched || result_ != CUDA_SUCCESS) return launched;
  progress_.done += next.box.blocks();
  progress_.no_sms = false;
  sliced_ns_ += next.estimate_ns;
  const state::DaemonLink* link = state::g_state.link.load(std::memory_order_acquire);
  std::atomic_ref(link->usage->slices).fetch_add(1, kRelaxed);
  return true;
}

void Sender::trace_slices(uint64_t start_ns) const {
  const gate::LaunchCall& call = launch_.call;
  gate::trace_name(call.function);
  gate::trace({.kind = ipc::abi::kTraceLaunch,
               .detail = uint16_t(result_),
               .start_ns = start_ns,
               .end_ns = state::clock_ns(),
               .stream = gate::account_key(call.stream),
               .a = reinterpret_cast<uint64_t>(call.function),
               .b = planned_.blocks,
               .c = ipc::abi::launch_facts(ipc::abi::kOutcomeSliced)});
}

}  // namespace

CUresult send(const Launch& launch) {
  gate::Wait wait;
  if (!depends_on_lease(launch)) {
    if (CUresult result; pass_whole(launch, wait, {launch.expected_ns}, &result, nullptr)) return result;
  }
  return Sender(launch, wait).send();
}

}  // namespace tessera::cut

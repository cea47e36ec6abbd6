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
using Result = std::optional<CUresult>;  // nothing: nothing was launched, plan anew
constexpr auto kRelaxed = std::memory_order_relaxed;

// A launch that goes whole although its kernel has a variant has no further reason.
gate::abi::LaunchOutcome whole_outcome(const Launch& launch) {
  if (launch.may_cut) return gate::abi::kOutcomePossible;
  const auto known =
      launch.kernel ? launch.kernel->variant.whole_outcome.load(kRelaxed) : gate::abi::kOutcomeOther;
  return known == gate::abi::kOutcomePossible ? gate::abi::kOutcomeOther : known;
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
  explicit Sender(const Launch& launch);
  CUresult send();

 private:
  Result whole();
  Result in_slices();
  Result slice(Cutting& cutting, const LeaseView& lease);
  bool leads_there(const Plan& next, const gate::LaunchCall& call);
  void trace_slices(CUresult result, uint64_t start_ns) const;

  const Launch& launch_;
  gate::Wait wait_;
  admission::PlannedLaunch planned_;
  admission::Progress progress_;
  uint64_t sliced_ns_ = 0;  // expected of the slices that were sent
};

Sender::Sender(const Launch& launch) : launch_(launch) {
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
  for (;;) {
    Result result = planned_.may_cut ? in_slices() : std::nullopt;
    if (!result) result = whole();
    if (result) return *result;
  }
}

// A path to these SMs is there, or was made. Before the launch is asked about: the driver may wait for what runs.
bool Sender::leads_there(const Plan& next, const gate::LaunchCall& call) {
  if (next.sms == 0 || confine::ready(call, next.sms)) return true;
  progress_.no_sms = true;
  return false;
}

// Mostly the lease has no say in how a launch goes that cannot be cut: then it is not read for that.
Result Sender::whole() {
  static constexpr LeaseView kSilent{.grant = admission::Grant::kGranted};
  const bool depends = planned_.may_cut || confine::any_reserved();
  const LeaseView lease = depends ? gate::current_lease() : kSilent;
  if (depends && !admission::goes_whole(planned_, progress_, lease)) return std::nullopt;
  const Plan next = admission::plan_whole(planned_, progress_, lease);
  if (!leads_there(next, launch_.call)) return std::nullopt;
  state::Thread& t = state::t_thread;
  const bool is_short = next.sms == 0 && next.estimate_ns <= admission::kShortLaunchNs && !t.shared;
  const bool may_change = depends && !progress_.let_go;
  const gate::Piece piece{
      .stream = launch_.call.stream,
      .ask = {.estimate_ns = next.estimate_ns,
              .resource_class = launch_.resource_class,
              .may_keep_apart = next.sms != 0},
      .terms = {.credit_slot = is_short ? t.slot : nullptr, .planned = may_change ? &lease : nullptr},
      // Estimates are of the whole GPU.
      .sampling = {.time_it = next.sms == 0 ? launch_.time_it : gate::TimeIt::kNo,
                   .timing = launch_.timing,
                   .blocks = planned_.blocks,
                   .wave_blocks = planned_.wave_blocks,
                   .launch = &launch_.call,
                   .kernel = launch_.kernel,
                   .named = launch_.timing,
                   .expected_ns = launch_.expected_ns}};
  const Result result = gate::pass(piece, wait_, [&](Action action) -> Result {
    if (action == Action::kForward) return gate::issue(launch_.call);
    if (!depends && planned_.may_confine && confine::any_reserved()) return std::nullopt;  // since it began
    if (next.sms == 0) return gate::issue(launch_.call);
    CUresult confined;
    if (confine::launch(launch_.call, next.sms, &confined)) return confined;
    progress_.no_sms = true;
    return std::nullopt;
  });
  if (!result) return result;
  gate::count_outcome(whole_outcome(launch_), 1, launch_.expected_ns);
  if (!launch_.may_cut && gate::is_wide(launch_.call, launch_.width)) gate::count_uncut();
  return result;
}

// Nothing: it goes whole, now or for good.
[[gnu::noinline]] Result Sender::in_slices() {
  if (admission::goes_whole(planned_, progress_, gate::current_lease())) return std::nullopt;
  Cutting cutting(launch_.call, *launch_.kernel, launch_.timing);
  if (!cutting.prepare(planned_)) {
    planned_.may_cut = false;
    return std::nullopt;
  }
  const uint64_t start_ns = gate::tracing() ? state::clock_ns() : 0;
  const SlicesOf slices(launch_.call.function);
  Result result;
  while (progress_.done < planned_.blocks) {
    cutting.learn(planned_);
    const LeaseView lease = gate::current_lease();
    if (admission::goes_whole(planned_, progress_, lease)) return std::nullopt;
    const bool first = progress_.done == 0;
    result = slice(cutting, lease);
    if (!result) continue;
    if (first) cutting.note_first(*result);
    if (*result != CUDA_SUCCESS && first) {
      planned_.may_cut = false;
      return std::nullopt;
    }
    // Part of the work is enqueued: the program gets this error, as for any launch.
    if (*result != CUDA_SUCCESS) break;
    if (const Result rescued = cutting.rescue(progress_.done)) {
      result = rescued;
      break;
    }
  }
  if (progress_.done == planned_.blocks) {
    cutting.note_end();
    if (!progress_.let_go) note_served_launch();
  }
  gate::count_outcome(gate::abi::kOutcomeSliced, 1, sliced_ns_);
  if (start_ns != 0) trace_slices(*result, start_ns);  // one that began before the trace is not in it
  return result;
}

Result Sender::slice(Cutting& cutting, const LeaseView& lease) {
  Plan next = admission::plan_slice(planned_, progress_, lease);
  if (!leads_there(next, launch_.call)) return std::nullopt;
  gate::Timing* const timing = cutting.timing();
  const bool timed = next.sms == 0 && gate::should_time(timing) == gate::TimeIt::kYes;
  if (timed) next = admission::probed(planned_, progress_, lease, next, timing->samples.load(kRelaxed));
  const gate::Piece piece{.stream = launch_.call.stream,
                          .ask = {.estimate_ns = next.estimate_ns,
                                  .resource_class = launch_.resource_class,
                                  .may_keep_apart = next.sms != 0,
                                  .in_thread = planned_.one_by_one},
                          .terms = {.planned = progress_.let_go ? nullptr : &lease},
                          .sampling = {.time_it = timed ? gate::TimeIt::kYes : gate::TimeIt::kNo,
                                       .timing = timing,
                                       .blocks = next.box.blocks(),
                                       .wave_blocks = planned_.slice_occupancy.wave_blocks,
                                       .launch = &launch_.call,
                                       .kernel = launch_.kernel,
                                       .named = launch_.timing ? launch_.timing : timing}};
  const Result result = gate::pass(piece, wait_, [&](Action action) -> Result {
    if (action == Action::kLetGo && !progress_.let_go) {
      progress_.let_go = true;
      note_expired_hold();
      return std::nullopt;
    }
    const gate::LaunchCall& call = cutting.slice(next.box);
    if (next.sms == 0) return gate::issue(call);
    CUresult confined;
    if (confine::launch(call, next.sms, &confined)) return confined;
    progress_.no_sms = true;
    return std::nullopt;
  });
  if (!result || *result != CUDA_SUCCESS) return result;
  progress_.done += next.box.blocks();
  progress_.no_sms = false;
  sliced_ns_ += next.estimate_ns;
  const state::DaemonLink* link = state::g_state.link.load(std::memory_order_acquire);
  std::atomic_ref(link->usage->slices).fetch_add(1, kRelaxed);
  return result;
}

void Sender::trace_slices(CUresult result, uint64_t start_ns) const {
  const gate::LaunchCall& call = launch_.call;
  gate::trace_name(call.function);
  gate::trace({.kind = gate::abi::kTraceLaunch,
               .detail = uint16_t(result),
               .start_ns = start_ns,
               .end_ns = state::clock_ns(),
               .stream = gate::account_key(call.stream),
               .a = reinterpret_cast<uint64_t>(call.function),
               .b = planned_.blocks,
               .c = gate::abi::launch_facts(gate::abi::kOutcomeSliced)});
}

}  // namespace

CUresult send(const Launch& launch) {
  return Sender(launch).send();
}

}  // namespace tessera::cut

// Launches of executable graphs. A best-effort graph that is known (interpose/track/graphs.h) and longer than a slice
// may be goes out as its steps, each through the hook of a launch, copy or fill of its own, in the launch stream;
// any other as a whole. What makes the pieces one launch is here: nothing of the graph runs beside an earlier
// launch of it, and the first error ends it.
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "admission/slices.h"
#include "driver_api/ask.h"
#include "interpose/gate/first_estimate.h"
#include "interpose/gate/graph_class.h"
#include "interpose/gate/learnt.h"
#include "interpose/gate/operation.h"
#include "interpose/gate/window.h"
#include "interpose/hooks/hooks.h"
#include "interpose/hooks/units.h"
#include "interpose/memory/memory.h"
#include "interpose/slice/cut.h"
#include "interpose/state/clock.h"
#include "interpose/state/process.h"
#include "interpose/track/graph_streams.h"
#include "interpose/track/graphs.h"

namespace tessera::hooks {
namespace {

using driver_api::on;
using driver_api::real;
using driver_api::StreamArg;
using gate::LaunchCall;
using track::ExecutableGraph;
using track::GraphLaunched;
constexpr auto kRelaxed = std::memory_order_relaxed;

// ---- order between launches of one graph ----

GraphLaunched launched_into(StreamArg stream) {
  uint64_t key = state::stream_key(stream);
  if (key == 2) key |= uint64_t(gettid()) << 32;  // per-thread streams have one handle
  return {.stream = key, .streams_gone = track::g_streams_gone.load(kRelaxed)};
}

CUresult wait_for(CUevent event, StreamArg stream) {
  return real().cuStreamWaitEvent(on(stream), event, 0);
}

// The driver orders whole launches among themselves, a stream what is in it. What remains is work behind the
// pieces of a launch into another stream.
void wait_for_pieces(const ExecutableGraph& graph, StreamArg stream) {
  (void)wait_for(graph.pieces_end, stream);
}

// Pieces are ordered behind a whole launch only by being in its stream.
bool may_follow(const GraphLaunched& last, const GraphLaunched& now) {
  return last.how != GraphLaunched::How::kWhole || last.same_stream(now);
}

bool prepare_end(ExecutableGraph& graph) {
  return graph.pieces_end ||
         driver_api::made(graph.pieces_end, real().cuEventCreate, unsigned(CU_EVENT_DISABLE_TIMING));
}

// ---- calls of libraries ----

// The note of a library call below which a kernel was captured, as launches read it. describe() finds one by the other.
struct StepNote {
  operations::Note note{};
  const track::CapturedCall* call = nullptr;
};
static_assert(offsetof(StepNote, note) == 0 && std::is_standard_layout_v<StepNote>);

uint64_t describe(const operations::Note* note, char* text, uint32_t bytes) {
  const track::CapturedCall& call = *reinterpret_cast<const StepNote*>(note)->call;
  if (text && bytes) text[call.text.copy(text, bytes - 1)] = 0;
  return call.identity;
}

StepNote note_of(const track::CapturedCall& call, uint32_t launch) {
  return {{.flop = call.flop,
           .bytes = call.bytes,
           .entry = call.entry,
           .type = call.type,
           .launches = launch,
           .name = call.name,
           .describe = describe},
          &call};
}

// While it lives, what this thread launches belongs to the call.
class InCall {
 public:
  explicit InCall(const track::NodeCall& of) : begins_(of.launch == 0), outer_(state::t_note) {
    if (!of.call) return;
    told_ = note_of(*of.call, of.launch);
    gate::begin_operation(told_.note);
    state::t_note = &told_.note;
  }
  ~InCall() {
    if (!told_.call) return;
    state::t_note = outer_;
    gate::end_operation(told_.note, begins_);
  }
  InCall(const InCall&) = delete;

 private:
  StepNote told_;
  const bool begins_;
  operations::Note* const outer_;
};

// Counts a call that went out with others, as one launch.
void count_calls(const track::CapturedCall& like, const gate::OperationSum& sum) {
  StepNote told = note_of(like, 0);
  gate::class_of_operation(told.note);
  gate::count_operation(told.note, sum);
}

// Calls of one function and type that have gone out as part of a whole graph, as one event.
void trace_calls(const track::CallSum& sum, uint64_t start_ns, StreamArg stream) {
  if (sum.calls == 0) return;
  char text[ipc::abi::kTraceNameBytes * ipc::abi::kTraceNamePieces];
  const std::string& like = sum.like->text;
  const size_t without_shape = std::min(like.find(' ', like.find(' ') + 1), like.size());
  if (sum.calls == 1)
    snprintf(text, sizeof text, "%s", like.c_str());
  else
    snprintf(text, sizeof text, "%lu calls of %.*s", sum.calls, int(without_shape), like.c_str());
  gate::trace_operations(
      sum.like->identity * sum.calls, text,
      {.start_ns = start_ns, .stream = gate::account_key(stream), .flop = sum.flop, .bytes = sum.bytes});
}

// ---- is it worth it ----

LaunchCall launch_of(const track::KernelStep& step, StreamArg stream) {
  return {step.function,
          {step.grid[0], step.grid[1], step.grid[2]},
          {step.block[0], step.block[1], step.block[2]},
          step.shared_bytes,
          stream,
          step.arguments.params(),
          step.arguments.extra(),
          nullptr};
}

// Returns the known time of the step; 0: not known.
uint64_t known_ns(const track::KernelStep& step) {
  const LaunchCall launch = launch_of(step, {});
  const gate::Timing* timing = timing_of_kernel(launch, state::find_kernel(step.function));
  const bool timed = timing && timing->block_ps.load(kRelaxed) != 0;
  return timed ? gate::estimate_of(timing, launch.blocks()) : 0;
}

struct Cost {
  uint64_t known_ns = 0;         // of the kernels that were ever timed, or of whose call something is known
  uint64_t by_class_ns[4] = {};  // likewise
  uint32_t n_steps = 0;          // enabled ones
  bool kernel_cut = false;       // some kernel would be cut if it were launched by itself

  void add(const track::KernelStep& step, const LaunchCall& launch, const state::KernelRecord* kernel,
           const gate::Timing* timing, std::span<track::CallSum> calls);
};

void Cost::add(const track::KernelStep& step, const LaunchCall& launch, const state::KernelRecord* kernel,
               const gate::Timing* timing, std::span<track::CallSum> calls) {
  const bool timed = timing && timing->block_ps.load(kRelaxed) != 0;
  uint64_t ns = timed ? gate::estimate_of(timing, launch.blocks()) : 0;
  uint32_t resource_class = kernel ? kernel->resource_class() : uint32_t(ipc::abi::kResourceUnknown);
  if (const track::CapturedCall* call = step.call.call.get()) {
    StepNote told = note_of(*call, step.call.launch);
    const uint64_t blocks = launch.blocks();
    if (!timed)
      ns = gate::first_estimate(
          gate::basis_of(told.note, gate::kernel_id(launch, kernel), blocks, blocks, step.call.launch == 0));
    if (resource_class == ipc::abi::kResourceUnknown) resource_class = gate::class_of_operation(told.note);
    const auto sum = std::ranges::find_if(calls, [&](const track::CallSum& s) { return s.has(*call); });
    if (sum != calls.end()) sum->gpu_ns += ns;
  }
  known_ns += ns;
  by_class_ns[resource_class & 3u] += ns;
}

Cost cost_of(track::GraphPlan& plan, StreamArg stream) {
  Cost cost;
  for (track::CallSum& sum : plan.calls) sum.gpu_ns = 0;
  for (const track::GraphStep& step : plan.steps) {
    if (!step.enabled) continue;
    cost.n_steps++;
    const auto* work = std::get_if<track::KernelStep>(&step.work);
    if (!work) continue;
    const LaunchCall launch = launch_of(*work, stream);
    const state::KernelRecord* kernel = state::find_kernel(work->function);
    const gate::Timing* timing = timing_of_kernel(launch, kernel);
    cost.add(*work, launch, kernel, timing, plan.calls);
    if (!cost.kernel_cut && kernel && kernel->loaded.has_variant && cut::allowed(launch, *kernel))
      cost.kernel_cut = cut::wanted(launch, timing);
  }
  return cost;
}

// Times of whole launches count before the sum of its kernels' times.
bool worth_it(CUgraphExec exec, const Cost& cost) {
  if (cost.kernel_cut) return true;
  if (cost.n_steps < 2) return false;
  const gate::Timing* timing = gate::timing_of(gate::timing_key({id(exec), 1, 0, 0}));
  const bool timed = timing && timing->block_ps.load(kRelaxed) != 0;
  return admission::worth_taking_apart(timed ? gate::estimate_of(timing, 1) : cost.known_ns,
                                       gate::current_lease());
}

// May its steps go one by one here and now, with the same effect?
bool may_take_apart(ExecutableGraph& graph, const GraphLaunched& now) {
  if (graph.obstacle != track::GraphObstacle::kNone || !may_follow(graph.last, now)) return false;
  if (state::g_state.captures.load(kRelaxed) != 0) return false;
  // The stream's context is the graph's if there is no other one.
  if (state::g_state.n_contexts.load(kRelaxed) != 1) return false;
  CUcontext current = nullptr;
  if (real().cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != graph.context) return false;
  return track::ready_for_pieces(graph) && prepare_end(graph);
}

// ---- the steps ----

CUresult issue(const track::KernelStep& step, StreamArg stream) {
  const InCall in_call(step.call);
  const LaunchCall l = launch_of(step, stream);
  if (step.attributes.empty())
    return hook_cuLaunchKernel(l.function, l.grid[0], l.grid[1], l.grid[2], l.block[0], l.block[1],
                               l.block[2], l.shared_bytes, on(stream), l.params, l.extra);
  CUlaunchConfig config{};
  config.gridDimX = l.grid[0], config.gridDimY = l.grid[1], config.gridDimZ = l.grid[2];
  config.blockDimX = l.block[0], config.blockDimY = l.block[1], config.blockDimZ = l.block[2];
  config.sharedMemBytes = l.shared_bytes;
  config.hStream = on(stream);
  config.attrs = const_cast<CUlaunchAttribute*>(step.attributes.data());
  config.numAttrs = unsigned(step.attributes.size());
  return hook_cuLaunchKernelEx(&config, l.function, l.params, l.extra);
}

// One row between addresses: a box has a widest row, a plain copy has not.
bool is_linear(const CUDA_MEMCPY3D& b) {
  return b.Height == 1 && b.Depth == 1 && b.srcY == 0 && b.srcZ == 0 && b.dstY == 0 && b.dstZ == 0 &&
         b.srcMemoryType != CU_MEMORYTYPE_ARRAY && b.dstMemoryType != CU_MEMORYTYPE_ARRAY;
}

CUdeviceptr address_of(CUmemorytype type, const void* host, CUdeviceptr device) {
  return type == CU_MEMORYTYPE_HOST ? reinterpret_cast<CUdeviceptr>(host) : device;
}

CUresult issue(const track::CopyStep& step, StreamArg stream) {
  const CUDA_MEMCPY3D& b = step.box;
  if (!is_linear(b)) return hook_cuMemcpy3DAsync_v2(&b, on(stream));
  return hook_cuMemcpyAsync(address_of(b.dstMemoryType, b.dstHost, b.dstDevice) + b.dstXInBytes,
                            address_of(b.srcMemoryType, b.srcHost, b.srcDevice) + b.srcXInBytes,
                            b.WidthInBytes, on(stream));
}

#define TS_FILL(bits, type)                                                                         \
  if (a.height <= 1) return hook_cuMemsetD##bits##Async(a.dst, type(a.value), a.width, on(stream)); \
  return hook_cuMemsetD2D##bits##Async(a.dst, a.pitch, type(a.value), a.width, a.height, on(stream));
CUresult issue(const track::FillStep& step, StreamArg stream) {
  const CUDA_MEMSET_NODE_PARAMS& a = step.area;
  switch (a.elementSize) {
    case 1:
      TS_FILL(8, uint8_t)
    case 2:
      TS_FILL(16, uint16_t)
    default:
      TS_FILL(32, uint32_t)
  }
}
#undef TS_FILL

CUresult issue(const track::HostStep& step, StreamArg stream) {
  return hook_cuLaunchHostFunc(on(stream), step.call.fn, step.call.userData);
}

CUresult issue(const track::MemoryOpsStep& step, StreamArg stream) {
  auto* ops = const_cast<CUstreamBatchMemOpParams*>(step.ops.data());  // the driver only reads
  return real().cuStreamBatchMemOp_v2(on(stream), unsigned(step.ops.size()), ops, step.flags);
}

CUresult issue(const track::EventStep& step, StreamArg stream) {
  if (step.waits) return hook_cuStreamWaitEvent(on(stream), step.event, 0);
  return hook_cuEventRecord(step.event, on(stream));
}

CUresult record(CUevent event, StreamArg stream) {
  return real().cuEventRecord(event, on(stream));
}

// `then` is behind what is in `first` now.
CUresult order(StreamArg first, StreamArg then, CUevent event) {
  const CUresult result = record(event, first);
  return result == CUDA_SUCCESS ? wait_for(event, then) : result;
}

CUresult issue(const track::GraphStep& step, StreamArg stream) {
  if (!step.enabled) return CUDA_SUCCESS;
  return std::visit([&](const auto& work) { return issue(work, stream); }, step.work);
}

CUresult issue(const track::GraphPlan& plan, const track::GraphRun& run, StreamArg stream) {
  const CUresult result = whole_launch(stream, run.exec, run.expected_ns,
                                       [&] { return real().cuGraphLaunch(run.exec, on(stream)); });
  for (const uint32_t i : run.steps) {
    const auto& step = std::get<track::KernelStep>(plan.steps[i].work);
    const track::CapturedCall* call = step.call.call.get();
    if (!call || result != CUDA_SUCCESS) continue;
    const bool begins = step.call.launch == 0;
    count_calls(*call, {begins, begins ? call->flop : 0, begins ? call->bytes : 0, known_ns(step), 1});
  }
  return result;
}

// A step, or the run that begins with it. One within a run went out with the first.
CUresult issue(const ExecutableGraph& graph, uint32_t step, StreamArg stream) {
  const track::GraphRun* run = graph.runs.of(step);
  if (!run) return issue(graph.plan.steps[step], stream);
  return run->steps.front() == step ? issue(graph.plan, *run, stream) : CUDA_SUCCESS;
}

CUresult in_one_lane(const ExecutableGraph& graph, StreamArg stream) {
  for (uint32_t i = 0; i < graph.plan.steps.size(); i++)
    if (const CUresult bad = issue(graph, i, stream); bad != CUDA_SUCCESS) return bad;
  return CUDA_SUCCESS;
}

CUresult in_lanes(const ExecutableGraph& graph, const track::LaneStreams& streams) {
  const track::Lanes& lanes = graph.plan.lanes;
  for (uint32_t i = 0; i < graph.plan.steps.size(); i++) {
    const track::LaneStep& place = lanes.steps[i];
    const StreamArg stream = streams[place.lane];
    for (const uint32_t event : place.waits)
      if (const CUresult bad = wait_for(graph.events[event], stream); bad != CUDA_SUCCESS) return bad;
    if (const CUresult bad = issue(graph, i, stream); bad != CUDA_SUCCESS) return bad;
    if (place.records == track::LaneStep::kNoEvent) continue;
    if (const CUresult bad = record(graph.events[place.records], stream); bad != CUDA_SUCCESS) return bad;
  }
  return CUDA_SUCCESS;
}

// Out of the launch stream and back into it, also behind a part: it may run.
CUresult side_by_side(const ExecutableGraph& graph, const track::LaneStreams& streams) {
  const CUevent spare = graph.events.back();
  CUresult result = record(spare, streams[0]);
  for (uint32_t i = 1; i < streams.count() && result == CUDA_SUCCESS; i++)
    result = wait_for(spare, streams[i]);
  if (result == CUDA_SUCCESS) result = in_lanes(graph, streams);
  for (uint32_t i = 1; i < streams.count(); i++) {
    gate::account_mark(gate::account_of(streams[i]), streams[i]);  // nobody synchronises with it
    const CUresult end = order(streams[i], streams[0], spare);
    if (result == CUDA_SUCCESS) result = end;
  }
  return result;
}

void prepare_runs(ExecutableGraph& graph) {
  const uint64_t slice_ns = gate::current_lease().slice_ns;
  if (!graph.runs.due(slice_ns)) return;
  graph.runs.make(graph.plan, slice_ns, known_ns);
  for (const track::GraphRun& run : graph.runs.all()) forget_timing(run.exec);
}

CUresult in_pieces(ExecutableGraph& graph, StreamArg stream) {
  prepare_runs(graph);
  const uint32_t wanted =
      graph.plan.lanes.count > 1 && track::lanes_have_events(graph) ? graph.plan.lanes.count : 1;
  const track::LaneStreams streams(graph, graph.context, stream, wanted);
  const CUresult result = streams.count() > 1 ? side_by_side(graph, streams) : in_one_lane(graph, stream);
  const CUresult end = record(graph.pieces_end, stream);  // also behind a part: it may run
  return result != CUDA_SUCCESS ? result : end;
}

// A thread that is cancelled in between would keep the graph's lock.
class NoCancel {
 public:
  NoCancel() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NoCancel() { pthread_setcancelstate(before_, nullptr); }
  NoCancel(const NoCancel&) = delete;

 private:
  int before_ = 0;
};

template <class F>
CUresult launch_known(ExecutableGraph& graph, StreamArg stream, CUgraphExec exec, F&& call) {
  GraphLaunched now = launched_into(stream);
  if (graph.last.how == GraphLaunched::How::kPieces && !graph.last.same_stream(now))
    wait_for_pieces(graph, stream);
  Cost cost;
  bool pieces = false;
  if (state::g_state.role.load(kRelaxed) == state::Role::kBestEffort && !gate::current_lease().unmanaged() &&
      may_take_apart(graph, now)) {
    cost = cost_of(graph.plan, stream);
    pieces = worth_it(exec, cost);
  }
  now.how = pieces ? GraphLaunched::How::kPieces : GraphLaunched::How::kWhole;
  graph.last = now;
  if (pieces) return in_pieces(graph, stream);
  const uint64_t start_ns = gate::tracing() ? state::clock_ns() : 0;
  const CUresult result =
      whole_launch(stream, exec, cost.known_ns, call, gate::leading_class(cost.by_class_ns));
  if (result != CUDA_SUCCESS || state::g_state.role.load(kRelaxed) != state::Role::kBestEffort) return result;
  for (const track::CallSum& sum : graph.plan.calls) {
    count_calls(*sum.like,
                {sum.calls, sum.flop, sum.bytes, cost.known_ns != 0 ? sum.gpu_ns : 0, sum.launches});
    if (start_ns) trace_calls(sum, start_ns, stream);
  }
  return result;
}

// A node, and nothing else (D11).
template <class F>
CUresult captured_launch(StreamArg stream, CUgraphExec exec, bool may_look, F&& call) {
  {
    const NoCancel no_cancel;
    const gate::DepthGuard depth;
    track::graph_captured(may_look ? exec : nullptr);
  }
  return whole_launch(stream, exec, 0, call);
}

template <class F>
CUresult launch_graph(StreamArg stream, CUgraphExec exec, F&& call) {
  const bool may_look = !state::is_nested() && state::live();
  if (state::g_state.captures.load(kRelaxed) != 0 && gate::capturing(stream))
    return captured_launch(stream, exec, may_look, call);
  if (track::g_known_graphs.load(kRelaxed) == 0 || !may_look) return whole_launch(stream, exec, 0, call);
  const NoCancel no_cancel;
  std::shared_ptr<ExecutableGraph> graph;
  {
    const gate::DepthGuard depth;  // a signal handler's launch is forwarded: it must not take these locks
    graph = track::find_graph(exec);
  }
  if (!graph) return whole_launch(stream, exec, 0, call);
  const track::GraphTurn turn(*graph);
  return turn ? launch_known(*graph, stream, exec, call) : whole_launch(stream, exec, 0, call);
}

}  // namespace
}  // namespace tessera::hooks

#define TS_HOOK_launch_graph(symbol, base, since, stream, ret, params, args)                             \
  extern "C" ret hook_##symbol params noexcept {                                                         \
    const auto graph_of = [](CUgraphExec exec, CUstream) { return exec; };                               \
    const ret result = tessera::hooks::launch_graph(TS_STREAM_ARG(stream), graph_of args, [&]() -> ret { \
      return tessera::driver_api::real().symbol args;                                                    \
    });                                                                                                  \
    if (result == CUDA_SUCCESS) tessera::memory::graph_changed();                                        \
    return result;                                                                                       \
  }
#include "driver_api/hooks.def"

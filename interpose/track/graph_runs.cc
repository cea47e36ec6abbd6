#include "interpose/track/graph_runs.h"

#include <algorithm>
#include <new>

#include "interpose/state/state.h"

namespace tessera::track {
namespace {

using driver_api::real;

// The steps of a run as one chain of kernels; null if the driver refuses.
CUgraphExec chain_of(const GraphPlan& plan, const GraphRun& run) {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  if (real().cuGraphCreate(&graph, 0) != CUDA_SUCCESS) return nullptr;
  CUgraphNode last = nullptr;
  bool good = true;
  for (const uint32_t i : run.steps) {
    const auto& step = std::get<KernelStep>(plan.steps[i].work);
    CUDA_KERNEL_NODE_PARAMS p{};
    if (step.is_library_kernel)
      p.kern = reinterpret_cast<CUkernel>(step.function);
    else
      p.func = step.function;
    p.gridDimX = step.grid[0], p.gridDimY = step.grid[1], p.gridDimZ = step.grid[2];
    p.blockDimX = step.block[0], p.blockDimY = step.block[1], p.blockDimZ = step.block[2];
    p.sharedMemBytes = step.shared_bytes;
    p.kernelParams = step.arguments.params();
    p.extra = step.arguments.extra();
    CUgraphNode node = nullptr;
    good = real().cuGraphAddKernelNode_v2(&node, graph, &last, last ? 1 : 0, &p) == CUDA_SUCCESS;
    if (!good) break;
    last = node;
  }
  if (good && real().cuGraphInstantiateWithFlags(&exec, graph, 0) != CUDA_SUCCESS) exec = nullptr;
  (void)real().cuGraphDestroy(graph);
  return exec;
}

}  // namespace

std::vector<GraphRun> runs_of(const GraphPlan& plan, std::span<const uint64_t> step_ns, uint64_t most_ns) {
  std::vector<GraphRun> runs, open(plan.lanes.count);
  const auto close = [&](GraphRun& run) {
    if (run.steps.size() >= kLeastRun) runs.push_back(std::move(run));
    run = {};
  };
  for (uint32_t i = 0; i < plan.steps.size(); i++) {
    const LaneStep place = plan.lanes.steps.empty() ? LaneStep{} : plan.lanes.steps[i];
    const bool alone = place.waits.empty() && place.records == LaneStep::kNoEvent;
    if (!plan.steps[i].enabled && alone) continue;
    GraphRun& run = open[place.lane];
    const bool fits = step_ns[i] != 0 && step_ns[i] <= most_ns / kLeastRun;
    if (!fits || !place.waits.empty() || run.expected_ns + step_ns[i] > most_ns) close(run);
    if (!fits) continue;
    run.steps.push_back(i);
    run.expected_ns += step_ns[i];
    if (place.records != LaneStep::kNoEvent) close(run);
  }
  for (GraphRun& run : open) close(run);
  return runs;
}

bool GraphRuns::due(uint64_t slice_ns) {
  if (longest_ns_ > slice_ns) return true;
  if (launches_ == kLastLook || ++launches_ < next_look_) return false;
  next_look_ *= 4;
  return true;
}

void GraphRuns::make(const GraphPlan& plan, uint64_t slice_ns,
                     uint64_t (*known_ns)(const KernelStep&)) noexcept {
  drop();
  if (!state::enter_driver()) return;
  try {
    std::vector<uint64_t> step_ns;
    for (const GraphStep& step : plan.steps) {
      const auto* work = step.enabled ? std::get_if<KernelStep>(&step.work) : nullptr;
      step_ns.push_back(work && work->attributes.empty() ? known_ns(*work) : 0);
    }
    runs_ = runs_of(plan, step_ns, slice_ns);
    for (GraphRun& run : runs_) run.exec = chain_of(plan, run);
    std::erase_if(runs_, [](const GraphRun& run) { return !run.exec; });
    of_step_.assign(plan.steps.size(), 0);
    for (uint32_t r = 0; r < runs_.size(); r++) {
      for (const uint32_t i : runs_[r].steps) of_step_[i] = r + 1;
      longest_ns_ = std::max(longest_ns_, runs_[r].expected_ns);
    }
  } catch (const std::bad_alloc&) {
    drop();
  }
  state::leave_driver();
}

void GraphRuns::forget() noexcept {
  drop();
  launches_ = 0;
  next_look_ = kFirstLook;
}

void GraphRuns::drop() noexcept {
  for (const GraphRun& run : runs_)
    if (run.exec) (void)real().cuGraphExecDestroy(run.exec);
  runs_.clear();
  of_step_.clear();
  longest_ns_ = 0;
}

}  // namespace tessera::track

// The launch of an executable graph. Alone on the GPU, or shorter than a slice, it goes out whole. Else its nodes go
// out one by one in the program's stream (interpose/track/graphs.h), through the hooks that a program without graphs
// would call: each is gated, and cut where it may be. docs/graphs.md.
#include "admission/slices.h"
#include "interpose/hooks/hooks.h"
#include "interpose/hooks/units.h"
#include "interpose/state/process.h"
#include "interpose/track/graphs.h"

namespace tessera::hooks {
namespace {

using driver_api::Flavour;
using driver_api::real;
using driver_api::StreamArg;
using track::ExecutableGraph;
constexpr auto kRelaxed = std::memory_order_relaxed;

// The entry of this stream family.
template <class F>
auto entry_of(StreamArg stream, F* legacy, F* per_thread) {
  return stream.flavour == Flavour::kPerThread ? per_thread : legacy;
}
#define TS_ENTRY(symbol) entry_of(stream, &symbol, &symbol##_ptsz)

CUresult start(StreamArg stream, track::KernelNode& k) {
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, k.values.data(), CU_LAUNCH_PARAM_BUFFER_SIZE,
                   &k.buffer_bytes, CU_LAUNCH_PARAM_END};
  void** const params = k.buffer_bytes ? nullptr : k.params.data();
  void** const buffer = k.buffer_bytes ? extra : nullptr;
  if (k.attributes.empty())
    return TS_ENTRY(hook_cuLaunchKernel)(k.function, k.grid[0], k.grid[1], k.grid[2], k.block[0], k.block[1],
                                         k.block[2], k.shared_bytes, stream.stream, params, buffer);
  const CUlaunchConfig config = {.gridDimX = k.grid[0],
                                 .gridDimY = k.grid[1],
                                 .gridDimZ = k.grid[2],
                                 .blockDimX = k.block[0],
                                 .blockDimY = k.block[1],
                                 .blockDimZ = k.block[2],
                                 .sharedMemBytes = k.shared_bytes,
                                 .hStream = stream.stream,
                                 .attrs = k.attributes.data(),
                                 .numAttrs = unsigned(k.attributes.size())};
  return TS_ENTRY(hook_cuLaunchKernelEx)(&config, k.function, params, buffer);
}

CUresult start(StreamArg stream, const CUDA_MEMCPY3D& copy) {
  return TS_ENTRY(hook_cuMemcpy3DAsync_v2)(&copy, stream.stream);
}

CUresult start(StreamArg stream, const CUDA_MEMSET_NODE_PARAMS& f) {
  const auto byte = static_cast<unsigned char>(f.value);
  const auto half = static_cast<unsigned short>(f.value);
  const CUstream s = stream.stream;
  if (f.height > 1) switch (f.elementSize) {
      case 1:
        return TS_ENTRY(hook_cuMemsetD2D8Async)(f.dst, f.pitch, byte, f.width, f.height, s);
      case 2:
        return TS_ENTRY(hook_cuMemsetD2D16Async)(f.dst, f.pitch, half, f.width, f.height, s);
      default:
        return TS_ENTRY(hook_cuMemsetD2D32Async)(f.dst, f.pitch, f.value, f.width, f.height, s);
    }
  switch (f.elementSize) {
    case 1:
      return TS_ENTRY(hook_cuMemsetD8Async)(f.dst, byte, f.width, s);
    case 2:
      return TS_ENTRY(hook_cuMemsetD16Async)(f.dst, half, f.width, s);
    default:
      return TS_ENTRY(hook_cuMemsetD32Async)(f.dst, f.value, f.width, s);
  }
}

CUresult start(StreamArg stream, const CUDA_HOST_NODE_PARAMS& host) {
  const auto& call =
      stream.flavour == Flavour::kPerThread ? real().cuLaunchHostFunc_ptsz : real().cuLaunchHostFunc;
  return call(stream.stream, host.fn, host.userData);
}

// What its kernels were measured to take; 0 if one of them was not.
uint64_t kernels_ns(const ExecutableGraph& graph) {
  uint64_t sum = 0;
  for (const track::GraphNode& node : graph.nodes) {
    const auto* kernel = std::get_if<track::KernelNode>(&node.work);
    if (!kernel || !node.enabled) continue;
    const state::KernelRecord* record = state::find_kernel(kernel->function);
    const uint64_t blocks = uint64_t(kernel->grid[0]) * kernel->grid[1] * kernel->grid[2];
    const gate::Timing* timing = gate::timing_of(
        gate::timing_key({record ? record->loaded.hash : id(kernel->function), blocks,
                          kernel->block[0] * kernel->block[1] * kernel->block[2], kernel->shared_bytes}));
    const uint64_t block_ps = timing ? timing->block_ps.load(kRelaxed) : 0;
    if (block_ps == 0) return 0;
    sum += block_ps * blocks / 1000;
  }
  return sum;
}

// Would it be in the way? What was not measured is taken for long: its kernels are timed one by one then.
bool too_long(const ExecutableGraph& graph, CUgraphExec exec) {
  const admission::LeaseView lease = gate::current_lease();
  if (lease.unmanaged() || lease.slice_ns == 0) return false;
  const gate::Timing* whole = gate::timing_of(gate::timing_key({id(exec), 1, 0, 0}));
  const uint64_t whole_ns = whole ? whole->block_ps.load(kRelaxed) / 1000 : 0;
  const uint64_t ns = whole_ns ? whole_ns : kernels_ns(graph);
  return ns == 0 || ns > admission::longest_slice_ns(lease);
}

bool may_go_in_pieces(const ExecutableGraph& graph, uint64_t stream) {
  if (graph.obstacle || graph.nodes.empty()) return false;
  if (state::g_state.role.load(kRelaxed) != state::Role::kBestEffort || state::t_thread.depth) return false;
  if (state::g_state.captures.load(kRelaxed)) return false;  // a captured launch is a node
  // Where the driver alone knows what it has to wait for, it must see it.
  const uint64_t whole_in = graph.whole_in.load(kRelaxed);
  return whole_in == 0 || whole_in == stream;
}

// The event behind the pieces, in the context that the graph was made in.
bool prepare(ExecutableGraph& graph) {
  CUcontext current = nullptr;
  CUevent made = nullptr;
  if (real().cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != graph.context) return false;
  if (graph.ended.load(kRelaxed)) return true;
  if (real().cuEventCreate(&made, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return false;
  graph.ended.store(made, kRelaxed);
  return true;
}

// Behind its latest launch in pieces, of which the driver knows nothing.
CUresult follow(const ExecutableGraph& graph, StreamArg stream, uint64_t name) {
  const uint64_t before = graph.pieces_in.load(kRelaxed);
  if (before == 0 || before == name) return CUDA_SUCCESS;
  return entry_of(stream, real().cuStreamWaitEvent, real().cuStreamWaitEvent_ptsz)(stream.stream, graph.ended,
                                                                                   0);
}

// Node by node. False: nothing was launched, and the driver is to judge it as a whole.
bool in_pieces(ExecutableGraph& graph, StreamArg stream, uint64_t name, CUresult* result) {
  bool started = false;
  for (track::GraphNode& node : graph.nodes) {
    if (!node.enabled) continue;
    *result = std::visit([&](auto& work) { return start(stream, work); }, node.work);
    if (*result != CUDA_SUCCESS) return started;
    started = true;
  }
  *result = entry_of(stream, real().cuEventRecord, real().cuEventRecord_ptsz)(graph.ended, stream.stream);
  graph.pieces_in.store(name, kRelaxed);
  return true;
}

CUresult launch(CUgraphExec exec, StreamArg stream, CUresult (*driver)(CUgraphExec, CUstream)) {
  const auto whole = [&] { return whole_launch(stream, exec, [&] { return driver(exec, stream.stream); }); };
  if (!state::live() || state::g_state.role.load(kRelaxed) == state::Role::kProtected) return whole();
  const auto graph = track::find_graph(exec);
  if (!graph) return whole();
  std::lock_guard lock(graph->mutex);
  const uint64_t name = track::name_of_stream(stream);
  CUresult result = follow(*graph, stream, name);
  if (result != CUDA_SUCCESS) return result;
  if (may_go_in_pieces(*graph, name) && too_long(*graph, exec) && prepare(*graph) &&
      in_pieces(*graph, stream, name, &result))
    return result;
  graph->whole_in.store(name, kRelaxed);
  return whole();
}

}  // namespace
}  // namespace tessera::hooks

extern "C" CUresult hook_cuGraphLaunch(CUgraphExec exec, CUstream stream) noexcept {
  using namespace tessera;
  return hooks::launch(exec, {stream, driver_api::Flavour::kLegacy}, driver_api::real().cuGraphLaunch);
}
extern "C" CUresult hook_cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) noexcept {
  using namespace tessera;
  return hooks::launch(exec, {stream, driver_api::Flavour::kPerThread},
                       driver_api::real().cuGraphLaunch_ptsz);
}

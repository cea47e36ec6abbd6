// Executable graphs that may be launched in pieces: what each does now, and where it was launched last. Only of
// best-effort programs. Hooks tell of every graph that is made, changed or destroyed; a graph that is not here goes
// whole. Slow path, may allocate and lock; any thread; nothing throws. Memory: kMostPlanBytes for all plans.
#pragma once

#include <pthread.h>

#include <atomic>
#include <memory>

#include "interpose/state/state.h"
#include "interpose/track/graph_plan.h"

namespace tessera::track {

inline constexpr size_t kMostPlanBytes = size_t{64} << 20;

// Where a graph was launched: an executable graph never runs beside itself.
struct GraphLaunched {
  enum class How : uint32_t { kNever, kWhole, kPieces } how = How::kNever;
  uint64_t stream = 0;        // key; of per-thread streams one for each thread
  uint64_t streams_gone = 0;  // count of destroyed streams then: a later stream may have the same handle
  bool same_stream(const GraphLaunched& other) const {
    return stream == other.stream && streams_gone == other.streams_gone;
  }
};

struct ExecutableGraph {
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // of all below; held while it is launched,
  std::atomic<const void*> launching{nullptr};       // by this thread (the address of its state)
  GraphPlan plan;
  GraphObstacle obstacle = GraphObstacle::kNone;  // not kNone: it goes whole from now on
  bool was_disabled = false;                      // some node of it, at some time
  CUcontext context = nullptr;                    // that it was made in
  GraphLaunched last;
  CUevent pieces_end = nullptr;  // recorded behind the pieces of a launch; made when first needed
  size_t counted_bytes = 0;      // of the plan, against kMostPlanBytes
};

// The lock for a launch, which waits for launches of other threads: the graph runs once at a time. None for a signal
// handler whose own thread has it.
class GraphTurn {
 public:
  explicit GraphTurn(ExecutableGraph& graph) {
    if (graph.launching.load(std::memory_order_relaxed) == &state::t_thread) return;
    pthread_mutex_lock(&graph.lock);
    graph.launching.store(&state::t_thread, std::memory_order_relaxed);
    graph_ = &graph;
  }
  ~GraphTurn() {
    if (!graph_) return;
    graph_->launching.store(nullptr, std::memory_order_relaxed);
    pthread_mutex_unlock(&graph_->lock);
  }
  GraphTurn(const GraphTurn&) = delete;
  explicit operator bool() const { return graph_ != nullptr; }

 private:
  ExecutableGraph* graph_ = nullptr;
};

extern constinit std::atomic<uint32_t> g_known_graphs;  // entries of the table
extern constinit std::atomic<uint64_t> g_streams_gone;

// Null: it goes whole.
std::shared_ptr<ExecutableGraph> find_graph(CUgraphExec exec) noexcept;

void graph_made(CUgraphExec exec, CUgraph graph, unsigned long long flags) noexcept;
void graph_destroyed(CUgraphExec exec) noexcept;   // before the driver's call
void graphs_end_with(CUcontext context) noexcept;  // null: every context
void user_object_retained() noexcept;              // by some graph of the program

// After the driver's call, with its result. A change that the driver refused leaves the graph whole: what it did to
// other nodes before is documented nowhere.
void graph_updated(CUgraphExec exec, CUgraph graph, CUresult result) noexcept;
void graph_kernel_set(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params,
                      CUresult result) noexcept;
void graph_copy_set(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D* params,
                    CUresult result) noexcept;
void graph_fill_set(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* params,
                    CUresult result) noexcept;
void graph_host_set(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params,
                    CUresult result) noexcept;
void graph_event_set(CUgraphExec exec, CUgraphNode node, CUevent event, CUresult result) noexcept;
void graph_child_set(CUgraphExec exec, CUgraphNode node, CUgraph child, CUresult result) noexcept;
void graph_node_enabled(CUgraphExec exec, CUgraphNode node, bool enabled, CUresult result) noexcept;
void graph_unknown_change(CUgraphExec exec) noexcept;

}  // namespace tessera::track

// Executable graphs that may be launched in pieces: what each does now, and where it was launched last. Only of
// best-effort programs. Hooks tell of every graph that is made, changed or destroyed; a graph that is not here goes
// whole. What a graph does is read when a launch asks for it, or before it could no longer be read (graph_sources.h).
// Slow path, may allocate and lock; any thread; nothing throws. Memory: kMostPlanBytes for all plans.
//
// Locks, in this order: g_graph_calls (graph_sources.h), one graph's, the table's. A launch, which has its graph's, only
// tries for the first.
#pragma once

#include <pthread.h>

#include <atomic>
#include <memory>

#include "interpose/state/state.h"
#include "interpose/track/graph_plan.h"
#include "interpose/track/graph_runs.h"
#include "interpose/track/graph_sources.h"

namespace tessera::track {

inline constexpr size_t kMostPlanBytes = size_t{64} << 20;

// The stream of a launch: an executable graph never runs beside itself.
struct GraphLaunched {
  enum class How : uint32_t { kNever, kWhole, kPieces } how = How::kNever;
  uint64_t stream = 0;        // key; of per-thread streams one for each thread
  uint64_t streams_gone = 0;  // count of destroyed streams then: a later stream may have the same handle
  bool same_stream(const GraphLaunched& other) const {
    return stream == other.stream && streams_gone == other.streams_gone;
  }
};

uint64_t next_graph_serial() noexcept;  // from 1

struct ExecutableGraph {
  uint64_t const serial = next_graph_serial();       // never that of another
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // of all below; held while it is launched,
  std::atomic<const void*> launching{nullptr};       // by this thread (the address of its state)
  GraphPlan plan;                                    // void while there is a source:
  std::shared_ptr<GraphSource> source;               // to be read; null: done
  GraphRuns runs;                                    // of the plan
  std::atomic<bool> unread{false};                   // whether there is one; changes under the lock
  GraphObstacle obstacle = GraphObstacle::kNone;     // not kNone: it goes whole from now on
  bool was_disabled = false;                         // some node of it, at some time
  std::atomic<bool> has_own_state{false};            // it may be other than its source; stays
  CUcontext context = nullptr;                       // that it was made in
  bool node_priorities = false;                      // its flags say so
  GraphLaunched last;
  CUevent pieces_end = nullptr;  // recorded behind the pieces of a launch; made when first needed
  std::vector<CUevent> events;   // between lanes, and one more; the same
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
void graph_destroyed(CUgraphExec exec) noexcept;    // before the driver's call
void graphs_end_with(CUcontext context) noexcept;   // null: every context
void user_object_retained(CUgraph graph) noexcept;  // before the driver's call

// Before the driver's call, what is not read yet is read: of executable graphs made from `graph`, which changes (null:
// some graph does), or of all, because kernels or a context that they name may go.
void graph_changes(CUgraph graph) noexcept;
void graphs_lose_what_they_name() noexcept;
// A graph inside a graph has got a name, by which the outer one may change, or end: graphs are read when they are made.
void inner_graph_named() noexcept;
// Before a launch into a capture, which becomes a graph inside the captured one. What of the executable graph's own state is
// in there, and what of that can be read, no driver documents: from then on graphs that may have such a one inside go whole.
// Null: one that nothing is known of.
void graph_captured(CUgraphExec exec) noexcept;
// The program destroys a graph. False: `*result` is what it is told, and the driver is not called.
bool graph_ends(CUgraph graph, CUresult* result) noexcept;

// Under the graph's lock, for a launch in the graph's context. False: not now, it goes whole.
bool ready_for_pieces(ExecutableGraph& graph) noexcept;
// The same for branches side by side: makes the events between lanes. False: one lane.
bool lanes_have_events(ExecutableGraph& graph) noexcept;

// After the driver's call, with its result. A change that the driver refused leaves the graph whole: what it did to
// other nodes before is documented nowhere.
void graph_updated(CUgraphExec exec, CUgraph graph, CUresult result) noexcept;
void graph_kernel_set(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params,
                      CUresult result) noexcept;
void graph_copy_set(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D* params, CUcontext context,
                    CUresult result) noexcept;
void graph_fill_set(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* params,
                    CUcontext context, CUresult result) noexcept;
void graph_host_set(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params,
                    CUresult result) noexcept;
void graph_memory_ops_set(CUgraphExec exec, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS* params,
                          CUresult result) noexcept;
void graph_event_set(CUgraphExec exec, CUgraphNode node, CUevent event, CUresult result) noexcept;
void graph_child_set(CUgraphExec exec, CUgraphNode node, CUgraph child, CUresult result) noexcept;
void graph_node_enabled(CUgraphExec exec, CUgraphNode node, bool enabled, CUresult result) noexcept;
void graph_unknown_change(CUgraphExec exec) noexcept;

}  // namespace tessera::track

#include "interpose/track/graphs.h"

#include <new>
#include <unordered_map>

#include "base/raw_log.h"
#include "driver_api/ask.h"
#include "interpose/gate/cover.h"
#include "interpose/gate/graph_class.h"
#include "interpose/state/config.h"
#include "interpose/state/lock.h"
#include "interpose/state/process.h"
#include "interpose/state/state.h"
#include "interpose/track/graph_read.h"
#include "interpose/track/graph_streams.h"
#include "interpose/track/reasons.h"

namespace tessera::track {
namespace {

using driver_api::real;
using Table = std::unordered_map<CUgraphExec, std::shared_ptr<ExecutableGraph>>;

pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;  // of the two below; the innermost lock
constinit Table* g_table = nullptr;  // never freed: threads may launch while the program exits
constinit size_t g_plan_bytes = 0;
pthread_mutex_t g_reading =
    PTHREAD_MUTEX_INITIALIZER;  // held while a graph is read; below it only the driver
constinit std::atomic<bool> g_user_objects{false};
constinit std::atomic<bool> g_inner_graphs{false};  // the program can name graphs inside graphs
constinit std::atomic<bool> g_missed{false};        // something changed that should have been read before
constinit std::atomic<bool> g_inner_states{
    false};  // graphs inside graphs may have states that cannot be read

bool best_effort() {
  return state::live() && state::config().priority == 0;
}

void note_whole(GraphObstacle obstacle) {
  count_refusal(obstacle);
  base::raw_log(base::LogLevel::kDebug, "a graph is launched whole: %s", name_of(obstacle));
}

// Another amount of memory for the plan of one graph. False: too much, it counts as none.
bool account_for(ExecutableGraph& graph, size_t bytes) {
  const state::Lock lock(g_mutex);
  g_plan_bytes -= graph.counted_bytes;
  graph.counted_bytes = g_plan_bytes + bytes <= kMostPlanBytes ? bytes : 0;
  g_plan_bytes += graph.counted_bytes;
  return graph.counted_bytes == bytes;
}

// Under the graph's lock, as all of these.
void set_source(ExecutableGraph& graph, std::shared_ptr<GraphSource> source) {
  graph.unread.store(source != nullptr, std::memory_order_relaxed);
  graph.source = std::move(source);  // may destroy the last one
}

// It stays in the table: pieces of it may still run.
void make_whole(ExecutableGraph& graph, GraphObstacle obstacle) {
  if (graph.obstacle != GraphObstacle::kNone) return;
  graph.obstacle = obstacle;
  graph.plan = {};
  graph.runs.forget();
  set_source(graph, nullptr);
  account_for(graph, 0);
  note_whole(obstacle);
}

// Its context is current meanwhile: memory is asked about.
class InContext {
 public:
  explicit InContext(CUcontext context) {
    CUcontext current = nullptr;
    if (real().cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != context)
      pushed_ = real().cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
  }
  ~InContext() {
    CUcontext context = nullptr;
    if (pushed_) (void)real().cuCtxPopCurrent_v2(&context);
  }
  InContext(const InContext&) = delete;

 private:
  bool pushed_ = false;
};

// Our calls into the driver, while no capture is open.
class InDriver {
 public:
  InDriver() : inside_(state::enter_driver()) {}
  ~InDriver() {
    if (inside_) state::leave_driver();
  }
  InDriver(const InDriver&) = delete;
  explicit operator bool() const { return inside_; }

 private:
  bool const inside_;
};

// One that has a name is read as any other.
bool may_have_inner_state(const GraphPlan& plan) {
  return g_inner_states.load(std::memory_order_relaxed) &&
         (!plan.children.empty() || g_inner_graphs.load(std::memory_order_relaxed));
}

// Reads `graph` with all allocation inside, for whoever is in the driver.
GraphObstacle read(CUgraph graph, const ExecutableGraph& of, GraphPlan& plan) noexcept {
  const state::Lock one_at_a_time(g_reading);  // two executable graphs may have one source
  try {
    const InContext in_context(of.context);
    const GraphObstacle bad = read_graph(graph, of.context, of.node_priorities, plan);
    return bad == GraphObstacle::kNone && may_have_inner_state(plan) ? GraphObstacle::kState : bad;
  } catch (const std::bad_alloc&) {
    return GraphObstacle::kLimit;
  }
}

// The plan of `from`, on which nobody makes a call meanwhile.
void learn(ExecutableGraph& graph, CUgraph from) {
  GraphPlan plan;
  GraphObstacle obstacle = read(from, graph, plan);
  if (obstacle == GraphObstacle::kNone && !account_for(graph, plan.size_bytes()))
    obstacle = GraphObstacle::kLimit;
  if (obstacle != GraphObstacle::kNone) return make_whole(graph, obstacle);
  graph.plan = std::move(plan);
  graph.runs.forget();
  set_source(graph, nullptr);
}

// Outside of any GraphCall and of the graph's lock.
void learn_now(ExecutableGraph& graph) {
  if (!graph.unread.load(std::memory_order_relaxed)) return;
  pthread_rwlock_wrlock(&g_graph_calls);
  {
    const state::Lock lock(graph.lock);
    const InDriver in_driver;
    if (graph.source && in_driver && !g_missed.load(std::memory_order_relaxed))
      learn(graph, graph.source->graph);
    else if (graph.source)
      make_whole(graph, GraphObstacle::kNotRead);
  }
  pthread_rwlock_unlock(&g_graph_calls);
}

// A protected program's graph is read for this alone.
void note_class(CUgraphExec exec, CUgraph graph) {
  const InDriver in_driver;
  if (!in_driver || !graph) return;
  try {
    gate::note_graph_class(reinterpret_cast<uint64_t>(exec), class_of_graph(graph));
  } catch (const std::bad_alloc&) {
  }
}

// All of `graphs()`, which may find no memory to list them.
template <class F>
void learn_all(F&& graphs) {
  try {
    for (const std::shared_ptr<ExecutableGraph>& graph : graphs()) learn_now(*graph);
  } catch (const std::bad_alloc&) {
    g_missed.store(true, std::memory_order_relaxed);
  }
}

// Within the program's call on `source`: that is what the graph does from now on.
void follow_source(const std::shared_ptr<ExecutableGraph>& graph, CUgraph source) {
  const InDriver in_driver;  // what a capture adds to a graph is not seen
  if (!in_driver) return make_whole(*graph, GraphObstacle::kNotRead);
  if (g_inner_graphs.load(std::memory_order_relaxed)) return learn(*graph, source);
  graph->plan = {};
  graph->runs.forget();
  account_for(*graph, 0);
  set_source(*graph, graph_source(source, graph));
}

std::shared_ptr<ExecutableGraph> remove(CUgraphExec exec) {
  const state::Lock lock(g_mutex);
  if (!g_table) return nullptr;
  const auto at = g_table->find(exec);
  if (at == g_table->end()) return nullptr;
  std::shared_ptr<ExecutableGraph> graph = std::move(at->second);
  g_table->erase(at);
  g_plan_bytes -= graph->counted_bytes;
  graph->counted_bytes = 0;
  g_known_graphs.fetch_sub(1, std::memory_order_relaxed);
  return graph;
}

GraphObstacle add(CUgraphExec exec, CUgraph source, unsigned long long flags) {
  if (const GraphObstacle bad = obstacle_of_flags(flags); bad != GraphObstacle::kNone) return bad;
  if (g_user_objects.load(std::memory_order_relaxed)) return GraphObstacle::kUserObject;
  auto graph = std::make_shared<ExecutableGraph>();
  if (!driver_api::made(graph->context, real().cuCtxGetCurrent) || !graph->context)
    return GraphObstacle::kContext;
  graph->node_priorities = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY) != 0;
  graph->has_own_state.store(graph->node_priorities, std::memory_order_relaxed);
  follow_source(graph, source);
  if (graph->obstacle != GraphObstacle::kNone) return GraphObstacle::kNone;  // which is counted
  const state::Lock lock(g_mutex);
  if (!g_table) g_table = new Table;
  (*g_table)[exec] = std::move(graph);
  g_known_graphs.fetch_add(1, std::memory_order_relaxed);
  return GraphObstacle::kNone;
}

// The graph that a call changes, or tries to. Null: it goes whole.
std::shared_ptr<ExecutableGraph> changed(CUgraphExec exec) noexcept {
  std::shared_ptr<ExecutableGraph> graph = find_graph(exec);
  if (graph) graph->has_own_state.store(true, std::memory_order_relaxed);
  return graph;
}

// A change of one graph: `change` says what is in the way afterwards.
template <class F>
void follow(CUgraphExec exec, CUresult result, F&& change) noexcept {
  const std::shared_ptr<ExecutableGraph> graph = changed(exec);
  if (!graph) return;
  learn_now(*graph);
  const state::Lock lock(graph->lock);
  if (graph->obstacle != GraphObstacle::kNone) return;
  graph->runs.forget();
  GraphObstacle obstacle = GraphObstacle::kUpdate;
  if (result == CUDA_SUCCESS) {
    try {
      obstacle = change(*graph);
      graph->plan.sum_calls();
    } catch (const std::bad_alloc&) {
      obstacle = GraphObstacle::kLimit;
    }
  }
  if (obstacle != GraphObstacle::kNone) make_whole(*graph, obstacle);
}

// The same for the step of one node, which is of kind `Step`.
template <class Step, class F>
void follow_step(CUgraphExec exec, CUgraphNode node, CUresult result, F&& change) noexcept {
  follow(exec, result, [&](ExecutableGraph& graph) {
    GraphStep* step = graph.plan.find(node);
    Step* work = step ? std::get_if<Step>(&step->work) : nullptr;
    return work ? change(graph, *work) : GraphObstacle::kUpdate;
  });
}

}  // namespace

constinit std::atomic<uint32_t> g_known_graphs{0};
constinit std::atomic<uint64_t> g_streams_gone{0};

uint64_t next_graph_serial() noexcept {
  static constinit std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

std::shared_ptr<ExecutableGraph> find_graph(CUgraphExec exec) noexcept {
  if (g_known_graphs.load(std::memory_order_relaxed) == 0) return nullptr;
  const state::Lock lock(g_mutex);
  const auto at = g_table->find(exec);
  return at == g_table->end() ? nullptr : at->second;
}

void graph_made(CUgraphExec exec, CUgraph graph, unsigned long long flags) noexcept {
  if (!best_effort()) return note_class(exec, graph);
  remove(exec);  // of a context that ended without its graphs being destroyed
  GraphObstacle obstacle = GraphObstacle::kLimit;
  try {
    obstacle = add(exec, graph, flags);
  } catch (const std::bad_alloc&) {
  }
  if (obstacle != GraphObstacle::kNone) note_whole(obstacle);
}

void graph_destroyed(CUgraphExec exec) noexcept {
  const std::shared_ptr<ExecutableGraph> graph = remove(exec);
  if (!graph) return;
  const state::Lock lock(graph->lock);
  set_source(*graph, nullptr);
  graph->runs.forget();
  if (graph->pieces_end) real().cuEventDestroy_v2(graph->pieces_end);  // what waits for it goes on waiting
  for (const CUevent event : graph->events) real().cuEventDestroy_v2(event);
  graph->pieces_end = nullptr;
  graph->events.clear();
}

void graphs_end_with(CUcontext context) noexcept {
  streams_end_with(context);
  const state::Lock lock(g_mutex);
  if (!g_table) return;
  std::erase_if(*g_table, [&](const auto& entry) {
    if (context && entry.second->context != context) return false;
    g_plan_bytes -= entry.second->counted_bytes;
    g_known_graphs.fetch_sub(1, std::memory_order_relaxed);
    return true;
  });
}

// Its end is to be that of the graph.
void user_object_retained(CUgraph graph) noexcept {
  g_user_objects.store(true, std::memory_order_relaxed);
  graph_changes(graph);
}

void graph_changes(CUgraph graph) noexcept {
  learn_all([&] { return users_of_source(graph); });
}

void inner_graph_named() noexcept {
  g_inner_graphs.store(true, std::memory_order_relaxed);
  graph_changes(nullptr);
}

void graph_captured(CUgraphExec exec) noexcept {
  const std::shared_ptr<ExecutableGraph> graph = exec ? find_graph(exec) : nullptr;
  if (!graph || graph->has_own_state.load(std::memory_order_relaxed))
    g_inner_states.store(true, std::memory_order_relaxed);
}

void graphs_lose_what_they_name() noexcept {
  if (g_known_graphs.load(std::memory_order_relaxed) == 0) return;
  learn_all([] {
    std::vector<std::shared_ptr<ExecutableGraph>> unread;
    const state::Lock lock(g_mutex);
    for (const auto& [exec, graph] : *g_table)
      if (graph->unread.load(std::memory_order_relaxed)) unread.push_back(graph);
    return unread;
  });
}

bool graph_ends(CUgraph graph, CUresult* result) noexcept {
  SourceEnd end;
  {
    const GraphCall call;
    end = source_ends(graph, !g_user_objects.load(std::memory_order_relaxed));
  }
  if (end == SourceEnd::kRead) graph_changes(graph);
  *result = end == SourceEnd::kKept ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  return end == SourceEnd::kDestroy || end == SourceEnd::kRead;
}

bool ready_for_pieces(ExecutableGraph& graph) noexcept {
  if (graph.obstacle != GraphObstacle::kNone) return false;
  if (!graph.source) return true;
  const InDriver in_driver;
  if (!in_driver || g_missed.load(std::memory_order_relaxed)) return false;
  const bool ours = graph.source->kept.load(std::memory_order_acquire);  // pairs with source_ends
  if (!ours && pthread_rwlock_trywrlock(&g_graph_calls) != 0) return false;
  learn(graph, graph.source->graph);
  if (!ours) pthread_rwlock_unlock(&g_graph_calls);
  return graph.obstacle == GraphObstacle::kNone;
}

bool lanes_have_events(ExecutableGraph& graph) noexcept {
  const size_t wanted = graph.plan.lanes.n_events + 1;
  try {
    graph.events.reserve(wanted);
  } catch (const std::bad_alloc&) {
    return false;
  }
  while (graph.events.size() < wanted) {
    CUevent event = nullptr;
    if (real().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return false;
    graph.events.push_back(event);
  }
  return true;
}

void graph_updated(CUgraphExec exec, CUgraph source, CUresult result) noexcept {
  const std::shared_ptr<ExecutableGraph> graph = changed(exec);
  if (!graph) return;
  const state::Lock lock(graph->lock);
  if (graph->obstacle != GraphObstacle::kNone) return;
  // The driver is not asked which nodes are disabled.
  if (result != CUDA_SUCCESS || graph->was_disabled) return make_whole(*graph, GraphObstacle::kUpdate);
  try {
    follow_source(graph, source);
  } catch (const std::bad_alloc&) {
    make_whole(*graph, GraphObstacle::kLimit);
  }
}

void graph_kernel_set(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params,
                      CUresult result) noexcept {
  follow_step<KernelStep>(exec, node, result, [&](ExecutableGraph& graph, KernelStep& step) {
    return take_kernel(*params, graph.context, step);
  });
}

void graph_copy_set(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D* params, CUcontext context,
                    CUresult result) noexcept {
  follow_step<CopyStep>(exec, node, result, [&](ExecutableGraph& graph, CopyStep& step) {
    return take_copy(*params, context, graph.context, step);
  });
}

void graph_fill_set(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* params,
                    CUcontext context, CUresult result) noexcept {
  follow_step<FillStep>(exec, node, result, [&](ExecutableGraph& graph, FillStep& step) {
    return take_fill(*params, context, graph.context, step);
  });
}

void graph_host_set(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params,
                    CUresult result) noexcept {
  follow_step<HostStep>(exec, node, result, [&](ExecutableGraph&, HostStep& step) {
    step.call = *params;
    return GraphObstacle::kNone;
  });
}

void graph_memory_ops_set(CUgraphExec exec, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS* params,
                          CUresult result) noexcept {
  follow_step<MemoryOpsStep>(exec, node, result, [&](ExecutableGraph& graph, MemoryOpsStep& step) {
    return take_memory_ops(*params, graph.context, step);
  });
}

void graph_event_set(CUgraphExec exec, CUgraphNode node, CUevent event, CUresult result) noexcept {
  gate::leave_to_others(event);
  follow_step<EventStep>(exec, node, result, [&](ExecutableGraph&, EventStep& step) {
    step.event = event;
    return GraphObstacle::kNone;
  });
}

void graph_child_set(CUgraphExec exec, CUgraphNode node, CUgraph child, CUresult result) noexcept {
  follow(exec, result, [&](ExecutableGraph& graph) {
    if (graph.was_disabled) return GraphObstacle::kUpdate;
    const InDriver in_driver;
    GraphPlan plan;
    const GraphObstacle bad = in_driver ? read(child, graph, plan) : GraphObstacle::kNotRead;
    if (bad != GraphObstacle::kNone) return bad;
    if (!graph.plan.replace_child(node, std::move(plan))) return GraphObstacle::kUpdate;
    return account_for(graph, graph.plan.size_bytes()) ? GraphObstacle::kNone : GraphObstacle::kLimit;
  });
}

void graph_node_enabled(CUgraphExec exec, CUgraphNode node, bool enabled, CUresult result) noexcept {
  follow(exec, result, [&](ExecutableGraph& graph) {
    GraphStep* step = graph.plan.find(node);
    if (!step) return GraphObstacle::kUpdate;
    step->enabled = enabled;
    graph.was_disabled |= !enabled;
    return GraphObstacle::kNone;
  });
}

void graph_unknown_change(CUgraphExec exec) noexcept {
  follow(exec, CUDA_SUCCESS, [](ExecutableGraph&) { return GraphObstacle::kUpdate; });
}

}  // namespace tessera::track

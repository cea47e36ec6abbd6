#include "softgpu/driver/graph.h"

#include <algorithm>
#include <unordered_map>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"

namespace tessera::softgpu::driver {

namespace {

Node* append(Graph& graph, Command command, std::vector<Node*> deps) {
  auto node = std::make_unique<Node>();
  node->graph = &graph;
  node->command = std::move(command);
  node->deps = std::move(deps);
  Node* raw = node.get();
  graph.nodes.push_back(std::move(node));
  driver().nodes.add(std::shared_ptr<Node>(raw, [](Node*) {}));  // the graph owns it
  return raw;
}

}  // namespace

Node* add_node(Graph& graph, Command command, std::vector<Node*> deps) {
  std::lock_guard lock(graph.mutex);
  return append(graph, std::move(command), std::move(deps));
}

std::shared_ptr<Graph> make_graph() {
  auto graph = std::make_shared<Graph>();
  driver().graphs.add(graph);
  return graph;
}

Node* find_node(CUgraphNode handle) {
  return driver().nodes.find(handle).get();
}

std::shared_ptr<Graph> clone_graph(const Graph& graph) {
  std::lock_guard lock(graph.mutex);
  std::shared_ptr<Graph> copy = make_graph();  // that nobody else has
  std::unordered_map<const Node*, Node*> map;
  for (const auto& node : graph.nodes) {
    Node* made = append(*copy, clone_command(node->command), {});
    made->enabled = node->enabled;
    made->origin = node.get();
    made->context = node->context;
    map[node.get()] = made;
  }
  for (const auto& node : graph.nodes)
    for (Node* dep : node->deps) map[node.get()]->deps.push_back(map[dep]);
  copy->user_objects = graph.user_objects;
  copy->conditions = graph.conditions;
  return copy;
}

Command clone_command(const Command& original) {
  Command command = original;
  if (auto* child = std::get_if<ChildCommand>(&command)) child->graph = clone_graph(*child->graph);
  if (auto* conditional = std::get_if<ConditionalCommand>(&command)) {
    for (size_t i = 0; i < conditional->bodies.size(); ++i) {
      conditional->bodies[i] = clone_graph(*conditional->bodies[i]);
      conditional->handles[i] = reinterpret_cast<CUgraph>(conditional->bodies[i].get());
    }
  }
  return command;
}

void destroy_graph(const std::shared_ptr<Graph>& graph) {
  driver().graphs.remove(graph.get());
  std::lock_guard lock(graph->mutex);
  for (const auto& node : graph->nodes) {
    driver().nodes.remove(node.get());
    if (auto* child = std::get_if<ChildCommand>(&node->command)) destroy_graph(child->graph);
    if (auto* conditional = std::get_if<ConditionalCommand>(&node->command))
      for (const auto& body : conditional->bodies) destroy_graph(body);
  }
}

std::vector<Node*> topological_order(const Graph& graph) {
  std::lock_guard lock(graph.mutex);
  std::unordered_map<const Node*, size_t> missing;
  std::unordered_map<const Node*, std::vector<Node*>> dependents;
  std::vector<Node*> order;
  for (const auto& node : graph.nodes) {
    missing[node.get()] = node->deps.size();
    for (Node* dep : node->deps) dependents[dep].push_back(node.get());
    if (node->deps.empty()) order.push_back(node.get());
  }
  for (size_t i = 0; i < order.size(); ++i)
    for (Node* next : dependents[order[i]])
      if (--missing[next] == 0) order.push_back(next);
  if (order.size() != graph.nodes.size()) order.clear();
  return order;
}

namespace {

// A kernel runs where its code is loaded, on whatever device the graph was launched; the rest, where that is.
std::shared_ptr<Context> context_of(const Command& command, const std::shared_ptr<Context>& launching) {
  const auto* kernel = std::get_if<KernelCommand>(&command);
  if (!kernel || kernel->function->module->context == launching.get()) return launching;
  std::shared_ptr<Context> own = driver().contexts.find(kernel->function->module->context);
  return own ? own : launching;
}

// Submits the nodes of a graph behind `begin`; returns what everything in it is complete with.
std::vector<OpRef> submit_nodes(const std::shared_ptr<Context>& context, Graph& graph,
                                const std::vector<OpRef>& begin, const Stream& stream) {
  std::unordered_map<const Node*, std::vector<OpRef>> ends;
  std::vector<OpRef> all;
  for (Node* node : topological_order(graph)) {
    std::vector<OpRef> deps;
    if (node->deps.empty()) deps = begin;
    for (const Node* dep : node->deps) deps.insert(deps.end(), ends[dep].begin(), ends[dep].end());
    std::vector<OpRef>& mine = ends[node];
    if (auto* child = std::get_if<ChildCommand>(&node->command); child && node->enabled) {
      mine = submit_nodes(context, *child->graph, deps, stream);
      if (mine.empty()) mine = std::move(deps);
    } else if (auto* wait = std::get_if<EventWaitCommand>(&node->command)) {
      deps.push_back(wait_for_event(context, *wait->event, stream));
      mine = {submit_join(context, std::move(deps), stream)};
    } else if (auto* record = std::get_if<EventRecordCommand>(&node->command)) {
      mine = {submit_record(context, *record->event, std::move(deps), stream)};
    } else if (!node->enabled) {
      mine = {submit_join(context, std::move(deps), stream)};
    } else {
      mine = {submit(context_of(node->command, context), node->command, std::move(deps), stream)};
    }
    all.insert(all.end(), mine.begin(), mine.end());
  }
  return all;
}

}  // namespace

CUresult launch_graph(const std::shared_ptr<Context>& context, const std::shared_ptr<Stream>& stream,
                      const std::shared_ptr<GraphExec>& exec) {
  std::unique_lock lock(context->mutex);
  context->launches_allowed.wait(lock, [&] { return stream->capture || context->n_barring == 0; });
  if (stream->capture) return add_captured_node_locked(*stream, ChildCommand{clone_graph(*exec->graph)});
  if (CUresult implicit = check_implicit_locked(*context, *stream)) return implicit;
  std::lock_guard graph_lock(exec->graph->mutex);
  std::vector<OpRef> begin = dependencies_locked(*context, *stream);
  begin.push_back(exec->last);  // an executable graph never runs beside itself
  std::vector<std::shared_ptr<Condition>> reset;
  for (const auto& condition : exec->graph->conditions)
    if (condition->assign_default) reset.push_back(condition);
  if (!reset.empty()) begin = {submit(context, SetConditionsCommand{reset}, std::move(begin), *stream)};
  std::vector<OpRef> all = submit_nodes(context, *exec->graph, begin, *stream);
  if (all.empty()) all = std::move(begin);
  // The graph's resources stay until its work is done, even if the executable graph is destroyed before.
  stream->tail = submit(context, EmptyCommand{exec}, std::move(all), *stream);
  exec->last = stream->tail;
  return CUDA_SUCCESS;
}

int run_conditional(const std::shared_ptr<Context>& context, const ConditionalCommand& command,
                    const Stream& stream) {
  std::atomic_ref<uint32_t> value(*command.condition->word);
  auto run = [&](const std::shared_ptr<Graph>& body) {
    std::vector<OpRef> all;
    {
      std::lock_guard lock(body->mutex);
      all = submit_nodes(context, *body, {}, stream);
    }
    return all.empty() ? 0 : int(wait_all(*context, all));
  };
  const uint32_t now = value.load(std::memory_order_acquire);
  switch (command.type) {
    case CU_GRAPH_COND_TYPE_IF:
      if (now) return run(command.bodies[0]);
      return command.bodies.size() > 1 ? run(command.bodies[1]) : 0;
    case CU_GRAPH_COND_TYPE_WHILE:
      while (value.load(std::memory_order_acquire)) {
        if (const int code = run(command.bodies[0])) return code;
        if (const int code = context->poisoned.load(std::memory_order_acquire)) return code;
      }
      return 0;
    case CU_GRAPH_COND_TYPE_SWITCH:
      return now < command.bodies.size() ? run(command.bodies[now]) : 0;
  }
  return 0;
}

CUgraphNodeType type_of(const Command& command) {
  struct Types {
    CUgraphNodeType operator()(const KernelCommand&) { return CU_GRAPH_NODE_TYPE_KERNEL; }
    CUgraphNodeType operator()(const CopyCommand&) { return CU_GRAPH_NODE_TYPE_MEMCPY; }
    CUgraphNodeType operator()(const MemsetCommand&) { return CU_GRAPH_NODE_TYPE_MEMSET; }
    CUgraphNodeType operator()(const HostCommand&) { return CU_GRAPH_NODE_TYPE_HOST; }
    CUgraphNodeType operator()(const MemOpCommand&) { return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP; }
    CUgraphNodeType operator()(const FreeCommand&) { return CU_GRAPH_NODE_TYPE_MEM_FREE; }
    CUgraphNodeType operator()(const AllocCommand&) { return CU_GRAPH_NODE_TYPE_MEM_ALLOC; }
    CUgraphNodeType operator()(const EventRecordCommand&) { return CU_GRAPH_NODE_TYPE_EVENT_RECORD; }
    CUgraphNodeType operator()(const EventWaitCommand&) { return CU_GRAPH_NODE_TYPE_WAIT_EVENT; }
    CUgraphNodeType operator()(const SharedRecordCommand&) { return CU_GRAPH_NODE_TYPE_EVENT_RECORD; }
    CUgraphNodeType operator()(const SharedWaitCommand&) { return CU_GRAPH_NODE_TYPE_WAIT_EVENT; }
    CUgraphNodeType operator()(const ChildCommand&) { return CU_GRAPH_NODE_TYPE_GRAPH; }
    CUgraphNodeType operator()(const ConditionalCommand&) { return CU_GRAPH_NODE_TYPE_CONDITIONAL; }
    CUgraphNodeType operator()(const SetConditionsCommand&) { return CU_GRAPH_NODE_TYPE_EMPTY; }
    CUgraphNodeType operator()(const EmptyCommand&) { return CU_GRAPH_NODE_TYPE_EMPTY; }
  };
  return std::visit(Types{}, command);
}

}  // namespace tessera::softgpu::driver
